"""The table of `make bench-cuda GRID=1`: training steps and attention alone over a grid of shapes, each row
beside the fastest form of PyTorch, in one run on one GPU.

    python bench/grid_cuda.py [--build build] [--rows WORD] [--random N --seed S] [--skip-peer] [--json FILE]
    python bench/grid_cuda.py --draw FILE.svg --json FILE     a heat map of what --json wrote

A step has 4 layers (2 where the model is 4,096 wide), 8,192 tokens or one sequence, bf16. PyTorch's forms
are those of bench/peer_cuda.py; they are compiled side by side, up to --workers at a time, and what they
compile is kept in TORCHINDUCTOR_CACHE_DIR (by default a folder of the build), which PyTorch keys by its
version and the shape. Nothing is timed meanwhile.

The ratio is ours over PyTorch's fastest form, in tokens per second or in TFLOP/s of the same products.
Below the table: the geometric mean, the worst row, how many rows are below 1 and below 0.9, and the rows
in which ours takes more memory. --random adds N rows whose shapes are drawn. --rows parts measures parts of today's models:
grouped queries, normed queries and keys, gates, relu2, documents, and other ways to make and to share keys and values.
"""

import json
import math
import os
import random
import subprocess
import sys
import time

import table_cuda
from table_cuda import (PATIENCE, Stopped, Worker, ask_rows, catch_signals, compile_forms, make_parser, print_table, read_limits,
                        run_ours, say, write_json)

TOKENS = 8192
FORMS = {"dot": ["cudnn", "flash"], "w2": ["flex", "efficient"], "mla": ["cudnn-heads"], "mla+gate": ["cudnn-heads"],
         "mla+gate+cross": ["cudnn-heads-cheap"], "mla+all": ["cudnn-heads-cheap"], "swiglu": ["cudnn"],
         "wsffn": ["cudnn-stacked"], "wsffn-grouped": ["cudnn-stacked"]}
PARTS = dict(kv="{} key heads", qk_norm="normed queries and keys", gate="a gate per {}", relu2="relu2", documents="documents",
             tied="keys tied to values (gta)", rotated="DeepSeek's with {} rotated columns", rank="queries of rank {}", latents="{} latents (GLA)",
             share="keys and values of {} layers shared", rope_dim="{} columns rotated")


