# weft's build: one make, no recursion. `make help` lists what it can do.
#
# The parts, in the order they are read:
#   mk/config.mk   what this machine has: scripts/setup installs, scripts/detect writes it down
#   mk/flags.mk    compilers' flags, and the stamps that rebuild when a flag changes
#   mk/build.mk    objects (CPU kernels once for each instruction set and real type), library, program
#   mk/examples.mk programs over the public header
#   mk/tests.mk    test and benchmark programs
#   mk/emulated.mk programs of kernels for processors that this machine may not be
#   mk/fuzz.mk     readers under libFuzzer
#   mk/coverage.mk lines and branches that tests reach
#   mk/lint.mk     clang-tidy, cppcheck, clang-format, warnings as errors under gcc and clang
#   mk/study.mk    configs and the study
#   mk/install.mk  install and uninstall, packages
#
# Variables a user may set: BUILD, CC, CFLAGS, CPPFLAGS, LDFLAGS, DEPS, SAN, WERROR, ISAS, T,
# JOBS, OUT, CONFIG_KEY, PREFIX, DESTDIR, PYTHON, SETUP. docs/guide/building.md tells what each one does.

ifneq (4.2,$(firstword $(sort $(MAKE_VERSION) 4.2)))
$(error weft needs GNU Make 4.2 or later; this is $(MAKE_VERSION))
endif

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules --no-print-directory

BUILD ?= build
PYTHON ?= python3
# OUT=folder on the command line is the study's; within these files OUT is the build's.
STUDY_OUT := $(if $(filter command,$(firstword $(origin OUT))),$(OUT))

# PyTorch's products hang on aarch64 without SVE unless this is set: python/weft/torch/_nvpl.py.
ifneq (,$(shell grep -s '^Features' /proc/cpuinfo | grep -vw -m 1 sve))
export NVPL_BLAS_DEBUG_CPU_TYPE ?= 1
endif

# All cores, unless make was given a -j of its own (one on the command line wins over this) or is
# itself run by a make, whose job slots it then shares.
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
ifeq ($(MAKELEVEL)$(filter -j% --jobserver%,$(MAKEFLAGS)),0)
MAKEFLAGS += -j$(CORES)
endif

# The version is written once, in the public header.
version_of = $(shell sed -n 's/^\#define WEFT_VERSION_$(1) *//p' include/weft/weft.h 2>/dev/null)
VERSION_MAJOR := $(or $(call version_of,MAJOR),0)
VERSION := $(VERSION_MAJOR).$(or $(call version_of,MINOR),0).$(or $(call version_of,PATCH),0)

include mk/config.mk
include mk/flags.mk
include mk/build.mk
include mk/examples.mk
include mk/tests.mk
include mk/emulated.mk
include mk/fuzz.mk
include mk/coverage.mk
include mk/lint.mk
include mk/study.mk
include mk/install.mk

.PHONY: all build help setup configure clean distclean vectors mutate mutate-random site test-torch FORCE

# Installs, builds, and ends in a report.
all: study

build: $(PROGRAM) $(LIB_A) $(LIB_SO) $(MPI_SHIM) $(NCCL_SHIM) ## the program and the library

setup: ## install what is missing; WITH="study test lint optional" for more than the build needs
	@scripts/setup $(or $(WITH),build)

configure: $(CONFIG) ## look again at what this machine has

# GPT-2's own vocab.bpe and encoder.json, which are not ours to carry: without them its vectors stay.
GPT2 ?= ../shared/data/gpt2

vectors: $(PROGRAM) $(OUT)/tests/train/test_curves ## make the reference vectors of the tests again (needs PyTorch and NumPy)
	$(PYTHON) tests/reference/make_vectors.py
	$(PYTHON) tests/reference/make_model_vectors.py
	$(PYTHON) tests/reference/make_inspect_vectors.py
	$(PYTHON) tests/reference/make_statistics_vectors.py
	$(PYTHON) tests/reference/make_minimum_vectors.py
	$(PYTHON) tests/reference/make_question_vectors.py
	$(PYTHON) tests/reference/make_task_vectors.py
	$(PYTHON) tests/reference/make_curves.py --build '$(OUT)'
	@if [ -f '$(GPT2)/vocab.bpe' ]; then $(PYTHON) tests/reference/make_tokenizer_vectors.py '$(GPT2)' || [ $$? = 3 ]; \
	else echo "make vectors: no vocab.bpe in $(GPT2) (GPT2=folder): the tokenizers' vectors stay" >&2; fi

