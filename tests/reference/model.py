"""The whole model in plain PyTorch, from the formulas: one function a mechanism, T x T matrices written out, gradients by autograd.

Nothing here is clever. Where an efficient form exists (the expanded W2 distance, the latent that is never expanded, the folded
cross-token product) this file takes the direct one, so that an agreement says something. tests/model/CONFIGS.md lists the readings
that the formulas needed. Shapes: B batch, T tokens, E width, H heads, D = E/H, F hidden width, L latent width, V vocabulary.
"""

import math

import numpy as np
import torch

from case import fnv, units
from model_config import shares_keys, uses_rope


class Constants:
    """What the formulas hold constant: kept at a first pass, given back unchanged when `held` (for finite differences).

    `margin` is the smallest distance of any comparison that decided what is kept."""

    def __init__(self):
        self.values, self.held, self.margin = {}, False, math.inf

    def keep(self, name, compute):
        if not self.held:
            self.values[name] = compute().detach()
        return self.values[name]


def linear(x, weight, bias=None):
    y = x @ weight.T
    return y if bias is None else y + bias


def split_heads(x, heads):
    """[B, T, heads·width] → [B, T, heads, width]."""
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads)


def norm(c, p, name, x):
    if c["NORM"] == "layernorm":
        centred = x - x.mean(-1, keepdim=True)
        y = centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + (c["NORM_EPS"] or 1e-5)) * p[f"{name}.weight"]
        return y + p[f"{name}.bias"] if c["BIAS"] else y
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + (c["NORM_EPS"] or 1e-6)) * p[f"{name}.weight"]


def softplus(x):
    return torch.logaddexp(x, torch.zeros_like(x))


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x):
    return x * torch.sigmoid(x)


