#!/usr/bin/env python3
"""Where a program of this repository spends its time: a profile by sampling, with no more than cc and addr2line.

    bench/where.py [--files TEXT] [--lines N] COMMAND...

    bench/where.py --files src/cpu build/weft bench decode --device cpu --threads 1 --batches 1 --steps 400 \\
        -o WEIGHT_DTYPE=int8 -o CACHE_DTYPE=int8 --variants mla --contexts 16384 --prompt 0

A timer's signal comes after every millisecond of processor time (or as often as the system has it) and keeps where
the program is. The table has the shares of functions, inlined ones too, of the source files whose path holds TEXT;
what the C library and the compiler's own headers do counts for the function that calls for it.
"""

import argparse
import collections
import os
import subprocess
import sys
import tempfile

SAMPLER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <ucontext.h>
#if defined(__aarch64__)
#define PLACE(m) ((m).pc)
#else
#define PLACE(m) ((m).gregs[REG_RIP])
#endif
enum { MOST = 1 << 20 };
static uintptr_t place[MOST];
static volatile int n;
static void tick(int s, siginfo_t *i, void *c) {
    (void)s, (void)i;
    if (n < MOST) place[n++] = (uintptr_t)PLACE(((ucontext_t *)c)->uc_mcontext);
}
__attribute__((constructor)) static void begin(void) {
    struct sigaction a = {.sa_sigaction = tick, .sa_flags = SA_SIGINFO | SA_RESTART};
    struct itimerval t = {{0, 1000}, {0, 1000}};
    unsetenv("LD_PRELOAD"); /* its own children are no part of it */
    sigaction(SIGPROF, &a, NULL);
    setitimer(ITIMER_PROF, &t, NULL);
}
__attribute__((destructor)) static void end(void) {
    struct itimerval t = {{0}};
    Dl_info d;
    setitimer(ITIMER_PROF, &t, NULL);
    FILE *f = fopen(getenv("WHERE_OUT"), "w");
    for (int i = 0; f && i < n; i++)
        if (dladdr((void *)place[i], &d))
            fprintf(f, "%lx %s\n", (unsigned long)(place[i] - (uintptr_t)d.dli_fbase), d.dli_fname);
    if (f) fclose(f);
}
"""


def sample(command, folder):
    source, library, out = (os.path.join(folder, name) for name in ("sampler.c", "sampler.so", "places"))
    with open(source, "w") as to:
        to.write(SAMPLER)
    subprocess.run([os.environ.get("CC", "cc"), "-O1", "-shared", "-fPIC", source, "-o", library, "-ldl"], check=True)
    status = subprocess.run(command, env=dict(os.environ, LD_PRELOAD=library, WHERE_OUT=out), stdout=sys.stderr)
    if status.returncode:
        sys.exit(f"bench/where.py: {command[0]} ended with status {status.returncode}")
    places = collections.defaultdict(collections.Counter)
    for line in open(out):
        address, path = line.rstrip("\n").split(" ", 1)
        places[path][address] += 1
    return places


def chains(path, addresses):
    """Of each address its functions, innermost first, each with its file."""
    said = subprocess.run(["addr2line", "-a", "-i", "-f", "-e", path], input="\n".join(addresses), check=True,
                          stdout=subprocess.PIPE, text=True).stdout.splitlines()
    chain = None
    for name, file in pairs(said):
        if name is None:
            chain = []
            yield chain
        else:
            chain.append((name, file.rsplit(":", 1)[0]))


def pairs(lines):
    at = 0
    while at < len(lines):
        if lines[at].startswith("0x"):
            yield None, None
            at += 1
        else:
            yield lines[at], lines[at + 1]
            at += 2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", default="/src/", help="count functions of files whose path holds this")
    parser.add_argument("--lines", type=int, default=16, help="lines of the table")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not options.command:
        parser.error("there is no command")
    shares = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        for path, count in sample(options.command, folder).items():
            addresses = list(count)
            for address, chain in zip(addresses, list(chains(path, addresses))):
                own = [name for name, file in chain if options.files in os.path.normpath(file)]
                if own:
                    shares[own[0]] += count[address]
    total = sum(shares.values())
    if not total:
        sys.exit(f"bench/where.py: no sample in files with '{options.files}'; does the program run long enough?")
    print(f"{total} samples in files with '{options.files}'")
    for name, share in shares.most_common(options.lines):
        print(f"{100 * share / total:5.1f}%  {name}")


if __name__ == "__main__":
    main()