mutate: build ## break the code on purpose, and see that a test notices; T=word breaks what has it in its line
	@if [ -x tests/mutate ]; then BUILD='$(BUILD)' CC='$(CC)' tests/mutate $(if $(T),'$(T)'); \
	else echo "make mutate: tests/mutate is not there" >&2; exit 2; fi

# The generator comes from the package index, once, into an environment of its own, unless GENERATOR= names its
# command. Its version is part of what a seed draws.
MUTATE_VENV := $(BUILD)/mutate-venv
mutate-random: build ## break N=300 lines drawn by SEED=1 in src/ and python/: the share that tests notice; T="rooms" JOBS=n
	@[ -n '$(GENERATOR)' ] || [ -x '$(MUTATE_VENV)/bin/mutate' ] || { python3 -m venv '$(MUTATE_VENV)' && \
		'$(MUTATE_VENV)/bin/pip' install -q --disable-pip-version-check 'universalmutator==1.14.1'; } || \
		{ echo "make mutate-random: universalmutator could not be installed into $(MUTATE_VENV); is there a network, and python3's venv?" >&2; exit 2; }
	@BUILD='$(BUILD)' PYTHON='$(TORCH_PYTHON)' GENERATOR='$(GENERATOR)' JOBS='$(JOBS)' tests/mutate_random.py '$(or $(N),300)' '$(or $(SEED),1)' $(T)

# MkDocs comes from the package index, once, into an environment of its own; the site needs no network.
site: build ## the documentation as a site with search: open site/index.html
	@[ -x '$(BUILD)/site-venv/bin/mkdocs' ] || { python3 -m venv '$(BUILD)/site-venv' && \
		'$(BUILD)/site-venv/bin/pip' install -q 'mkdocs-material==9.*'; }
	@scripts/site '$(PROGRAM)' '$(BUILD)/site' site '$(abspath $(BUILD)/site-venv/bin/mkdocs)'
	@echo "site/index.html"

# PyTorch and pytest are the user's to bring: PYTHON=venv/bin/python make test-torch. One line says what
# became of it; a library with sanitizers cannot be loaded by Python. TORCH=no leaves them out of make test.
# The tests run in python/, where a relative path of PYTHON would lead nowhere.
TORCH_PYTHON = $(if $(findstring /,$(PYTHON)),$(abspath $(PYTHON)),$(PYTHON))
# pytest's lines of what was skipped, those of one file and reason as one.
TORCH_SKIPPED = /^SKIPPED \[/ { n = substr($$2, 2) + 0; sub(/^SKIPPED \[[0-9]+\] /, ""); sub(/:[0-9]+:/, ":"); of[$$0] += n } \
	END { for (why in of) print "test-torch: skipped " of[why] " of " why }

test-torch: $(if $(SAN),,$(LIB_SO)) ## the tests of the PyTorch package (PYTHON= with torch, numpy and pytest)
	@if [ -n '$(SAN)' ]; then echo "test-torch: skipped: Python does not load a library with sanitizers"; \
	elif $(TORCH_PYTHON) -c 'import torch, numpy, pytest' 2>/dev/null; then \
		cd python && WEFT_LIBRARY='$(abspath $(LIB_SO))' $(TORCH_PYTHON) -m pytest -q -rs -p no:cacheprovider tests > '$(abspath $(OUT))/test-torch.log' 2>&1; \
		status=$$?; awk '$(TORCH_SKIPPED)' '$(abspath $(OUT))/test-torch.log'; \
		echo "test-torch: $$(tail -n 1 '$(abspath $(OUT))/test-torch.log')"; \
		[ $$status = 0 ] || { cat '$(abspath $(OUT))/test-torch.log'; exit 1; }; \
	else echo "test-torch: skipped: $(PYTHON) cannot import torch, numpy and pytest (PYTHON=...)"; fi

clean: ## remove what was built, keep what was found out about the machine
	@if [ -d '$(BUILD)' ]; then \
		find '$(BUILD)' -mindepth 1 -maxdepth 1 ! -name 'config.*' -exec rm -rf {} +; fi

distclean: ## remove the build folder and dist/
	rm -rf '$(BUILD)' dist

help: ## this list
	@echo "make TARGET, with no target: build, then study"
	@sed -n 's/^\([a-z][a-z-]*%*\):[^#]*## /  \1|/p' $(filter-out %.d $(CONFIG),$(MAKEFILE_LIST)) | \
		awk -F'|' '{ sub(/%/, "NAME", $$1); printf "%-17s %s\n", $$1, $$2 }'
	@echo "SAN=address,undefined  CC=clang  WERROR=1  T=substring  and more: docs/guide/building.md"

FORCE:
