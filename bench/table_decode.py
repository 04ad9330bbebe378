"""The rows that `weft bench decode --json` printed, as a table of Markdown.

    python3 bench/table_decode.py docs/results/data/decoding-cpu/*.json

Of several files that have the same row the one with another program beside it is taken, else the last one's.
A column that says the same in every row is left out.
"""

import json
import sys

VARIANTS = ["dot", "w2", "mla", "step1", "step2", "step3"]
TYPES = ["f32", "bf16", "int8", "auto"]
COLUMNS = ["variant", "weights, cache", "context", "batch", "tokens/s", "ms per step", "floor, ms", "of the floor",
           "PyTorch, tokens/s", "weft / PyTorch"]
TEXTS = 2  # columns from the left that are no numbers


def place(names, name):
    return names.index(name) if name in names else len(names)


def read_rows(paths):
    rows = {}
    for path in paths:
        table = json.load(open(path))
        for row in table["rows"]:
            row["ms_digits"] = 1 if table["device"] == "CPU" else 3
            key = row.get("weight_dtype", ""), row.get("cache_dtype", ""), row["variant"], row["batch"], row["context"]
            if "peer_seconds" in row or "peer_seconds" not in rows.get(key, {}):
                rows[key] = row
    return [row for _, row in sorted(rows.items(), key=lambda item: (place(TYPES, item[0][0]),
                                                                      place(VARIANTS, item[0][2]), item[0]))]


def cells(row):
    digits = 1 if row["tokens_per_s"] < 300 else 0
    types = row.get("weight_dtype", ""), row.get("cache_dtype", "")
    peer = row.get("peer_seconds")
    return [row["variant"], types[0] if types[0] == types[1] else ", ".join(types), f"{row['context']:,}",
            str(row["batch"]), f"{row['tokens_per_s']:,.{digits}f}", f"{1e3 * row['seconds']:.{row['ms_digits']}f}",
            f"{1e3 * row['floor_seconds']:.{row['ms_digits']}f}", f"{100 * row['of_floor']:.0f}%",
            f"{row['batch'] / peer:,.{digits}f}" if peer else "", f"{peer / row['seconds']:.2f}" if peer else ""]


def main(paths):
    rows = [cells(row) for row in read_rows(paths)]
    kept = [i for i in range(len(COLUMNS)) if len({row[i] for row in rows}) > 1]
    for row in [COLUMNS, ["---" if i < TEXTS else "---:" for i in range(len(COLUMNS))], *rows]:
        print("| " + " | ".join(row[i] for i in kept) + " |")


if __name__ == "__main__":
    main(sys.argv[1:])
