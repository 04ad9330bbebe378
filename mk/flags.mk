# Flags. CFLAGS, CPPFLAGS and LDFLAGS are left to the user and come last.

# The last three are errors in newer compilers.
WARNINGS := -Wall -Wextra -Wshadow -Wconversion -Werror=implicit-function-declaration -Werror=int-conversion \
	-Werror=incompatible-pointer-types
CFLAGS ?=

# Sanitized objects live in a folder of their own, so that going back and forth rebuilds nothing; so
# do those that count which lines are run (COVERAGE=1, which make coverage sets).
comma := ,
override OUT := $(BUILD)$(if $(COVERAGE),/coverage,$(if $(SAN),/san-$(subst $(comma),-,$(SAN))))
# Their code confuses the compiler's own analysis, so warnings stay warnings.
SAN_FLAGS := $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer)

# -O3 for kernels, -O2 for the rest. Nothing that changes what a number is worth: no -ffast-math;
# fused multiply-adds are wanted, errno and floating-point traps are not used. Kernels are inlined deeply: more than
# line numbers would take a third of their compile time.
OPT_PLAIN := $(if $(COVERAGE),-O0 --coverage,$(if $(SAN),-O1,-O2))
OPT_KERNEL := $(if $(SAN),-O1,-O3) -ffp-contract=fast -fno-math-errno -fno-trapping-math -g1

DEFINES := -D_GNU_SOURCE $(CONFIG_DEFINES)
BASE_FLAGS := -std=gnu17 -g $(WARNINGS) -fPIC -fvisibility=hidden -fno-semantic-interposition \
	-pthread $(SAN_FLAGS) $(if $(SAN)$(COVERAGE),,$(if $(filter-out 0 n no,$(WERROR)),-Werror))
INCLUDES := -Iinclude -Isrc $(CONFIG_CFLAGS)
TEST_INCLUDES := -Itests $(CMOCKA_CFLAGS)
COMPILE_FLAGS = $(BASE_FLAGS) $(DEFINES) $(INCLUDES)

LINK_FLAGS := -pthread $(SAN_FLAGS) $(if $(COVERAGE),--coverage) -Wl,--as-needed $(CONFIG_LDFLAGS)
LIBS := $(CONFIG_LIBS) -lm -ldl
PROGRAM_LIBS := $(CONFIG_PROGRAM_LIBS)

# Instruction sets a kernel is compiled for; the program picks among them when it starts.
ISAS_aarch64 := neon
# gcc's AddressSanitizer lays variables on the stack at multiples of 32 bytes, too little for
# AVX-512's vectors.
ISAS_x86_64 := sse2 avx2 $(if $(findstring address,$(SAN)),,avx512)
ISAS ?= $(or $(ISAS_$(CONFIG_ARCH)),plain)
# Vectors wider than the registers are passed between functions of one file only, so how does not matter.
ISA_FLAGS_sse2 := -Wno-psabi $(if $(SAN),,-O2)
ISA_FLAGS_avx2 := -mavx2 -mfma -mf16c
ISA_FLAGS_avx512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma
# Double is for checks: compiled for the set that every processor has.
ISA_64 := $(firstword $(ISAS))
OPT_64 := $(if $(SAN),,-O2)
ISA_DEFINES := $(foreach i,$(ISAS),-DWEFT_HAVE_ISA_$(i)) -DWEFT_ISA_64=$(ISA_64)

# The commit of this tree, for `weft version` and every study's database; -changed: the sources are
# not as it has them. Another tree's that happens to be around this one is not ours. An archive of
# `make dist` has it in .commit.
GIT_COMMIT := $(or $(shell [ -e .git ] && commit=$$(git rev-parse HEAD 2>/dev/null) && \
	if git diff --quiet HEAD -- src include mk Makefile 2>/dev/null; then echo "$$commit"; \
	else echo "$$commit-changed"; fi),$(strip $(file <.commit)),unknown)

# $(call stamp,FILE,TEXT): FILE holds TEXT and is written anew only when TEXT changed, so that what
# depends on FILE is rebuilt exactly then.
define stamp
ifneq ($$(strip $$(file <$(1))),$$(strip $(2)))
$(1): FORCE
endif
$(1): | $(dir $(1))
	@printf '%s\n' $$(call quoted,$$(strip $(2))) > $$@
endef
