"""Makes, or with --check verifies, tests/vectors/inspect.json.gz: what `weft inspect --json` says of models of tests/model/configs.

The numbers come from the plain PyTorch model (model.py) and numpy's SVD: weights as they leave its softmax, deviations from the
projections, attention with all deviations equal computed by leaving them out, spectra of the centred latents themselves, gradients by
autograd.

    python make_inspect_vectors.py [--check]
"""

import math
import sys
from pathlib import Path

import numpy as np
import torch

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import kept  # noqa: E402
import model  # noqa: E402
from make_model_vectors import CONFIGS, Case  # noqa: E402
from model_config import uses_rope  # noqa: E402

NAMES = ["step-3", "mix-w2-wsffn-gate-zloss", "mix-mla-w2-wsffn-three-layers", "mix-overlap-wsffn-cummean-cross",
         "cross-rms-normalized-max-full", "mla-joint", "ffn-wsffn-grouped", "cross-noncausal", "gate-sequence-leak",
         "w2-rope", "w2-tau-fixed", "mix-w2-swiglu-gate-cross-max", "dot-gqa-2-of-4-rope", "cosine-rope-kv-gate-cross",
         "cross-after-gate-topk", "cross-after-gate-none-w2", "step-3-learned", "document-w2-window", "cross-document-topk-window", "cross-document-rms-softcap"]


def gaussians(c, p, x, latent):
    """Raw means and deviations of queries and keys [B, T, heads, 2 width]; None: tokens are no Gaussians."""
    if c["ATTENTION"] == "w2":
        return [model.split_heads(model.linear(x, p[f"attn.{n}.weight"], p.get(f"attn.{n}.bias")), c["N_HEAD"]) for n in "qk"]
    if c["ATTENTION"] == "mla" and c["RA_MLA_SCORE"] == "w2":
        return [model.latent_queries(c, p, x), latent[:, :, None].expand(-1, -1, c["N_HEAD"], -1)]
    return None


def look_at_gaussians(c, p, x, weights, latent, layer, ids):
    """For each head: tau, the mean and spread of deviations, and what moves without them."""
    pair = gaussians(c, p, x, latent)
    if pair is None:
        return [{}] * c["N_HEAD"]
    half = c["D"] if c["ATTENTION"] == "w2" else pair[0].shape[-1] // 2
    overlap = c["ATTENTION"] == "w2" and c["W2_KERNEL"] == "overlap"
    sigma = [model.softplus(y[..., half:]) + (1e-4 if overlap else 0) for y in pair]
    out = []
    if not overlap:
        means = [model.rope(c, y[..., :half]) if uses_rope(c) else y[..., :half] for y in pair]
        tau = model.tau_of(c, p, half)
        scores = -model.squared_distance(*means) / (tau + 1e-6) + model.position_term(c, p, x)
        alike = torch.softmax(model.hide(c, layer, ids, scores), -1)
        moved = 0.5 * (weights - alike).abs().sum(-1)[:, :, (1 if c["CAUSAL"] else 0):]
    for h in range(c["N_HEAD"]):
        numbers = {}
        for name, s in zip("qk", sigma):
            rows = s[:, :, h].flatten(0, 1).numpy()
            numbers[f"sigma_{name}"] = rows.mean()
            numbers[f"spread_{name}"] = (rows.std(0) / rows.mean(0)).mean()
        if not overlap:
            numbers["tau"] = tau[h].item()
            numbers["moved"] = moved[:, h].mean().item()
        out.append(numbers)
    return out


def look_at_weights(c, weights):
    out = []
    w = weights.numpy()
    for h in range(c["N_HEAD"]):
        rows = []
        for b in range(w.shape[0]):
            for i in range(w.shape[2]):
                p = w[b, h, i]
                seen = [j for j in range(len(p)) if p[j] > 0]
                if len(seen) < 2:
                    continue
                back = sum(p[j] * abs(i - j) for j in seen)
                rows.append([-(p[seen] * np.log(p[seen])).sum(), math.log(len(seen)), p[0], p[i], back])
        entropy, most, first, own, back = np.mean(rows, 0)
        out.append({"entropy": entropy, "entropy_share": entropy / most, "first": first, "self": own, "back": back})
    return out


