# Objects, library, program. Sources are found by name: src/FOLDER/*.c, and under src/cuda in a folder
# for each subject.

# The library is the engine. Beside it, in the program, are studies with their database and reports,
# the server, what measures (src/bench) and the commands.
PROGRAM_FOLDERS := eval convert study record supervise report serve watch inspect bench cli
PROGRAM_SOURCES := $(sort $(foreach f,$(PROGRAM_FOLDERS),$(wildcard src/$(f)/*.c)))
LIB_SOURCES := $(sort $(filter-out $(PROGRAM_FOLDERS:%=src/%/%),$(wildcard src/*/*.c)))
CUDA_SOURCES := $(if $(CONFIG_NVCC),$(sort $(wildcard src/cuda/*.cu src/cuda/*/*.cu)))

# Under src/cpu everything is a kernel, compiled for float once for each instruction set and for double
# once, but for these, compiled once.
CPU_PLAIN := backend
KERNEL_SOURCES := $(filter-out $(CPU_PLAIN:%=src/cpu/%.c),$(filter src/cpu/%.c,$(LIB_SOURCES)))
PLAIN_SOURCES := $(filter-out $(KERNEL_SOURCES),$(LIB_SOURCES))
VARIANTS := $(ISAS:%=%.32) $(ISA_64).64

# $(call lib_objects,DIR): the library's objects under DIR; $(call program_objects,DIR): the program's
# own.
lib_objects = $(PLAIN_SOURCES:src/%.c=$(1)/%.o) \
	$(foreach v,$(VARIANTS),$(KERNEL_SOURCES:src/%.c=$(1)/%.$(v).o)) \
	$(CUDA_SOURCES:src/%.cu=$(1)/%.cu.o)
program_objects = $(PROGRAM_SOURCES:src/%.c=$(1)/%.o)

# $(call kernel_rule,DIR,CC,FLAGS,ISA,REAL)
define kernel_rule
$(1)/cpu/%.$(4).$(5).o: src/cpu/%.c $(1)/flags
	@mkdir -p $$(@D)
	$$(call say,CC,$$<  $(4) f$(5))
	$$(Q)$(2) $(3) $(OPT_KERNEL) $(ISA_FLAGS_$(4)) $(if $(filter 64,$(5)),$(OPT_64)) -DWEFT_ISA=$(4) -DWEFT_REAL=$(5) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $$< -o $$@
endef

# $(call compile_rules,DIR,CC,FLAGS): how to make objects under DIR. Used for the build, and by lint
# once for each compiler. With WERROR or without it an object is the same, so that is not in the stamp.
define compile_rules
$(call stamp,$(1)/flags,$(2) $(filter-out -Werror,$(3)) $(OPT_PLAIN) $(OPT_KERNEL) $(ISAS) $(TEST_INCLUDES) $(CPPFLAGS) $(CFLAGS) $(CONFIG_TOOLS))

$(call stamp,$(1)/commit,$(GIT_COMMIT))
$(1)/base/version.o: $(1)/commit
$(1)/base/version.o: OWN_DEFINES := -DWEFT_GIT_COMMIT='"$(GIT_COMMIT)"'

# Holds them whole.
$(1)/base/style.o: src/base/page.css
$(1)/inspect/page.o: src/inspect/heads.js
$(1)/report/page.o: src/report/charts.js src/report/page.js src/report/charts.css
$(1)/serve/server.o: src/serve/page.html
$(1)/convert/hf_weights.o: src/convert/configuration_weft.py src/convert/modeling_weft.py
$(1)/watch/live.o: src/watch/live.html src/watch/live.js src/watch/live.css

$(1)/%.o: src/%.c $(1)/flags
	@mkdir -p $$(@D)
	$$(call say,CC,$$<)
	$$(Q)$(2) $(3) $(OPT_PLAIN) $(ISA_DEFINES) $$(OWN_DEFINES) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $$< -o $$@

$(foreach i,$(ISAS),$(foreach r,32 64,
$(call kernel_rule,$(1),$(2),$(3),$(i),$(r))
))

$(1)/tests/%.o: tests/%.c $(1)/flags
	@mkdir -p $$(@D)
	$$(call say,CC,$$<)
	$$(Q)$(2) $(3) $(TEST_INCLUDES) $(OPT_PLAIN) $(ISA_DEFINES) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $$< -o $$@

$(1)/bench/%.o: bench/%.c $(1)/flags
	@mkdir -p $$(@D)
	$$(call say,CC,$$<)
	$$(Q)$(2) $(3) $(OPT_PLAIN) $(ISA_DEFINES) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $$< -o $$@

