"""The command `weft` of an installed package: becomes the program that was packed with the library."""
import os
import pathlib
import sys


def main():
    program = pathlib.Path(__file__).resolve().parent / "_lib" / "weft"
    try:
        os.execv(program, ["weft", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"weft: {program}: {error.strerror}; install a wheel of `make wheel`, or use build/weft of the sources")
