"""The rows that `weft bench decode --json` printed, as a table of Markdown.

    python3 bench/table_decode.py docs/results/data/decoding-cpu/*.json
    python3 bench/table_decode.py --tokens docs/results/data/decoding-cpu/*.json
    python3 bench/table_decode.py --grid FILE.json
    python3 bench/table_decode.py --pick FILE.json...
    python3 bench/table_decode.py --costs FILE.json...
    python3 bench/table_decode.py --draw FILE.svg FILE.json

Of several files that have the same row the one with another program beside it is taken, else the last one's.
A column that says the same in every row is left out. --tokens: what one more token in the cache costs, from the
shortest context to the longest, and what reading it takes. --grid: what `weft bench decode --grid --json` printed, in
its order, and what the rows say together. --pick: of the GPT-2 124M in such files, or in files without --grid, which
attention is the fastest at each context, and by how much. --costs: what a mechanism takes beside mla, there. --draw:
the grid's ratios as a heat map.
"""

import json
import os
import sys

from names import current

VARIANTS = ["dot", "w2", "mla", "mla+gate", "mla+gate+cross", "mla+gate+cross64", "mla+all", "swiglu", "wsffn", "wsffn-grouped"]
TYPES = ["f32", "bf16", "int8", "auto"]
ISAS = ["amx", "avx512-bf16", "avx512", "avx2"]
COLUMNS = ["model", "variant", "weights, cache", "instructions", "context", "batch", "tokens/s", "ms per step", "floor, ms", "of the floor",
           "PyTorch, tokens/s", "weft / PyTorch"]
TEXTS = 4  # columns from the left that are no numbers


def place(names, name):
    return names.index(name) if name in names else len(names)


def read_rows(paths):
    rows = {}
    for path in paths:
        table = json.load(open(path))
        for row in table["rows"]:
            row["variant"] = current(row["variant"])
            row["ms_digits"] = 1 if table["device"] == "CPU" else 3
            row["isa"] = table.get("isa") or ""
            key = (row.get("weight_dtype", ""), row.get("cache_dtype", ""), row["variant"], row["isa"], row["batch"],
                   row["context"], row.get("model", ""))
            if "peer_seconds" in row or "peer_seconds" not in rows.get(key, {}):
                rows[key] = row
    return [row for _, row in sorted(rows.items(), key=lambda item: (place(TYPES, item[0][0]),
                                                                      place(VARIANTS, item[0][2]),
                                                                      place(ISAS, item[0][3]), item[0]))]


def cells(row):
    digits = 1 if row["tokens_per_s"] < 300 else 0
    types = row.get("weight_dtype", ""), row.get("cache_dtype", "")
    peer = row.get("peer_seconds")
    return [row.get("model", ""), row["variant"], types[0] if types[0] == types[1] else ", ".join(types), row["isa"],
            f"{row['context']:,}",
            str(row["batch"]), f"{row['tokens_per_s']:,.{digits}f}", f"{1e3 * row['seconds']:.{row['ms_digits']}f}",
            f"{1e3 * row['floor_seconds']:.{row['ms_digits']}f}", f"{100 * row['of_floor']:.0f}%",
            f"{row['batch'] / peer:,.{digits}f}" if peer else "", f"{peer / row['seconds']:.2f}" if peer else ""]


def print_table(columns, texts, rows):
    kept = [i for i in range(len(columns)) if len(rows) == 1 or len({row[i] for row in rows}) > 1]
    for row in [columns, ["---" if i < texts else "---:" for i in range(len(columns))], *rows]:
        print("| " + " | ".join(row[i] for i in kept) + " |")


def token_costs(rows):
    """Of each variant, type and instruction set: its shortest and its longest context, against each other."""
    groups = {}
    for row in rows:
        if row["batch"] == 1:
            groups.setdefault(tuple(cells(row)[:TEXTS]), []).append(row)
    for key, group in groups.items():
        first, last = min(group, key=lambda r: r["context"]), max(group, key=lambda r: r["context"])
        tokens = last["context"] - first["context"]
        if not tokens:
            continue
        cost = (last["seconds"] - first["seconds"]) / tokens
        read = last["cache_bytes_per_token"] / last["read_bytes_per_s"]
        yield [*key, f"{first['context']:,} to {last['context']:,}", f"{1e9 * cost:.0f}", f"{1e9 * read:.0f}",
               f"{cost / read:.1f}"]


def print_tokens(paths):
    print_table([*COLUMNS[:TEXTS], "contexts", "ns per token", "reading it, ns", "ratio"], TEXTS + 1,
                list(token_costs(read_rows(paths))))