def rope_rates(c, width):
    """The angle of each pair per position, [width/2], and what rotated columns are multiplied by."""
    rate = c["ROPE_THETA"] ** (-2.0 * torch.arange(width // 2, dtype=torch.float64) / width)
    if c["ROPE_SCALING"] == "longrope":
        factors = c["ROPE_LONG_FACTORS" if c["CONTEXT"] > c["ROPE_CONTEXT"] else "ROPE_SHORT_FACTORS"].split(",")
        factors = torch.tensor([np.float32(factor).item() for factor in factors], dtype=torch.float64)
        return rate / factors, c["ROPE_AMPLITUDE"] or math.sqrt(1 + math.log(c["ROPE_FACTOR"]) / math.log(c["ROPE_CONTEXT"]))
    slow, context = rate / c["ROPE_FACTOR"], c["ROPE_CONTEXT"]
    if c["ROPE_SCALING"] == "linear":
        return slow, 1.0
    if c["ROPE_SCALING"] == "llama3":
        wavelength = 2 * math.pi / rate
        smooth = (context / wavelength - c["ROPE_LOW"]) / (c["ROPE_HIGH"] - c["ROPE_LOW"])
        between = (1 - smooth) * slow + smooth * rate
        rate = torch.where(wavelength > context / c["ROPE_LOW"], slow,
                           torch.where(wavelength < context / c["ROPE_HIGH"], rate, between))
    elif c["ROPE_SCALING"] == "yarn":
        def place(rotations):
            return width * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(c["ROPE_THETA"]))
        first, last = max(math.floor(place(c["ROPE_HIGH"])), 0), min(math.ceil(place(c["ROPE_LOW"])), width - 1)
        ramp = ((torch.arange(width // 2, dtype=torch.float64) - first) / max(last - first, 0.001)).clamp(0, 1)
        return slow * ramp + rate * (1 - ramp), c["ROPE_AMPLITUDE"] or 0.1 * math.log(c["ROPE_FACTOR"]) + 1
    return rate, 1.0


def rope(c, x):
    """Rotates pairs (i, i + width/2) of the last dimension of [B, T, heads, width] by t times their rates."""
    if c["ROPE_DIM"] and c["ROPE_DIM"] < x.shape[-1]:
        whole = {**c, "ROPE_DIM": 0}
        return torch.cat([rope(whole, x[..., :c["ROPE_DIM"]]), x[..., c["ROPE_DIM"]:]], -1)
    t, half = x.shape[1], x.shape[-1] // 2
    rate, amplitude = rope_rates(c, x.shape[-1])
    angle = torch.arange(t, dtype=torch.float64)[:, None] * rate
    cos, sin = (amplitude * f(angle)[None, :, None, :].to(x.dtype) for f in (torch.cos, torch.sin))
    low, high = x[..., :half], x[..., half:]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def alibi_slopes(heads):
    """2^(−8h/H), h = 1 … H; else those of the power of two below, then the 1st, 3rd, 5th … of twice that power."""
    power = 1
    while power * 2 <= heads:
        power *= 2
    slopes = [2.0 ** (-8.0 * h / power) for h in range(1, power + 1)]
    return slopes + [2.0 ** (-8.0 * h / (2 * power)) for h in range(1, 2 * (heads - power), 2)]


def position_term(c, p, x):
    """pos_h(i, j): [H, T, T] or [1, T, T], or 0."""
    t = x.shape[1]
    distance = torch.arange(t)[:, None] - torch.arange(t)[None, :]
    if c["POSITION"] == "alibi":
        slopes = torch.tensor(alibi_slopes(c["N_HEAD"]), dtype=x.dtype)
        return -slopes[:, None, None] * distance
    if c["POSITION"] == "relative":
        return p["attn.rel_bias"][distance.clamp(min=0)][None]
    return 0.0


def inner(q, k):
    """⟨q_i, k_j⟩ by head: [B, T, H, width] twice → [B, H, T, T]."""
    return torch.einsum("bihd,bjhd->bhij", q, k)


def squared_distance(q, k):
    """‖q_i − k_j‖² by head, from the differences: [B, H, T, T]."""
    return ((q[:, :, None] - k[:, None, :]) ** 2).sum(-1).permute(0, 3, 1, 2)


def tau_of(c, p, width):
    """The temperature of each head, [H, 1, 1]."""
    if c["W2_TAU_LEARNED"]:
        return torch.exp(p["attn.log_tau"])[:, None, None]
    return torch.full((c["N_HEAD"], 1, 1), c["W2_TAU"] or 2 * math.sqrt(width), dtype=p["attn.q.weight"].dtype)


def w2_scores(c, p, q, k):
    """S_ij of 2.2 for q, k = [μ, ρ] along the last dimension."""
    half = c["D"] if c["ATTENTION"] == "w2" else q.shape[-1] // 2
    mu_q, mu_k = q[..., :half], k[..., :half]
    if uses_rope(c):
        mu_q, mu_k = rope(c, mu_q), rope(c, mu_k)
    apart = squared_distance(mu_q, mu_k) + squared_distance(softplus(q[..., half:]), softplus(k[..., half:]))
    return -apart / (tau_of(c, p, half) + 1e-6)


def overlap_scores(c, q, k):
    """The Gaussian overlap of 2.2; the norm of q, the same along a row, is left in."""
    half = q.shape[-1] // 2
    var_q, var_k = softplus(q[..., half:]) + 1e-4, softplus(k[..., half:]) + 1e-4
    q_hat, k_hat = q[..., :half] / torch.sqrt(var_q), k[..., :half] / torch.sqrt(var_k)
    if uses_rope(c):
        q_hat, k_hat = rope(c, q_hat), rope(c, k_hat)
    log_volume = torch.log(var_k).sum(-1).permute(0, 2, 1)[:, :, None, :]
    return -0.5 * squared_distance(q_hat, k_hat) - 0.5 * log_volume


def qk_norm(c, p, name, x):
    """RMSNorm of queries or keys: of as many of their columns as the gain has, which leaves w2's deviations."""
    if not c["QK_NORM"]:
        return x
    gain = p[f"attn.{name}_norm.weight"]
    if c["QK_NORM_WHOLE"]:
        whole = x.flatten(2)
        return (whole / torch.sqrt((whole**2).mean(-1, keepdim=True) + 1e-6) * gain).view(x.shape)
    normed, rest = x[..., :len(gain)], x[..., len(gain):]
    return torch.cat([normed / torch.sqrt((normed**2).mean(-1, keepdim=True) + 1e-6) * gain, rest], -1)


def map_of(p, name, x):
    return linear(x, p[f"attn.{name}.weight"], p.get(f"attn.{name}.bias"))


def once(kept, make):
    """What the first layer of those that share keys makes; the others find it here."""
    if not kept:
        kept.append(make())
    return kept[0]


def dot_heads(c, p, x, kept):
    """q, k, v of each query head, [B, T, H, D], from one projection; q and k rotated where positions are rope."""
    h, kv = c["N_HEAD"], c["KV"]
    if kept:
        q, heads = split_heads(map_of(p, "q", x), h), None
    else:
        heads = split_heads(map_of(p, "qkv", x), h + 2 * kv)
        q = heads[:, :, :h]
    q = qk_norm(c, p, "q", q)
    q = rope(c, q) if uses_rope(c) else q

    def keys():
        k = qk_norm(c, p, "k", heads[:, :, h:h + kv])
        return rope(c, k) if uses_rope(c) else k, heads[:, :, h + kv:]

    k, v = once(kept, keys)
    group = [i * kv // h for i in range(h)]
    return q, k[:, :, group], v[:, :, group]


def gta_attention(c, p, x, kept):
    """Keys are the first half of the group's value, then a rotated half that all groups share."""
    h, kv, half = c["N_HEAD"], c["KV"], c["D"] // 2
    u, k_rope = once(kept, lambda: (split_heads(map_of(p, "kv", x), kv), rope(c, map_of(p, "k_rope", x)[:, :, None])))
    v = u[:, :, [i * kv // h for i in range(h)]]
    q = split_heads(map_of(p, "q", x), h)
    scores = inner(q[..., :half], v[..., :half]) + inner(rope(c, q[..., half:]), k_rope.expand(-1, -1, h, -1))
    return scores / math.sqrt(c["D"]), v


def dot_attention(c, p, x, kept):
    """Scores [B, H, T, T] and values [B, T, H, D]."""
    q, k, v = dot_heads(c, p, x, kept)
    scale = math.sqrt(c["MUP_BASE_HEAD"]) / c["D"] if c["MUP"] and c["MUP_BASE_HEAD"] else 1 / math.sqrt(c["D"])
    scale = c["ATTENTION_SCALE"] or scale
    return scale * inner(q, k), v


def cosine_attention(c, p, x, kept):
    """The cosine of the angle between q and k over a temperature per head."""
    q, k, v = dot_heads(c, p, x, kept)
    lengths = [torch.sqrt((y**2).sum(-1)).clamp(min=1e-8).permute(0, 2, 1) for y in (q, k)]
    cosines = inner(q, k) / (lengths[0][:, :, :, None] * lengths[1][:, :, None, :])
    return cosines / torch.exp(p["attn.log_tau"])[:, None, None], v


def w2_attention(c, p, x, kept):
    h, kv = c["N_HEAD"], c["KV"]
    q = qk_norm(c, p, "q", split_heads(map_of(p, "q", x), h))
    k, v = once(kept, lambda: (qk_norm(c, p, "k", split_heads(map_of(p, "k", x), kv)), split_heads(map_of(p, "v", x), kv)))
    group = [i * kv // h for i in range(h)]
    k, v = k[:, :, group], v[:, :, group]
    scores = w2_scores(c, p, q, k) if c["W2_KERNEL"] == "w2" else overlap_scores(c, q, k)
    return scores, v


def rms_norm(x, gain):
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + 1e-6) * gain


def latent_queries(c, p, x):
    """q̂ [B, T, H, L] of 2.3."""
    q = map_of(p, "q", x)
    if c["RA_MLA_PER_HEAD_Q_LATENT"]:
        return torch.einsum("bthd,hdl->bthl", split_heads(q, c["N_HEAD"]), p["attn.q_latent"])
    return (q @ p["attn.q_latent"])[:, :, None].expand(-1, -1, c["N_HEAD"], -1)


def band_term(c, q_hat, k_hat, scale):
    """Reciprocal scoring: the score with the roles exchanged, where 0 ≤ i − j ≤ window."""
    t = q_hat.shape[1]
    distance = torch.arange(t)[:, None] - torch.arange(t)[None, :]
    inside = (distance >= 0) & (distance <= c["RA_MLA_RA_WINDOW"])
    swapped = inner(q_hat, k_hat).transpose(2, 3) / scale
    return c["RA_MLA_RA_ALPHA"] * torch.where(inside, swapped, torch.zeros_like(swapped))


def latents_of(c, p, x, received):
    """c^K and c^V [B, T, g, L], c^K with what it received, and k^R [B, T, 1, R] or None."""
    latent = map_of(p, "k_down", x)
    if received is not None:
        latent = latent + received
    latent = qk_norm(c, p, "k", split_heads(latent, c["G"]))
    if c["RA_MLA_LATENT_NORM"]:
        latent = rms_norm(latent, p["attn.latent_norm.weight"])
    values = latent if c["RA_MLA_JOINT_KV"] else split_heads(map_of(p, "v_down", x), c["G"])
    return latent, values, rope(c, map_of(p, "k_rope", x)[:, :, None]) if c["R"] else None


def mla_attention(c, p, x, received, kept):
    """Scores, values [B, T, H, D] expanded from the latent, and the latent c^K [B, T, L] with what it received."""
    latent, values, k_rope = once(kept, lambda: latents_of(c, p, x, received))
    h = c["N_HEAD"]
    group = [i * c["G"] // h for i in range(h)]
    source = rms_norm(map_of(p, "q_down", x), p["attn.q_down_norm.weight"]) if c["RA_MLA_Q_RANK"] else x
    q_hat = qk_norm(c, p, "q", latent_queries(c, p, source))
    k_hat = latent[:, :, group]
    if c["RA_MLA_SCORE"] == "w2":
        scores = w2_scores(c, p, q_hat, k_hat)
    else:
        if c["R"]:
            q_hat = torch.cat([q_hat, rope(c, split_heads(map_of(p, "q_rope", source), h))], -1)
            k_hat = torch.cat([k_hat, k_rope.expand(-1, -1, h, -1)], -1)
        elif uses_rope(c):
            q_hat, k_hat = rope(c, q_hat), rope(c, k_hat)
        scale = math.sqrt(c["D"] + c["R"] if c["R"] else c["L"])
        scores = inner(q_hat, k_hat) / scale
        if c["RA_MLA_RA_ALPHA"] > 0:
            scores = scores + band_term(c, q_hat, k_hat, scale)
    up = p["attn.v_up"] if c["RA_MLA_PER_HEAD_V_UP"] else p["attn.v_up"].expand(h, -1, -1)
    return scores, torch.einsum("bthl,hld->bthd", values[:, :, group], up), latent.flatten(2)


def softcap(x, cap):
    return cap * torch.tanh(x / cap) if cap else x


def documents(c, ids):
    """The number of each token's document, and where it begins: [B, T] each. The token that ends one belongs to it."""
    number, first = torch.zeros_like(ids), torch.zeros_like(ids)
    for b in range(ids.shape[0]):
        begun = 0
        for t in range(ids.shape[1]):
            first[b, t] = begun
            number[b, t] = 0 if t == 0 else number[b, t - 1] + (begun == t)
            if c["DOCUMENT_MASK"] and ids[b, t] == c["DOCUMENT_TOKEN"]:
                begun = t + 1
    return number, first


def has_window(c, layer):
    return c["WINDOW"] and not (c["WINDOW_EVERY"] and (layer + 1) % c["WINDOW_EVERY"] == 0)


def hide(c, layer, ids, scores):
    """-inf where token i does not see token j."""
    t = ids.shape[1]
    distance = torch.arange(t)[:, None] - torch.arange(t)[None, :]
    if c["CAUSAL"]:
        scores = scores.masked_fill(distance < 0, -math.inf)
    if has_window(c, layer):
        scores = scores.masked_fill(distance >= c["WINDOW"], -math.inf)
    if c["DOCUMENT_MASK"]:
        number, _ = documents(c, ids)
        scores = scores.masked_fill((number[:, :, None] != number[:, None, :])[:, None], -math.inf)
    return scores


def attention(c, p, x, gate, received, kept, layer, ids):
    """The branch's output [B, T, E], the weights P [B, H, T, T] and, for mla, the latent c^K."""
    latent = None
    if c["ATTENTION"] == "mla":
        scores, v, latent = mla_attention(c, p, x, received, kept)
    else:
        kinds = {"dot": dot_attention, "w2": w2_attention, "cosine": cosine_attention, "gta": gta_attention}
        scores, v = kinds[c["ATTENTION"]](c, p, x, kept)
    scores = softcap(scores + position_term(c, p, x), c["SOFTCAP_ATTENTION"])
    weights = torch.softmax(hide(c, layer, ids, scores), -1)
    o = torch.einsum("bhij,bjhd->bihd", weights, v)
    if gate is not None:
        alpha = p.get("attn.gate_alpha", c["RA_MLA_MLP_GATE_ALPHA"])
        o = (1 - alpha) * o + alpha * gate[..., None] * o
    if c["ATTENTION_GATE"] != "none":
        own = torch.sigmoid(linear(x, p["attn.out_gate.weight"]))
        o = o * (own[..., None] if c["ATTENTION_GATE"] == "head" else split_heads(own, c["N_HEAD"]))
    return linear(o.flatten(2), p["attn.out.weight"], p.get("attn.out.bias")), weights, latent


def hidden(c, p, x):
    """h [B, T, F], and h₁ for the auxiliary losses of wsffn."""
    if c["FFN"] in ("gelu", "gelu_erf", "relu2"):
        a = linear(x, p["ffn.fc.weight"], p.get("ffn.fc.bias"))
        shapes = {"gelu": gelu_tanh, "gelu_erf": lambda x: x * (1 + torch.erf(x / 2**0.5)) / 2, "relu2": lambda x: torch.relu(x) ** 2}
        return shapes[c["FFN"]](a), None
    h1 = linear(x, p["ffn.w1.weight"], p.get("ffn.w1.bias"))
    gate = gelu_tanh if c["FFN"] == "geglu" else silu
    return gate(linear(x, p["ffn.w3.weight"], p.get("ffn.w3.bias"))) * h1, h1


def project(c, p, h):
    if c["FFN"] in ("gelu", "gelu_erf", "relu2"):
        return linear(h, p["ffn.proj.weight"], p.get("ffn.proj.bias"))
    return linear(h, p["ffn.w2.weight"], p.get("ffn.w2.bias"))


def latents_z(c, p, h1):
    """z [B, T, n_head, z_dim] of 3.1."""
    if c["WSFFN_Z_PROJ"] == "dense":
        return split_heads(linear(h1, p["ffn.z_proj.weight"]), c["WSFFN_N_HEAD"])
    return torch.einsum("bthi,hoi->btho", split_heads(h1, c["WSFFN_N_HEAD"]), p["ffn.z_proj.weight"])


def views(c, z, layer):
    """What InfoNCE compares: anchors and their positives, [B, n_head, z_dim] each."""
    mean, half = z.mean(1), z.shape[1] // 2
    if c["WSFFN_POSITIVE"] == "half":
        return z[:, :half].mean(1), z[:, half:].mean(1)
    if c["WSFFN_POSITIVE"] == "self":
        return mean, mean
    n = mean[0].numel()
    u = np.stack([units(1, 2 * n, fnv(f"h.{layer}.ffn.z.drop"), b) for b in range(z.shape[0])])
    kept = torch.from_numpy(u >= 0.1).reshape(z.shape[0], 2, *mean.shape[1:])
    return tuple(torch.where(kept[:, i], mean / 0.9, torch.zeros_like(mean)) for i in (0, 1))


def wsffn_losses(c, p, h1, layer):
    """L_Z and L_C of one layer, and z itself, [B, T, F]."""
    z = latents_z(c, p, h1)
    loss_z = c["WSFFN_LAMBDA_Z"] * (z**2).sum(-1).mean()
    pair = [view.flatten(0, 1) for view in views(c, z, layer)]
    if pair[0].shape[0] < 2:
        return loss_z, torch.zeros_like(loss_z), z.flatten(2)
    anchors, positives = (view / torch.sqrt((view**2).sum(-1, keepdim=True)).clamp(min=1e-8) for view in pair)
    s = anchors @ positives.T / c["WSFFN_TAU"]
    return loss_z, c["WSFFN_LAMBDA_C"] * (torch.logsumexp(s, -1) - torch.diagonal(s)).mean(), z.flatten(2)


def head_gates(c, p, h, ids):
    """4.1: the gates of the next layer's heads, [B, T, H], or [B, 1, H] pooled over the sequence."""
    a = linear(h, p["ffn.gate_proj.weight"])
    if c["RA_MLA_MLP_GATE_POOL"] == "cummean":
        number, _ = documents(c, ids)
        seen = torch.tril((number[:, :, None] == number[:, None, :]).to(h.dtype))
        a = torch.einsum("bts,bsg->btg", seen / seen.sum(-1, keepdim=True), a)
    elif c["RA_MLA_MLP_GATE_POOL"] == "sequence":
        a = a.mean(1, keepdim=True)
    return torch.sigmoid(linear(a, p["ffn.gate_heads.weight"], p.get("ffn.gate_heads.bias")))


def sparsify_row(c, row, constants):
    """What is left of the visible weights of one token, and how close the decision was."""
    mode = c["RA_MLA_MLP_SPARSE_MODE"]
    if mode == "topk":
        order = sorted(range(len(row)), key=lambda j: (-row[j].item(), j))
        k = c["RA_MLA_MLP_SPARSE_K"]
        if len(order) > k:
            constants.margin = min(constants.margin, (row[order[k - 1]] - row[order[k]]).item())
        kept = torch.zeros_like(row)
        kept[order[:k]] = row[order[:k]]
    elif mode == "rms":
        limit = c["RA_MLA_MLP_SPARSE_RMS_THRESHOLD"] * torch.sqrt((row**2).mean())
        constants.margin = min(constants.margin, (row - limit).abs().min().item())
        kept = torch.where(row >= limit, row, torch.zeros_like(row))
    else:
        kept = row
    return kept / kept.sum() if c["RA_MLA_MLP_SPARSE_NORMALIZE"] else kept


def routing(c, weights, gate, constants, layer, ids):
    """4.2: R [B, T, T] from P [B, H, T, T], sparse, a constant."""
    weights = weights.detach()
    if c["RA_MLA_MLP_ROUTE_AFTER_GATE"] and gate is not None:
        alpha = c["RA_MLA_MLP_GATE_ALPHA"]
        weights = weights * (1 - alpha + alpha * gate.detach()).permute(0, 2, 1)[..., None]
    full = weights.mean(1) if c["RA_MLA_MLP_SPARSE_HEAD_AVERAGE"] else weights.amax(1)
    sparse = torch.zeros_like(full)
    visible = torch.isfinite(hide(c, layer, ids, torch.zeros_like(weights[:, :1])))[:, 0]
    for b in range(full.shape[0]):
        for t in range(full.shape[1]):
            seen = visible[b, t]
            sparse[b, t, seen] = sparsify_row(c, full[b, t, seen], constants)
    return sparse


def cross_token(c, p, h, route):
    """4.2: what the tokens that t attends to add to h_t, [B, T, F]."""
    carried = torch.einsum("btj,bjf->btf", route, h)
    if c["RA_MLA_MLP_CROSS_RANK"]:
        return linear(linear(carried, p["ffn.cross_down.weight"]), p["ffn.cross_up.weight"])
    return linear(carried, p["ffn.cross_proj.weight"])


def couple(c, p, shared, h, latent):
    """4.3: u [B, T, L] for the next layer's latent, and e [B, T, F] for this layer's h."""
    mode = c["RA_MLA_MLP_TYING_MODE"]
    if mode == "tied_transpose":
        return h @ p["ffn.couple.weight"], linear(latent, p["ffn.couple.weight"])
    if mode == "untied":
        u = linear(linear(h, p["ffn.mlp_down.weight"]), p["ffn.mlp_to_attn.weight"])
        return u, linear(latent, p["ffn.attn_to_mlp.weight"])
    heads, run = c["N_HEAD"], c["F"] // c["L"]
    runs = h.reshape(*h.shape[:2], heads, c["L"] // heads, run)
    u = runs.mean(-1) * shared["couple.mlp_to_attn"][:, None]
    e = split_heads(latent, heads) * shared["couple.attn_to_mlp"][:, None]
    return u.flatten(2), e[..., None].expand(-1, -1, -1, -1, run).flatten(2)


def feed_forward(c, p, shared, x, weights, own_gate, latent, constants, layer, ids):
    """The branch's output, what the next layer receives (gates, α u), and the auxiliary losses."""
    h, h1 = hidden(c, p, x)
    gate, u, losses = None, None, None
    if c["FFN"] == "wsffn" and c["WSFFN_AUX_LOSS"]:
        losses = wsffn_losses(c, p, h1, layer)
    if c["RA_MLA_MLP_LATENT_RECIP"]:
        if c["RA_MLA_MLP_LATENT_DETACH"]:
            latent = constants.keep(f"h.{layer}.latent", latent.detach)
        u, e = couple(c, p, shared, h, latent)
        alpha = p.get("ffn.recip_alpha", c["RA_MLA_MLP_RECIP_ALPHA"])
        u, h = alpha * u, h + alpha * e
    if c["RA_MLA_MLP_CROSS_TOKEN"]:
        route = constants.keep(f"h.{layer}.route", lambda: routing(c, weights, own_gate, constants, layer, ids))
        h = h + p.get("ffn.cross_alpha", c["RA_MLA_MLP_CROSS_ALPHA"]) * cross_token(c, p, h, route)
    if c["RA_MLA_MLP_ATTN_GATE"]:
        gate = head_gates(c, p, h, ids)
    return project(c, p, h), gate, u, losses


def forward(c, params, ids, constants):
    """Logits [B, T, V], the sums over layers of L_Z and L_C, and the logits of z or None."""
    x = params["wte.weight"][ids]
    if c["POSITION"] == "learned":
        place = torch.arange(ids.shape[1]).expand(ids.shape)
        if c["DOCUMENT_POSITIONS"] == "restart":
            place = place - documents(c, ids)[1]
        x = x + params["wpe.weight"][place]
    x = c["EMBED_SCALE"] * x
    aux_z = aux_c = torch.zeros((), dtype=x.dtype)
    gate = received = None
    post, pre = c["NORM_PLACEMENT"] == "post", c["NORM_PLACEMENT"] in ("pre", "both")
    behind = {"reordered": "", "both": "_post"}.get(c["NORM_PLACEMENT"])  # of the norm's name, where one follows the branch
    for i in range(c["N_LAYER"]):
        start = f"h.{i}."
        p = {name[len(start):]: value for name, value in params.items() if name.startswith(start)}
        unrotated = c["NOPE_EVERY"] and (i + 1) % c["NOPE_EVERY"] == 0
        own = c | {"POSITION": "none"} if unrotated else c
        if c["ROPE_LOCAL_THETA"] and has_window(c, i):
            own = own | {"ROPE_THETA": c["ROPE_LOCAL_THETA"], "ROPE_SCALING": "none"}
        if not shares_keys(c, i):
            kept = []
        y, weights, latent = attention(own, p, norm(c, p, "ln_1", x) if pre else x, gate, received, kept, i, ids)
        before = x
        x = norm(c, p, "ln_1", x + y) if post else x + (y if behind is None else norm(c, p, "ln_1" + behind, y))
        source = norm(c, p, "ln_2", before if c["PARALLEL_RESIDUAL"] else x) if pre else x
        y, gate, received, losses = feed_forward(c, p, params, source, weights, gate, latent, constants, i, ids)
        x = norm(c, p, "ln_2", x + y) if post else x + (y if behind is None else norm(c, p, "ln_2" + behind, y))
        if losses is not None:
            aux_z, aux_c = aux_z + losses[0], aux_c + losses[1]
    x = norm(c, params, "ln_f", x)
    if c["MUP"]:
        x = x * (c["MUP_BASE_WIDTH"] / c["N_EMBD"])
    head = params["wte.weight"] if c["WEIGHT_TYING"] else params["lm_head.weight"]
    of_z = None
    if losses is not None and c["WSFFN_Z_LOGITS"]:
        read = norm(c, params, "ln_f", linear(losses[2], p["ffn.z_logits.weight"]))
        of_z = softcap(linear(read, head), c["SOFTCAP_LOGITS"])
    return softcap(linear(x, head), c["SOFTCAP_LOGITS"]), aux_z, aux_c, of_z


def cross_entropy_of(logits, targets):
    counted = targets >= 0
    picked = torch.log_softmax(logits, -1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    return -picked[counted].sum() / max(1, int(counted.sum()))


def loss_parts(c, params, ids, targets, constants=None):
    """A train-mode pass without dropout: logits, loss and its parts; and eval.loss, what eval mode would say."""
    constants = constants or Constants()
    logits, aux_z, aux_c, of_z = forward(c, params, ids, constants)
    cross_entropy = cross_entropy_of(logits, targets)
    if of_z is not None:
        aux_z = aux_z + c["WSFFN_Z_LOGITS"] * cross_entropy_of(of_z, targets)
    lse = torch.logsumexp(logits, -1)
    if c["LOGITS_Z_DETACH"]:
        lse = constants.keep("lse", lse.detach)
    logits_z = c["LAMBDA_LOGITS_Z"] * (lse**2).mean()
    return {
        "logits": logits,
        "loss": cross_entropy + aux_z + aux_c + logits_z,
        "cross_entropy": cross_entropy,
        "aux_z": aux_z,
        "aux_contrastive": aux_c,
        "logits_z": logits_z,
        "eval.loss": cross_entropy + logits_z,
    }


def gradients(c, params, ids, targets, constants=None):
    """loss_parts, and grad.NAME for every tensor: zeros where nothing depends on it."""
    leaves = {name: value.detach().clone().requires_grad_(True) for name, value in params.items()}
    parts = loss_parts(c, leaves, ids, targets, constants)
    grads = torch.autograd.grad(parts["loss"], list(leaves.values()), allow_unused=True)
    out = {name: value.detach() for name, value in parts.items()}
    for (name, leaf), grad in zip(leaves.items(), grads):
        out[f"grad.{name}"] = torch.zeros_like(leaf.detach()) if grad is None else grad
    return out