$(1)/examples/%.o: examples/%.c $(1)/flags
	@mkdir -p $$(@D)
	$$(call say,CC,$$<)
	$$(Q)$(2) $(filter-out -Isrc,$(3)) $(OPT_PLAIN) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $$< -o $$@

$(call stamp,$(1)/cuda-flags,$(CONFIG_NVCC) $(CUDA_ARCH))

$(1)/%.cu.o: src/%.cu $(1)/flags $(1)/cuda-flags
	@mkdir -p $$(@D)
	$$(call say,NVCC,$$<)
	$$(Q)$(CONFIG_NVCC) -ccbin $(2) $(CUDA_ARCH) -O3 -g -std=c++17 $(if $(filter-out 0 n no,$(WERROR)),-Werror all-warnings) -Xcompiler=-fPIC,-fvisibility=hidden,-Wall -DWEFT_CUDA_LIBRARIES='"$(CONFIG_CUDA)/lib64"' $(if $(findstring 90a,$(CUDA_ARCH)),-DWEFT_CUDA_9_0A) $(DEFINES) $(INCLUDES) -MD -MP -MF $$(@:.o=.d) -c $$< -o $$@
endef

# One short line a step; V=1 shows the commands themselves. Where there is no program yet, the line begins with
# how far the build is and, once there is something to judge by, how long the rest will take.
ifeq ($(V),1)
Q :=
say =
else
Q := @
say = @$(if $(filter-out 0,$(TO_BUILD)),$(eval BUILT += x)$(say_left)) printf '%-5s %s\n' '$(1)' '$(2)'
endif
BEGAN := $(shell date +%s)
say_left = n=$(words $(BUILT)) all=$(TO_BUILD) passed=$$(($$(date +%s) - $(BEGAN))); [ $$n -lt $$all ] || n=$$all; \
	[ $$passed -lt 5 ] && printf '[%3d%%] ' $$((100 * n / all)) || \
	printf '[%3d%%, %2ds left] ' $$((100 * n / all)) $$((passed * (all - n) / n));

# Machine code for the GPUs of this machine; where there is none, for Hopper (H100, H200), whose kernels
# multiply by wgmma and copy by TMA. Code for any other architecture has the kernels by mma.sync and the
# plain ones. Packages have Hopper's, and PTX for compute_80, which drivers translate for every GPU from
# 8.0 on.
cuda_code = -gencode arch=compute_$(1),code=sm_$(1)
CUDA_CODE := $(foreach gpu,$(or $(if $(filter deb wheel,$(MAKECMDGOALS)),,$(CONFIG_GPUS)),9.0),$(call cuda_code,$(subst .,,$(gpu:9.0=9.0a))))
CUDA_ARCH ?= $(CUDA_CODE) $(if $(filter deb wheel,$(MAKECMDGOALS)),-gencode arch=compute_80$(comma)code=compute_80)
# The runtime is linked in and looks for the driver when it is used; cuBLASLt, which takes a tenth of
# a second to load, is opened by src/cuda/products/library.cu when a product is run.
CUDA_LIBS ?= -lcudart_static -ldl -lrt -lstdc++
CUDA_LINK := $(if $(CUDA_SOURCES),$(addprefix -L,$(wildcard $(CONFIG_CUDA)/lib64)) $(CUDA_LIBS))
ifneq ($(CUDA_SOURCES),)
DEFINES += -DWEFT_HAVE_CUDA
endif

OBJ := $(OUT)/obj
$(OBJ)/data/tokenizer_input.o: OWN_DEFINES := $(CONFIG_UNPACK)
$(eval $(call stamp,$(OBJ)/unpack-flags,$(CONFIG_UNPACK)))
$(OBJ)/data/tokenizer_input.o: $(OBJ)/unpack-flags
LIB_OBJECTS := $(call lib_objects,$(OBJ))
PROGRAM_OBJECTS := $(call program_objects,$(OBJ))
LIB_A := $(OUT)/libweft.a
# What is in the program beside its commands, for tests and benchmarks. It is not installed.
PARTS_A := $(OUT)/libprogram.a
PARTS_OBJECTS := $(filter-out $(OBJ)/cli/%,$(PROGRAM_OBJECTS))
LIB_SO := $(OUT)/libweft.so
PROGRAM := $(OUT)/weft
SONAME := libweft.so.$(VERSION_MAJOR)

