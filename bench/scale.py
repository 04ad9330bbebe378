#!/usr/bin/env python3
"""How training scales over processes: measured here, and a model of it.

    make bench-scale                      both tables
    python3 bench/scale.py measure [P...] processes on this machine, started by mpirun (default: 1 2 4)
    python3 bench/scale.py gpu            ranks on one GPU, with and without overlap
    python3 bench/scale.py against WEFT   one process of another build's program and of this one, by turns
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
SHARD=none, optimizer and gradients. weft itself times each step, without evaluation and saving
(tokens_per_s in metrics.jsonl). A figure is the median over the steps of a run but its first three; strong,
late, plain and alone are run in rounds, and theirs is the median over the rounds. The last line is one rank
with MPI against a process without it, by turns too.

The model. A step of N parameters on P GPUs, each with T tokens of it in M micro-batches:

    compute     6 N T / (use . peak)
    bytes       each rank sends and receives 2 (P-1)/P . 4 N bytes of gradients (sums are f32): the exchange
                of the tree's nodes, one node a rank, moves as much as a plain all-reduce. SHARD=optimizer:
                (P-1)/P . (4 + 2) N, gradients to their owners and bf16 weights back
    links       NVLINK within a machine of 8; beyond it, each GPU's share of the network
    messages    each bucket of P pieces takes two groups of P-1 messages that go at the same time:
                2 (GROUP + (P-1) POST); a piece is 2^17 to 2^20 numbers, so that there are at least 32 buckets;
                with more than 32 ranks fewer
    comm        bytes / bandwidth + messages
    step        compute + max(0, comm - 2/3 compute / M), since buckets leave during the last micro-batch's
                backward pass; late: compute + comm, as with WEFT_OVERLAP=0
    exact/plain comm against that of a plain all-reduce: the same bytes, and 2 log2 P groups in all, which a
                tree of NCCL's takes
"""
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

WEFT = os.environ.get("WEFT", "build/weft")
THREADS = os.environ.get("THREADS", "1")
QUICK = bool(os.environ.get("QUICK"))
STEPS, WARM = (6, 3) if QUICK else (11, 3)
ROUNDS = 1 if QUICK else 3
MICRO_BATCHES = int(os.environ.get("MICRO_BATCHES", "16"))  # of a step of strong scaling

CONFIG = """CONFIG_N_LAYER=4
CONFIG_N_HEAD=4
CONFIG_N_EMBD=256
CONFIG_VOCAB_SIZE=4096
CONFIG_CONTEXT=128
CONFIG_MICRO_BATCH=1
CONFIG_LOG_INTERVAL=1
CONFIG_EVAL_INTERVAL=1000000
CONFIG_EVAL_SAMPLES=1
CONFIG_SAVE_CHECKPOINT=n
"""
TOKENS = 128  # of a micro-batch

# GPT-2 124M; a micro-batch of 16 sequences for each of two ranks.
GPU_CONFIG = """CONFIG_N_LAYER=12
CONFIG_N_HEAD=12
CONFIG_N_EMBD=768
CONFIG_VOCAB_SIZE=50304
CONFIG_CONTEXT=1024
CONFIG_MICRO_BATCH=16
CONFIG_BATCH_SIZE=32
CONFIG_DTYPE="bf16"
CONFIG_LOG_INTERVAL=1
CONFIG_EVAL_INTERVAL=1000000
CONFIG_EVAL_SAMPLES=1
CONFIG_SAVE_CHECKPOINT=n
"""


class Folder:
    """A temporary folder with a config, and runs in it."""

    def __init__(self, config, device="cpu", threads=THREADS):
        self.memory = tempfile.TemporaryDirectory()
        self.device, self.threads, self.runs = device, threads, 0
        with open(os.path.join(self.memory.name, "config"), "w", encoding="utf-8") as file:
            file.write(config)

    def start(self, ranks=1, options=(), environment=None):
        """Starts a run by so many ranks; for finish()."""
        self.runs += 1
        out = os.path.join(self.memory.name, f"run-{self.runs}")
        words = [WEFT, "train", "--config", os.path.join(self.memory.name, "config"), "--out", out, "--threads",
                 self.threads, "--device", self.device, "--peak-flops", "0", "-o", f"STEPS={STEPS}",
                 *[word for option in options for word in ("-o", option)]]
        if ranks > 1:
            words = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), *words]
        log = open(out + ".log", "w+", encoding="utf-8")
        return subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ, **(environment or {})}), out, log

    def finish(self, started):
        """Seconds of a step, and the largest resident memory of the run's processes in MiB."""
        process, out, log = started
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            log.seek(0)
            sys.exit(f"bench-scale: a run ended on {process.returncode}: {log.read()[-2000:]}")
        with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as file:
            speeds = [json.loads(line)["tokens_per_s"] for line in file]
        return 1 / statistics.median(speeds[WARM:]), usage.ru_maxrss / 1024

    def run(self, *arguments, **named):
        return self.finish(self.start(*arguments, **named))