def routes_of(c, weights, gate):
    """For each sequence and token: the set of tokens kept, the share of the weight they hold, and whether there was a choice."""
    if c["RA_MLA_MLP_ROUTE_AFTER_GATE"] and gate is not None:
        alpha = c["RA_MLA_MLP_GATE_ALPHA"]
        weights = weights * (1 - alpha + alpha * gate).permute(0, 2, 1)[..., None]
    w = weights.numpy()
    full = w.mean(1) if c["RA_MLA_MLP_SPARSE_HEAD_AVERAGE"] else w.max(1)
    out = []
    for b in range(full.shape[0]):
        rows = []
        for i in range(full.shape[1]):
            row, mode = full[b, i], c["RA_MLA_MLP_SPARSE_MODE"]
            seen = [j for j in range(len(row)) if row[j] > 0]
            if mode == "topk":
                k = c["RA_MLA_MLP_SPARSE_K"]
                kept, choice = set(sorted(seen, key=lambda j: (-row[j], j))[:k]), len(seen) > k
            else:
                limit = c["RA_MLA_MLP_SPARSE_RMS_THRESHOLD"] * np.sqrt((row[seen]**2).mean()) if mode == "rms" else 0
                kept, choice = {j for j in seen if row[j] >= limit}, len(seen) > 1
            rows.append((kept, row[sorted(kept)].sum() / row.sum(), choice))
        out.append(rows)
    return out


def mean(values):
    return float(np.mean(values)) if len(values) else None


def look_at_routes(routes, before):
    flat = [(b, i, kept, share) for b, rows in enumerate(routes) for i, (kept, share, choice) in enumerate(rows) if choice]
    return {
        "routes": mean([len(kept) for _, _, kept, _ in flat]),
        "routes_weight": mean([share for *_, share in flat]),
        "routes_as_layer_before": mean([len(kept & before[b][i][0]) / len(kept) for b, i, kept, _ in flat]) if before else None,
        "routes_as_token_before": mean([len(kept & routes[b][i - 1][0]) / len(kept) for b, i, kept, _ in flat if i > 0]),
    }


def look_at_latent(rows):
    """Rows [N, L]."""
    values = np.linalg.svd((rows - rows.mean(0)) / math.sqrt(len(rows)), compute_uv=False)
    values = np.concatenate([values, np.zeros(rows.shape[1] - len(values))])
    shares, held = values / values.sum(), np.cumsum(values**2) / (values**2).sum()
    positive = shares[shares > 0]
    return {
        "width": rows.shape[1],
        "effective_rank": math.exp(-(positive * np.log(positive)).sum()),
        "directions_90": int(np.argmax(held >= 0.9)) + 1,
        "directions_99": int(np.argmax(held >= 0.99)) + 1,
        "singular_values": list(values),
    }


def look_at_z(c, p, x):
    if c["FFN"] != "wsffn":
        return {"z_off_blocks": None, "z_between_heads": None, "z_across_sequences": None}
    z = model.latents_z(c, p, model.linear(x, p["ffn.w1.weight"])).mean(1).numpy()  # [B, heads, z]
    unit = z / np.linalg.norm(z, axis=-1, keepdims=True)
    batch, heads, size = z.shape
    between = [abs(unit[b, i] @ unit[b, j]) for b in range(batch) for i in range(heads) for j in range(i)]
    across = [unit[a, i] @ unit[b, i] for a in range(batch) for b in range(a) for i in range(heads)]
    off = 0.0
    if c["WSFFN_Z_PROJ"] == "dense":
        w = p["ffn.z_proj.weight"].numpy()
        inside = sum((w[i * size:(i + 1) * size, i * size:(i + 1) * size]**2).sum() for i in range(heads))
        off = 1 - inside / (w**2).sum()
    return {"z_off_blocks": off, "z_between_heads": mean(between), "z_across_sequences": mean(across)}


def look_at_gate(c, gate):
    if gate is None:
        return [{}] * c["N_HEAD"]
    out = []
    for h in range(c["N_HEAD"]):
        g = gate[..., h].reshape(-1).numpy()
        out.append({"gate": g.mean(), "gate_spread": g.std(), "gates": [int(n) for n in np.histogram(g, 10, (0, 1))[0]]})
    return out


HEAD_NUMBERS = ["entropy", "entropy_share", "first", "self", "back", "tau", "sigma_q", "sigma_k", "spread_q", "spread_k", "moved",
                "gate", "gate_spread"]


