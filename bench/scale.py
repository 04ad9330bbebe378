#!/usr/bin/env python3
"""How training scales over processes: measured here, and a model of it.

    make bench-scale                      both tables
    python3 bench/scale.py measure [P…]   processes on this machine, started by mpirun (default: 1 2 4)
    python3 bench/scale.py model          what 8, 64 and 1,024 GPUs would give, by the formula below

Measured, for each number of processes P, with one thread each unless THREADS says otherwise:

    strong   the same step of micro-batches shared by P ranks
    weak     P times the step
    alone    P processes that do a rank's share each and say nothing to each other, at the same time: what
             the machine gives without communication

`comm` is the part of a step that is not there alone. `peak` is the largest resident memory of a rank.
Steps are timed by weft itself (tokens_per_s: evaluation and saving are left out).

The model. A step of N parameters on P GPUs, each with T tokens of it:

    compute     6 N T / (use · peak)
    bytes       each rank sends and receives 2 (P-1)/P · 4 N bytes of gradients (sums are f32): the exchange
                of the tree's nodes, one node a rank, moves as much as a plain all-reduce
    links       NVLINK within a machine of 8; beyond it, each GPU's share of the network
    latency     2 (P-1) messages for each bucket of P · 2^17 numbers
    comm        bytes / bandwidth + latency
    step        compute + comm - overlap, where overlap = min(comm, OVERLAP · compute)
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

WEFT = os.environ.get("WEFT", "build/weft")
THREADS = os.environ.get("THREADS", "1")
STEPS = 8 if os.environ.get("QUICK") else 20
MICRO_BATCHES = 8  # of a step of strong scaling

CONFIG = """CONFIG_N_LAYER=4
CONFIG_N_HEAD=4
CONFIG_N_EMBD=256
CONFIG_VOCAB_SIZE=4096
CONFIG_GPT2_BLOCK_SIZE=128
CONFIG_MICRO_BATCH=1
CONFIG_GPT2_EVAL_INTERVAL=1000000
CONFIG_GPT2_EVAL_SAMPLES=1
CONFIG_SAVE_CHECKPOINT=n
"""
TOKENS = 128  # of a micro-batch


def command(folder, name, micro_batches, options=()):
    return [WEFT, "train", "--config", os.path.join(folder, "config"), "--out", os.path.join(folder, name),
            "--threads", THREADS, "--device", "cpu", "--peak-flops", "0", "--json",
            "-o", f"BATCH_SIZE={micro_batches}", "-o", f"GPT2_MAX_ITERS={STEPS}",
            *[word for option in options for word in ("-o", option)]]


def start(words):
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def finish(process):
    """The run's report and the largest resident memory of its processes, in MiB."""
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"bench-scale: a run ended on {process.returncode}")
    return json.loads(text), usage.ru_maxrss / 1024


def seconds_of(report, micro_batches):
    return micro_batches * TOKENS / report["tokens_per_s"]


def run_ranks(folder, name, ranks, micro_batches, options=()):
    words = command(folder, name, micro_batches, options)
    if ranks > 1:
        words = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), *words]
    report, memory = finish(start(words))
    return seconds_of(report, micro_batches), memory


def run_alone(folder, name, processes, micro_batches):
    """So many processes at once, each with its share."""
    started = [start(command(folder, f"{name}-{i}", micro_batches)) for i in range(processes)]
    return max(seconds_of(finish(p)[0], micro_batches) for p in started)


def measure(numbers):
    if not shutil.which("mpirun"):
        sys.exit("bench-scale: there is no mpirun; scripts/setup optional installs it")
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    print(f"4 layers of 256, micro-batches of {TOKENS} tokens, f32, {THREADS} thread(s) a process, "
          f"{os.cpu_count()} processors, {STEPS} steps; seconds per step")
    print(f"{'P':>3} {'strong':>8} {'speed-up':>8} {'alone':>8} {'comm':>8} {'plain':>8} {'weak':>8} "
          f"{'efficiency':>10} {'peak MiB':>9}")
    first = None
    for p in numbers:
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "config"), "w", encoding="utf-8") as file:
                file.write(CONFIG)
            strong, memory = run_ranks(folder, "strong", p, MICRO_BATCHES)
            alone = run_alone(folder, "alone", p, MICRO_BATCHES // p)
            plain, _ = run_ranks(folder, "plain", p, MICRO_BATCHES, ["DETERMINISTIC=n"])
            weak, _ = run_ranks(folder, "weak", p, MICRO_BATCHES * p)
        first = first or strong
        print(f"{p:3d} {strong:8.3f} {first / strong:8.2f} {alone:8.3f} {max(0, strong - alone):8.3f} "
              f"{plain:8.3f} {weak:8.3f} {first / weak:10.2f} {memory:9.0f}", flush=True)


# An H200: dense bf16, and what training reaches of it here (docs/results/performance.md); NVLink 4 and a
# 400 Gb/s port a GPU, one direction.
PEAK, USE = 989e12, 0.4
NVLINK, NETWORK = 450e9, 50e9
LATENCY, PIECE = 10e-6, 1 << 17
OVERLAP = 0.0
MEMORY = 141e9


def bytes_seconds(parameters, gpus):
    link = NVLINK if gpus <= 8 else NETWORK
    return 2 * (gpus - 1) / gpus * 4 * parameters / link


def latency_seconds(parameters, gpus):
    return 2 * (gpus - 1) * LATENCY * max(1, parameters / (gpus * PIECE))


def model():
    print(f"{'parameters':>10} {'GPUs':>6} {'tokens/GPU':>10} {'compute s':>10} {'bytes s':>9} {'latency s':>9} "
          f"{'step s':>8} {'efficiency':>10} {'bytes a GPU':>12}")
    for parameters, name in ((124e6, "124M"), (1.5e9, "1.5B"), (7e9, "7B")):
        for gpus in (8, 64, 1024):
            tokens = 32768
            compute = 6 * parameters * tokens / (USE * PEAK)
            moved, latency = bytes_seconds(parameters, gpus), latency_seconds(parameters, gpus)
            comm = moved + latency
            step = compute + comm - min(comm, OVERLAP * compute)
            # bf16 weights; f32 sums, master and two moments.
            memory = (2 + 4 + 12) * parameters
            fits = "" if memory < 0.9 * MEMORY else " no room"
            print(f"{name:>10} {gpus:6d} {tokens:10d} {compute:10.3f} {moved:9.3f} {latency:9.3f} {step:8.3f} "
                  f"{compute / step:10.2f} {memory / 1e9:9.1f} GB{fits}")


if __name__ == "__main__":
    what = sys.argv[1] if len(sys.argv) > 1 else "all"
    if what not in ("all", "measure", "model"):
        sys.exit(__doc__)
    if what in ("all", "measure"):
        measure([int(p) for p in sys.argv[2:]] or [1, 2, 4])
    if what in ("all", "model"):
        model()