# How many objects are missing for the first program; of a goal that makes more than that, nothing is said.
ifeq ($(wildcard $(PROGRAM))$(filter-out all build study,$(MAKECMDGOALS)),)
TO_BUILD := $(words $(filter-out $(wildcard $(LIB_OBJECTS) $(PROGRAM_OBJECTS)),$(LIB_OBJECTS) $(PROGRAM_OBJECTS)))
endif

$(eval $(call compile_rules,$(OBJ),$(CC),$(COMPILE_FLAGS)))
# Links follow their own stamp: the flags, and which objects there are, so that a source that goes
# away leaves the library too.
$(eval $(call stamp,$(OBJ)/link,$(CC) $(LINK_FLAGS) $(LDFLAGS) $(LIBS) $(CUDA_LINK) $(SONAME) $(PROGRAM_LIBS) $(LIB_OBJECTS) $(PROGRAM_OBJECTS)))

$(LIB_A): $(LIB_OBJECTS) $(OBJ)/link
	$(call say,AR,$@)
	@rm -f $@
	$(Q)$(AR) rcs $@ $(LIB_OBJECTS)

$(PARTS_A): $(PARTS_OBJECTS) $(OBJ)/link
	$(call say,AR,$@)
	@rm -f $@
	$(Q)$(AR) rcs $@ $(PARTS_OBJECTS)

# A sanitizer's runtime is the program's to bring, so only a plain library must be complete.
$(LIB_SO): $(LIB_OBJECTS) $(OBJ)/link
	$(call say,LD,$@)
	$(Q)$(CC) -shared -Wl,-soname,$(SONAME) $(if $(SAN),,-Wl,-z,defs) $(LINK_FLAGS) $(LDFLAGS) \
		$(LIB_OBJECTS) $(LIBS) $(CUDA_LINK) -o $@

# The calls of MPI, opened when several processes are started: see src/comm/launch.h.
MPI_SHIM := $(if $(findstring WEFT_HAVE_MPI,$(CONFIG_DEFINES)),$(OUT)/libweft-mpi.so)
$(eval $(call stamp,$(OBJ)/mpi-link,$(CC) $(filter-out -Werror,$(BASE_FLAGS)) $(LINK_FLAGS) $(LDFLAGS) $(CONFIG_MPI_CFLAGS) $(CONFIG_MPI_LIBS)))

$(OUT)/libweft-mpi.so: src/comm/mpi/shim.c src/comm/launch.h $(OBJ)/mpi-link
	$(call say,LD,$@)
	$(Q)$(CC) -shared $(BASE_FLAGS) $(OPT_PLAIN) -Isrc -Iinclude $(CONFIG_MPI_CFLAGS) $(CPPFLAGS) $(CFLAGS) \
		$(LINK_FLAGS) $(LDFLAGS) $< $(CONFIG_MPI_LIBS) -o $@

# The calls of NCCL, opened by ranks with a GPU each: see src/comm/launch.h.
NCCL_SHIM := $(if $(CONFIG_NCCL_CFLAGS),$(OUT)/libweft-nccl.so)
NCCL_FLAGS := -I$(CONFIG_CUDA)/include $(CONFIG_NCCL_CFLAGS) $(if $(CONFIG_NCCL_LIBRARY),-DWEFT_NCCL_LIBRARY='"$(CONFIG_NCCL_LIBRARY)"')
$(eval $(call stamp,$(OBJ)/nccl-link,$(CC) $(filter-out -Werror,$(BASE_FLAGS)) $(LINK_FLAGS) $(LDFLAGS) $(NCCL_FLAGS)))

$(OUT)/libweft-nccl.so: src/comm/nccl/shim.c src/comm/launch.h $(OBJ)/nccl-link
	$(call say,LD,$@)
	$(Q)$(CC) -shared $(BASE_FLAGS) $(OPT_PLAIN) -Isrc -Iinclude $(NCCL_FLAGS) $(CPPFLAGS) $(CFLAGS) \
		$(LINK_FLAGS) $(LDFLAGS) $< -ldl -o $@

$(PROGRAM): | $(MPI_SHIM) $(NCCL_SHIM)
$(PROGRAM): $(PROGRAM_OBJECTS) $(LIB_A) $(OBJ)/link
	$(call say,LD,$@)
	$(Q)$(CC) $(LINK_FLAGS) $(LDFLAGS) $(PROGRAM_OBJECTS) $(LIB_A) $(PROGRAM_LIBS) $(LIBS) $(CUDA_LINK) -o $@
	$(Q)ln -sfnr defconfigs $(@D)/defconfigs

-include $(patsubst %.o,%.d,$(LIB_OBJECTS) $(PROGRAM_OBJECTS))
