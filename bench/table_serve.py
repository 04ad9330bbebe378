"""weft's server and PyTorch's (bench/peer_serve.py) under the same load, and the time to the first token alone.

    python3 bench/table_serve.py                                     # a small GPT-2 on the CPU
    python3 bench/table_serve.py --device cuda --dtype bf16 --layers 12 --width 768 --rates 4,16,64

Makes a GPT-2 with random weights, serves it by each in turn, and prints two tables: `weft bench serve` at each rate,
and the median time to the first token of prompts that come one at a time, of the lengths in --first.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
ROUNDS = 5  # of a prompt alone


def measure(a, where, *words):
    done = subprocess.run([a.weft, "bench", "serve", *where, "--long", "0", "--json", *words], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)["rows"]


def measure_all(a, where):
    """The rows under load, and the seconds to the first token of each length."""
    load = measure(a, where, "--rates", a.rates, "--requests", str(a.requests), "--prompts", a.prompts, "--tokens", a.tokens)
    alone = [measure(a, where, "--rates", ",".join(["100"] * ROUNDS), "--requests", "1", "--prompts", str(n), "--tokens", "1")
             for n in a.first]
    return load, [statistics.median(row["first_token_seconds"]["p50"] for row in rows) for rows in alone]


def print_load(name, rows):
    for r in rows:
        first, between = ([1e3 * r[key][p] for p in ("p50", "p95", "p99")] for key in ("first_token_seconds", "between_tokens_seconds"))
        times = " | ".join(f"{x:.1f}" for x in first + between)
        print(f"| {name} | {r['rate']:g} | {r['done']} | {r['tokens_per_s']:,.0f} | {times} | {100 * r['goodput']:.0f}% |")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("weft", "build/weft"), ("device", "cpu"), ("dtype", "f32"), ("rates", "2,8"), ("prompts", "32,128,512"),
                          ("tokens", "16,64"), ("first", "512,8192")):
        p.add_argument("--" + name, default=default)
    for name, default in (("layers", 4), ("width", 256), ("vocab", 50304), ("requests", 24), ("sequences", 16), ("threads", 0)):
        p.add_argument("--" + name, type=int, default=default)
    a = p.parse_args()
    a.first = [int(n) for n in a.first.split(",")]
    common = ["--device", a.device, "--dtype", a.dtype] + (["--threads", str(a.threads)] if a.threads else [])
    with tempfile.TemporaryDirectory() as folder:
        model = folder + "/gpt2"
        shape = dict(N_LAYER=a.layers, N_EMBD=a.width, N_HEAD=a.width // 64, VOCAB_SIZE=a.vocab, CONTEXT=max(a.first) + 256)
        subprocess.run([a.weft, "init", "--out", model, *(w for k, v in shape.items() for w in ("-o", f"{k}={v}"))], check=True)
        ours = measure_all(a, ["--model", model, *common, "--serve", f"--sequences {a.sequences}"])
        words = [sys.executable, str(HERE / "peer_serve.py"), model, *common, "--sequences", str(a.sequences)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as peer:
            try:
                url = peer.stdout.readline().strip()
                if not url:
                    sys.exit("bench/peer_serve.py did not start; it needs PyTorch")
                theirs = measure_all(a, ["--url", url])
            finally:
                peer.terminate()
    print(f"\n{a.layers} layers of width {a.width}, {a.device}, {a.dtype}; {a.requests} requests a row, prompts of {a.prompts} tokens, "
          f"texts of {a.tokens}; ms\n")
    print("| server | rate | done | tokens/s | first p50 | p95 | p99 | between p50 | p95 | p99 | good |")
    print("| --- |" + " ---: |" * 10)
    print_load("weft", ours[0])
    print_load("PyTorch", theirs[0])
    print("\n| prompt, alone | weft, ms | PyTorch, ms | PyTorch / weft |\n| ---: | ---: | ---: | ---: |")
    for n, mine, other in zip(a.first, ours[1], theirs[1]):
        print(f"| {n:,} | {1e3 * mine:.1f} | {1e3 * other:.1f} | {other / mine:.2f} |")


if __name__ == "__main__":
    main()
