"""Puts libweft and the program into the package: those that WEFT_LIBRARY names and that are beside it, else what
`make build` makes of the sources around this folder, so that `pip install ./python` needs no flags. The version
says what was found, for pip hides what a build prints: weft-0.1.0+cpu, or weft-0.1.0+cuda."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent


def find_version():
    header = ROOT / "include" / "weft" / "weft.h"
    if not header.is_file():
        raise SystemExit("weft: no source tree around this folder: the version is read from include/weft/weft.h")
    numbers = dict(re.findall(r"#define WEFT_VERSION_(MAJOR|MINOR|PATCH) +(\d+)", header.read_text()))
    return "{MAJOR}.{MINOR}.{PATCH}".format(**numbers)


def find_library():
    named = os.environ.get("WEFT_LIBRARY")
    if named:
        if not pathlib.Path(named).is_file():
            raise SystemExit(f"weft: WEFT_LIBRARY names {named}, but there is no such file")
        return pathlib.Path(named)
    made = subprocess.run(["make", "-C", str(ROOT), "build"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          universal_newlines=True)
    if made.returncode:
        raise SystemExit("weft: libweft cannot be built; `make build` ended with:\n" + made.stdout[-2000:])
    return ROOT / "build" / "libweft.so"


version = find_version()
library = find_library()
cuda = b"cudaLaunchKernel" in library.read_bytes()


class Build(build_py):
    """What is built goes into the wheel and not into the sources, where it would hide what `make build` makes."""

    def run(self):
        super().run()
        if getattr(self, "editable_mode", False):
            return
        folder = pathlib.Path(self.build_lib) / "weft" / "_lib"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library, folder / "libweft.so")
        program = library.parent / "weft"
        if program.is_file():
            shutil.copy2(program, folder / "weft")
            shutil.copytree(ROOT / "defconfigs", folder / "defconfigs", dirs_exist_ok=True)
        print(f"weft: {library.name} for the CPU{' and CUDA' if cuda else ''}", file=sys.stderr)


class Wheel(bdist_wheel):
    """ctypes calls the library: one wheel for every Python 3."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class Binary(Distribution):
    def has_ext_modules(self):
        return True


# A folder of its own each time: setuptools packs whatever an earlier build left.
with tempfile.TemporaryDirectory() as made:
    setup(version=f"{version}+{'cuda' if cuda else 'cpu'}", cmdclass={"build_py": Build, "bdist_wheel": Wheel},
          distclass=Binary, options={"build": {"build_base": made}})
