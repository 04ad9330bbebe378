"""Tests run on the package of this folder, on one thread each: they are small, and machines are shared."""
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
os.environ.setdefault("WEFT_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
