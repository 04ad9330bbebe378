"""Builds or finds libweft and puts it into the package, so that `pip install ./python` needs no flags."""
import os
import pathlib
import shutil
import subprocess

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

HERE = pathlib.Path(__file__).resolve().parent


def find_library():
    named = os.environ.get("WEFT_LIBRARY")
    if named:
        return pathlib.Path(named)
    if (HERE.parent / "Makefile").exists() and (HERE.parent / "src" / "core").exists():
        subprocess.run(["make", "-C", str(HERE.parent), "build"], check=True)
        return HERE.parent / "build" / "libweft.so"
    raise SystemExit("weft: no source tree beside this folder; name libweft.so with WEFT_LIBRARY")


class Build(build_py):
    def run(self):
        library = find_library()
        folder = HERE / "weft" / "_lib"
        folder.mkdir(exist_ok=True)
        shutil.copy2(library, folder / "libweft.so")
        cuda = b"cudaLaunchKernel" in library.read_bytes()
        print(f"weft: {library.name} for the CPU{' and CUDA' if cuda else ''}")
        super().run()


class Binary(Distribution):
    def has_ext_modules(self):
        return True


setup(cmdclass={"build_py": Build}, distclass=Binary)