def step(part, variant, head=64, width=768, time=1024, **more):
    """A row: a variant with heads of that size. `part` is the row's place in the table and the picture."""
    named = more.pop("forms", FORMS[variant])
    shape = dict(dict(layers=4, heads=width // head, width=width, time=time, vocab=50304), **more)
    batch = shape.pop("batch", max(1, TOKENS // time))
    words = [f"heads of {head}", f"{width} wide" if width != 768 else "", f"{time:,} tokens" if time != 1024 else "",
             f"batch {batch}" if "batch" in more else "", f"vocabulary {shape['vocab']:,}" if "vocab" in more else "",
             more["positions"] if more.get("positions", "none") != "none" else "", f"window of {more['window']:,}" if "window" in more else "",
             f"scores capped at {more['softcap']}" if "softcap" in more else "", f"latent of {more['latent']}" if "latent" in more else ""]
    words += [text.format(more[key]) for key, text in PARTS.items() if key in more]
    words = [w for w in words if w]
    flex = more.get("positions") in ("alibi", "relative") or {"window", "softcap", "documents"} & more.keys()
    forms = ["flex"] if flex else named
    if head % 8 != 0:  # cuDNN does not take them
        forms = list(dict.fromkeys(f.replace("cudnn", "flash") for f in forms))
    return dict(kind="step", part=part, variant=variant, head=head, words=", ".join(words), shape=shape, batch=batch, forms=forms)


def list_steps():
    rows = [step("heads", "dot", head) for head in (32, 96, 128, 192, 256)]
    rows += [step("heads", "w2", head) for head in (32, 64, 96, 128, 192, 256)]
    rows += [step("heads", "mla", latent=latent) for latent in (64, 128, 256)]
    rows += [step("lengths", v, 128, time=4096) for v in ("dot", "w2", "mla")]
    rows += [step("lengths", v, time=t) for v, t in (("mla+gate+cross", 4096), ("mla+all", 1024), ("mla+all", 4096), ("mla+all", 8192))]
    rows += [step("widths", "dot", 64, 256), step("widths", "dot", 60, 900), step("widths", "dot", 64, 1600),
             step("widths", "dot", 128, 2048), step("widths", "dot", 128, 4096, layers=2), step("widths", "mla", 100, 900),
             step("widths", "mla+all", 64, 1600)]
    rows += [step("sizes", v, batch=1) for v in ("dot", "mla+all")]
    rows += [step("sizes", v, time=3000, vocab=32003, batch=3) for v in ("dot", "w2", "mla+all")]
    rows += [step("positions", "dot", positions=p) for p in ("rope", "alibi", "relative")]
    rows += [step("masks", "dot", 128, time=4096, window=512), step("masks", "w2", time=4096, window=512), step("masks", "dot", 128, softcap=50)]
    rows += [step("feed-forward", v, 128, 1024) for v in ("swiglu", "wsffn", "wsffn-grouped")]
    return rows


def list_parts():
    """Parts of today's models, measured where --rows asks for them."""
    parts = (dict(kv=2), dict(qk_norm=True), dict(gate="element"), dict(gate="head"), dict(relu2=True), dict(time=4096, vocab=512, documents=True))
    deepseek = dict(positions="none", rotated=32, rank=384, forms=["cudnn-heads", "cudnn-heads-padded", "flash-heads", "efficient-heads"])
    return [step("parts", "dot", 128, **part) for part in parts] + [
        step("parts", "dot", tied=True, kv=4), step("parts", "mla", **deepseek), step("parts", "mla", latents=2, **deepseek),
        step("parts", "dot", 128, share=2), step("parts", "w2", kv=2, forms=["flex", "cudnn", "flash", "efficient"]),
        step("parts", "dot", positions="rope", rope_dim=32)]


def list_attention():
    cases = [("dot", h, 1024) for h in (32, 64, 80, 96, 128, 192, 256)] + [("dot", 128, 4096), ("dot", 128, 16384)]
    cases += [("w2", h, 1024) for h in (32, 64, 96, 128)] + [("w2", 64, 16384)]
    cases += [("mla", h, 1024) for h in (128, 256)] + [("mla", 128, 4096), ("mla", 128, 16384)]
    return [dict(kind="attention", part="attention", variant=v, head=h, time=t, words=f"{h} wide, {t:,} tokens") for v, h, t in cases]


def draw_steps(count, seed):
    """Rows of shapes that nobody chose."""
    pick, rows = random.Random(seed), []
    while len(rows) < count:
        variant = pick.choice(list(FORMS))
        head, heads = 8 * pick.randint(2, 32), pick.randint(2, 24)
        if not 256 <= head * heads <= 2048:
            continue
        more = dict(positions="rope") if variant == "dot" and pick.random() < 0.5 else {}
        rows.append(step("drawn", variant, head, head * heads, pick.randint(300, 6000), vocab=pick.randint(5000, 60000),
                         batch=pick.randint(1, 8), **more))
    return rows


def options_of(row):
    s = row["shape"]
    options = dict(N_LAYER=s["layers"], N_HEAD=s["heads"], N_EMBD=s["width"], CONTEXT=s["time"], VOCAB_SIZE=s["vocab"],
                   BATCH_SIZE=row["batch"], POSITION=s.get("positions", "learned"))
    names = dict(latent="RA_MLA_LATENT_DIM", window="WINDOW", softcap="SOFTCAP_ATTENTION", kv="KV_HEADS", gate="ATTENTION_GATE",
                 rotated="RA_MLA_ROPE_DIM", rank="RA_MLA_Q_RANK", latents="RA_MLA_LATENT_HEADS", share="KV_SHARE", rope_dim="ROPE_DIM")
    options.update({name: s[key] for key, name in names.items() if key in s})
    given = dict(qk_norm=dict(QK_NORM="y"), relu2=dict(FFN="relu2"), documents=dict(DOCUMENT_MASK="y", DOCUMENT_TOKEN=0),
                 tied=dict(ATTENTION="gta"), rank=dict(RA_MLA_JOINT_KV="y", RA_MLA_LATENT_NORM="y"))
    for key in given.keys() & s.keys():
        options.update(given[key])
    return [word for key, value in options.items() for word in ("-o", f"{key}={value}")]


def measure_ours(args, row):
    found, notes = run_ours(args, name_of(row), row["variant"], row["batch"] * row["shape"]["time"], options_of(row))
    return found and dict(speed=found["tokens_per_s"], gib=found["gib"], flops=found["flops_per_token"], notes=notes)


def name_of(row):
    return f"{row['variant']}, {row['words']}"


def measure_steps(args, rows):
    """Fills in ours, peers of a group of steps whose forms of PyTorch are compiled together."""
    forms = [] if args.skip_peer else [(row, form) for row in rows for form in row["forms"]]
    if forms:
        say(f"compiling {len(forms)} forms of {len(rows)} rows")
    workers = compile_forms(args, [(f"{name_of(row)}: {form}", f"{row['variant']}:{form}",
                                    ["--shape", json.dumps(row["shape"]), "--batch", str(row["batch"])]) for row, form in forms])
    for row in rows:
        row["ours"], row["peers"] = measure_ours(args, row), []
        for (of, form), w in zip(forms, workers):
            if of is row and w.ready:
                w.ask()
                found = w.read_line(time.perf_counter() + PATIENCE)
                w.close()
                if found and "tokens_per_s" in found:
                    row["peers"].append(dict(form=form, speed=found["tokens_per_s"], gib=found["gib"]))
                    continue
            if of is row:
                row["peers"].append(dict(form=form, error=w.error))
        finish_row(row)


def measure_attention(args, rows):
    """The same of attention alone: TFLOP/s of both passes, the time of both together in the ratio."""
    program = os.path.join(args.build, "bench", "attention_cuda")
    done = subprocess.run([program, "rows", *(f"{r['variant']}:{r['head']}:{r['time']}" for r in rows)], capture_output=True, text=True)
    if done.returncode:
        say(f"attention: ours failed: {done.stderr.strip()[-200:]}")
    ours = [line.split("\t") for line in done.stdout.splitlines() if line.count("\t") == 10]
    workers = [] if args.skip_peer else [
        (v, Worker("peer_attention_cuda.py", ["--worker", "--cases", ",".join(
            f"{v}{'_' * (v == 'w2')}{r['head']}:{r['time']}" for r in rows if r["variant"] == v)], f"attention {v}", 4))
        for v in dict.fromkeys(r["variant"] for r in rows)]
    theirs, until = [], time.perf_counter() + args.patience
    for _, w in workers:
        w.wait_ready(until)
    for v, w in workers:
        theirs += [dict(found, variant=v, head=int(found["form"].removeprefix("dot").removeprefix("w2_").removeprefix("mla")))
                   for found in ask_rows(w)]
    for row, cells in zip(rows, ours):
        ms = float(cells[7]), float(cells[9])
        row["ours"] = dict(speed=1e3 / sum(ms), forward=float(cells[8]), backward=float(cells[10]))
        row["peers"] = [dict(form=t["way"], error=t["error"]) if "error" in t else
                        dict(form=t["way"], speed=1e3 / (t["forward_ms"] + t["backward_ms"]), forward=t["forward_tflops"],
                             backward=t["backward_tflops"])
                        for t in theirs if (t["variant"], t["head"], t["time"]) == (row["variant"], row["head"], row["time"])]
        finish_row(row)


def finish_row(row):
    row["best"] = max((p for p in row["peers"] if "speed" in p), key=lambda p: p["speed"], default=None)
    if row["ours"] and row["best"]:
        row["ratio"] = row["ours"]["speed"] / row["best"]["speed"]
    say(f"{name_of(row)}: " + (f"ratio {row['ratio']:.2f}" if "ratio" in row else "no ratio"))


def print_steps(rows, matrix):
    lines = []
    for r in rows:
        ours, best = r["ours"], r["best"]
        lines.append([name_of(r)] + ([f"{ours['speed']:,.0f}", f"{100e-12 * ours['flops'] * ours['speed'] / matrix:.0f}%",
                                      f"{ours['gib']:.1f}"] if ours else ["-"] * 3)
                     + ([f"{best['speed']:,.0f}", f"{best['gib']:.1f}", best["form"]] if best else ["-"] * 3)
                     + [f"{r['ratio']:.2f}" if "ratio" in r else "-"])
    print_table(["step", "tok/s", "MFU", "GiB", "PyTorch tok/s", "GiB", "form", "ratio"], lines)


def print_attention(rows):
    lines = []
    for r in rows:
        ours, best = r.get("ours"), r.get("best")
        lines.append([name_of(r)] + ([f"{ours['forward']:.0f}", f"{ours['backward']:.0f}"] if ours else ["-"] * 2)
                     + ([f"{best['forward']:.0f}", f"{best['backward']:.0f}", best["form"]] if best else ["-"] * 3)
                     + [f"{r['ratio']:.2f}" if "ratio" in r else "-"])
    print_table(["attention", "forward", "backward", "PyTorch forward", "backward", "form", "ratio"], lines)


def print_summary(what, rows):
    found = [r for r in rows if "ratio" in r]
    if not found:
        return
    worst = min(found, key=lambda r: r["ratio"])
    mean = math.exp(sum(math.log(r["ratio"]) for r in found) / len(found))
    print(f"{what}: {len(found)} rows, geometric mean {mean:.2f}, {sum(r['ratio'] < 1 for r in found)} below 1, "
          f"{sum(r['ratio'] < 0.9 for r in found)} below 0.9; worst {worst['ratio']:.2f}, {name_of(worst)}")
    more = [f"{name_of(r)} ({r['ours']['gib']:.1f} and {r['best']['gib']:.1f} GiB)" for r in found
            if "gib" in r["ours"] and r["ours"]["gib"] > r["best"]["gib"]]
    if more:
        print("more memory than PyTorch: " + "; ".join(more))


def rounded(value):
    """Six digits of each number, which is more than a clock gives."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def colour(ratio):
    """Blue above 1, white at 1, orange below; full at twice and at half."""
    depth = min(1.0, abs(math.log2(ratio)))
    end = (0, 114, 178) if ratio > 1 else (230, 120, 0)
    return "#" + "".join(f"{round(255 + depth * (e - 255)):02x}" for e in end)


def draw(rows, path):
    """A line of cells per variant in each part of the grid."""
    cells, y, wide, body = {}, 56, 0, []
    for r in rows:
        if "ratio" in r:
            cells.setdefault((r["part"], r["variant"]), []).append(r)
    part = None
    for (of, variant), row in cells.items():
        if of != part:
            part, y = of, y + 30
            body.append(f'<text x="12" y="{y - 8}" font-weight="bold">{part}</text>')
        body.append(f'<text x="12" y="{y + 22}">{variant}</text>')
        for i, r in enumerate(row):
            x = 150 + 118 * i
            dark = "#ffffff" if abs(math.log2(r["ratio"])) > 0.7 and r["ratio"] > 1 else "#222222"
            small = r["words"].split(", ")
            small = [w for w in small if w != "heads of 64"] or small
            half = len(small) if len(", ".join(small)) < 26 else (len(small) + 1) // 2
            lines = [", ".join(part) for part in (small[:half], small[half:]) if part]
            body.append(f'<g transform="translate({x + 57},{y})" fill="{dark}"><title>{name_of(r)}: {r["ratio"]:.2f}</title>'
                        f'<use href="#cell" fill="{colour(r["ratio"])}"/><text class="b" y="16">{r["ratio"]:.2f}</text>'
                        + "".join(f'<text class="s" y="{28 + 11 * k}">{line}</text>' for k, line in enumerate(lines)) + "</g>")
            wide = max(wide, x + 126)
        y += 48
    with open(path, "w") as f:
        f.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {y + 12}" width="{wide}" height="{y + 12}" '
                f'font-family="Helvetica, Arial, sans-serif" font-size="13"><style>g{{text-anchor:middle}}.b{{font-weight:bold}}.s{{font-size:9px}}</style><defs><rect id="cell" x="-57" '
                f'width="114" height="44" rx="3" stroke="#bbbbbb"/></defs><rect width="100%" height="100%" fill="#ffffff"/>'
                f'<text x="12" y="26" font-size="16" font-weight="bold">weft’s speed over the fastest form of PyTorch</text>'
                f'<text x="12" y="46" fill="#555555">blue: weft is faster; orange: PyTorch is. One H200, bf16.</text>'
                + "".join(body) + "</svg>\n")


def main():
    parser = make_parser(__doc__, steps=10, settle=0.7, workers=32)
    parser.add_argument("--rows", default="", help="only rows whose name or part contains this word")
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--draw", default="", metavar="SVG")
    args = parser.parse_args()
    if args.draw:
        with open(args.json) as f:
            draw(json.load(f)["grid"], args.draw)
        return 0
    chosen = [r for r in list_attention() + list_steps() + (list_parts() if args.rows else []) + draw_steps(args.random, args.seed)
              if args.rows in r["part"] or args.rows in name_of(r)]
    if not chosen:
        sys.exit(f"bench-cuda: no row has '{args.rows}' in its name")
    limits = read_limits(args)
    if not limits:
        return 0
    catch_signals()
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.abspath(os.path.join(args.build, "bench", "inductor")))
    attention, steps = ([r for r in chosen if r["kind"] == k] for k in ("attention", "step"))
    whole = True
    try:
        if attention:
            measure_attention(args, attention)
        group = []
        for row in steps + [None]:
            if group and (row is None or sum(len(r["forms"]) for r in group + [row]) > args.workers):
                measure_steps(args, group)
                group = []
            group.append(row)
    except Stopped:
        say("stopped: the tables have what was measured until then")
        whole = False
    steps, attention = ([r for r in rows if "best" in r] for rows in (steps, attention))
    print(f"{limits['gpu']}; bf16; mean of {args.steps} steps after {args.settle:g} s" + (f"; drawn with seed {args.seed}" if args.random else ""))
    if steps:
        print_steps(steps, limits["matrix"])
    if attention:
        print("\nattention alone, causal, 32,768 tokens, 12 heads: TFLOP/s; the ratio is of both passes together")
        print_attention(attention)
    print()
    print_summary("steps", steps)
    print_summary("attention", attention)
    say("done")
    if args.json:
        write_json(args.json, json.dumps(rounded(dict(limits=limits, grid=steps + attention))).replace('{"kind"', '\n{"kind"'))
    return 0 if whole and all(r["ours"] for r in steps) else 1


if __name__ == "__main__":
    table_cuda.STARTED = time.perf_counter()
    sys.exit(main())
