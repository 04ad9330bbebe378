"""Compares measurements with bench/floors.txt: `make bench-check`.

    python bench/check.py [--floors bench/floors.txt] FILE.json...

A file is what `make bench JSON=` or `make bench-cuda JSON=` wrote; which table it has is seen from its
keys. Prints a line for each value that is worse than its floor, then how many were looked at. Ends with
1 where one is worse, with 2 where a file cannot be read or holds nothing to compare.
"""

import argparse
import json
import sys

from names import current


def read_floors(path):
    """[(table, row, value, more is better, number)]"""
    floors = []
    for number, line in enumerate(open(path), 1):
        line = line.split("#")[0].strip()
        if not line:
            continue
        cells = [c.strip() for c in line.split("|")]
        if len(cells) != 5 or cells[3] not in ("at least", "at most"):
            sys.exit(f"{path}:{number}: a floor is 'table | row | value | at least or at most | number'")
        floors.append((cells[0], cells[1], cells[2], cells[3] == "at least", float(cells[4])))
    return floors


def list_values(data):
    """[(table, row, value, number)] of one file."""
    found = []
    if "limits" in data and "memory" in data:
        for r in data["rows"]:
            found.append(("ops", f"{r['group']} {r['row']} {r['pass']}", "ratio", r.get("ratio")))
        by_op = {}
        for m in data["memory"]:
            by_op.setdefault(m["op"], []).append(m["arena_bytes"] / m["tokens"])
        found += [("ops", op, "bytes_growth", max(b) / b[0]) for op, b in by_op.items()]
    elif "shape" in data:
        for r in data["rows"]:
            found += [("train", current(r["variant"]), v, r.get(v)) for v in ("ratio", "peak_of_plan")]
    elif "attention" in data:
        for r in data["rows"]:
            found += [("gpu", current(r["variant"]), v, r.get(v)) for v in ("ratio", "of_swiglu")]
            found.append(("gpu", current(r["variant"]), "gib", r["ours"]["gib"] if r.get("ours") else None))
    return [f for f in found if f[3] is not None]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--floors", default="bench/floors.txt")
    parser.add_argument("files", nargs="+")
    args = parser.parse_args()
    floors = read_floors(args.floors)
    looked, worse = 0, 0
    for path in args.files:
        try:
            values = list_values(json.load(open(path)))
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"bench-check: {path}: {error}", file=sys.stderr)
            return 2
        for table, row, value, number in values:
            for _, _, _, more, floor in [f for f in floors if f[0] == table and f[1] in (row, "*") and f[2] == value]:
                looked += 1
                if number < floor if more else number > floor:
                    worse += 1
                    print(f"{table}, {row}: {value} is {number:.3f}, {'at least' if more else 'at most'} {floor:g} is held")
    print(f"bench-check: {looked} values, {worse} worse than their floor")
    if not looked:
        print("bench-check: nothing to compare; make bench JSON=file or make bench-cuda JSON=file writes it", file=sys.stderr)
        return 2
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
