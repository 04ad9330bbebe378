# Tests and benchmarks. tests/FOLDER/test_NAME.c is one program, linked with the static library, so
# that what the shared one hides can be tested too, with the program's parts and tests/support/*.c.

TEST_SUPPORT := $(sort $(wildcard tests/support/*.c))
TEST_SOURCES := $(sort $(wildcard tests/*/test_*.c))
TEST_PROGRAMS := $(TEST_SOURCES:tests/%.c=$(OUT)/tests/%)
# $(call chosen,PROGRAMS): those whose path holds T, or one of the words in it.
chosen = $(if $(T),$(foreach p,$(1),$(if $(strip $(foreach t,$(T),$(findstring $(t),$(p:$(OUT)/tests/%=%)))),$(p))),$(1))
CUDA_TESTS := $(filter $(OUT)/tests/cuda/%,$(TEST_PROGRAMS))
TEST_CHOSEN := $(call chosen,$(filter-out $(CUDA_TESTS),$(TEST_PROGRAMS)))
CUDA_CHOSEN := $(call chosen,$(CUDA_TESTS))
TEST_OBJECTS := $(TEST_SOURCES:%.c=$(OBJ)/%.o)
SUPPORT_OBJECTS := $(TEST_SUPPORT:%.c=$(OBJ)/%.o)
FUZZ_SOURCES := $(filter-out tests/fuzz/test_% tests/fuzz/entry.c,$(sort $(wildcard tests/fuzz/*.c)))
FUZZ_OBJECTS := $(FUZZ_SOURCES:%.c=$(OBJ)/%.o)

# Programs that measure time or count threads and want the machine to themselves: core/test_x.
TESTS_ALONE ?=

# Programs that take longest begin, so that the last core is not left alone with one of them.
TESTS_FIRST ?= train/test_rank_faults cpu/test_emulated docs/test_commands api/test_header faults/test_every_call convert/test_convert ops/test_cases generate/test_decode \
	serve/test_storm serve/test_serve serve/test_limits ops/test_tokens cpu/test_gemm model/test_model \
	supervise/test_interrupted generate/test_generator train/test_kill supervise/test_study_input supervise/test_rates

# Benchmarks: bench/NAME.c is one program, linked with src/bench.
BENCH_SOURCES := $(sort $(wildcard bench/*.c))
BENCH_PROGRAMS := $(BENCH_SOURCES:bench/%.c=$(OUT)/bench/%)
BENCH_OBJECTS := $(BENCH_SOURCES:%.c=$(OBJ)/%.o)

.PHONY: bench-scale test test-repeat test-faults test-hostile hostile-run test-tsan test-long test-cuda tests bench bench-cuda bench-check bench-for-check bench-attention-cuda bench-products-cuda
.SECONDARY: $(TEST_OBJECTS) $(SUPPORT_OBJECTS) $(FUZZ_OBJECTS) $(BENCH_OBJECTS)

# What lets file operations fail; tests name it to the programs they run. Not with sanitizers, which
# want to be loaded first themselves.
FAULTS := $(if $(SAN),,$(OUT)/tests/faults.so)
$(OUT)/tests/faults.so: tests/faults/preload.c $(OBJ)/flags
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) -std=gnu17 -O1 -fPIC -shared -Wall -Wextra -Wshadow $(if $(filter-out 0 n no,$(WERROR)),-Werror) $< -o $@ -ldl

# Sanitized code is many times slower: so many times as long may a test or a command of it take.
export PATIENCE ?= $(if $(SAN),15,1)
TIMEOUT ?= $(if $(SAN),7200)

# Kernels as FILE.REAL, for the closing lines: all, and those with code for matrix instructions, which sum in
# float. few_rows has such code for Arm alone, table has no code.
KERNEL_NAMES := $(filter-out table,$(KERNEL_SOURCES:src/cpu/%.c=%))
MATRIX_NAMES := $(filter $(patsubst src/cpu/%.c,%,$(shell grep -lE 'weft_cpu_(matrix|dots_i8|tiles_i8)|attention_bf16\.h|panel_form\.h|cache_attention_' src/cpu/*.c)),$(KERNEL_NAMES))
ifneq ($(CONFIG_ARCH),aarch64)
MATRIX_NAMES := $(filter-out few_rows,$(MATRIX_NAMES))
endif

# With T= only what those tests need is built.
# What fails in Python does not keep the others from being run. T= and TORCH=no leave Python's out.
test: $(if $(T),$(PROGRAM),build) $(TEST_CHOSEN) $(FAULTS) ## every test that needs no GPU; T=name runs those whose path holds it
	@mkdir -p '$(OUT)'; rm -f '$(OUT)/torch-failed'
	$(if $(T)$(filter no,$(TORCH)),,@$(MAKE) --no-print-directory test-torch || echo yes >'$(OUT)/torch-failed')
	@KERNELS='$(KERNEL_NAMES:%=%.32) $(KERNEL_NAMES:%=%.64)' MATRIX_KERNELS='$(MATRIX_NAMES:%=%.32)' CUDA_KERNELS='$(if $(T),,$(words $(CUDA_SOURCES)))' \
		WEFT_CUDA_DEVICE=none WEFT_FAULTS='$(FAULTS)' JOBS='$(JOBS)' TIMEOUT='$(TIMEOUT)' ALONE='$(TESTS_ALONE)' FIRST='$(TESTS_FIRST)' WEFT='$(strip $(RUNNER) $(PROGRAM))' RUNNER='$(RUNNER)' V='$(V)' \
		tests/run '$(OUT)/tests' $(TEST_CHOSEN)
	@[ ! -e '$(OUT)/torch-failed' ] || { echo "make test: test-torch failed; what it said is above, and in $(OUT)/test-torch.log" >&2; exit 1; }

# Built first, without a load.
test-repeat: $(if $(T),$(PROGRAM),build) $(TEST_CHOSEN) $(FAULTS) ## make test N=20 times beside a load on all cores, SIDE=1 at a time: what fails by chance; T=name
	@SIDE='$(or $(SIDE),1)' tests/repeat '$(or $(N),20)' '$(OUT)/repeat' $(MAKE) --no-print-directory test

# Proofs that make test trims are whole here: tests look at WEFT_TEST_LONG.
test-long: export WEFT_TEST_LONG := 1
test-long: TIMEOUT := $(or $(TIMEOUT),7200)
test-long: test ## the same with the long proofs whole, sanitizers, make test-hostile, make test-packages and an hour of make fuzz; figures
	@$(MAKE) test-tsan
	@$(MAKE) test SAN=address,undefined T=serve/test_storm
	@$(MAKE) test-hostile SECONDS='$(or $(SECONDS),600)'
	@$(MAKE) test-packages
	@$(MAKE) fuzz-hour
	@tests/figures '$(BUILD)'

# Programs whose code runs on several threads: pool, log, batches made ahead, tokenizing, sessions,
# generation, the server, training.
TSAN_TESTS := api/test_api api/test_graph cli/test_generate cli/test_tokenize base/test_log core/test_placement core/test_pool base/test_progress \
	data/test_bpe_train data/test_prefetch data/test_tokenizer generate/test_generator generate/test_text serve/test_limits \
	serve/test_serve serve/test_storm train/test_gradients train/test_objective train/test_optimizer train/test_samples train/test_train

test-tsan: ## the tests of what runs on several threads, under ThreadSanitizer; make test SAN=thread takes all
	@$(MAKE) test SAN=thread T='$(or $(T),$(TSAN_TESTS))' TIMEOUT='$(or $(TIMEOUT),1800)'

# Every file operation of every command fails once with each error, and the command is killed before
# each; make test has a sample of it.
test-faults: export WEFT_TEST_FAULTS := 1
test-faults: $(PROGRAM) $(OUT)/tests/faults/test_every_call $(FAULTS) ## file operations that fail, and kills at each: all of them, with figures
	@TIMEOUT='$(or $(TIMEOUT),14400)' WEFT_CUDA_DEVICE=none WEFT_FAULTS='$(FAULTS)' WEFT='$(strip $(RUNNER) $(PROGRAM))' \
		tests/run '$(OUT)/tests' '$(OUT)/tests/faults/test_every_call'

# Good files of every format, changed at random: through the program, then through each reader alone.
HOSTILE_SAN := $(or $(SAN),address$(comma)undefined)
test-hostile: ## files of every format changed at random, under sanitizers; SEED=1 SECONDS=60 ONLY=format, with figures
	@$(MAKE) hostile-run SAN='$(HOSTILE_SAN)'

hostile-run: $(PROGRAM) $(OUT)/tests/fuzz/test_regressions
	@tests/hostile/run '$(BUILD)/hostile' '$(PROGRAM)' '$(OUT)/tests/fuzz/test_regressions' '$(or $(SEED),1)' '$(or $(SECONDS),60)' '$(ONLY)'

# On a machine without a GPU each of them says that it is skipped, and why. One at a time: they share
# the GPU.
test-cuda: $(PROGRAM) $(CUDA_CHOSEN) $(if $(CONFIG_NVCC),$(OUT)/bench/products_cuda $(OUT)/bench/rows_cuda) ## the tests that need a GPU; QUICK=1: a part of their cases
	@JOBS=1 TIMEOUT='$(TIMEOUT)' WEFT='$(strip $(RUNNER) $(PROGRAM))' RUNNER='$(RUNNER)' V='$(V)' WEFT_QUICK='$(QUICK)' \
		tests/run '$(OUT)/tests' $(CUDA_CHOSEN)
	@$(if $(CONFIG_NVCC),WEFT_QUICK='$(QUICK)' $(RUNNER) $(OUT)/bench/products_cuda check)
	@$(if $(CONFIG_NVCC),$(RUNNER) $(OUT)/bench/rows_cuda check)

# What make test T= runs, and what make test-cuda T= does.
tests: $(PROGRAM) $(TEST_CHOSEN) $(CUDA_CHOSEN) $(FAULTS)

bench-scale: build ## scaling over processes of this machine, and a model for GPUs; QUICK=1, THREADS=n, ARGS="measure 1 2"
	@WEFT='$(PROGRAM)' QUICK='$(QUICK)' THREADS='$(or $(THREADS),1)' $(PYTHON) bench/scale.py $(ARGS)

bench: build $(BENCH_PROGRAMS) ## the benchmark tables; QUICK=1, ROWS=word, JSON=file, COMPILE=1, MODELS=dot,w2, DTYPE=bf16
	@if [ -x bench/run ]; then BUILD='$(OUT)' PYTHON='$(PYTHON)' QUICK='$(QUICK)' ROWS='$(ROWS)' JSON='$(JSON)' COMPILE='$(COMPILE)' \
		MODELS='$(MODELS)' DTYPE='$(DTYPE)' bench/run $(ARGS); \
	else echo "make bench: bench/run is not there" >&2; exit 2; fi

$(eval $(call stamp,$(OBJ)/test-link,$(LINK_FLAGS) $(LDFLAGS) $(PROGRAM_LIBS) $(LIBS) $(CMOCKA_LIBS) $(SUPPORT_OBJECTS)))

$(TEST_PROGRAMS): $(OUT)/tests/%: $(OBJ)/tests/%.o $(SUPPORT_OBJECTS) $(PARTS_A) $(LIB_A) $(OBJ)/test-link
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(LINK_FLAGS) $(LDFLAGS) $(filter-out $(SUPPORT_OBJECTS),$(filter %.o,$^)) $(SUPPORT_OBJECTS) $(PARTS_A) $(LIB_A) $(CMOCKA_LIBS) $(PROGRAM_LIBS) $(LIBS) $(CUDA_LINK) -o $@

# The targets of make fuzz, run over the inputs that are kept.
$(OUT)/tests/fuzz/test_regressions: $(FUZZ_OBJECTS)

# It looks at the shared library's names and runs the examples.
$(OUT)/tests/api/test_header: | $(LIB_SO) $(EXAMPLE_PROGRAMS)

# The program of a machine without the optional parts: sources that ask for one are compiled as if it
# were missing, the rest is the build's own. CUDA's objects and libmicrohttpd are not linked.
BARE := $(OUT)/bare
BARE_SOURCES := $(shell grep -l WEFT_HAVE_ src/*/*.c)
BARE_OBJECTS := $(BARE_SOURCES:src/%.c=$(BARE)/%.o) \
	$(filter-out %.cu.o $(BARE_SOURCES:src/%.c=$(OBJ)/%.o),$(PROGRAM_OBJECTS) $(LIB_OBJECTS))

$(eval $(call compile_rules,$(BARE),$(CC),$(filter-out -DWEFT_HAVE_%,$(COMPILE_FLAGS))))

$(BARE)/weft: $(BARE_OBJECTS) $(OBJ)/link
	$(call say,LD,$@)
	$(Q)$(CC) $(LINK_FLAGS) $(LDFLAGS) $(BARE_OBJECTS) $(filter-out -lmicrohttpd,$(PROGRAM_LIBS)) $(LIBS) -o $@

# It runs that program.
$(OUT)/tests/scripts/test_optional: | $(BARE)/weft

$(BENCH_PROGRAMS): $(OUT)/bench/%: $(OBJ)/bench/%.o $(PARTS_A) $(LIB_A) $(OBJ)/test-link
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(LINK_FLAGS) $(LDFLAGS) $< $(PARTS_A) $(LIB_A) $(PROGRAM_LIBS) $(LIBS) $(CUDA_LINK) -o $@

# On a machine without a GPU it says so.
bench-cuda: build $(OUT)/bench/kernels_cuda $(if $(CONFIG_NVCC),$(OUT)/bench/attention_cuda) ## training on the GPU beside PyTorch; ROWS=dot,w2 FORMS=all SKIP_PEER=1 JSON=file; GRID=1: over a grid of shapes
	$(if $(GRID),@$(or $(PYTHON),python3) bench/grid_cuda.py --build '$(OUT)' --rows '$(ROWS)' \
		$(if $(SKIP_PEER),--skip-peer) $(if $(JSON),--json '$(JSON)') $(ARGS))
	$(if $(GRID),,@$(or $(PYTHON),python3) bench/table_cuda.py --build '$(OUT)' --variants '$(ROWS)' --forms '$(FORMS)' \
		$(if $(SKIP_PEER),--skip-peer) $(if $(JSON),--json '$(JSON)') $(ARGS))

# With JSON= it checks files that make bench or make bench-cuda wrote; without it, it measures first.
bench-check: $(if $(JSON),,bench-for-check) ## compare measurements with bench/floors.txt; JSON="files", else make bench is run first
	@$(or $(PYTHON),python3) bench/check.py $(or $(JSON),'$(OUT)/bench.json' '$(OUT)/bench.train.json')

bench-for-check: build $(BENCH_PROGRAMS)
	@BUILD='$(OUT)' PYTHON='$(PYTHON)' QUICK='$(QUICK)' JSON='$(OUT)/bench.json' bench/run $(ARGS)

# Kernels of the GPU alone.
KERNEL_BENCHES := attention_cuda products_cuda rows_cuda
$(KERNEL_BENCHES:%=$(OBJ)/bench/%.cu.o): $(OBJ)/bench/%.cu.o: bench/%.cu $(LIB_A)
	@mkdir -p $(@D)
	$(call say,NVCC,$<)
	$(Q)$(CONFIG_NVCC) -ccbin $(CC) $(CUDA_ARCH) -O2 -std=c++17 -Xcompiler=-Wall $(DEFINES) $(INCLUDES) -c $< -o $@

$(KERNEL_BENCHES:%=$(OUT)/bench/%): $(OUT)/bench/%: $(OBJ)/bench/%.cu.o $(LIB_A) $(OBJ)/test-link
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(LINK_FLAGS) $(LDFLAGS) $< $(LIB_A) $(LIBS) $(CUDA_LINK) -o $@

bench-attention-cuda: $(OUT)/bench/attention_cuda ## attention's GPU kernels: TFLOP/s at T = 1k, 4k, 16k
	@$(OUT)/bench/attention_cuda $(or $(ARGS),time)

bench-rows-cuda: $(OUT)/bench/rows_cuda ## products of few rows: right or wrong, us, and share of the memory's rate
	@$(OUT)/bench/rows_cuda $(ARGS)

bench-products-cuda: $(OUT)/bench/products_cuda ## products with work behind them: right or wrong, and ms beside cuBLASLt
	@$(OUT)/bench/products_cuda $(ARGS)

-include $(patsubst %.o,%.d,$(TEST_OBJECTS) $(SUPPORT_OBJECTS) $(FUZZ_OBJECTS) $(BENCH_OBJECTS) $(filter $(BARE)/%,$(BARE_OBJECTS)))
