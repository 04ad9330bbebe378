"""Builds or finds libweft and puts it into the package, so that `pip install ./python` needs no flags. The
version says what was found, for pip hides what a build prints: weft-0.1.0+cpu, or weft-0.1.0+cuda."""
import os
import pathlib
import shutil
import subprocess
import sys

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

HERE = pathlib.Path(__file__).resolve().parent
VERSION = "0.1.0"


def find_library():
    named = os.environ.get("WEFT_LIBRARY")
    if named:
        if not pathlib.Path(named).is_file():
            raise SystemExit(f"weft: WEFT_LIBRARY names {named}, but there is no such file")
        return pathlib.Path(named)
    if not (HERE.parent / "Makefile").exists() or not (HERE.parent / "src" / "core").exists():
        raise SystemExit("weft: no source tree beside this folder; name libweft.so with WEFT_LIBRARY")
    made = subprocess.run(["make", "-C", str(HERE.parent), "build"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          universal_newlines=True)
    if made.returncode:
        raise SystemExit("weft: libweft cannot be built; `make build` ended with:\n" + made.stdout[-2000:])
    return HERE.parent / "build" / "libweft.so"


library = find_library()
cuda = b"cudaLaunchKernel" in library.read_bytes()


class Build(build_py):
    def run(self):
        folder = HERE / "weft" / "_lib"
        folder.mkdir(exist_ok=True)
        shutil.copy2(library, folder / "libweft.so")
        print(f"weft: {library.name} for the CPU{' and CUDA' if cuda else ''}", file=sys.stderr)
        super().run()


class Binary(Distribution):
    def has_ext_modules(self):
        return True


setup(version=f"{VERSION}+{'cuda' if cuda else 'cpu'}", cmdclass={"build_py": Build}, distclass=Binary)
