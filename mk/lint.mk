# Lint: layout, static analysis, and warnings as errors under gcc and clang. Every file is its own
# target, so that all cores work and only what changed is looked at again.

CLANG_TIDY ?= clang-tidy
CLANG_FORMAT ?= clang-format
CPPCHECK ?= cppcheck
SHELLCHECK ?= shellcheck

LINT := $(BUILD)/lint
LINT_SOURCES := $(LIB_SOURCES) $(PROGRAM_SOURCES) $(TEST_SUPPORT) $(FUZZ_SOURCES) $(TEST_SOURCES) $(BENCH_SOURCES) $(EXAMPLE_SOURCES)
LINT_HEADERS := $(sort $(wildcard include/weft/*.h src/*/*.h src/*/*.def tests/*/*.h))
# These are Python.
LINT_SCRIPTS := $(filter-out %.py scripts/corpus scripts/export scripts/site,$(wildcard completions/*.bash scripts/* .ci/run tests/run tests/mutate tests/fuzz/run tests/hostile/run tests/figures tests/packages bench/run))
FORMATTED := $(LINT_SOURCES) $(filter-out %.def,$(LINT_HEADERS)) $(wildcard $(foreach d,src/cuda src/cuda/*,$(d)/*.cu $(d)/*.cuh))

.PHONY: lint format lint-order lint-format lint-tools lint-scripts tidy cppcheck lint-gcc lint-clang

lint: lint-order lint-format lint-scripts tidy cppcheck lint-gcc lint-clang ## order of folders, clang-format, clang-tidy, cppcheck, shellcheck, gcc and clang with -Werror
	@echo "lint: clean"

format: ## lay the sources out as .clang-format says
	@$(CLANG_FORMAT) -i $(FORMATTED)

lint-tools:
	@$(if $(filter no,$(SETUP)),,scripts/setup lint)

lint-order:
	$(call say,LINT,src/ORDER)
	@scripts/order

lint-format: | lint-tools
	$(call say,LINT,clang-format)
	@$(CLANG_FORMAT) --dry-run -Werror $(FORMATTED)

lint-scripts: | lint-tools
	$(call say,LINT,shellcheck)
	@$(SHELLCHECK) -x -S warning $(LINT_SCRIPTS)

# A kernel is looked at once for each real type, as the first instruction set.
LINT_DEFINES := $(DEFINES) $(ISA_DEFINES)
LINT_INCLUDES := $(INCLUDES) $(TEST_INCLUDES)
TIDY_FLAGS := -std=gnu17 $(WARNINGS) $(LINT_DEFINES) $(LINT_INCLUDES)
TIDY_FAIL := $(if $(wildcard src/base/error.h),-include mk/analyzer.h)
KERNEL_DEFINES = -DWEFT_ISA=$(firstword $(ISAS)) -DWEFT_REAL=$(1)
# In tests, floats are compared bit by bit, and bytes in the middle of a text are overwritten, on
# purpose. The analyzer does not know that a failed cmocka assertion ends the test; nor, in a kernel, that an
# input a node does not have is never read, which its options tell, nor that a loop over a tile has
# filled it.
TIDY_TESTS := --checks=-clang-analyzer-*,-bugprone-suspicious-memory-comparison,-bugprone-not-null-terminated-result
TIDY_KERNELS := --checks=-clang-analyzer-core.NullDereference,-clang-analyzer-core.NonNullParamChecker,-clang-analyzer-core.uninitialized.*,-clang-analyzer-core.CallAndMessage

tidy: $(LINT_SOURCES:%=$(LINT)/%.tidy) $(KERNEL_SOURCES:%=$(LINT)/%.tidy64)

$(LINT)/%.tidy: % $(LINT_HEADERS) .clang-tidy mk/analyzer.h | lint-tools
	@mkdir -p $(@D)
	$(call say,TIDY,$<)
	$(Q)$(CLANG_TIDY) --quiet --warnings-as-errors='*' $(if $(filter tests/%,$<),'$(TIDY_TESTS)') $(if $(filter src/cpu/%,$<),'$(TIDY_KERNELS)') $< -- \
		$(TIDY_FLAGS) $(if $(filter src/base/error.c,$<),,$(TIDY_FAIL)) $(if $(filter $<,$(KERNEL_SOURCES)),$(call KERNEL_DEFINES,32)) 2>$@.log || { cat $@.log >&2; exit 1; }
	@touch $@

$(LINT)/%.tidy64: % $(LINT_HEADERS) .clang-tidy mk/analyzer.h | lint-tools
	@mkdir -p $(@D)
	$(call say,TIDY,$<  f64)
	$(Q)$(CLANG_TIDY) --quiet --warnings-as-errors='*' '$(TIDY_KERNELS)' $< -- $(TIDY_FLAGS) $(TIDY_FAIL) $(call KERNEL_DEFINES,64) 2>$@.log || { cat $@.log >&2; exit 1; }
	@touch $@

# cppcheck is given the sources but not the tests: it does not know that a failed assertion ends a
# test. It reads no system headers, so it must not complain of them; it does not see that a vector is
# set a lane at a time, that log(0) is -inf and wanted, nor that a workspace is cut into arrays of
# several types. Each file is checked as configured here, not in every way its #ifs allow.
CPPCHECK_SOURCES := $(LIB_SOURCES) $(PROGRAM_SOURCES) $(BENCH_SOURCES) $(EXAMPLE_SOURCES)
CPPCHECK_FLAGS := -q --error-exitcode=1 --std=c11 --enable=warning,performance,portability \
	--inline-suppr --suppress=missingInclude --suppress=missingIncludeSystem \
	--suppress=unmatchedSuppression --suppress=uninitvar:src/cpu/vec.h --suppress=invalidFunctionArg \
	--suppress=invalidPointerCast \
	-j $(CORES) -Iinclude -Isrc -D__GNUC__=12 -D__$(or $(CONFIG_ARCH),plain)__=1 $(LINT_DEFINES)

cppcheck: | lint-tools $(LINT)/cppcheck/
	$(call say,LINT,cppcheck)
	$(Q)$(CPPCHECK) $(CPPCHECK_FLAGS) $(call KERNEL_DEFINES,32) --cppcheck-build-dir=$(LINT)/cppcheck $(CPPCHECK_SOURCES)

# The whole tree under one compiler, warnings being errors: $(call lint_compiler,NAME).
define lint_compiler
$(if $(filter lint lint-$(1),$(MAKECMDGOALS)),
$(call compile_rules,$(LINT)/$(1),$(1),$(COMPILE_FLAGS) -Werror)
-include $(patsubst %.o,%.d,$(call lint_objects,$(LINT)/$(1)))
)
$(LINT)/$(1)/flags: | lint-tools
lint-$(1): $(call lint_objects,$(LINT)/$(1)) | lint-tools
endef
lint_objects = $(filter-out %.cu.o,$(call lib_objects,$(1))) $(call program_objects,$(1)) \
	$(patsubst %.c,$(1)/%.o,$(TEST_SUPPORT) $(FUZZ_SOURCES) $(TEST_SOURCES) $(BENCH_SOURCES) $(EXAMPLE_SOURCES))
$(eval $(call lint_compiler,gcc))
$(eval $(call lint_compiler,clang))
