"""The table of `make bench-cuda`: training steps of every variant at the shape of GPT-2 124M (batch
32, 1024 tokens, bf16) beside PyTorch's, attention alone, and the GPU's limits, in one run on one GPU.

    python bench/table_cuda.py [--build build] [--variants dot,w2] [--forms all] [--skip-peer]
                               [--steps 20] [--settle 2.5] [--json FILE]

Compiling is what takes PyTorch's time, so its forms (bench/peer_cuda.py) are compiled side by side.
Nothing is timed meanwhile. When all are ready they wait, holding weights and moments only, and the
variants are measured one after the other, ours first, then each form, alone on the GPU.

Training would draw more power than the card may: its clock starts at the highest, falls below what it
can keep when the limit is reached, and settles after a second or two. Each side therefore takes steps
for --settle seconds before those that count; the clock and the power of both are in the table.

The ratio is ours over PyTorch's fastest form. bench/floors.txt has the values that maintainers hold;
bench/check.py compares a --json file with them.
"""

import argparse
import atexit
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import statistics
import tempfile
import threading
import time

from names import current

HERE = os.path.dirname(os.path.abspath(__file__))
GIB = 1024.0**3
TOKENS = 32 * 1024
PATIENCE = 60  # seconds for a measurement


LABELS = {
    "dot": "dot + gelu",
    "w2": "w2 + gelu",
    "mla": "mla + gelu",
    "mla+gate": "mla + gate",
    "mla+gate+cross": "mla + gate, cross",
    "mla+all": "mla + all, tied",
    "swiglu": "dot + swiglu",
    "wsffn": "dot + wsffn, dense",
    "wsffn-grouped": "dot + wsffn, grouped",
}


class Stopped(BaseException):
    """A signal came that ends the program."""


def stop(number, frame):
    signal.signal(number, signal.SIG_IGN)
    raise Stopped


def say(text):
    print(f"[{time.perf_counter() - STARTED:4.0f} s] {text}", file=sys.stderr, flush=True)


class Worker:
    """A process of PyTorch that compiles, says that it is ready, and measures when it is told to."""

    def __init__(self, script, args, name, threads):
        self.name, self.ready, self.error, self.text = name, False, None, b""
        environment = dict(os.environ, TORCHINDUCTOR_COMPILE_THREADS=str(threads), PYTHONWARNINGS="ignore")
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen([sys.executable, os.path.join(HERE, script), *args], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.log, env=environment, start_new_session=True)
        atexit.register(self.close)

    def read_line(self, until):
        """The next object it prints; None: it ended, or the time is over."""
        while b"\n" not in self.text:
            left = max(0.0, until - time.perf_counter())
            if not select.select([self.process.stdout], [], [], left)[0]:
                self.error = "it took too long"
                return None
            more = os.read(self.process.stdout.fileno(), 65536)
            if not more:
                self.error = self.error or self.last_words()
                return None
            self.text += more
        line, self.text = self.text.split(b"\n", 1)
        return json.loads(line) if line.startswith(b"{") else self.read_line(until)  # else it is not ours

    def last_words(self):
        self.log.seek(0)
        lines = [l for l in self.log.read().decode(errors="replace").splitlines() if l.strip()]
        return lines[-1][:200] if lines else "it ended without a word"

    def wait_ready(self, until):
        reply = self.read_line(until)
        self.ready = bool(reply and reply.get("ready"))
        if reply and "error" in reply:
            self.error = reply["error"]

    def ask(self):
        """Has it measure. One that is gone shows when its answer is read."""
        try:
            self.process.stdin.write(b"go\n")
            self.process.stdin.flush()
        except OSError:
            pass

    def close(self):
        if self.log.closed:
            return
        try:
            os.killpg(self.process.pid, signal.SIGKILL)  # with what it compiles by
        except ProcessLookupError:
            pass
        self.process.wait()
        self.log.close()
        atexit.unregister(self.close)


