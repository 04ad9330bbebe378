"""A model of weft in plain PyTorch, for transformers: AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True).

Every kind of attention (dot, cosine, W2, MLA, GTA), feed-forward (GELU in both forms, SwiGLU, GeGLU, WsFFN, squared ReLU) and position, and the
reciprocal mechanisms, by the formulas of weft's docs/internals/mathematics.md. Tensors have the names of weft's checkpoints.
Attention is brought to one form, scores = ⟨q, k⟩ + bias, which scaled_dot_product_attention takes; where the feed-forward
reads attention's weights, or scores are capped, they are written out.
"""
import math

import torch
from torch import nn
from torch.nn import functional
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from .configuration_weft import WeftConfig


class Norm(nn.Module):
    """LayerNorm or RMSNorm, in float32 at least."""

    def __init__(self, width, kind, eps, bias):
        super().__init__()
        self.kind, self.eps = kind, eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        if self.kind == "layernorm":
            wide = wide - wide.mean(-1, keepdim=True)
        y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps) * self.weight
        return (y if self.bias is None else y + self.bias).to(x.dtype)


def make_norm(c):
    layer = c.norm == "layernorm"
    return Norm(c.n_embd, c.norm, c.norm_eps or (1e-5 if layer else 1e-6), layer and c.bias)


class Weight(nn.Module):
    """A tensor that is no matrix, under the name NAME.weight."""

    def __init__(self, *shape):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape))


def linear(width, out, bias=False):
    return nn.Linear(width, out, bias=bias)