def mechanism(name):
    """The mechanism of a tensor by its name."""
    last = name.split(".", 2)[-1] if name.startswith("h.") else name
    if name in ("wte.weight", "wpe.weight"):
        return "embedding"
    if name == "lm_head.weight":
        return "head"
    if last.startswith("ln_"):
        return "norm"
    if last.startswith("attn.") and last != "attn.gate_alpha":
        return "attention"
    for start, what in {"ffn.gate_": "gate", "attn.gate_alpha": "gate", "ffn.cross_": "cross-token", "ffn.couple": "latent coupling",
                        "ffn.recip_alpha": "latent coupling", "ffn.mlp_": "latent coupling", "ffn.attn_to_mlp": "latent coupling", "couple.": "latent coupling",
                        "ffn.z_proj": "z-heads", "ffn.": "feed-forward"}.items():
        if last.startswith(start):
            return what
    raise KeyError(name)


def look_at_gradients(case):
    done = case.compute()
    sums = {}
    for name, value in case.params.items():
        part = sums.setdefault(mechanism(name), [0, 0.0, 0.0])
        part[0] += value.numel()
        part[1] += (value**2).sum().item()
        part[2] += (done[f"grad.{name}"]**2).sum().item()
    return {name: [n, math.sqrt(w), math.sqrt(g)] for name, (n, w, g) in sums.items()}, done["cross_entropy"].item()


def look(name):
    case = Case(CONFIGS / f"{name}.config")
    case.ignore = 0
    case.draw_tokens()
    c, seen = case.config, []
    attention, feed_forward = model.attention, model.feed_forward

    def watched_attention(c, p, x, gate, received, *rest):
        y, weights, latent = attention(c, p, x, gate, received, *rest)
        latent_v = None
        if latent is not None and not c["RA_MLA_JOINT_KV"]:
            latent_v = model.linear(x, p["attn.v_down.weight"], p.get("attn.v_down.bias"))
        seen.append({"p": p, "x": x, "gate": gate, "weights": weights, "latent": latent, "latent_v": latent_v})
        return y, weights, latent

    def watched_feed_forward(c, p, shared, x, *rest):
        seen[-1]["normed"] = x
        return feed_forward(c, p, shared, x, *rest)

    model.attention, model.feed_forward = watched_attention, watched_feed_forward
    model.forward(c, case.params, case.ids, model.Constants())
    model.attention, model.feed_forward = attention, feed_forward
    layers, before = [], None
    for i, at in enumerate(seen):
        heads = [dict.fromkeys(HEAD_NUMBERS) for _ in range(c["N_HEAD"])]
        for found in (look_at_weights(c, at["weights"]), look_at_gaussians(c, at["p"], at["x"], at["weights"], at["latent"], i, case.ids),
                      look_at_gate(c, at["gate"])):
            for head, numbers in zip(heads, found):
                head.update(numbers)
        routes = routes_of(c, at["weights"], at["gate"])
        spectra = {key: None if at[kept] is None else look_at_latent(at[kept].flatten(0, 1).numpy())
                   for key, kept in (("keys", "latent"), ("values", "latent_v"))}
        layers.append({"layer": i, "heads": heads, **look_at_routes(routes, before), **spectra,
                       **look_at_z(c, at["p"], at["normed"])})
        before = routes
    parts, loss = look_at_gradients(case)
    return {"layers": layers, "mechanisms": parts, "loss": loss}


def plain(value):
    """With Python's own numbers, rounded to 14 digits."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return float(f"{value:.14g}") if isinstance(value, (float, np.floating)) else value


def close(a, b):
    if isinstance(a, dict):
        return set(a) == set(b) and all(close(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(close, a, b))
    return a == b if a is None or b is None else abs(a - b) <= 1e-9 * max(1, abs(a))


def main():
    torch.set_default_dtype(torch.float64)
    made = {name: plain(look(name)) for name in NAMES}
    if sys.argv[1:] == ["--check"]:
        if not close(made, kept.read_json("inspect")):
            sys.exit("inspect.json.gz is not what the reference computes")
        print(f"{len(made)} cases agree")
        return
    kept.write_json("inspect", made)


if __name__ == "__main__":
    main()
