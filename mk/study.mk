# Configs and the study: what `make` runs, and the targets that write .config. scripts/kconfig.py
# does the latter, by the interpreter that has kconfiglib.

.PHONY: study kconfig menuconfig savedefconfig list-defconfigs

# CONFIG_KEY=value on make's command line is an option of this run's config, and the program checks
# it. Names that the build itself sets are not options, nor is anything from the environment.
BUILD_CONFIGS := $(addprefix CONFIG_,ARCH TOOLS DEFINES CFLAGS LDFLAGS LIBS PROGRAM_LIBS REQUIRES \
	LIBS_PRIVATE NVCC CUDA KEY NEEDS)
OVERRIDES := $(sort $(foreach v,$(filter-out $(BUILD_CONFIGS),$(filter CONFIG_%,$(.VARIABLES))),\
	$(if $(filter command,$(firstword $(origin $(v)))),$(v))))
STUDY_OPTIONS = $(foreach v,$(OVERRIDES),-o $(call quoted,$(v:CONFIG_%=%)=$(value $(v))))

# Which config is in force, and how long it takes, is the first thing that plain make says, unless it is to
# be silent.
ifeq ($(MAKE_RESTARTS)$(findstring s,$(filter-out --%,$(firstword -$(MAKEFLAGS)))),)
ifneq ($(filter all study,$(or $(MAKECMDGOALS),all)),)
$(info weft: $(if $(wildcard $(PROGRAM)),,first the build, then )the study of $(if $(wildcard .config),.config; without that file it is the demo's,defconfigs/demo; make defconfig-NAME chooses another))
$(if $(wildcard $(PROGRAM) .config),,$(info weft: the report comes in about three minutes on two cores))
endif
endif

# Where the study goes is `weft study`'s to choose; OUT=folder chooses another. The demo's runs are so
# small that one a core is the fastest; another study has one run at a time, on all cores, unless
# JOBS= says otherwise: it may need the memory.
study: build | $(filter defconfig-% menuconfig,$(MAKECMDGOALS)) ## the study of .config (of defconfigs/demo without one); OUT=folder, CONFIG_KEY=value
	@config=.config; jobs=1; [ -f .config ] || { config=defconfigs/demo; jobs=$(CORES); }; \
	$(PROGRAM) study --config $$config $(if $(STUDY_OUT),--out $(call quoted,$(STUDY_OUT))) \
		--jobs $(or $(JOBS),$$jobs) $(STUDY_OPTIONS)

# Kconfig is the program's table of options as text, and is kept in the tree.
kconfig: $(PROGRAM) ## write Kconfig again from the program's options
	@$(PROGRAM) help config --kconfig > Kconfig.new && mv Kconfig.new Kconfig

# $(call run_kconfig,ARGUMENTS): installs kconfiglib where it is missing.
define run_kconfig
@python=$$(scripts/python-with kconfiglib) || { \
	$(if $(filter no,$(SETUP)),,scripts/setup study &&) python=$$(scripts/python-with kconfiglib); } || { \
	echo "make $@: no python3 has kconfiglib; scripts/setup study installs it, python3 -m pip install kconfiglib too" >&2; exit 1; }; \
"$$python" scripts/kconfig.py $(1)
endef

menuconfig: | $(filter defconfig-%,$(MAKECMDGOALS)) ## change .config in a menu
	$(call run_kconfig,menuconfig)

defconfig-%: ## write .config from defconfigs/NAME
	@[ -f 'defconfigs/$*' ] || { \
		echo "make $@: there is no defconfigs/$*; make list-defconfigs lists those there are" >&2; exit 1; }
	$(call run_kconfig,defconfig 'defconfigs/$*')

savedefconfig: ## write what .config changes to defconfig; to defconfigs/NAME with NAME=
	$(call run_kconfig,savedefconfig $(call quoted,$(if $(NAME),defconfigs/$(NAME),defconfig)))

# The first sentence of each one's leading comment; before it, where the program is built, about how long
# the study takes on this machine.
list-defconfigs: ## the studies there are, and how long each takes here
	@for file in defconfigs/*; do time=; \
		if [ -x $(PROGRAM) ]; then for data in '' '-o DATASET=embedded'; do [ "$$time" ] || \
			time=$$($(PROGRAM) study --config "$$file" --device cpu $$data --list 2>/dev/null | \
			sed -n 's/^about \(.*\) here, .*/\1/p'); done; printf '%-24s %-12s ' "$${file#defconfigs/}" "$${time:--}"; \
		else printf '%-24s ' "$${file#defconfigs/}"; fi; \
		sed -n '1{/^#/!s/.*//;s/^# *//;p;}' "$$file"; done
