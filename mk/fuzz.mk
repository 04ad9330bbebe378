# Fuzzing: each tests/fuzz/fuzz_TARGET.c as a program of libFuzzer's, with AddressSanitizer and
# UndefinedBehaviorSanitizer, in $(BUILD)/fuzz. clang is needed for this alone; make test runs the same
# functions over the inputs that are kept, by any compiler.

FUZZ_CC ?= clang
FUZZ := $(BUILD)/fuzz
FUZZ_TARGETS := $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_CHOSEN := $(if $(TARGET),$(TARGET),$(FUZZ_TARGETS))
FUZZ_FLAGS := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer

# clang is there, and so is libFuzzer.
FUZZ_CAN = $(shell echo 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return d && n > 9; }' | \
	$(FUZZ_CC) -fsanitize=fuzzer -x c - -o /dev/null 2>/dev/null && echo y)

.PHONY: fuzz fuzz-programs fuzz-hour

# Its goals alone pay for the rules.
ifneq ($(filter fuzz fuzz-programs fuzz-hour,$(MAKECMDGOALS)),)
$(if $(filter-out $(FUZZ_TARGETS),$(TARGET)),$(error TARGET=$(TARGET): the targets are $(FUZZ_TARGETS)))
FUZZ_READY := $(FUZZ_CAN)
$(eval $(call compile_rules,$(FUZZ)/obj,$(FUZZ_CC),$(filter-out -Werror,$(COMPILE_FLAGS)) $(FUZZ_FLAGS)))
# Kernels read no files: they are the build's own.
FUZZ_LIB := $(PLAIN_SOURCES:src/%.c=$(FUZZ)/obj/%.o) $(filter-out $(FUZZ)/obj/cli/%,$(call program_objects,$(FUZZ)/obj)) \
	$(foreach v,$(VARIANTS),$(KERNEL_SOURCES:src/%.c=$(OBJ)/%.$(v).o))
FUZZ_SHARED := $(filter-out $(FUZZ)/obj/tests/fuzz/fuzz_%.o,$(FUZZ_SOURCES:%.c=$(FUZZ)/obj/%.o))

$(FUZZ)/libweft.a: $(FUZZ_LIB)
	$(call say,AR,$@)
	@rm -f $@
	$(Q)$(AR) rcs $@ $(FUZZ_LIB)

$(FUZZ_TARGETS:%=$(FUZZ)/fuzz_%): $(FUZZ)/fuzz_%: $(FUZZ)/obj/tests/fuzz/fuzz_%.o tests/fuzz/entry.c $(FUZZ_SHARED) $(FUZZ)/libweft.a
	$(call say,LD,$@)
	$(Q)$(FUZZ_CC) $(COMPILE_FLAGS) $(TEST_INCLUDES) $(FUZZ_FLAGS) -fsanitize=fuzzer -DFUZZ_ENTRY=fuzz_$* \
		tests/fuzz/entry.c $< $(FUZZ_SHARED) $(FUZZ)/libweft.a $(LINK_FLAGS) $(LDFLAGS) $(PROGRAM_LIBS) $(LIBS) -o $@

-include $(patsubst %.o,%.d,$(FUZZ_LIB) $(FUZZ_SHARED) $(FUZZ_TARGETS:%=$(FUZZ)/obj/tests/fuzz/fuzz_%.o))
endif

fuzz-programs: $(if $(FUZZ_READY),$(FUZZ_CHOSEN:%=$(FUZZ)/fuzz_%))

fuzz: fuzz-programs ## look for inputs that break a reader (clang); TARGET=name, SECONDS=60 for each
	@$(if $(FUZZ_READY),tests/fuzz/run '$(FUZZ)' '$(or $(SECONDS),60)' $(FUZZ_CHOSEN),\
		echo "make fuzz: left out: $(FUZZ_CC) with libFuzzer is missing (scripts/setup fuzz)" >&2)

# An hour over all targets.
fuzz-hour: fuzz-programs
	@$(MAKE) fuzz SECONDS=$$((3600 / $(words $(FUZZ_TARGETS)))) TARGET=
