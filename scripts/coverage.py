#!/usr/bin/env python3
"""scripts/coverage.py FOLDER UNCOVERED.txt: what `make coverage` prints.

Reads the counters that a build with --coverage (*.gcno) and its runs (*.gcda) left under FOLDER, by the compiler's own gcov (the
variable GCOV names another one), and sums them up by folder of src/: lines and branches that were run, of
those there are. Writes the lines that were not run, with their text, to UNCOVERED.txt, so that one can
look at each. Counters that a killed process left torn are counted and left out."""
import collections
import json
import os
import pathlib
import subprocess
import sys


def percent(part, whole):
    return f"{100 * part / whole:6.1f}%" if whole else "      -"


def read_counters(folder):
    """{path: {line: [count, [count of each branch]]}} over all objects; how many files were torn."""
    files, torn, top = collections.defaultdict(dict), 0, pathlib.Path().resolve()
    for notes in sorted(pathlib.Path(folder).rglob("*.gcno")):
        done = subprocess.run([os.environ.get("GCOV") or "gcov", "--json-format", "--stdout", "--branch-probabilities", notes],
                              capture_output=True, check=False)
        try:
            reports = [json.loads(line) for line in done.stdout.decode(errors="replace").splitlines() if line.strip()]
        except ValueError:
            reports = []
        torn += not reports
        for report in reports:
            for entry in report["files"]:
                path = (pathlib.Path(report["current_working_directory"]) / entry["file"]).resolve()
                if not path.is_relative_to(top / "src"):
                    continue
                lines = files[path.relative_to(top)]
                for line in entry["lines"]:
                    branches = [b["count"] for b in line["branches"] if not b.get("throw")]
                    had = lines.setdefault(line["line_number"], [0, branches and [0] * len(branches)])
                    had[0] += line["count"]
                    # A function that is in several objects, or one made from another, may differ in its branches.
                    if len(branches) > len(had[1]):
                        had[1] += [0] * (len(branches) - len(had[1]))
                    for i, count in enumerate(branches):
                        had[1][i] += count
    return files, torn


def main(folder, uncovered):
    files, torn = read_counters(folder)
    if not files:
        sys.exit(f"make coverage: no counters under {folder}, or gcov cannot read them (GCOV=...)")
    totals = collections.defaultdict(lambda: [0, 0, 0, 0])
    with open(uncovered, "w", encoding="utf-8") as out:
        for path, lines in sorted(files.items()):
            text = path.read_text(encoding="utf-8", errors="replace").split("\n")
            total = totals[path.parts[1]]
            for number, (count, branches) in sorted(lines.items()):
                total[0] += count > 0
                total[1] += 1
                total[2] += sum(b > 0 for b in branches)
                total[3] += len(branches)
                if count == 0:
                    out.write(f"{path}:{number}: {text[number - 1].strip()}\n")
    print(f"{'folder':<14}{'lines':>9}{'run':>9}{'':>8}{'branches':>11}{'run':>9}")
    rows = sorted(totals.items()) + [("all", [sum(t[i] for t in totals.values()) for i in range(4)])]
    for name, (run, lines, taken, branches) in rows:
        print(f"{name:<14}{lines:>9}{run:>9}{percent(run, lines):>8}{branches:>11}{taken:>9}{percent(taken, branches):>8}")
    if torn:
        print(f"files of counters that could not be read: {torn}")
    print(f"lines that were not run: {uncovered}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
