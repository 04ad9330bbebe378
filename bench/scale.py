#!/usr/bin/env python3
"""How training scales over processes: measured here, and a model of it.

    make bench-scale                      both tables
    python3 bench/scale.py measure [P...] processes on this machine, started by mpirun (default: 1 2 4)
    python3 bench/scale.py model          what 8, 64 and 1,024 GPUs would give, by the formula below

Measured, in seconds of a step, for each number of processes P, with one thread each unless THREADS says
otherwise, and a step of MICRO_BATCHES (16):

    strong   the same step of micro-batches shared by P ranks
    late     the same with WEFT_OVERLAP=0: gradients leave when the backward pass is over
    plain    the same with DETERMINISTIC=n: MPI's own all-reduce in place of the exact tree
    alone    P processes that do a rank's share each and say nothing to each other, at the same time: what
             the machine gives without communication
    weak     P times the step

`comm` is the part of a step that is not there alone. `MiB` is the largest resident memory of a rank with
SHARD=none, optimizer and gradients. Steps are timed by weft itself (tokens_per_s: evaluation and saving
are left out). The last line is one rank with MPI against a process without it, by turns.

The model. A step of N parameters on P GPUs, each with T tokens of it in M micro-batches:

    compute     6 N T / (use . peak)
    bytes       each rank sends and receives 2 (P-1)/P . 4 N bytes of gradients (sums are f32): the exchange
                of the tree's nodes, one node a rank, moves as much as a plain all-reduce. SHARD=optimizer:
                (P-1)/P . (4 + 2) N, gradients to their owners and bf16 weights back
    links       NVLINK within a machine of 8; beyond it, each GPU's share of the network
    messages    each bucket of P pieces takes two groups of P-1 messages that go at the same time:
                2 (GROUP + (P-1) POST); a piece is 2^17 numbers, with more than 256 ranks fewer
    comm        bytes / bandwidth + messages
    step        compute + comm; overlapped: compute + max(0, comm - 2/3 compute / M), since the buckets can
                leave during the last micro-batch's backward pass
    exact/plain what the exact tree costs against a plain ring all-reduce, which has the same bytes and
                2 (P-1) steps of a group each in all
"""
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

WEFT = os.environ.get("WEFT", "build/weft")
THREADS = os.environ.get("THREADS", "1")
QUICK = bool(os.environ.get("QUICK"))
STEPS = 5 if QUICK else 20
MICRO_BATCHES = int(os.environ.get("MICRO_BATCHES", "16"))  # of a step of strong scaling

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


def start(words, environment=None):
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                            env={**os.environ, **(environment or {})})


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


def run_ranks(folder, name, ranks, micro_batches, options=(), environment=None):
    words = command(folder, name, micro_batches, options)
    if ranks > 1:
        words = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), *words]
    report, memory = finish(start(words, environment))
    return seconds_of(report, micro_batches), memory


def run_alone(folder, name, processes, micro_batches):
    """So many processes at once, each with its share."""
    started = [start(command(folder, f"{name}-{i}", micro_batches)) for i in range(processes)]
    return max(seconds_of(finish(p)[0], micro_batches) for p in started)


