# Programs of kernels for processors that this machine may not be: tests/cpu/test_emulated runs them, and says
# what is in each. A folder of objects for each of
#
#   avx512    AVX-512, its dot products and AMX over emulated intrinsics, where SIMDe is (scripts/setup test)
#   other     the other architecture, where its compiler and qemu are (scripts/setup emulator)
#   own       this architecture, by its best instructions
#
# A program that cannot be made here is not there, and its test is skipped.

EMULATED := $(OBJ)/emulated
EMULATED_PROGRAMS := $(OUT)/tests/cpu/emulated
EMULATED_FLAGS := -std=gnu17 -D_GNU_SOURCE -DWEFT_REAL=32 -Iinclude -Isrc
EMULATED_KERNELS := -O2 -ffp-contract=fast -fno-math-errno -fno-trapping-math -pthread

EMULATED_x86_64 := -mavx2 -mfma -DWEFT_ISA=avx2
EMULATED_aarch64 := -DWEFT_ISA=neon
EMULATED_OWN := $(if $(filter aarch64,$(CONFIG_ARCH)),aarch64,x86_64)
EMULATED_OTHER := $(if $(filter aarch64,$(CONFIG_ARCH)),x86_64,aarch64)

EMULATED_CC_own := $(CC)
EMULATED_CC_avx512 := $(CC)
EMULATED_CC_other := $(EMULATED_OTHER)-linux-gnu-gcc
EMULATED_FLAGS_own := $(EMULATED_KERNELS) $(EMULATED_$(EMULATED_OWN))
EMULATED_FLAGS_other := $(EMULATED_KERNELS) $(EMULATED_$(EMULATED_OTHER))
# The compiler must see neither the instructions that it has of its own nor ask for those it lacks.
EMULATED_FLAGS_avx512 := -w -Wno-psabi -U__aarch64__ -U__ARM_NEON -U__ARM_NEON__ -U__SSE2__ -D__SSE2__=1 \
	-D__AVX2__=1 -D__AVX512F__=1 -DSIMDE_NO_NATIVE -DWEFT_EMULATED_AVX512 '-Dtarget(x)=unused' -DWEFT_ISA=avx512 \
	-Itests/cpu/emulated
# Whatever takes the compiler longer than it runs is compiled by -O1.
EMULATED_SOON := products gemm panels panel_real panel_bf16 norms norm

EMULATED_SOURCES_products := gemm panels panel_real panel_bf16
EMULATED_SOURCES_decode := i8_rows few_rows cache_attention
EMULATED_SOURCES_attention := attention attention_back attention_bf16 attention_back_bf16 panel_bf16
EMULATED_SOURCES_norms := norm

hash := \#
EMULATED_SETS := own \
	$(shell printf '%s\n' '$(hash)if __has_include(<simde/x86/avx512.h>)' avx512 '$(hash)endif' | $(CC) -E -P -x c - 2>/dev/null) \
	$(shell command -v $(EMULATED_CC_other) >/dev/null && command -v qemu-$(EMULATED_OTHER) >/dev/null && echo other)
# Products and attention of this architecture are those of the library, which other tests run, but on Arm.
EMULATED_PARTS_own := decode $(if $(filter aarch64,$(CONFIG_ARCH)),attention products)
EMULATED_PARTS_avx512 := products decode attention norms
EMULATED_PARTS_other := $(EMULATED_PARTS_avx512)

# $(call emulated_program,SET,PART)
emulated_objects = $(EMULATED)/$(1)/tests/cpu/emulated/$(2).o $(EMULATED_SOURCES_$(2):%=$(EMULATED)/$(1)/src/cpu/%.o)
define emulated_program
$(EMULATED_PROGRAMS)/$(1)-$(2): $(call emulated_objects,$(1),$(2))
	@mkdir -p $$(@D)
	$$(call say,LD,$$@)
	$$(Q)$(EMULATED_CC_$(1)) -pthread $$^ -lm -o $$@
	@echo $(EMULATED_SOURCES_$(2)) > $$@.kernels

$(OUT)/tests/cpu/test_emulated: | $(EMULATED_PROGRAMS)/$(1)-$(2)
-include $(patsubst %.o,%.d,$(call emulated_objects,$(1),$(2)))
endef

define emulated_set
$(call stamp,$(EMULATED)/$(1)/flags,$(EMULATED_CC_$(1)) $(EMULATED_FLAGS) $(subst ',,$(EMULATED_FLAGS_$(1))) $(CONFIG_TOOLS))

$(EMULATED)/$(1)/%.o: %.c $(EMULATED)/$(1)/flags
	@mkdir -p $$(@D)
	$$(call say,CC,$$<  $(1) emulated)
	$$(Q)$(EMULATED_CC_$(1)) $(EMULATED_FLAGS) $(EMULATED_FLAGS_$(1)) $(if $(filter avx512,$(1)),$$(if $$(filter $(EMULATED_SOON),$$(basename $$(notdir $$*))),-O2,-O1)) -MMD -MP -c $$< -o $$@

$(foreach part,$(EMULATED_PARTS_$(1)),$(eval $(call emulated_program,$(1),$(part))))
endef
$(foreach set,$(EMULATED_SETS),$(eval $(call emulated_set,$(set))))
