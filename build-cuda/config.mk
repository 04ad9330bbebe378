# Written by scripts/detect; make configure writes it anew.
CONFIG_ARCH := aarch64
CONFIG_TOOLS := cc (Debian 12.2.0-14+deb12u1) 12.2.0
CONFIG_BLAS := openblas
CONFIG_DEFINES := -DWEFT_BLAS_OPENBLAS -DWEFT_HAVE_MICROHTTPD -DWEFT_HAVE_MPI
CONFIG_CFLAGS :=  -isystem /usr/include/aarch64-linux-gnu/openblas-pthread/     -isystem /usr/include/p11-kit-1  -isystem /usr/lib/aarch64-linux-gnu/openmpi/include -isystem /usr/lib/aarch64-linux-gnu/openmpi/include/openmpi 
CONFIG_LDFLAGS := 
CONFIG_LIBS :=  -L/usr/lib/aarch64-linux-gnu/openblas-pthread/ -lopenblas  -ljansson  -lpcre2-8  -L/usr/lib/aarch64-linux-gnu/openmpi/lib -lmpi 
CONFIG_PROGRAM_LIBS :=  -lsqlite3  -lmicrohttpd 
CONFIG_REQUIRES :=  openblas jansson libpcre2-8 ompi-c
CONFIG_LIBS_PRIVATE := 
CONFIG_NVCC := /work/bin/nvcc
CONFIG_CUDA := /work
KCONFIG_PYTHON := /usr/bin/python3
GNUPLOT := /usr/bin/gnuplot
HAVE_CMOCKA := y
CMOCKA_CFLAGS := 
CMOCKA_LIBS := -lcmocka 
