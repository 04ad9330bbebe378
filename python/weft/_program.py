"""The command `weft` of an installed package: becomes the program that was packed with the library, or, of a package
that is used in a source tree, the one in its build folder."""
import os
import pathlib
import sys


def main():
    here = pathlib.Path(__file__).resolve().parent
    for program in here / "_lib" / "weft", here.parent.parent / "build" / "weft":
        if program.exists():
            os.execv(program, ["weft", *sys.argv[1:]])
    sys.exit("weft: this package has the library alone; install a wheel of `make wheel`")