def rope_rates(c, width, local):
    """The angle of each pair per position, and what rotated columns are multiplied by. `local`: in layers with a window,
    where these have a law of their own."""
    pair = torch.arange(width // 2, dtype=torch.float64)
    if local:
        return c.rope_local_theta ** (-2 * pair / width), 1.0
    rate, kind = c.rope_theta ** (-2 * pair / width), c.rope_scaling
    slow = rate / c.rope_factor
    if kind == "longrope":
        factors = (c.rope_long_factors if c.context > c.rope_context else c.rope_short_factors).split(",")
        factors = torch.tensor([float(factor) for factor in factors]).double()
        return rate / factors, c.rope_amplitude or math.sqrt(1 + math.log(c.rope_factor) / math.log(c.rope_context))
    if kind == "linear":
        return slow, 1.0
    if kind == "llama3":
        turns = c.rope_context * rate / (2 * math.pi)
        share = ((turns - c.rope_low) / (c.rope_high - c.rope_low)).clamp(0, 1)
        return slow + (rate - slow) * share, 1.0
    if kind == "yarn":
        first, last = (width * math.log(c.rope_context / (2 * math.pi * turns)) / (2 * math.log(c.rope_theta))
                       for turns in (c.rope_high, c.rope_low))
        first, last = max(math.floor(first), 0), min(math.ceil(last), width - 1)
        share = ((pair - first) / max(last - first, 1e-3)).clamp(0, 1)
        return rate + (slow - rate) * share, c.rope_amplitude or 1 + 0.1 * math.log(c.rope_factor)
    return rate, 1.0


def rope_tables(c, positions, dtype, local=False):
    """The cosines and sines of positions [B, T], each [B, 1, T, width/2]; None where nothing rotates."""
    width = c.rotated[1]
    if not width or (local and not c.rope_local_theta):
        return None
    rate, amplitude = rope_rates(c, width, local)
    wide = torch.float32 if positions.device.type == "mps" else torch.float64
    angle = positions[:, None, :, None].to(wide) * rate.to(positions.device, wide)
    return (amplitude * angle.cos()).to(dtype), (amplitude * angle.sin()).to(dtype)


def rotate(x, first, cos, sin):
    """Of the n columns of [B, heads, T, width] from `first` on, column i rotates with column i + n/2."""
    half = cos.shape[-1]
    before, a, b, behind = x.split((first, half, half, x.shape[-1] - first - 2 * half), -1)
    return torch.cat((before, a * cos - b * sin, b * cos + a * sin, behind), -1)


def alibi_slopes(heads):
    """2^(-8h/H); where H is no power of two, those of the one below, then every second of the one above."""
    power = 1 << (heads.bit_length() - 1)
    return torch.tensor([2.0 ** (-8 * h / power) for h in range(1, power + 1)]
                        + [2.0 ** (-4 * h / power) for h in range(1, 2 * (heads - power), 2)])


def softcap(x, cap):
    return cap * torch.tanh(x / cap) if cap else x


class WeftCache:
    """What generation keeps of the tokens so far, a dict for each layer: keys and values, MLA's as latents, and what the
    mechanisms read of other tokens."""

    def __init__(self, layers):
        self.layers, self.length = [{} for _ in range(layers)], 0

    def get_seq_length(self, layer=0):
        return self.length

    def reorder_cache(self, beams):
        for layer in self.layers:
            for name, value in layer.items():
                layer[name] = value.index_select(0, beams.to(value.device))


def kept(store, name, new, dim=-2):
    """`new` behind what is kept under that name; `store` None: nothing is kept."""
    if store is None:
        return new
    store[name] = torch.cat((store[name], new), dim) if name in store else new
    return store[name]


def weight_of(c, value):
    """A mechanism's weight in a layer: a number, or one that is learned from it."""
    return nn.Parameter(torch.full((1,), value)) if c.ra_mla_mlp_alpha_learned else value


class Attention(nn.Module):
    """`shares`: keys and values are those of a layer before; `gated`: the layer before sends a gate."""

    def __init__(self, c, shares, gated):
        super().__init__()
        self.c, self.shares = c, shares
        heads, kv, dim = c.sizes
        width, inner, latent, rope = c.n_embd, heads * dim, c.ra_mla_latent_dim, c.ra_mla_rope_dim
        mla, plain = c.attention == "mla", c.attention in ("dot", "cosine")
        into = c.bias and plain if c.attention_bias == "auto" else c.attention_bias in ("qkv", "all")
        after = into if c.attention_bias == "auto" else c.attention_bias == "all"
        self.overlap = c.attention == "w2" and c.w2_kernel == "overlap"
        self.gaussian = c.attention == "w2" or (mla and c.ra_mla_score == "w2")
        mean = self.mean = (latent // 2 if self.gaussian else latent) if mla else dim
        self.inner_scale = 1 / math.sqrt(dim + rope if mla and rope else latent if mla else dim)
        if c.mup and c.mup_base_head:
            self.inner_scale = math.sqrt(c.mup_base_head) / dim
        if c.attention == "dot" and c.attention_scale:
            self.inner_scale = c.attention_scale
        maps = {}
        if mla:
            source, latents = c.ra_mla_q_rank or width, c.ra_mla_latent_heads * latent
            maps = {"q": (source, inner), "k_down": (width, latents)}
            if not c.ra_mla_joint_kv:
                maps["v_down"] = width, latents
            if c.ra_mla_q_rank:
                maps["q_down"], self.q_down_norm = (width, source), Norm(source, "rmsnorm", 1e-6, False)
            if rope:
                maps["q_rope"], maps["k_rope"] = (source, heads * rope), (width, rope)
            if c.ra_mla_latent_norm and not shares:
                self.latent_norm = Norm(latent, "rmsnorm", 1e-6, False)
            self.q_latent = nn.Parameter(torch.zeros((heads, dim, latent) if c.ra_mla_per_head_q_latent else (inner, latent)))
            self.v_up = nn.Parameter(torch.zeros((heads, latent, dim) if c.ra_mla_per_head_v_up else (latent, dim)))
        elif plain:
            maps["q" if shares else "qkv"] = width, inner + (0 if shares else 2 * kv * dim)
        elif c.attention == "gta":
            maps = {"q": (width, inner), "kv": (width, kv * dim), "k_rope": (width, dim // 2)}
        else:
            both = dim + (c.w2_sigma_dim or dim)
            maps = {"q": (width, heads * both), "k": (width, kv * both), "v": (width, kv * dim)}
        for name, (wide, out) in maps.items():
            if not shares or name.startswith("q"):
                setattr(self, name, linear(wide, out, into))
        self.out = linear(inner, width, after)
        self.fixed_tau = None
        if c.attention == "cosine" or (self.gaussian and not self.overlap and c.w2_tau_learned):
            self.log_tau = nn.Parameter(torch.zeros(heads))
        elif self.gaussian:
            self.fixed_tau = c.w2_tau or 2 * math.sqrt(mean)
        for name in ("q_norm",) if shares else ("q_norm", "k_norm"):
            if c.qk_norm:
                setattr(self, name, Norm(inner if c.qk_norm_whole else mean, "rmsnorm", 1e-6, False))
        if c.attention_gate != "none":
            self.out_gate = linear(width, heads if c.attention_gate == "head" else inner)
        if c.position == "relative":
            self.rel_bias = nn.Parameter(torch.zeros(c.context))
        self.gate_alpha = weight_of(c, c.ra_mla_mlp_gate_alpha) if gated else None

    def split(self, x, heads):
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)

    def normed(self, which, x):
        """QK-norm, on as many columns as its gain has: W2's deviations stay. Or on all heads at once."""
        if not self.c.qk_norm:
            return x
        norm = self.q_norm if which == "q" else self.k_norm
        if self.c.qk_norm_whole:
            return self.split(norm(x.transpose(1, 2).flatten(2)), x.shape[1])
        width = norm.weight.shape[0]
        return torch.cat((norm(x[..., :width]), x[..., width:]), -1)

    def turned(self, x, at):
        return x if at is None else rotate(x, self.c.rotated[0], *at)

    def per_head(self, x):
        """Each query head's key or value head."""
        return x.repeat_interleave(self.c.n_head // x.shape[1], 1) if x.shape[1] > 1 else x.expand(-1, self.c.n_head, -1, -1)

    def tau(self, like):
        """What scores are divided by, and the numbers of keys."""
        if self.fixed_tau is not None:
            return self.fixed_tau + 1e-6
        return (self.log_tau.exp() + (0.0 if self.c.attention == "cosine" else 1e-6)).to(like.dtype).view(1, -1, 1, 1)

    def from_heads(self, x):
        """dot, cosine, W2 and GTA: q, k and v by head. Here and below k and v are None where they are another layer's."""
        heads, kv, dim = self.c.sizes
        if self.c.attention in ("dot", "cosine") and not self.shares:
            q, k, v = self.split(self.qkv(x), heads + 2 * kv).split((heads, kv, kv), 1)
            return self.normed("q", q), self.normed("k", k), v
        q = self.normed("q", self.split(self.q(x), heads))
        if self.shares:
            return q, None, None
        if self.c.attention == "w2":
            return q, self.normed("k", self.split(self.k(x), kv)), self.split(self.v(x), kv)
        v = self.split(self.kv(x), kv)
        return q, torch.cat((v[..., :dim // 2], self.k_rope(x)[:, None].expand(-1, kv, -1, -1)), -1), v

    def from_latent(self, x, received):
        """MLA, its keys and values as latents."""
        c = self.c
        source = self.q_down_norm(self.q_down(x)) if c.ra_mla_q_rank else x
        q = self.q(source)
        if c.ra_mla_per_head_q_latent:
            q = torch.einsum("bhtd,hdl->bhtl", self.split(q, c.n_head), self.q_latent)
        else:
            q = (q @ self.q_latent)[:, None].expand(-1, c.n_head, -1, -1)
        q = self.normed("q", q)
        if c.ra_mla_rope_dim:
            q = torch.cat((q, self.split(self.q_rope(source), c.n_head)), -1)
        if self.shares:
            return q, None, None
        latent = self.k_down(x)
        if received is not None:
            latent = latent + received
        k = self.normed("k", self.split(latent, c.ra_mla_latent_heads))
        if c.ra_mla_latent_norm:
            k = self.latent_norm(k)
        v = k if c.ra_mla_joint_kv else self.split(self.v_down(x), c.ra_mla_latent_heads)
        if c.ra_mla_rope_dim:
            k = torch.cat((k, self.k_rope(x)[:, None].expand(-1, k.shape[1], -1, -1)), -1)
        return q, k, v

    def scored(self, x, at):
        """Queries or keys as their inner product takes them. Of Gaussians, and then of keys, a number too: the square of a
        difference without the query's own, the same for every key."""
        if not self.gaussian:
            x = functional.normalize(x, dim=-1, eps=1e-8) if self.c.attention == "cosine" else x
            return self.turned(x, at), None
        mean, deviation = x[..., :self.mean], x[..., self.mean:]
        deviation = functional.softplus(deviation)
        if self.overlap:
            deviation = deviation + 1e-4
            x = self.turned(mean * deviation.rsqrt(), at)
            return x, 0.5 * (x.square() + deviation.log()).sum(-1)
        x = torch.cat((self.turned(mean, at), deviation), -1)
        return x, x.square().sum(-1)

    def scale(self, like):
        if self.overlap:
            return 1.0
        if self.gaussian or self.c.attention == "cosine":
            return (2 if self.gaussian else 1) / self.tau(like)
        return self.inner_scale

    def placed(self, apart, like):
        """What positions add to the scores, by the distance of query and key: [1, heads or 1, queries, keys]."""
        if self.c.position == "alibi":
            return -alibi_slopes(self.c.n_head).to(like).view(1, -1, 1, 1) * apart
        if self.c.position == "relative":
            return self.rel_bias[apart.clamp_min(0)].to(like.dtype)[None, None]
        return 0.0

    def swapped(self, q, k, apart):
        """Reciprocal scoring: the score with the roles exchanged, for keys up to a window back. `k` are those of the
        tokens that ask, `q` those of all."""
        inside = (apart >= 0) & (apart <= self.c.ra_mla_ra_window)
        return self.c.ra_mla_ra_alpha * torch.where(inside, k @ q.transpose(-1, -2), 0.0)

    def forward(self, x, visible, apart, at, gate, received, shared, store):
        """The branch's output, attention's weights where the feed-forward reads them, MLA's latent, and for layers that
        share them the keys, their numbers and the values."""
        c, weights, bias = self.c, None, self.placed(apart, x)
        q, k, v = self.from_latent(x, received) if c.attention == "mla" else self.from_heads(x)
        latent = k[:, 0, :, :c.ra_mla_latent_dim] if c.ra_mla_mlp_latent_recip else None
        q = self.scored(q, at)[0] * self.scale(x)
        if not self.shares:
            k, number = self.scored(k, at)
            shared = kept(store, "k", k), None if number is None else kept(store, "n", number, -1), kept(store, "v", v)
        k, number, v = shared
        k, v = self.per_head(k), self.per_head(v)
        if c.attention == "mla":
            v = v @ self.v_up
            if c.ra_mla_ra_alpha > 0:
                bias = bias + self.swapped(kept(store, "q", q), k[..., -x.shape[1]:, :], apart)
        if number is not None:
            number = self.per_head(number[..., None]).transpose(-1, -2)
            bias = bias - (number if self.overlap else number / self.tau(x))
        if c.ra_mla_mlp_cross_token or c.softcap_attention:
            scores = softcap(q @ k.transpose(-1, -2) + bias, c.softcap_attention)
            weights = scores.masked_fill(~visible, -math.inf).softmax(-1)
            found = weights @ v
        else:
            bias = (torch.zeros_like(visible, dtype=x.dtype) + bias).masked_fill(~visible, -math.inf)
            found = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
        found = found.transpose(1, 2)
        if gate is not None:
            left = 1 - self.gate_alpha + self.gate_alpha * gate
            found = found * left[..., None]
            if c.ra_mla_mlp_route_after_gate and weights is not None:
                weights = weights * left.transpose(1, 2)[..., None]
        if c.attention_gate != "none":
            own = self.out_gate(x).sigmoid()
            found = found * (own[..., None] if c.attention_gate == "head" else own.unflatten(-1, (c.n_head, -1)))
        return self.out(found.flatten(2)), weights, latent, shared


class FeedForward(nn.Module):
    def __init__(self, c, last):
        super().__init__()
        self.c = c
        width, hidden, latent = c.n_embd, c.hidden, c.ra_mla_latent_dim
        self.gated = c.ffn in ("swiglu", "wsffn", "geglu")
        if not self.gated:
            self.fc, self.proj = linear(width, hidden, c.bias), linear(hidden, width, c.bias)
        else:
            bias = c.ffn == "swiglu" and c.ffn_bias
            self.w1, self.w3, self.w2 = linear(width, hidden, bias), linear(width, hidden, bias), linear(hidden, width, bias)
        if c.ffn == "wsffn":
            dim = hidden // c.wsffn_n_head
            self.z_proj = linear(hidden, hidden) if c.wsffn_z_proj == "dense" else Weight(c.wsffn_n_head, dim, dim)
            self.z_logits = linear(hidden, width) if c.wsffn_z_logits and last else None
        if c.ra_mla_mlp_attn_gate:
            self.gate_proj = linear(hidden, c.ra_mla_mlp_gate_dim)
            self.gate_heads = linear(c.ra_mla_mlp_gate_dim, c.n_head, c.ra_mla_mlp_gate_open != 0)
        if c.ra_mla_mlp_cross_token:
            self.cross_alpha = weight_of(c, c.ra_mla_mlp_cross_alpha)
        if c.ra_mla_mlp_latent_recip:
            self.recip_alpha = weight_of(c, c.ra_mla_mlp_recip_alpha)
        if c.ra_mla_mlp_cross_token and c.ra_mla_mlp_cross_rank:
            self.cross_down, self.cross_up = linear(hidden, c.ra_mla_mlp_cross_rank), linear(c.ra_mla_mlp_cross_rank, hidden)
        elif c.ra_mla_mlp_cross_token:
            self.cross_proj = linear(hidden, hidden)
        if c.ra_mla_mlp_latent_recip and c.ra_mla_mlp_tying_mode == "tied_transpose":
            self.couple = linear(latent, hidden)
        elif c.ra_mla_mlp_latent_recip and c.ra_mla_mlp_tying_mode == "untied":
            self.mlp_down, self.attn_to_mlp = linear(hidden, c.ra_mla_mlp_latent_dim), linear(latent, hidden)
            self.mlp_to_attn = linear(c.ra_mla_mlp_latent_dim, latent)

    def losses(self, h):
        """WsFFN's, of what W₁ made; z's own logits are made of `z_read`."""
        c = self.c
        z = self.z_proj(h).unflatten(-1, (c.wsffn_n_head, -1)) if c.wsffn_z_proj == "dense" else \
            torch.einsum("bthi,hoi->btho", h.unflatten(-1, (c.wsffn_n_head, -1)), self.z_proj.weight)
        size = c.wsffn_lambda_z * z.square().sum(-1).mean()
        self.z_read = None if self.z_logits is None else self.z_logits(z.flatten(2))
        views = (z.mean(1),) * 2
        if c.wsffn_positive == "half":
            views = tuple(half.mean(1) for half in z.chunk(2, 1))
        elif c.wsffn_positive == "dropout":
            views = tuple(functional.dropout(view, 0.1) for view in views)
        anchor, positive = (functional.normalize(view.flatten(0, 1), dim=-1, eps=1e-8) for view in views)
        if anchor.shape[0] < 2:
            return size
        scores = anchor @ positive.T / c.wsffn_tau
        return size + c.wsffn_lambda_c * (scores.logsumexp(-1) - scores.diagonal()).mean()

    def routes(self, weights, visible):
        """Which tokens a token hears, [B, T, T]: constants."""
        c, weights = self.c, weights.detach()
        kept = weights.mean(1) if c.ra_mla_mlp_sparse_head_average else weights.amax(1)
        if c.ra_mla_mlp_sparse_mode == "topk":
            value, index = torch.sort(kept, dim=-1, descending=True, stable=True)
            k = c.ra_mla_mlp_sparse_k
            kept = torch.zeros_like(kept).scatter(-1, index[..., :k], value[..., :k])
        elif c.ra_mla_mlp_sparse_mode == "rms":
            size = (kept.square().sum(-1, keepdim=True) / visible[:, 0].sum(-1, keepdim=True)).sqrt()
            kept = torch.where(kept >= c.ra_mla_mlp_sparse_rms_threshold * size, kept, 0.0)
        return kept / kept.sum(-1, keepdim=True) if c.ra_mla_mlp_sparse_normalize else kept

    def coupled(self, h, latent, scalars):
        """What goes to the next layer's latent, and what this one's adds here."""
        c, mode = self.c, self.c.ra_mla_mlp_tying_mode
        if mode == "tied_transpose":
            return h @ self.couple.weight, self.couple(latent)
        if mode == "untied":
            return self.mlp_to_attn(self.mlp_down(h)), self.attn_to_mlp(latent)
        run = h.shape[-1] // latent.shape[-1]
        sent = h.unflatten(-1, (c.n_head, -1, run)).mean(-1) * scalars.mlp_to_attn[:, None]
        heard = (latent.unflatten(-1, (c.n_head, -1)) * scalars.attn_to_mlp[:, None]).flatten(2)
        return sent.flatten(2), heard.repeat_interleave(run, -1)

    def gates(self, h, view, store):
        """Those of the next layer's heads, [B, T or 1, heads]."""
        a, pool = self.gate_proj(h), self.c.ra_mla_mlp_gate_pool
        if pool == "cummean":
            seen = (view["visible"] & (view["apart"] >= 0))[:, 0].to(a.dtype)
            a = seen @ kept(store, "a", a) / seen.sum(-1, keepdim=True)
        elif pool == "sequence":
            real = view["real"][..., None]
            a = (a * real).sum(1, keepdim=True) / real.sum(1, keepdim=True)
        return self.gate_heads(a).sigmoid()

    def heard(self, h, weights, visible, store):
        """What comes of other tokens along attention's routes."""
        low = self.c.ra_mla_mlp_cross_rank > 0
        carried = self.routes(weights, visible) @ kept(store, "h", self.cross_down(h) if low else h)
        return self.cross_up(carried) if low else self.cross_proj(carried)

    def forward(self, x, weights, visible, view, latent, scalars, store):
        """The branch's output, the next layer's gate and what it receives, and the auxiliary loss."""
        c, gate, sent, loss = self.c, None, None, None
        if not self.gated:
            h = self.fc(x)
            h = functional.relu(h).square() if c.ffn == "relu2" else functional.gelu(h, approximate="tanh" if c.ffn == "gelu" else "none")
        else:
            h = self.w1(x)
            if self.training and c.ffn == "wsffn" and c.wsffn_aux_loss:
                loss = self.losses(h)
            h = h * (functional.gelu(self.w3(x), approximate="tanh") if c.ffn == "geglu" else functional.silu(self.w3(x)))
        if c.ra_mla_mlp_latent_recip:
            sent, heard = self.coupled(h, latent.detach() if c.ra_mla_mlp_latent_detach else latent, scalars)
            sent, h = self.recip_alpha * sent, h + self.recip_alpha * heard
        if c.ra_mla_mlp_cross_token:
            h = h + self.cross_alpha * self.heard(h, weights, visible, store)
        if c.ra_mla_mlp_attn_gate:
            gate = self.gates(h, view, store)
        return self.w2(h) if self.gated else self.proj(h), gate, sent, loss


class Layer(nn.Module):
    def __init__(self, c, index):
        super().__init__()
        self.c, self.index = c, index
        self.ln_1, self.attn = make_norm(c), Attention(c, index % c.kv_share != 0, c.ra_mla_mlp_attn_gate and index > 0)
        self.ln_2, self.ffn = make_norm(c), FeedForward(c, index + 1 == c.n_layer)
        if c.norm_placement == "both":
            self.ln_1_post, self.ln_2_post = make_norm(c), make_norm(c)
        self.window = 0 if c.window_every and (index + 1) % c.window_every == 0 else c.window
        self.rotates = c.attention in ("gta", "mla") or not (c.nope_every and (index + 1) % c.nope_every == 0)

    def added(self, x, y, name):
        """The branch's output in the stream, with the norm behind it where there is one."""
        y, placement = functional.dropout(y, self.c.dropout, self.training), self.c.norm_placement
        if placement == "post":
            return getattr(self, name)(x + y)
        behind = {"reordered": name, "both": name + "_post"}.get(placement)
        return x + (getattr(self, behind)(y) if behind else y)

    def forward(self, x, view, shared, gate, received, scalars, past):
        """`view` says which tokens see which but for windows, `visible` [B, 1, T, all], how far `apart` they are [T, all],
        which are `real`, no padding [B, all], and their angles, `at`."""
        pre, at = self.c.norm_placement in ("pre", "both"), view["at"] if self.rotates else None
        if self.window and self.rotates and view["local"] is not None:
            at = view["local"]
        store = None if past is None else past.layers[self.index]
        visible = view["visible"] & (view["apart"] < self.window) if self.window else view["visible"]
        y, weights, latent, shared = self.attn(self.ln_1(x) if pre else x, visible, view["apart"], at, gate, received, shared, store)
        before, x = x, self.added(x, y, "ln_1")
        source = self.ln_2(before if self.c.parallel_residual else x) if pre else x
        y, gate, sent, loss = self.ffn(source, weights, visible, view, latent, scalars, store)
        return self.added(x, y, "ln_2"), shared, gate, sent, loss


class Scalars(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.attn_to_mlp, self.mlp_to_attn = nn.Parameter(torch.ones(heads)), nn.Parameter(torch.ones(heads))


class WeftForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = WeftConfig
    base_model_prefix = ""
    _no_split_modules = ["Layer"]
    _supports_sdpa = True

    def __init__(self, config):
        super().__init__(config)
        c = self.c = config.options
        self.wte = nn.Embedding(c.vocab_size, c.n_embd)
        if c.position == "learned":
            self.wpe = nn.Embedding(c.context, c.n_embd)
        self.h = nn.ModuleList(Layer(c, i) for i in range(c.n_layer))
        self.ln_f = make_norm(c)
        if not c.weight_tying:
            self.lm_head = linear(c.n_embd, c.vocab_size)
        self.couple = Scalars(c.n_head) if c.ra_mla_mlp_latent_recip and c.ra_mla_mlp_tying_mode == "per_head_scalar" else None
        self.post_init()

    def get_input_embeddings(self):
        return self.wte

    def set_input_embeddings(self, new):
        self.wte = new

    def get_output_embeddings(self):
        return None if self.c.weight_tying else self.lm_head

    def set_output_embeddings(self, new):
        self.lm_head = new

    def prepare_inputs_for_generation(self, input_ids, past_key_values=None, attention_mask=None, use_cache=None, **rest):
        own = past_key_values if isinstance(past_key_values, WeftCache) else None
        seen = own.length if own is not None else 0
        return {"input_ids": input_ids[:, seen:], "attention_mask": attention_mask, "past_key_values": own,
                "use_cache": use_cache is not False}

    def can_keep(self):
        """Not where a token may read later ones."""
        c = self.c
        return c.causal and not (c.ra_mla_mlp_attn_gate and c.ra_mla_mlp_gate_pool == "sequence")

    def read_out(self, x):
        """The logits of x."""
        x = self.ln_f(x)
        if self.c.mup:
            x = x * (self.c.mup_base_width / self.c.n_embd)
        return softcap(functional.linear(x, self.wte.weight) if self.c.weight_tying else self.lm_head(x), self.c.softcap_logits)

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, inputs_embeds=None, labels=None,
                past_key_values=None, use_cache=None, **rest):
        """The loss is that of telling each next token (labels of -100 do not count), with the auxiliary ones in training.
        `attention_mask` is of all tokens, those that `past_key_values`, a WeftCache, keeps among them."""
        c = self.c
        x = self.wte(input_ids) if inputs_embeds is None else inputs_embeds
        batch, time, device = *x.shape[:2], x.device
        if past_key_values is None and use_cache and self.can_keep():
            past_key_values = WeftCache(c.n_layer)
        seen = past_key_values.length if past_key_values is not None else 0
        every = seen + time
        if every > c.context and c.position in ("learned", "relative"):
            raise ValueError(f"{every} tokens, but the model's context is {c.context}")
        real = torch.ones(batch, every, device=device, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        positions = (real.cumsum(1) - 1).clamp_min(0)
        place = torch.arange(every, device=device)
        apart = place[seen:, None] - place
        visible = real[:, None, None, :] | (apart == 0)  # a row of padding sees itself
        if c.causal:
            visible = visible & (apart >= 0)
        if c.document_mask:
            if input_ids is None:
                raise ValueError("documents are told apart by their tokens: give input_ids")
            ends = kept(past_key_values and past_key_values.layers[0], "ends", input_ids == c.document_token, 1)
            begins = torch.cat((torch.zeros_like(ends[:, :1]), ends[:, :-1]), 1)
            number = begins.cumsum(1)
            visible = visible & (number[:, None, seen:, None] == number[:, None, None, :])
            if c.document_positions == "restart":
                positions = positions - (positions * begins).cummax(1).values
        if position_ids is None:
            position_ids = positions[:, seen:]
        if c.position == "learned":
            x = x + self.wpe(position_ids)
        x = x * c.embed_scale
        view = {"visible": visible, "apart": apart, "real": real, "at": rope_tables(c, position_ids, x.dtype),
                "local": rope_tables(c, position_ids, x.dtype, local=True)}
        shared, gate, received, aux = None, None, None, 0.0
        for layer in self.h:
            x, shared, gate, received, loss = layer(x, view, shared, gate, received, self.couple, past_key_values)
            aux = aux if loss is None else aux + loss
        if past_key_values is not None:
            past_key_values.length = every
        logits, loss = self.read_out(x), None
        if labels is not None:
            def told(wide):
                return functional.cross_entropy(wide[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)

            wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
            loss = told(wide) + aux
            if self.training and c.ffn == "wsffn" and c.wsffn_z_logits:
                loss = loss + c.wsffn_z_logits * told(self.read_out(self.h[-1].ffn.z_read).to(wide.dtype))
            if c.lambda_logits_z > 0:
                z = wide.detach() if c.logits_z_detach else wide
                loss = loss + c.lambda_logits_z * z.logsumexp(-1).square().mean()
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)
