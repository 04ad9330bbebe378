# Install and uninstall: program, library, headers, pkg-config file, man page, completion for bash and
# zsh, the ready studies (`weft study --config demo` finds them), the scripts that the guide names,
# documentation and examples. Archives:
# the sources (dist), which pip installs too, a Debian package (deb) and a Python wheel (wheel).

PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR ?= $(PREFIX)/share/man
PKGCONFIGDIR ?= $(LIBDIR)/pkgconfig
DATADIR ?= $(PREFIX)/share/weft
DOCDIR ?= $(PREFIX)/share/doc/weft
BASHDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions

SO_FILE := libweft.so.$(VERSION)
INSTALLED := $(BINDIR)/weft $(LIBDIR)/libweft.a $(LIBDIR)/$(SO_FILE) $(LIBDIR)/libweft.so.$(VERSION_MAJOR) \
	$(LIBDIR)/libweft.so $(INCLUDEDIR)/weft/weft.h $(INCLUDEDIR)/weft/graph.h $(INCLUDEDIR)/weft/step.h $(PKGCONFIGDIR)/weft.pc $(MANDIR)/man1/weft.1 $(LIBDIR)/libweft-mpi.so $(LIBDIR)/libweft-nccl.so \
	$(BASHDIR)/weft $(ZSHDIR)/_weft
# What a reader reads; the databases behind the results stay in the repository.
DOC_FILES := $(wildcard README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE docs/*.md docs/explainer.html docs/guide/*.md docs/internals/*.md \
	docs/notes/*.md docs/results/*.md docs/images/*.svg docs/images/*.png docs/images/*.webp)
EXAMPLE_FILES := $(wildcard examples/*)
SCRIPT_FILES := scripts/export scripts/chat-template scripts/corpus scripts/stream_dataset.py

.PHONY: install install-files uninstall dist deb wheel test-packages

install: build install-files ## install under PREFIX (/usr/local), within DESTDIR

# What is built already.
install-files: | $(if $(filter install,$(MAKECMDGOALS)),build)
	install -d $(addprefix '$(DESTDIR)',$(BINDIR) $(LIBDIR) $(INCLUDEDIR)/weft $(PKGCONFIGDIR) $(MANDIR)/man1 \
		$(DATADIR)/defconfigs $(DATADIR)/scripts $(DOCDIR)/examples $(BASHDIR) $(ZSHDIR) $(sort $(dir $(DOC_FILES:%=$(DOCDIR)/%))))
	install -m 755 $(PROGRAM) '$(DESTDIR)$(BINDIR)/weft'
	install -m 644 $(LIB_A) '$(DESTDIR)$(LIBDIR)/libweft.a'
	install -m 755 $(LIB_SO) '$(DESTDIR)$(LIBDIR)/$(SO_FILE)'
	ln -sf $(SO_FILE) '$(DESTDIR)$(LIBDIR)/libweft.so.$(VERSION_MAJOR)'
	ln -sf $(SO_FILE) '$(DESTDIR)$(LIBDIR)/libweft.so'
	$(if $(MPI_SHIM),install -m 755 $(MPI_SHIM) '$(DESTDIR)$(LIBDIR)/libweft-mpi.so')
	$(if $(NCCL_SHIM),install -m 755 $(NCCL_SHIM) '$(DESTDIR)$(LIBDIR)/libweft-nccl.so')
	install -m 644 include/weft/weft.h include/weft/graph.h include/weft/step.h '$(DESTDIR)$(INCLUDEDIR)/weft/'
	sed -e 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@INCLUDEDIR@|$(INCLUDEDIR)|; s|@VERSION@|$(VERSION)|' \
		-e 's|@REQUIRES@|$(strip $(CONFIG_REQUIRES))|; s|@LIBS_PRIVATE@|$(strip $(CONFIG_LDFLAGS) $(CONFIG_LIBS_PRIVATE) $(CUDA_LINK))|' \
		weft.pc.in > '$(DESTDIR)$(PKGCONFIGDIR)/weft.pc'
	sed 's|@VERSION@|$(VERSION)|' docs/weft.1 > '$(DESTDIR)$(MANDIR)/man1/weft.1'
	install -m 644 completions/weft.bash '$(DESTDIR)$(BASHDIR)/weft'
	install -m 644 completions/_weft '$(DESTDIR)$(ZSHDIR)/_weft'
	install -m 644 defconfigs/* '$(DESTDIR)$(DATADIR)/defconfigs/'
	install -m 644 Kconfig '$(DESTDIR)$(DATADIR)/Kconfig'
	install -m 755 $(SCRIPT_FILES) '$(DESTDIR)$(DATADIR)/scripts/'
	install -m 644 $(EXAMPLE_FILES) '$(DESTDIR)$(DOCDIR)/examples/'
	for file in $(DOC_FILES); do install -m 644 "$$file" '$(DESTDIR)$(DOCDIR)/'"$$file" || exit 1; done

uninstall: ## remove what install put there
	rm -f $(addprefix '$(DESTDIR)',$(INSTALLED) $(DATADIR)/Kconfig $(patsubst %,$(DATADIR)/%,$(wildcard defconfigs/*) $(SCRIPT_FILES)) \
		$(DOC_FILES:%=$(DOCDIR)/%) $(EXAMPLE_FILES:%=$(DOCDIR)/%))
	-rmdir $(addprefix '$(DESTDIR)',$(INCLUDEDIR)/weft $(DATADIR)/defconfigs $(DATADIR)/scripts $(DATADIR) $(DOCDIR)/examples $(DOCDIR)/docs/guide \
		$(DOCDIR)/docs/internals $(DOCDIR)/docs/notes $(DOCDIR)/docs/results $(DOCDIR)/docs/images $(DOCDIR)/docs $(DOCDIR)) 2>/dev/null

# The sources as they are committed; `make` in the unpacked folder knows their commit, and PKG-INFO makes it what
# Python calls an sdist.
DIST := $(BUILD)/weft-$(VERSION).tar.gz
dist: ## the committed sources as build/weft-VERSION.tar.gz
	@mkdir -p '$(BUILD)'
	@git archive --format=tar --prefix='weft-$(VERSION)/' --add-virtual-file="weft-$(VERSION)/.commit:$$(git rev-parse HEAD)" \
		--add-virtual-file="weft-$(VERSION)/PKG-INFO:$$(printf 'Metadata-Version: 2.1\nName: weft\nVersion: $(VERSION)\nRequires-Python: >=3.9')" HEAD | gzip -9n > '$(DIST).part'
	@mv '$(DIST).part' '$(DIST)' && echo "$(DIST)"

deb: build ## a Debian package of what install installs, build/weft_VERSION_ARCH.deb
	@scripts/deb '$(BUILD)' '$(VERSION)' $(MAKE)

wheel: build ## a Python wheel with program, library and what they need, in dist/
	@PYTHON='$(PYTHON)' scripts/wheel '$(BUILD)' dist

# Its own makes are told what this one was told.
test-packages: ## install what deb, wheel and dist make in bare roots, and use it (root, debootstrap, network); ROOTS=folder keeps them
	@ROOTS='$(ROOTS)' tests/packages '$(BUILD)' '$(VERSION)' $(MAKE)
