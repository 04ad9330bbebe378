# Examples: examples/NAME.c is one program that uses the library through include/weft alone.

EXAMPLE_SOURCES := $(sort $(wildcard examples/*.c))
EXAMPLE_PROGRAMS := $(EXAMPLE_SOURCES:%.c=$(OUT)/%)
EXAMPLE_OBJECTS := $(EXAMPLE_SOURCES:%.c=$(OBJ)/%.o)

.SECONDARY: $(EXAMPLE_OBJECTS)

build: $(EXAMPLE_PROGRAMS)

$(EXAMPLE_PROGRAMS): $(OUT)/%: $(OBJ)/%.o $(LIB_A) $(OBJ)/link
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(LINK_FLAGS) $(LDFLAGS) $< $(LIB_A) $(LIBS) $(CUDA_LINK) -o $@

-include $(EXAMPLE_OBJECTS:.o=.d)