def batch(n):
    return [f"BATCH_SIZE={n}"]


def in_rounds(ways):
    """ways: functions that give seconds. The median of each over the rounds."""
    times = [[way() for way in ways] for _ in range(ROUNDS)]
    return [statistics.median(column) for column in zip(*times)]


def measure_one(p):
    folder = Folder(CONFIG)
    step = MICRO_BATCHES * TOKENS

    def ranks(options=(), environment=None, micro_batches=MICRO_BATCHES):
        return folder.run(p, [*batch(micro_batches), *options], environment)[0] * micro_batches * TOKENS

    def alone():
        started = [folder.start(1, batch(MICRO_BATCHES // p)) for _ in range(p)]
        return max(folder.finish(one)[0] for one in started) * step / p

    if p == 1:  # all of them are the same
        strong, memory = in_rounds([ranks])[0], folder.run(1, batch(MICRO_BATCHES))[1]
        return [strong] * 5 + [memory] * 3
    times = in_rounds([
        ranks, lambda: ranks(environment={"WEFT_OVERLAP": "0"}), lambda: ranks(["DETERMINISTIC=n"]), alone])
    weak = ranks(micro_batches=MICRO_BATCHES * p)
    memory = [folder.run(p, [*batch(MICRO_BATCHES), f"SHARD={shard}"])[1] for shard in ("none", "optimizer", "gradients")]
    return [*times, weak, *memory]


def compare_one_rank():
    """One rank that has MPI and one that has not, by turns: the ratio of the medians."""
    folder, times = Folder(CONFIG), {None: [], "mpi": []}
    for _ in range(3 if QUICK else 5):
        for way, list_of_way in times.items():
            seconds, _ = folder.run(1, batch(MICRO_BATCHES), {"WEFT_COMM": way} if way else None)
            list_of_way.append(seconds * MICRO_BATCHES * TOKENS)
    one, other = statistics.median(times[None]), statistics.median(times["mpi"])
    print(f"P = 1: {one:.4f} s without MPI, {other:.4f} s as a rank of one: {other / one:.3f}")


def need_mpi():
    if not shutil.which("mpirun"):
        sys.exit("bench-scale: there is no mpirun; scripts/setup optional installs it")
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")


def measure(numbers):
    need_mpi()
    print(f"4 layers of 256, {MICRO_BATCHES} micro-batches of {TOKENS} tokens, f32, {THREADS} thread(s) per process, "
          f"{os.cpu_count()} processors, {STEPS} steps, {ROUNDS} round(s); seconds per step")
    print(f"{'P':>3} {'strong':>8} {'speed-up':>8} {'late':>8} {'plain':>8} {'exact/plain':>11} {'alone':>8} {'comm':>8} "
          f"{'weak':>8} {'efficiency':>10} {'MiB none':>9} {'optimizer':>9} {'gradients':>9}")
    first = None
    for p in numbers:
        strong, late, plain, alone, weak, none, zero1, zero2 = measure_one(p)
        first = first or strong
        print(f"{p:3d} {strong:8.3f} {first / strong:8.2f} {late:8.3f} {plain:8.3f} {strong / plain:11.2f} {alone:8.3f} "
              f"{max(0, strong - alone):8.3f} {weak:8.3f} {first / weak:10.2f} {none:9.0f} {zero1:9.0f} {zero2:9.0f}",
              flush=True)
    compare_one_rank()


def against(other):
    """One process: this program's processor time and time against another's, which may know fewer options."""
    programs, times = {"other": other, "this": WEFT}, {"other": [], "this": []}
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "config")
        with open(config, "w", encoding="utf-8") as file:
            file.write(CONFIG + "CONFIG_BATCH_SIZE=8\nCONFIG_STEPS=4\n")
        for round in range(3 if QUICK else 15):
            for name, program in programs.items():
                words = [program, "train", "--config", config, "--out", os.path.join(folder, f"{name}-{round}"),
                         "--threads", THREADS, "--device", "cpu", "--peak-flops", "0"]
                process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                start = time.monotonic()
                _, status, usage = os.wait4(process.pid, 0)
                if status:
                    sys.exit(f"bench-scale: {program} ended on {os.waitstatus_to_exitcode(status)}")
                times[name].append((usage.ru_utime + usage.ru_stime, time.monotonic() - start))
    for i, what in enumerate(("processor time", "time")):
        one, two = (statistics.median(t[i] for t in times[name]) for name in programs)
        print(f"{what}: other {one:.3f} s, this {two:.3f} s, this / other {two / one:.3f}")


def gpu():
    """GPT-2 124M on one card. Ranks that share it take their gradients through the host's memory."""
    need_mpi()
    os.environ["WEFT_CUDA_DEVICE"] = "0"
    folder = Folder(GPU_CONFIG, "cuda", str(os.cpu_count() // 2 or 1))
    step = 32 * 1024
    one = folder.run()[0] * step
    print("GPT-2 124M, bf16, 2 micro-batches of 16 sequences of 1,024 tokens on one GPU; milliseconds per step")
    print(f"{'':>34} {'overlap':>8} {'late':>8}")
    print(f"{'one process without MPI':>34} {1e3 * one:8.1f}", flush=True)
    for name, ranks, environment, options in (
            ("one rank, NCCL", 1, {"WEFT_COMM": "mpi"}, []),
            ("two ranks, host memory", 2, {}, []),
            ("two ranks, SHARD=gradients", 2, {}, ["SHARD=gradients"])):
        times = [folder.run(ranks, options, {**environment, "WEFT_OVERLAP": overlap})[0] * step for overlap in "10"]
        print(f"{name:>34} {1e3 * times[0]:8.1f} {1e3 * times[1]:8.1f}", flush=True)


# An H200: dense bf16, and what training reaches of it here (docs/results/performance.md); NVLink 4 and a
# 400 Gb/s port a GPU, one direction.
PEAK, USE = 989e12, 0.4
NVLINK, NETWORK = 450e9, 50e9
# Seconds that a group of NCCL's messages takes beside its bytes, and that one message of it adds.
GROUP, POST = 20e-6, 1e-6
BLOCK, BUCKETS, LEAST, LARGEST, MOST = 1 << 14, 32, 8, 64, 2048  # src/comm/share.h
MEMORY = 141e9
TOKENS_GPU, MICRO_GPU = 32768, 4


def bytes_of(parameters, gpus, shard):
    return (gpus - 1) / gpus * (6 if shard else 8) * parameters


def link_of(gpus):
    return NVLINK if gpus <= 8 else NETWORK


def messages_of(parameters, gpus):
    blocks = int(min(max(parameters / BLOCK / (gpus * BUCKETS), LEAST), LARGEST))
    piece = BLOCK * max(1, min(blocks, MOST // gpus))
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
          f"{'late':>6} {'exact/plain':>11} {'GB none':>8} {'optimizer':>9} {'gradients':>9}")
    for parameters, name in ((124e6, "124M"), (1.5e9, "1.5B"), (7e9, "7B")):
        for gpus in (8, 64, 1024):
            compute = 6 * parameters * TOKENS_GPU / (USE * PEAK)
            moved = bytes_of(parameters, gpus, False) / link_of(gpus)
            latency = messages_of(parameters, gpus)
            comm = moved + latency
            step = compute + max(0.0, comm - 2 / 3 * compute / MICRO_GPU)
            plain = moved + 2 * math.log2(gpus) * GROUP
            memory = [memory_of(parameters, gpus, shard) / 1e9 for shard in ("none", "optimizer", "gradients")]
            print(f"{name:>10} {gpus:6d} {compute:10.3f} {moved:9.3f} {latency:10.3f} {step:8.3f} {compute / step:10.2f} "
                  f"{compute / (compute + comm):6.2f} {comm / plain:11.2f} {memory[0]:8.1f} {memory[1]:9.1f} {memory[2]:9.1f}")


if __name__ == "__main__":
    what = sys.argv[1] if len(sys.argv) > 1 else "all"
    if what not in ("all", "measure", "against", "gpu", "model"):
        sys.exit(__doc__)
    if what == "against":
        against(sys.argv[2])
    if what in ("all", "measure"):
        measure([int(p) for p in sys.argv[2:]] or [1, 2, 4])
    if what == "gpu":
        gpu()
    if what in ("all", "model"):
        model()
