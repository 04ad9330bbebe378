"""Makes, or with --check verifies, tests/vectors/curves.safetensors: the losses of whole training runs.

    python make_curves.py [--build BUILD] [--check] [NAME...]

For every tests/train/curves/NAME.config the model of model.py is trained in float64 by the rules of README.md, and the loss of every
step is kept. The weights to start from are those of `weft init`, the batches those that `test_curves --dump` writes; all that is
computed from them (losses, gradients, norms, schedule, optimizer) is computed here.
"""

import argparse
import json
import math
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import model  # noqa: E402
import model_config  # noqa: E402
from optimizer import muon_update  # noqa: E402

CONFIGS = HERE.parent / "train" / "curves"
KEPT = HERE.parent / "vectors" / "curves.safetensors"
TYPES = {"F64": "<f8", "F32": "<f4", "I32": "<i4"}

# Keys of training: a curve's config gives all of them, those of SPAM where it is the optimizer.
TRAINING = {
    "DATASET": str, "MICRO_BATCH": int, "GRADIENT_ACCUMULATION": int, "STEPS": int, "LEARNING_RATE": float,
    "MIN_LR": float, "WARMUP_STEPS": int, "LR_SCHEDULE": str, "WEIGHT_DECAY": float, "GRAD_CLIP": float, "OPTIMIZER": str,
    "ADAM_BETA1": float, "ADAM_BETA2": float, "ADAM_EPS": float, "INIT": str, "SEED": int, "DTYPE": str,
    "EVAL_INTERVAL": int, "EVAL_SAMPLES": int, "LOG_INTERVAL": int, "SAVE_CHECKPOINT": str,
}
SPAM = {
    "SPAM_AMSGRAD": str, "SPAM_ENABLE_CLIP": str, "SPAM_THETA": float, "SPAM_SPIKE_THRESHOLD": float, "SPAM_PERIODIC_RESET": str,
    "SPAM_INTERVAL": int, "SPAM_WARMUP": str, "SPAM_WARMUP_STEPS": int,
}
# A norm this close to what makes it a spike, relatively, could be taken for one by float32 and not by float64.
SPIKE_MARGIN = 1e-3


