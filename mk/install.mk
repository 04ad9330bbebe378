# Install and uninstall: program, library, header, pkg-config file, man page.

PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR ?= $(PREFIX)/share/man
PKGCONFIGDIR ?= $(LIBDIR)/pkgconfig

SO_FILE := libweft.so.$(VERSION)
INSTALLED := $(BINDIR)/weft $(LIBDIR)/libweft.a $(LIBDIR)/$(SO_FILE) $(LIBDIR)/libweft.so.$(VERSION_MAJOR) \
	$(LIBDIR)/libweft.so $(INCLUDEDIR)/weft/weft.h $(INCLUDEDIR)/weft/graph.h $(INCLUDEDIR)/weft/step.h $(PKGCONFIGDIR)/weft.pc $(MANDIR)/man1/weft.1 $(LIBDIR)/libweft-mpi.so $(LIBDIR)/libweft-nccl.so

.PHONY: install uninstall

install: build ## install under PREFIX (/usr/local), within DESTDIR
	install -d $(addprefix '$(DESTDIR)',$(BINDIR) $(LIBDIR) $(INCLUDEDIR)/weft $(PKGCONFIGDIR) $(MANDIR)/man1)
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

uninstall: ## remove what install put there
	rm -f $(addprefix '$(DESTDIR)',$(INSTALLED))
	-rmdir '$(DESTDIR)$(INCLUDEDIR)/weft' 2>/dev/null
