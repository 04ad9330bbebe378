# Which lines and branches the tests run: the suite, built with gcc's counters in $(BUILD)/coverage, and
# gcovr's reading of them. A process that is killed, as tests of crashes do, counts for nothing.
# Counters that a kill left torn are told of in gcov.log, not where a test would read it.
# Kernels have no counters: they would take hours, and are held to a table of cases of their own.

GCOVR ?= gcovr

.PHONY: coverage coverage-report

coverage: ## run the tests and tell which lines and branches of src/ they reach; T=name as for test
	@command -v $(GCOVR) >/dev/null || { echo "make coverage: $(GCOVR) is missing (scripts/setup coverage)" >&2; exit 2; }
	@find '$(BUILD)/coverage' -name '*.gcda' -delete 2>/dev/null || true
	@GCOV_ERROR_FILE='$(abspath $(BUILD))/coverage/gcov.log' $(MAKE) COVERAGE=1 test T='$(T)' || echo "make coverage: a test failed; what follows is of this run" >&2
	@$(MAKE) coverage-report

# Of the counts that are there.
coverage-report:
	@$(GCOVR) --root . --object-directory '$(BUILD)/coverage' --filter 'src/' --exclude-throw-branches \
		--gcov-ignore-parse-errors --json '$(BUILD)/coverage/gcovr.json' '$(BUILD)/coverage/obj'
	@$(PYTHON) scripts/coverage.py '$(BUILD)/coverage/gcovr.json' '$(BUILD)/coverage/uncovered.txt'
