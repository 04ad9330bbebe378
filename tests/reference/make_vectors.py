"""Makes, or with --check verifies, the kept vectors of the case table. See README.md beside this file."""

import argparse
import gzip
import importlib
import math
import sys
from pathlib import Path

import numpy as np

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from case import Case, Refused, check_philox, fnv, units  # noqa: E402

CASES = HERE.parent / "ops" / "cases"
VECTORS = HERE.parent / "vectors"
MODULES = {"time": "time_means"}
MOST_VALUES = 6000
SUMS = 2


def read_lines(path, unary=()):
    """The lines of a family with their numbers; one of the case `unary` is one of each of these operations."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        text = " ".join(line.split("#", 1)[0].split())
        if text.startswith("unary "):
            yield from ((number, name + text[5:]) for name in unary)
        elif text:
            yield number, text


def compute_family(path):
    """All tensors of one family, by kept name; and what was wrong."""
    module = importlib.import_module(MODULES.get(path.stem, path.stem))
    tensors, seen, errors = {}, {}, []
    for number, line in read_lines(path, getattr(module, "UNARY", ())):
        where = f"{path.name}:{number}: {line}"
        try:
            case = Case(line)
            if case.hash in seen:
                raise Refused(f"the same line, or the same hash, as line {seen[case.hash]}")
            seen[case.hash] = number
            if case.name in getattr(module, "SKIP", ()):
                continue
            if case.name not in module.OPS:
                raise Refused("no such operation in this family")
            module.OPS[case.name](case)
            results = case.results()
            if sum(v.size for v in results.values()) > MOST_VALUES:
                raise Refused(f"more than {MOST_VALUES} values to keep")
            for name, value in results.items():
                if not np.isfinite(value).all():
                    raise Refused(f"{name} is not finite")
                tensors[f"{case.hash:08x}/{name}"] = value
        except (Refused, ValueError, IndexError, RuntimeError) as error:
            errors.append(f"{where}\n    {error}")
    return tensors, errors, len(seen)


def sums(name, value):
    """What is kept of a tensor: its values if they are few, otherwise two sums of all of them with weights of either sign and
    between a half and one, so that no element can be wrong without both telling. They are drawn by the tensor's name."""
    flat = value.reshape(-1)
    if flat.size <= SUMS:
        return [float(x) for x in flat]
    drawn = (2.0 * units(fnv(name), flat.size, fnv(f"sum {k}")) - 1.0 for k in range(SUMS))
    return [math.fsum(np.where(x < 0, x - 1.0, x + 1.0) / 2.0 * flat) for x in drawn]


def shape_of(value):
    return "x".join(map(str, value.shape)) or "-"


def rows_of(tensors):
    """What is kept of tensors: by name the shape and the numbers."""
    return {name: (shape_of(value), sums(name, value)) for name, value in tensors.items()}


def lines_of(rows):
    return [" ".join([name, shape, *map(float.hex, numbers)]) for name, (shape, numbers) in sorted(rows.items())]


def pack(path, lines):
    path.write_bytes(gzip.compress("".join(line + "\n" for line in lines).encode(), 9, mtime=0))


def unpack(path):
    """The lines of a kept file; none where there is none."""
    return gzip.decompress(path.read_bytes()).decode().splitlines() if path.exists() else []


def rows_in(lines):
    """By name the shape, as the file has it, and the numbers."""
    return {name: (shape, [float.fromhex(x) for x in numbers]) for name, shape, *numbers in map(str.split, lines)}


def keep(path, tensors):
    """Writes a file of vectors, unless the one that is there says the same: the last bits of a sum differ between processors."""
    if compare(rows_in(unpack(path)), tensors):
        pack(path, lines_of(rows_of(tensors)))


def compare(kept, tensors):
    """What differs by more than rounding."""
    errors = [f"{name}: kept, but no case makes it" for name in sorted(set(kept) - set(tensors))]
    for name, value in sorted(tensors.items()):
        shape = shape_of(value)
        if name not in kept:
            errors.append(f"{name}: not kept")
        elif kept[name][0] != shape:
            errors.append(f"{name}: kept {kept[name][0]}, made {shape}")
        else:
            gap = max(abs(a - b) for a, b in zip(kept[name][1], sums(name, value)))
            if not gap <= 1e-12 * max(1.0, np.linalg.norm(value.reshape(-1))):
                errors.append(f"{name}: differs by {gap:.2e}")
    return errors


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*")
    parser.add_argument("--check", action="store_true", help="compute again and compare with the kept files")
    parser.add_argument("--show", metavar="HASH", help="print the whole tensors of a case and keep nothing")
    args = parser.parse_args()
    check_philox()
    errors, total, count = [], 0, 0
    for path in sorted(CASES.glob("*.txt")):
        if args.families and path.stem not in args.families:
            continue
        tensors, wrong, cases = compute_family(path)
        errors += wrong
        kept = VECTORS / f"{path.stem}.gz"
        if args.show:
            for name, value in tensors.items():
                if name.startswith(args.show):
                    print(f"{name} {value.tolist()}")
            continue
        if args.check:
            errors += [f"{kept.name}: {e}" for e in compare(rows_in(unpack(kept)), tensors)]
        else:
            VECTORS.mkdir(exist_ok=True)
            keep(kept, tensors)
        size = kept.stat().st_size if kept.exists() else 0
        total, count = total + size, count + cases
        print(f"{path.stem:14} {cases:4} cases {len(tensors):5} tensors {size / 1024:8.1f} KiB")
    print(f"{'all':14} {count:4} cases {'':13} {total / 1024:8.1f} KiB")
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