def print_grid(paths):
    """The rows as they were measured, and a line for what they say together."""
    table = json.load(open(paths[0]))
    order = {row["name"]: i for i, row in enumerate(table["rows"])}
    print_table(COLUMNS, TEXTS, [cells(row) for row in sorted(read_rows(paths), key=lambda row: order[row["name"]])])
    s = table.get("summary")
    if s:
        means = [f"{s[key]:.2f} {words}" for key, words in (("geometric_mean", f"over {s['rows']} rows"), ("one_sequence", "with one sequence"),
                                                            ("64_sequences", "with 64")) if s[key]]
        print(f"\nGeometric mean of weft / PyTorch: {', '.join(means)}. Below 1.0: {s['below_1']} rows, below 0.9: {s['below_0_9']}. "
              f"The worst is {s['worst']}, {s['worst_ratio']:.2f}.")
    for row in table.get("left_out", []):
        print(f"\nLeft out: {row['name']} ({row['why']}).")


def read_124m(paths, variants):
    """The rows of these variants, by (context, batch) and variant."""
    found = {}
    for row in read_rows(paths):
        if row.get("model", "gpt2-124m") == "gpt2-124m" and row["variant"] in variants:
            found.setdefault((row["context"], row["batch"]), {})[row["variant"]] = row
    return found


def name_batch(batch):
    return "one sequence" if batch == 1 else f"{batch} sequences"


def print_pick(paths):
    """A line for each context; cells where two at least were measured."""
    found = {key: rows for key, rows in read_124m(paths, ("dot", "w2", "mla")).items() if "dot" in rows and "mla" in rows}
    batches, lines = sorted({batch for _, batch in found}), []
    for context in sorted({context for context, _ in found}):
        line = [f"{context:,}"]
        for batch in batches:
            rows = sorted(found.get((context, batch), {}).values(), key=lambda row: -row["tokens_per_s"])
            cell = ""
            if rows:
                other = next(row for row in rows[1:] if row["variant"] in ("dot", "mla"))
                times = rows[0]["tokens_per_s"] / other["tokens_per_s"]
                cell = f"**{rows[0]['variant']}**: {rows[0]['tokens_per_s']:,.0f} tokens/s, {times:.{1 if times > 1.1 else 2}f} times {other['variant']}’s"
            line.append(cell)
        bytes_of = [row["cache_bytes_per_token"] * context / 2**20 for v in ("dot", "mla") for row in
                    [next(rows[v] for key, rows in found.items() if key[0] == context)]]
        lines.append(line + [f"{bytes_of[0]:,.0f} and {bytes_of[1]:,.0f} MiB"])
    print_table(["tokens in the cache", *map(name_batch, batches), "cache of a sequence, dot and mla"], 1 + len(batches), lines)


def print_costs(paths):
    """Steps of mechanisms over mla’s, where both were measured."""
    found = {key: rows for key, rows in read_124m(paths, [v for v in VARIANTS if v.startswith("mla")]).items() if "mla" in rows}
    keys = sorted(key for key, rows in found.items() if len(rows) > 1)
    lines = []
    for variant in VARIANTS:
        rows = [found[key].get(variant) for key in keys]
        if variant.startswith("mla") and any(rows):
            size = next(row["cache_bytes_per_token"] for row in rows if row)
            lines.append([variant, *(f"{row['seconds'] / found[key]['mla']['seconds']:.2f}" if row else "" for key, row in zip(keys, rows)),
                          f"{size:,}"])
    print_table(["time of a step over mla’s", *(f"{name_batch(batch)}, {context:,}" for context, batch in keys), "cache, bytes per token"],
                1, lines)


def draw_grid(paths):
    """The heat map of bench/grid_cuda.py, a part for each model."""
    from grid_cuda import draw
    rows = [dict(part=row["model"], variant=row["variant"], ratio=row["ratio"], words=f"{row['batch']} × {row['context']:,} tokens")
            for row in json.load(open(paths[1]))["rows"] if "ratio" in row]
    draw(rows, paths[0])


def print_rows(paths):
    print_table(COLUMNS, TEXTS, [cells(row) for row in read_rows(paths)])


def main(arguments):
    forms = {"--tokens": print_tokens, "--grid": print_grid, "--pick": print_pick, "--costs": print_costs,
             "--draw": draw_grid}
    forms.get(arguments[0], print_rows)([a for a in arguments if a not in forms])


if __name__ == "__main__":
    main(sys.argv[1:])
