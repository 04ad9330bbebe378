# What this machine has. scripts/setup installs what is missing, then scripts/detect writes
# $(CONFIG); because that is an included makefile, make reads itself again after it was written, so
# one `make test` on a bare machine is enough.

CONFIG := $(BUILD)/config.mk

# cc is a name that every system has; gcc and clang are tried where it does not.
ifeq ($(origin CC),default)
CC := $(notdir $(firstword $(foreach c,cc gcc clang,$(shell command -v $(c) 2>/dev/null)) cc))
endif
AR ?= ar
NVCC ?= nvcc
PKG_CONFIG ?= pkg-config

# Goals that need to know nothing of the machine.
PLAIN_GOALS := help clean dist distclean format lint-format setup uninstall \
	list-defconfigs menuconfig savedefconfig defconfig-%
TEST_GOALS := test test-long test-cuda tests $(BUILD)/%/test_% lint tidy cppcheck lint-gcc lint-clang mutate mutate-random vectors
STUDY_GOALS := all study test test-long

ifneq ($(or $(filter-out $(PLAIN_GOALS),$(MAKECMDGOALS)),$(if $(MAKECMDGOALS),,all)),)

# The configuration follows from these; when one changes it is made anew.
CONFIG_KEY := $(strip CC=$(CC) DEPS=$(DEPS) PKG_CONFIG=$(PKG_CONFIG) NVCC=$(NVCC) CUDA=$(CUDA) \
	PKG_CONFIG_PATH=$(PKG_CONFIG_PATH) PKG_CONFIG_LIBDIR=$(PKG_CONFIG_LIBDIR) \
	cuda=$(if $(wildcard src/cuda/*.cu),y))
CONFIG_NEEDS := build $(if $(filter $(STUDY_GOALS),$(or $(MAKECMDGOALS),all)),study) \
	$(if $(filter $(TEST_GOALS),$(MAKECMDGOALS)),test)

include $(CONFIG)

# MAKE_RESTARTS: one look per run is enough, whatever asked for it.
ifeq ($(MAKE_RESTARTS),)
ifneq ($(strip $(file <$(BUILD)/config.key)),$(CONFIG_KEY))
$(CONFIG): FORCE
else ifneq ($(or $(if $(filter test,$(CONFIG_NEEDS)),$(if $(HAVE_CMOCKA),,cmocka)),\
                 $(if $(filter study,$(CONFIG_NEEDS)),$(if $(KCONFIG_PYTHON),,study)),\
                 $(filter configure,$(MAKECMDGOALS))),)
$(CONFIG): FORCE
endif
endif

export CC NVCC PKG_CONFIG DEPS

# SETUP=no: look, and install nothing.
$(CONFIG): scripts/setup scripts/detect scripts/probe | $(BUILD)/
	@$(if $(filter no,$(SETUP)),,scripts/setup $(CONFIG_NEEDS))
	@scripts/detect $(CONFIG_NEEDS) > $@.new
	@mv $@.new $@ && printf '%s\n' $(call quoted,$(CONFIG_KEY)) > $(BUILD)/config.key
endif

# One word to the shell, whatever is in it.
quoted = '$(subst ','\'',$(1))'

# Folders, as order-only prerequisites.
%/:
	@mkdir -p $@
