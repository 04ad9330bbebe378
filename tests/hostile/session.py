"""What attack.py and disorder.py share: their options, a folder to work in, dice, and counts."""
import argparse
import collections
import os
import pathlib
import random
import sys
import tempfile

SMALL_MODEL = """CONFIG_N_LAYER=1
CONFIG_N_HEAD=2
CONFIG_N_EMBD=16
CONFIG_VOCAB_SIZE=256
CONFIG_CONTEXT=16
CONFIG_EVAL_SAMPLES=2
CONFIG_BATCH_SIZE=2
CONFIG_CHECKPOINT_INTERVAL=1
"""


class Session:
    """A run that is determined by its seed, as far as the time allows. Its methods METHODS + NAME are what it does."""

    METHODS = ""  # attack_
    PROGRAM = ""  # attack.py

    def __init__(self, options):
        self.weft, self.seed, self.dice = options.weft, options.seed, random.Random(options.seed)
        self.patience = max(1, int(os.environ.get("PATIENCE") or 1))
        in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.top = pathlib.Path(tempfile.mkdtemp(prefix=f"weft-{self.PROGRAM.removesuffix('.py')}-", dir=in_memory))
        self.counts, self.findings = collections.defaultdict(collections.Counter), 0

    def methods(self, only):
        """By name; `only` must be one of them, or nothing."""
        found = {name[len(self.METHODS):]: getattr(self, name) for name in sorted(dir(self)) if name.startswith(self.METHODS)}
        if only and only not in found:
            sys.exit(f"{self.PROGRAM}: --only {only}: there are {', '.join(found)}")
        return found

    def count_finding(self, name):
        self.findings += 1
        self.counts[name]["findings"] += 1

    def show_counts(self, title, *columns):
        """A row for each name; all of their runs."""
        print(f"{title:<14}" + "".join(f"{c:>10}" for c in columns))
        for name, c in sorted(self.counts.items()):
            print(f"{name:<14}" + "".join(f"{c[column]:>10}" for column in columns))
        return sum(c["runs"] for c in self.counts.values())


def main(kind, text, only, *more):
    """Reads the command line, and runs a session of that kind; `more` are options with their defaults."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weft", default="build/weft")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--only", metavar=only)
    for name, default in more:
        parser.add_argument(name, metavar="FOLDER", default=default)
    options = parser.parse_args()
    options.weft = os.path.abspath(options.weft)
    sys.exit(kind(options).go(options.seconds, options.only))
