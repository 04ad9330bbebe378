"""What the reference of the model must hold to before anything is held to it.

For every config: gradients against finite differences of the whole loss, causality, single precision close enough that a float
engine can be asked to agree, and no tensor idle that should not be. For all of them together: every value of every option occurs.
And the parameter counts that are known.
"""

import math

import numpy as np
import torch

import model
import model_config
from case import fnv, units

STEP = 1e-5

# Parameters at the GPT-2 124M shape, by mechanisms: gate, cross-token, latent and its tying.
KNOWN_COUNTS = [
    ((False, False, False, "untied"), 115_001_856),
    ((True, False, False, "untied"), 117_370_368),
    ((True, True, False, "untied"), 230_616_576),
    ((True, True, True, "untied"), 240_250_368),
    ((True, True, True, "tied_transpose"), 235_335_168),
]


def check_counts():
    errors = []
    for (gate, cross, latent, tying), count in KNOWN_COUNTS:
        lines = [
            'CONFIG_ATTENTION="mla"', 'CONFIG_FFN="gelu"', 'CONFIG_POSITION="learned"', 'CONFIG_NORM="layernorm"',
            "CONFIG_N_LAYER=12", "CONFIG_N_HEAD=12", "CONFIG_N_EMBD=768", "CONFIG_VOCAB_SIZE=50304",
            "CONFIG_CONTEXT=1024", "CONFIG_BATCH_SIZE=8", 'CONFIG_DROPOUT="0.0"',
            f"CONFIG_RA_MLA_MLP_ATTN_GATE={'y' if gate else 'n'}", f"CONFIG_RA_MLA_MLP_CROSS_TOKEN={'y' if cross else 'n'}",
            f"CONFIG_RA_MLA_MLP_LATENT_RECIP={'y' if latent else 'n'}", f'CONFIG_RA_MLA_MLP_TYING_MODE="{tying}"',
        ]
        got = model_config.count_parameters(model_config.parse_config("\n".join(lines))[0])
        if got != count:
            errors.append(f"parameters: {got} where {count} are known (gate {gate}, cross {cross}, latent {latent}, {tying})")
    return errors


def check_coverage(cases):
    """Every word of every option, both states of every switch, and a number beside the default for every number."""
    errors = []
    for key, (kind, default) in model_config.KEYS.items():
        seen = {case.config[key] for case in cases}
        wanted = {True, False} if kind is bool else set(kind) if isinstance(kind, tuple) else set()
        errors += [f"coverage: CONFIG_{key}={value} in no config" for value in sorted(wanted - seen, key=str)]
        if not wanted and key != "DROPOUT" and not seen - {default}:
            errors.append(f"coverage: CONFIG_{key} is never anything but {default}")
    mixed = [case.name for case in cases if case.name.startswith("mix-")]
    if len(cases) < 60 or len(mixed) < 20:
        errors.append(f"coverage: {len(cases)} configs, {len(mixed)} of them mixed")
    return errors


def check_finite_differences(case):
    """<gradient, direction> of each tensor against a central difference, with what is constant held."""
    errors, constants = [], model.Constants()
    grads = case.compute(constants)
    constants.held = True

    def loss_at(name, direction, step):
        moved = {**case.params, name: case.params[name] + step * direction}
        return model.loss_parts(case.config, moved, case.ids, case.targets, constants)["loss"].item()

    for name, value in case.params.items():
        direction = torch.from_numpy(2 * units(case.key, value.numel(), fnv("direction." + name)) - 1).reshape(value.shape)
        by_autograd = (grads[f"grad.{name}"] * direction).sum().item()
        by_difference = (loss_at(name, direction, STEP) - loss_at(name, direction, -STEP)) / (2 * STEP)
        if not abs(by_autograd - by_difference) <= 1e-7 + 1e-6 * abs(by_autograd):
            errors.append(f"gradient of {name}: {by_autograd:.10g}, by differences {by_difference:.10g}")
    return errors


def check_causality(case):
    """A changed token moves its own logits, and none before it; unless the config says that it does."""
    def logits_of(ids):
        return model.forward(case.config, case.params, ids, model.Constants())[0]

    c = case.config
    leaks = not c["CAUSAL"] or (c["RA_MLA_MLP_ATTN_GATE"] and c["RA_MLA_MLP_GATE_POOL"] == "sequence" and c["N_LAYER"] > 1)
    base, before = logits_of(case.ids), 0.0
    for t in range(1, case.length):
        ids = case.ids.clone()
        ids[:, t] = (ids[:, t] + 1) % c["VOCAB_SIZE"]
        moved = (logits_of(ids) - base).abs()
        before = max(before, moved[:, :t].max().item())
        if moved[:, t].max() == 0:
            return [f"token {t} does not reach its own logits"]
    if leaks and before < 1e-6:
        return ["meant to see the future, and does not"]
    if not leaks and before > 1e-13:
        return [f"logits move by {before:.1e} before the changed token"]
    return []


def check_single_precision(case, share_of_allowed=0.75):
    """The same formulas in float32 stay within a share of what the engine is allowed: 1e-5, and 2e-4 of a gradient's norm."""
    exact, errors = case.compute(), []
    single = model.gradients(case.config, {name: value.float() for name, value in case.params.items()}, case.ids, case.targets)
    for name, value in exact.items():
        gap = single[name].double() - value
        if name.startswith("grad."):
            share = gap.norm() / max(value.norm().item(), 1e-6 * math.sqrt(value.numel()))
            if share > 2e-4 * share_of_allowed:
                errors.append(f"{name} is off by {share:.1e} of its norm in float32")
        elif gap.abs().max() > 1e-5 * share_of_allowed:
            errors.append(f"{name} is off by {gap.abs().max():.1e} in float32")
    return errors


def is_idle(case, name):
    """Whether nothing depends on a tensor by definition."""
    c, last = case.config, f"h.{case.config['N_LAYER'] - 1}.ffn."
    made_for_next = ("gate_proj.weight", "gate_heads.weight", "gate_heads.bias", "mlp_down.weight", "mlp_to_attn.weight")
    return (
        name in [last + part for part in made_for_next]
        or (name == "couple.mlp_to_attn" and c["N_LAYER"] == 1)
        or (name.endswith("z_proj.weight") and not c["WSFFN_AUX_LOSS"])
    )


def check_idle(case):
    """Gradients are zero where nothing depends on a tensor, and only there."""
    errors, grads = [], case.compute()
    for name in case.params:
        largest = grads[f"grad.{name}"].abs().max().item()
        if is_idle(case, name) and largest != 0:
            errors.append(f"{name} should be idle, its gradient is not zero")
        elif not is_idle(case, name) and largest < 1e-7:
            errors.append(f"{name} is idle: its largest gradient is {largest:.1e}")
    return errors


def check_drawn(case):
    """Values are float32, and no tensor is constant."""
    errors = []
    for name, value in case.params.items():
        x = value.numpy()
        if (x != x.astype(np.float32)).any() or (x.size > 1 and x.std() < 0.05):
            errors.append(f"{name} is badly drawn")
    return errors


def run(cases, whole):
    errors = check_counts() + (check_coverage(cases) if whole else [])
    for case in cases:
        for check in (check_drawn, check_idle, check_finite_differences, check_causality, check_single_precision):
            errors += [f"{case.name}: {error}" for error in check(case)]
    return errors