class Card:
    """The GPU's clock and power while something runs, by nvidia-smi; None where it does not say."""

    QUERY = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits", "-lms", "100"]

    def __init__(self):
        self.lines, self.process = [], None
        if os.environ.get("WEFT_CUDA_DEVICE"):
            self.QUERY = self.QUERY + ["-i", os.environ["WEFT_CUDA_DEVICE"]]
        try:
            self.process = subprocess.Popen(self.QUERY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError:
            return
        atexit.register(self.process.kill)
        threading.Thread(target=self.follow, daemon=True).start()

    def follow(self):
        for line in self.process.stdout:
            self.lines.append((time.perf_counter(), line))

    def read(self, seconds):
        """Medians over the last so many seconds."""
        values = []
        for when, line in self.lines:
            try:
                if when >= time.perf_counter() - seconds:
                    values.append([float(v) for v in line.split(",")])
            except ValueError:
                pass
        if not values:
            return dict(mhz=None, watts=None)
        mhz, watts = (statistics.median(v) for v in zip(*values))
        return dict(mhz=mhz, watts=watts)


def list_forms(variants, forms):
    """[(variant, form)], by the peer's own list; empty without PyTorch."""
    if importlib.util.find_spec("torch") is None:
        return []
    done = subprocess.run([sys.executable, os.path.join(HERE, "peer_cuda.py"), "--list", "--variants", ",".join(variants),
                           "--forms", forms], capture_output=True, text=True)
    if done.returncode:
        say(f"PyTorch: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'it failed'}")
        return []
    return [tuple(line.split(":")) for line in done.stdout.split()]


def make_batches(variants, forms, most):
    """Variants with all their forms, so many forms at a time."""
    batches = [[]]
    for v in variants:
        own = [f for name, f in forms if name == v]
        if batches[-1] and sum(len(b) for _, b in batches[-1]) + len(own) > most:
            batches.append([])
        batches[-1].append((v, own))
    return batches


def run_ours(args, name, variant, tokens, options):
    """weft's row of a step of so many tokens, None where it failed, and what it said."""
    command = [os.path.join(args.build, "weft"), "bench", "train", "--json", "--device", "cuda", "--shape", "gpt2-124m",
               "--dtype", "bf16", "--variants", variant, "--steps", str(args.steps), "--settle", str(args.settle), *options]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        say(f"{name}: ours failed: {done.stderr.strip()[-300:]}")
        return None, ""
    row = json.loads(done.stdout)["rows"][0]
    seconds = row.get("mean_seconds") or row["seconds"]
    took = time.perf_counter() - started
    return dict(row, tokens_per_s=tokens / seconds, gib=row["peak_bytes"] / GIB, took=took), done.stderr.strip()


def compile_forms(args, jobs, extra=()):
    """A worker for each of the jobs (name, "VARIANT:FORM", options), all of them and `extra` compiled or closed."""
    threads = max(1, (os.cpu_count() or 4) // max(1, len(jobs) + len(extra)))
    workers = [Worker("peer_cuda.py", ["--worker", job, "--steps", str(args.steps), "--settle", str(args.settle), *options],
                      name, threads) for name, job, options in jobs]
    until = time.perf_counter() + args.patience
    for w in [*workers, *extra]:
        w.wait_ready(until)
        if not w.ready:
            say(f"PyTorch, {w.name}: {w.error}")
            w.close()
    return workers


def ask_rows(worker):
    """The rows of a worker that has several, up to the line that says that it is done."""
    if worker.ready:
        worker.ask()
        row = worker.read_line(time.perf_counter() + PATIENCE)
        while row is not None and "done" not in row:
            yield row
            row = worker.read_line(time.perf_counter() + PATIENCE)
    worker.close()


def measure_batch(args, batch, extra, card, rows):
    """Rows of a batch into {variant: (ours, [theirs])}. `extra` is started with it and left to the caller."""
    jobs = [(v, f) for v, forms in batch for f in forms]
    if jobs:
        say(f"compiling {', '.join(f'{v} {f}' for v, f in jobs)}")
    workers = dict(zip(jobs, compile_forms(args, [(f"{v} {f}", f"{v}:{f}", []) for v, f in jobs], extra)))
    for v, forms in batch:
        ours, theirs = run_ours(args, v, v, TOKENS, ["-o", "BATCH_SIZE=32"])[0], []
        if ours:
            ours.update(card.read(args.steps * TOKENS / ours["tokens_per_s"] + 0.3))  # the process ends behind its steps
        for f in forms:
            w = workers[v, f]
            row = None
            if w.ready:
                w.ask()
                row = w.read_line(time.perf_counter() + PATIENCE)
                if row and "seconds" in row:
                    row.update(card.read(args.steps * row["seconds"]))
            theirs.append(row or dict(variant=v, form=f, error=w.error))
        rows[v] = (ours, theirs)
        say(f"{v}: " + ", ".join(
            ([f"ours {ours['tokens_per_s']:,.0f} tok/s in {ours['took']:.1f} s"] if ours else ["ours failed"])
            + [f"{t['form']} {t['tokens_per_s']:,.0f}" for t in theirs if "tokens_per_s" in t]))
    for w in workers.values():
        if w.ready:
            w.close()


def make_row(variant, ours, theirs, swiglu):
    """The row's figures, and ours over the fastest form of the peer."""
    measured = [t for t in theirs if "tokens_per_s" in t]
    best = max(measured, key=lambda t: t["tokens_per_s"], default=None)
    row = dict(variant=variant, label=LABELS[variant], ours=ours, peers=theirs, best=best)
    if ours and best:
        row["ratio"] = ours["tokens_per_s"] / best["tokens_per_s"]
    if ours and swiglu and variant == "wsffn-grouped":
        row["of_swiglu"] = ours["tokens_per_s"] / swiglu["tokens_per_s"]
    return row


def print_table(columns, lines):
    widths = [max(len(c), *(len(l[i]) for l in lines)) for i, c in enumerate(columns)]
    for line in [columns, ["-" * w for w in widths], *lines]:
        print("  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))).rstrip())


def show_card(row):
    return f"{row['mhz']:.0f}, {row['watts']:.0f}" if row.get("mhz") else "-"


def print_training(rows, limits):
    columns = ["variant", "M", "tok/s", "GiB", "MFU", "MHz, W", "PyTorch tok/s", "GiB", "MHz, W", "form", "ratio"]
    lines = []
    for r in rows:
        ours, best = r["ours"], r["best"]
        line = [r["label"]]
        line += ([f"{ours['parameters'] / 1e6:.1f}", f"{ours['tokens_per_s']:,.0f}", f"{ours['gib']:.1f}",
                  f"{100e-12 * ours['flops_per_token'] * ours['tokens_per_s'] / limits['matrix']:.0f}%", show_card(ours)]
                 if ours else ["-"] * 5)
        line += ([f"{best['tokens_per_s']:,.0f}", f"{best['gib']:.1f}", show_card(best), best["form"]]
                 if best else ["-"] * 4)
        line.append(f"{r['ratio']:.2f}" if "ratio" in r else "-")
        lines.append(line)
    print_table(columns, lines)
    for r in rows:
        if "of_swiglu" in r:
            print(f"{r['label']}: {r['of_swiglu']:.3f} of our own swiglu")
        for t in r["peers"]:
            if r["ours"] and "tokens_per_s" in t and ("naive" in t["form"] or "direct" in t["form"]):
                print(f"{r['label']}: {r['ours']['tokens_per_s'] / t['tokens_per_s']:.2f} times the formula as the write-up has "
                      f"it ({t['form']})")
    others = [f"{r['variant']} {t['form']} " + (f"{t['tokens_per_s']:,.0f} · {t['gib']:.1f} GiB" if "gib" in t else t["error"])
              for r in rows for t in r["peers"] if t is not r["best"]]
    if others:
        print("PyTorch's other forms: " + "; ".join(others))


def run_attention(args, workers):
    """Our rows {(form, T): [forward, backward]}, and PyTorch's [{form, time, way, ...}]."""
    program, ours = os.path.join(args.build, "bench", "attention_cuda"), {}
    done = subprocess.run([program, "rows"], capture_output=True, text=True) if os.path.exists(program) else None
    for line in done.stdout.splitlines() if done else []:
        cells = line.split("\t")
        if len(cells) == 11:
            ours[cells[0], int(cells[2])] = [float(cells[8]), float(cells[10])]
    if not ours:
        say(f"attention: ours failed: {done.stderr.strip()[-200:] if done else program + ' is not there'}")
    return ours, [row for w in workers for row in ask_rows(w)]


def print_attention(ours, theirs):
    ways = ["flash", "cudnn", "flex"]
    found = {(t["form"], t["time"], t["way"]): t for t in theirs if "error" not in t}
    lines = []
    for (form, length), rates in ours.items():
        if " " in form:  # other widths, which have no peer
            continue
        line = [form, str(length), *(f"{r:.0f}" for r in rates)]
        for way in ways:
            t = found.get((form, length, way))
            line.append(f"{t['forward_tflops']:.0f} / {t['backward_tflops']:.0f}" if t else "-")
        lines.append(line)
    if not lines:
        return
    print("\nattention alone, bf16, causal, 32768 tokens, 12 heads, TFLOP/s (PyTorch: forward / backward)")
    print_table(["form", "T", "forward", "backward", "SDPA flash", "SDPA cudnn", "FlexAttention"], lines)


def read_limits(args):
    done = subprocess.run([os.path.join(args.build, "bench", "kernels_cuda"), "limits"], capture_output=True, text=True)
    if done.returncode:
        print(f"bench-cuda: {(done.stdout + done.stderr).strip()}")
        return None
    values = dict(line.split("\t", 1) for line in done.stdout.splitlines() if "\t" in line)
    return dict(gpu=values["GPU"], matrix=float(values["matrix TFLOP/s"]), copy=float(values["copy TB/s"]))


def make_parser(text, steps, settle, workers):
    parser = argparse.ArgumentParser(description=text.split("\n\n")[0])
    parser.add_argument("--build", default="build")
    parser.add_argument("--skip-peer", action="store_true")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--settle", type=float, default=settle, help="seconds of steps before those that are measured")
    parser.add_argument("--workers", type=int, default=workers, help="forms that are compiled side by side")
    parser.add_argument("--patience", type=float, default=150, help="seconds for those to compile")
    parser.add_argument("--json", default="")
    return parser


def catch_signals():
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


def write_json(path, text):
    with open(path + ".new", "w") as f:
        f.write(text + "\n")
    os.replace(path + ".new", path)


def main():
    parser = make_parser(__doc__, steps=20, settle=2.5, workers=20)
    parser.add_argument("--variants", default="")
    parser.add_argument("--forms", default="", help="of bench/peer_cuda.py; all: every one")
    parser.add_argument("--skip-attention", action="store_true")
    args = parser.parse_args()
    if args.json and os.path.exists(args.json):
        with open(args.json, errors="replace") as old:
            if '"rows"' not in old.read():
                sys.exit(f"bench-cuda: {args.json} is there already and no benchmark's; name another file")
    variants = [current(v) for v in args.variants.split(",") if v] or list(LABELS)
    for v in variants:
        if v not in LABELS:
            sys.exit(f"bench-cuda: there is no variant '{v}'; there are {', '.join(LABELS)}")
    limits = read_limits(args)
    if not limits:
        return 0
    catch_signals()
    forms = [] if args.skip_peer else list_forms(variants, args.forms)
    batches = make_batches(variants, forms, args.workers)
    if forms:
        # What two forms share, Triton's compiled kernels, is compiled once.
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(tempfile.gettempdir(), "weft-bench-inductor"))
    measured, attention, card = {}, [], Card()
    ours, theirs, whole = {}, [], True
    try:
        for batch in batches:
            if batch is batches[-1] and forms and not args.skip_attention:
                attention = [Worker("peer_attention_cuda.py", ["--worker", "--forms", f], f"attention {f}", 1)
                             for f in ("dot", "w2", "mla")]
            measure_batch(args, batch, attention, card, measured)
        if not args.skip_attention:
            ours, theirs = run_attention(args, attention)
    except Stopped:
        say("stopped: the table has what was measured until then")
        whole = False
    swiglu = measured.get("swiglu", (None, None))[0]
    rows = [make_row(v, *measured[v], swiglu) for v in variants if v in measured]
    print(f"{limits['gpu']}; a training step of GPT-2 124M's shape, batch 32 x 1024, bf16: tokens per second, mean of {args.steps} "
          f"after {args.settle:g} s")
    if rows:
        print_training(rows, limits)
    print_attention(ours, theirs)
    print(f"\nlimits: 8192³ bf16 products {limits['matrix']:.0f} TFLOP/s, copies {limits['copy']:.2f} TB/s")
    say("done")
    if args.json:
        write_json(args.json, json.dumps(dict(limits=limits, rows=rows, attention=dict(
            ours=[dict(form=k[0], time=k[1], forward_tflops=v[0], backward_tflops=v[1]) for k, v in ours.items()],
            peers=theirs)), indent=2))
    return 0 if whole and all(r["ours"] for r in rows) else 1


if __name__ == "__main__":
    STARTED = time.perf_counter()
    sys.exit(main())