def measure_one(p):
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config"), "w", encoding="utf-8") as file:
            file.write(CONFIG)
        strong, none = run_ranks(folder, "strong", p, MICRO_BATCHES)
        late, _ = run_ranks(folder, "late", p, MICRO_BATCHES, environment={"WEFT_OVERLAP": "0"})
        plain, _ = run_ranks(folder, "plain", p, MICRO_BATCHES, ["DETERMINISTIC=n"])
        alone = run_alone(folder, "alone", p, MICRO_BATCHES // p)
        weak = 0 if QUICK and p > 4 else run_ranks(folder, "weak", p, MICRO_BATCHES * p)[0]
        _, first = run_ranks(folder, "zero-1", p, MICRO_BATCHES, ["SHARD=optimizer"])
        _, second = run_ranks(folder, "zero-2", p, MICRO_BATCHES, ["SHARD=gradients"])
    return strong, late, plain, alone, weak, none, first, second


def compare_one_rank():
    """One rank that has MPI and one that has not, by turns: the ratio of the medians."""
    times = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config"), "w", encoding="utf-8") as file:
            file.write(CONFIG)
        for turn in range(3 if QUICK else 7):
            for mpi in (False, True):
                environment = {"WEFT_COMM": "mpi"} if mpi else None
                seconds, _ = run_ranks(folder, f"one-{turn}-{mpi}", 1, MICRO_BATCHES, environment=environment)
                times[mpi].append(seconds)
    one, other = statistics.median(times[False]), statistics.median(times[True])
    print(f"P = 1: {one:.4f} s without MPI, {other:.4f} s as a rank of one: {other / one:.3f}")


def measure(numbers):
    if not shutil.which("mpirun"):
        sys.exit("bench-scale: there is no mpirun; scripts/setup optional installs it")
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    print(f"4 layers of 256, {MICRO_BATCHES} micro-batches of {TOKENS} tokens, f32, {THREADS} thread(s) per process, "
          f"{os.cpu_count()} processors, {STEPS} steps; seconds per step")
    print(f"{'P':>3} {'strong':>8} {'speed-up':>8} {'late':>8} {'plain':>8} {'exact/plain':>11} {'alone':>8} {'comm':>8} "
          f"{'weak':>8} {'efficiency':>10} {'MiB none':>9} {'optimizer':>9} {'gradients':>9}")
    first = None
    for p in numbers:
        strong, late, plain, alone, weak, none, zero1, zero2 = measure_one(p)
        first = first or strong
        share = f"{first / weak:10.2f}" if weak else f"{'-':>10}"
        print(f"{p:3d} {strong:8.3f} {first / strong:8.2f} {late:8.3f} {plain:8.3f} {strong / plain:11.2f} {alone:8.3f} "
              f"{max(0, strong - alone):8.3f} {weak:8.3f} {share} {none:9.0f} {zero1:9.0f} {zero2:9.0f}", flush=True)
    compare_one_rank()


# An H200: dense bf16, and what training reaches of it here (docs/results/performance.md); NVLink 4 and a
# 400 Gb/s port a GPU, one direction.
PEAK, USE = 989e12, 0.4
NVLINK, NETWORK = 450e9, 50e9
# Seconds that a group of NCCL's messages takes beside its bytes, and that one message of it adds.
GROUP, POST = 20e-6, 1e-6
BLOCK, BLOCKS, MOST = 1 << 14, 8, 2048  # src/comm/cut.h
MEMORY = 141e9
TOKENS_GPU, MICRO_GPU = 32768, 4


def bytes_of(parameters, gpus, shard):
    return (gpus - 1) / gpus * (6 if shard else 8) * parameters


def link_of(gpus):
    return NVLINK if gpus <= 8 else NETWORK


def messages_of(parameters, gpus):
    piece = BLOCK * max(1, min(BLOCKS, MOST // gpus))
    return max(1, parameters / (gpus * piece)) * 2 * (GROUP + (gpus - 1) * POST)


def memory_of(parameters, gpus, shard):
    """bf16 weights and a micro-batch's bf16 gradients; f32 master and two moments; f32 sums, one for each level of
    the tree: 2 for a rank's own 4 micro-batches, log2 of all where they are dealt out."""
    state, sums = 12 * parameters, 4 * parameters * 2
    if shard != "none":
        state /= gpus
    if shard == "gradients":
        sums = 4 * parameters * math.log2(MICRO_GPU * gpus) / gpus
    return 4 * parameters + state + sums


def model():
    print(f"{TOKENS_GPU} tokens per GPU in {MICRO_GPU} micro-batches, {USE:.0%} of {PEAK / 1e12:.0f} TFLOP/s, "
          f"{NVLINK / 1e9:.0f} GB/s within a machine, {NETWORK / 1e9:.0f} GB/s per GPU between")
    print(f"{'parameters':>10} {'GPUs':>6} {'compute s':>10} {'bytes s':>9} {'messages s':>10} {'step s':>8} {'efficiency':>10} "
          f"{'overlapped':>10} {'exact/plain':>11} {'GB none':>8} {'optimizer':>9} {'gradients':>9}")
    for parameters, name in ((124e6, "124M"), (1.5e9, "1.5B"), (7e9, "7B")):
        for gpus in (8, 64, 1024):
            compute = 6 * parameters * TOKENS_GPU / (USE * PEAK)
            moved = bytes_of(parameters, gpus, False) / link_of(gpus)
            latency = messages_of(parameters, gpus)
            comm = moved + latency
            hidden = compute + max(0.0, comm - 2 / 3 * compute / MICRO_GPU)
            ring = moved + 2 * (gpus - 1) * GROUP
            memory = [memory_of(parameters, gpus, shard) / 1e9 for shard in ("none", "optimizer", "gradients")]
            print(f"{name:>10} {gpus:6d} {compute:10.3f} {moved:9.3f} {latency:10.3f} {compute + comm:8.3f} "
                  f"{compute / (compute + comm):10.2f} {compute / hidden:10.2f} {comm / ring:11.2f} "
                  f"{memory[0]:8.1f} {memory[1]:9.1f} {memory[2]:9.1f}")


if __name__ == "__main__":
    what = sys.argv[1] if len(sys.argv) > 1 else "all"
    if what not in ("all", "measure", "model"):
        sys.exit(__doc__)
    if what in ("all", "measure"):
        measure([int(p) for p in sys.argv[2:]] or [1, 2, 4])
    if what in ("all", "model"):
        model()
