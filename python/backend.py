"""The Python package out of the root of the sources, as `pip install .` and `pip install weft-VERSION.tar.gz` ask for
it: python/pyproject.toml says what it is. The archive of the sources is that of `make dist`."""
import os
import pathlib
import shutil
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
os.chdir(HERE)

from setuptools.build_meta import *  # noqa: E402,F401,F403 (setuptools works in the working folder)


def build_sdist(sdist_directory, config_settings=None):
    said = subprocess.run(["make", "-s", "-C", str(HERE.parent), "dist"], stdout=subprocess.PIPE, check=True, universal_newlines=True)
    return pathlib.Path(shutil.copy(HERE.parent / said.stdout.strip(), sdist_directory)).name
