"""The rows that `weft bench decode --json` printed, as a table of Markdown.

    python3 bench/table_decode.py docs/results/data/decoding-cpu/*.json

Of several files that have the same row the last one's is taken.
"""

import json
import sys

VARIANTS = ["dot", "w2", "mla", "step1", "step2", "step3"]
TYPES = ["f32", "bf16", "int8", "auto"]
COLUMNS = ["variant", "weights, cache", "context", "batch", "tokens/s", "ms per step", "floor, ms", "of the floor",
           "PyTorch, tokens/s"]


def place(names, name):
    return names.index(name) if name in names else len(names)


def read_rows(paths):
    rows = {}
    for path in paths:
        for row in json.load(open(path))["rows"]:
            types = row.get("weight_dtype", ""), row.get("cache_dtype", "")
            rows[types, row["variant"], row["batch"], row["context"]] = row
    return sorted(rows.items(), key=lambda item: (place(TYPES, item[0][0][0]), place(VARIANTS, item[0][1]), item[0]))


def cells(types, row):
    digits = 1 if row["tokens_per_s"] < 1000 else 0
    peer = row.get("peer_seconds")
    return [row["variant"], types[0] if types[0] == types[1] else ", ".join(types), f"{row['context']:,}",
            str(row["batch"]), f"{row['tokens_per_s']:,.{digits}f}", f"{1e3 * row['seconds']:.1f}",
            f"{1e3 * row['floor_seconds']:.1f}", f"{100 * row['of_floor']:.0f}%",
            f"{row['batch'] / peer:,.{digits}f}" if peer else ""]


def main(paths):
    print("| " + " | ".join(COLUMNS) + " |")
    print("| --- | --- |" + " ---: |" * (len(COLUMNS) - 2))
    for (types, *_), row in read_rows(paths):
        print("| " + " | ".join(cells(types, row)) + " |")


if __name__ == "__main__":
    main(sys.argv[1:])
