#!/usr/bin/env python3
"""scripts/coverage.py GCOVR.json UNCOVERED.txt: what `make coverage` prints.

Sums gcovr's JSON up by folder of src/: lines and branches that were run, of those there are. Writes the
lines that were not run, with their text, to UNCOVERED.txt, so that one can look at each."""
import collections
import json
import pathlib
import sys


def percent(part, whole):
    return f"{100 * part / whole:6.1f}%" if whole else "      -"


def main(counts, uncovered):
    totals = collections.defaultdict(lambda: [0, 0, 0, 0])
    with open(uncovered, "w", encoding="utf-8") as out:
        for entry in sorted(json.loads(pathlib.Path(counts).read_text())["files"], key=lambda f: f["file"]):
            path = pathlib.Path(entry["file"])
            text = path.read_text(encoding="utf-8", errors="replace").split("\n")
            total = totals[path.parts[1]]
            for line in entry["lines"]:
                if line.get("gcovr/noncode") or line.get("gcovr/excluded"):
                    continue
                total[0] += line["count"] > 0
                total[1] += 1
                branches = line.get("branches", [])
                total[2] += sum(b["count"] > 0 for b in branches)
                total[3] += len(branches)
                if line["count"] == 0:
                    out.write(f"{path}:{line['line_number']}: {text[line['line_number'] - 1].strip()}\n")
    print(f"{'folder':<14}{'lines':>9}{'run':>9}{'':>8}{'branches':>11}{'run':>9}")
    rows = sorted(totals.items()) + [("all", [sum(t[i] for t in totals.values()) for i in range(4)])]
    for name, (run, lines, taken, branches) in rows:
        print(f"{name:<14}{lines:>9}{run:>9}{percent(run, lines):>8}{branches:>11}{taken:>9}{percent(taken, branches):>8}")
    print(f"lines that were not run: {uncovered}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
