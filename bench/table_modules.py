"""The rows that bench/torch_modules.py printed, as tables of Markdown.

    python3 bench/table_modules.py plain docs/results/data/modules/h200.txt      # beside plain PyTorch
    python3 bench/table_modules.py compiled FILE...                              # beside compiled PyTorch
    python3 bench/table_modules.py ratios FILE                                   # times of plain PyTorch over weft's
    python3 bench/table_modules.py ceilings FILE                                 # the same over those of the products alone
    python3 bench/table_modules.py usage FILE                                    # page faults and processor time (--usage)

A file has such rows among other lines. Of several that have a row, the last one's counts.
"""

import re
import sys

BLOCKS = {"w2": "W2", "mla": "MLA", "wsffn": "WsFFN, grouped (to a SwiGLU)"}
SHAPES = ["write-up", "GPT-2"]
PASSES = {"forward": "forward", "both": "with backward"}
FORMS = ["plain", "compiled", "sdpa", "products"]
USAGE = re.compile(r"(\w+) (\S+) (forward|both) +(\w+) +median +(\S+) ms.*a call: +(\S+) faults, user +(\S+) ms, +system +(\S+) ms")


def number(text):
    return None if text == "-" else float(text)


def read_rows(paths):
    """(block, shape, pass) → {form: ms}, {form: MiB}."""
    rows = {}
    for line in (line for path in paths for line in open(path)):
        words = line.split()
        if len(words) not in (14, 16) or words[0] not in BLOCKS or words[2] not in PASSES:
            continue
        values, forms = list(map(number, words[3:])), FORMS[:3 if len(words) == 14 else 4]
        times = {"weft": values[0], **{form: values[1 + 2 * i] for i, form in enumerate(forms)}}
        sizes = dict(zip(["weft", *FORMS[:3]], values[-4:]))
        if any(times[form] for form in forms):
            rows.setdefault(tuple(words[:3]), []).append((times, sizes))
    return rows


def beside(rows, form):
    """The last row that has the form."""
    found = {key: [row for row in some if row[0].get(form)] for key, some in rows.items()}
    return {key: found[key][-1] for key in ordered(found) if found[key]}


def ordered(keys):
    return [(b, s, p) for b in BLOCKS for s in SHAPES for p in PASSES if (b, s, p) in keys]


def milliseconds(value):
    return "" if value is None else f"{value:.{3 if value < 100 else 1}f}"


def mebibytes(value):
    return "" if value is None else f"{value:,.{0 if value >= 100 else 1}f}"


def ratio(times, form):
    return f"{times[form] / times['weft']:.2f}" if times.get(form) else ""


def print_rows(rows, forms):
    """Of each form the time and its ratio to weft's, then the memory of all."""
    for head in ("block", "shape", "pass", "weft, ms", *(f"{f}, ms | ratio" for f in forms), "weft, MiB",
                 *(f"{f}, MiB" for f in forms)), ["---"] * (5 + 3 * len(forms)):
        print("| " + " | ".join(head) + " |")
    for (block, shape, kind), (times, sizes) in rows.items():
        cells = [BLOCKS[block], shape, PASSES[kind], milliseconds(times["weft"])]
        for form in forms:
            cells += [milliseconds(times.get(form)), ratio(times, form)]
        print("| " + " | ".join(cells + [mebibytes(sizes.get(form)) for form in ("weft", *forms)]) + " |")


def print_grid(rows, cell):
    print("| block | " + " | ".join(f"{s}, {PASSES[p]}" for s in SHAPES for p in PASSES) + " |")
    print("|" + " --- |" * 5)
    for block, name in BLOCKS.items():
        cells = [cell(rows[block, s, p][0]) if (block, s, p) in rows else "" for s in SHAPES for p in PASSES]
        print(f"| {name} | " + " | ".join(cells) + " |")


def print_usage(paths):
    print("| block | shape | pass | form | ms | page faults | user, ms | system, ms |")
    print("|" + " --- |" * 8)
    for line in (line for path in paths for line in open(path)):
        found = USAGE.match(line)
        if found:
            block, shape, kind, form, ms, faults, user, system = found.groups()
            name = BLOCKS[block].split(",")[0]
            print(f"| {name} | {shape} | {PASSES[kind]} | {form} | {float(ms):.1f} | {int(faults):,} | {float(user):.0f} | {float(system):.0f} |")


def main():
    what, paths = sys.argv[1], sys.argv[2:]
    if what == "usage":
        print_usage(paths)
        return
    rows = read_rows(paths)
    if what == "ratios":
        print_grid(beside(rows, "plain"), lambda times: ratio(times, "plain"))
    elif what == "ceilings":
        print_grid(beside(rows, "products"), lambda times: f"{times['plain'] / times['products']:.2f}" if times.get("plain") else "")
    else:
        print_rows(beside(rows, what), ["plain"] if what == "plain" else ["compiled", "sdpa"])


if __name__ == "__main__":
    main()
