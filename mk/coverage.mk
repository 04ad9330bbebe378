# Which lines and branches the tests run: the suite, built with gcc's counters in $(BUILD)/coverage, and
# gcov's reading of them. A process that is killed, as tests of crashes do, counts for nothing.
# Counters that a kill left torn are told of in gcov.log, not where a test would read it.
# Kernels have no counters: they would take hours, and are held to a table of cases of their own.

export GCOV ?= gcov

.PHONY: coverage coverage-report

coverage: ## run the tests and tell which lines and branches of src/ they reach; T=name and TORCH=no as for test
	@command -v $(GCOV) >/dev/null || { echo "make coverage: $(GCOV), which is part of gcc, is missing (GCOV=...)" >&2; exit 2; }
	@find '$(BUILD)/coverage' -name '*.gcda' -delete 2>/dev/null || true
	@GCOV_ERROR_FILE='$(abspath $(BUILD))/coverage/gcov.log' $(MAKE) COVERAGE=1 test T='$(T)' TORCH='$(TORCH)' || echo "make coverage: a test failed; what follows is of this run" >&2
	@$(MAKE) coverage-report

# Of the counts that are there.
coverage-report:
	@$(PYTHON) scripts/coverage.py '$(BUILD)/coverage/obj' '$(BUILD)/coverage/uncovered.txt'