def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name in sorted(tensors):
        size = tensors[name].size * 8
        header[name] = {"dtype": "F64", "shape": list(tensors[name].shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(tensors):
            file.write(np.ascontiguousarray(tensors[name], dtype="<f8").tobytes())


def read_tensors(path):
    """A safetensors file of any of TYPES."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    body, tensors = data[8 + length:], {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            tensors[name] = np.frombuffer(body[begin:end], dtype=TYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def parse(path):
    """The model's config, and the training's as {key: value}."""
    own, lines = {}, []
    for line in path.read_text().splitlines():
        key, _, value = line.removeprefix("CONFIG_").partition("=")
        if line.startswith("# CONFIG_") and line.split()[1].removeprefix("CONFIG_") in TRAINING | SPAM:
            own[line.split()[1].removeprefix("CONFIG_")] = "n"
        elif key in TRAINING | SPAM:
            own[key] = (TRAINING | SPAM)[key](value.strip('"'))
        else:
            lines.append(line)
    spam = own.get("OPTIMIZER") == "adamwspam"
    wrong = set(own) ^ set(TRAINING | (SPAM if spam else {}))
    if wrong:
        raise model_config.BadConfig(f"{path.name}: given or needed, not both: {', '.join(sorted(wrong))}")
    config = model_config.parse_config("\n".join(lines))[0]
    if config["DROPOUT"] != 0 or own["DTYPE"] != "f32":
        raise model_config.BadConfig(f"{path.name}: the weights of a curve start as f32, and there is no dropout")
    return config, own


def rate(t, step):
    """The learning rate of step 1 … N: linear up to the highest, then down to the lowest, which the last step has."""
    high, low, warmup, steps = t["LEARNING_RATE"], t["MIN_LR"], t["WARMUP_STEPS"], t["STEPS"]
    if step <= warmup:
        return high * step / warmup
    if t["LR_SCHEDULE"] == "cosine":
        return low + (high - low) * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2
    if t["LR_SCHEDULE"] == "wsd":
        fall = steps / 5
        return high - (high - low) * max(0.0, (step - (steps - fall)) / fall)
    return high


def matrices_of(config, name):
    """How muon sees a tensor: a function from it to its matrices; None: not at all."""
    if not name.startswith("h.") or len(model_config.parameter_shapes(config)[name]) < 2:
        return None
    if not name.endswith("attn.qkv.weight"):
        return lambda x: x.reshape(-1, *x.shape[-2:])
    width = config["HEAD_DIM"] or config["N_EMBD"] // config["N_HEAD"]
    heads = config["N_HEAD"], *2 * [config["KV_HEADS"] or config["N_HEAD"]]
    return lambda x: x.split([n * width for n in heads])


class Optimizer:
    """The step of README.md for any number of tensors; spam adds spike detection and clipping, AMSGrad and resets; muon has its own
    for matrices."""

    def __init__(self, t, params, config):
        self.t, self.spam = t, t["OPTIMIZER"] == "adamwspam"
        self.matrices = {name: t["OPTIMIZER"] == "muon" and matrices_of(config, name) for name in params}
        self.clear(params)
        self.norms, self.step, self.was_reset, self.events = [], 0, False, {"clip": 0, "spike": 0, "cut": 0, "reset": 0}

    def clear(self, params):
        self.m, self.v, self.vmax = ({name: torch.zeros_like(x) for name, x in params.items()} for _ in range(3))
        self.since = 0

    def is_on(self, key):
        return self.spam and self.t[key] == "y"

    def detect_spike(self, norm):
        last = self.norms[-100:]
        self.norms.append(norm)
        if len(last) < 10 or self.t["SPAM_SPIKE_THRESHOLD"] <= 0:
            return
        limit = np.mean(last) + self.t["SPAM_SPIKE_THRESHOLD"] * np.std(last, ddof=1)
        if abs(norm - limit) < SPIKE_MARGIN * limit:
            raise model_config.BadConfig(f"step {self.step}: norm {norm} is too close to the limit {limit}; take another seed")
        if norm > limit:
            self.events["spike"] += 1
            self.m = {name: x / 2 for name, x in self.m.items()}
            self.v = {name: 0.9 * x for name, x in self.v.items()}

    def cut_spikes(self, grads):
        for name, g in grads.items():
            limit = self.t["SPAM_THETA"] * self.v[name] / (1 - self.t["ADAM_BETA2"] ** self.since)
            cut = (limit > 0) & (g**2 > limit)
            self.events["cut"] += int(cut.sum())
            grads[name] = torch.where(cut, torch.sign(g) * torch.sqrt(limit), g)

    def run(self, params, grads):
        t, beta1, beta2 = self.t, self.t["ADAM_BETA1"], self.t["ADAM_BETA2"]
        self.step += 1
        norm = math.sqrt(sum((g**2).sum().item() for g in grads.values()))
        if self.spam:
            self.detect_spike(norm)
        if 0 < t["GRAD_CLIP"] < norm:
            self.events["clip"] += 1
            grads = {name: g * (t["GRAD_CLIP"] / norm) for name, g in grads.items()}
        if self.is_on("SPAM_ENABLE_CLIP") and self.since > 0:
            self.cut_spikes(grads)
        self.since += 1
        lr = rate(t, self.step)
        if self.is_on("SPAM_WARMUP") and self.was_reset and self.since <= t["SPAM_WARMUP_STEPS"]:
            lr *= max(1e-3, (1 - math.cos(math.pi * self.since / t["SPAM_WARMUP_STEPS"])) / 2)
        for name, g in grads.items():
            if self.matrices[name]:
                self.m[name], update = muon_update(self.m[name], g, self.matrices[name])
                params[name] = params[name] * (1 - lr * t["WEIGHT_DECAY"]) - lr * update
                continue
            self.m[name] = beta1 * self.m[name] + (1 - beta1) * g
            self.v[name] = second = beta2 * self.v[name] + (1 - beta2) * g**2
            if self.is_on("SPAM_AMSGRAD"):
                self.vmax[name] = second = torch.maximum(self.vmax[name], second)
            update = self.m[name] / (1 - beta1**self.since) / (torch.sqrt(second / (1 - beta2**self.since)) + t["ADAM_EPS"])
            decay = t["WEIGHT_DECAY"] if g.dim() >= 2 else 0.0
            params[name] = params[name] * (1 - lr * decay) - lr * update
        if self.is_on("SPAM_PERIODIC_RESET") and self.step % t["SPAM_INTERVAL"] == 0:
            self.events["reset"] += 1
            self.clear(params)
            self.was_reset = True


def loss_and_gradients(config, params, tokens, targets, micro):
    """Means over micro-batches of what each of them says by itself."""
    parts = len(tokens) // micro
    loss, grads = 0.0, {name: torch.zeros_like(x) for name, x in params.items()}
    for i in range(0, len(tokens), micro):
        out = model.gradients(config, params, tokens[i:i + micro], targets[i:i + micro])
        loss += out["loss"].item() / parts
        for name in grads:
            grads[name] += out[f"grad.{name}"] / parts
    return loss, grads


def start(path, build, config):
    """Weights and batches, as the program has them."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([build / "weft", "init", "--config", path, "--out", folder], check=True, stderr=subprocess.DEVNULL)
        subprocess.run([build / "tests/train/test_curves", "--dump", path, f"{folder}/batches"], check=True)
        weights, batches = read_tensors(Path(folder, "model.safetensors")), read_tensors(Path(folder, "batches"))
    shapes = {name: x.shape for name, x in weights.items()}
    if shapes != model_config.parameter_shapes(config):
        raise model_config.BadConfig(f"{path.name}: weft init has other tensors than the reference")
    params = {name: torch.from_numpy(x.astype(np.float64)) for name, x in weights.items()}
    return params, *(torch.from_numpy(batches[name].astype(np.int64)) for name in ("tokens", "targets"))


def make_curve(path, build):
    config, training = parse(path)
    params, tokens, targets = start(path, build, config)
    optimizer, losses = Optimizer(training, params, config), []
    for i in range(training["STEPS"]):
        loss, grads = loss_and_gradients(config, params, tokens[i], targets[i], training["MICRO_BATCH"])
        losses.append(loss)
        optimizer.run(params, grads)
    events = ", ".join(f"{name} {count}" for name, count in optimizer.events.items() if count)
    print(f"{path.stem}: loss {losses[0]:.4f} to {np.mean(losses[-50:]):.4f}; {events or 'no events'}", flush=True)
    return np.array(losses)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--build", type=Path, default=HERE.parent.parent / "build", help="where the program was built")
    parser.add_argument("--check", action="store_true", help="compute again and compare with the kept file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    kept = read_tensors(KEPT) if KEPT.exists() else {}
    paths = sorted(CONFIGS.glob("*.config"))
    made = {path.stem: make_curve(path, args.build.resolve()) for path in paths if not args.names or path.stem in args.names}
    # Two hundred steps make more of a machine's last bits than a single pass does.
    same = lambda a, b: a.shape == b.shape and np.abs(a - b).max() <= 1e-6
    wrong = [name for name in made if name not in kept or not same(kept[name], made[name])]
    if not args.check:
        names = {path.stem for path in paths}
        write_safetensors(KEPT, {name: curve for name, curve in kept.items() if name in names} | {name: made[name] for name in wrong})
        return 0
    print(f"{len(made)} curves, {len(wrong)} wrong: {', '.join(wrong)}" if wrong else f"{len(made)} curves as kept")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
