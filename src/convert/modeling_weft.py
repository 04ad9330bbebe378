"""A model of weft in plain PyTorch, for transformers: AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True).

Every kind of attention (dot, cosine, W2, MLA), feed-forward (GELU in both forms, SwiGLU, WsFFN, squared ReLU) and position, and the
reciprocal mechanisms, by the formulas of weft's docs/internals/mathematics.md. Tensors have the names of weft's checkpoints.
Attention is brought to one form, scores = ⟨q, k⟩ + bias, which scaled_dot_product_attention takes; where the feed-forward
reads attention's weights they are written out.
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


def rope_rates(c, width):
    """The angle of each pair per position, and what rotated columns are multiplied by."""
    pair = torch.arange(width // 2, dtype=torch.float64)
    rate, kind = c.rope_theta ** (-2 * pair / width), c.rope_scaling
    slow = rate / c.rope_factor
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


def rope_tables(c, positions, dtype):
    """The cosines and sines of positions [B, T], each [B, 1, T, width/2]; None where nothing rotates."""
    if not c.rope:
        return None
    width = c.sizes[2] if c.attention != "mla" else c.ra_mla_latent_dim // (2 if c.ra_mla_score == "w2" else 1)
    rate, amplitude = rope_rates(c, width)
    wide = torch.float32 if positions.device.type == "mps" else torch.float64
    angle = positions[:, None, :, None].to(wide) * rate.to(positions.device, wide)
    return (amplitude * angle.cos()).to(dtype), (amplitude * angle.sin()).to(dtype)


def rotate(x, cos, sin):
    """Column i of [B, heads, T, width] rotates with column i + width/2."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def alibi_slopes(heads):
    """2^(-8h/H); where H is no power of two, those of the one below, then every second of the one above."""
    power = 1 << (heads.bit_length() - 1)
    return torch.tensor([2.0 ** (-8 * h / power) for h in range(1, power + 1)]
                        + [2.0 ** (-4 * h / power) for h in range(1, 2 * (heads - power), 2)])


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


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        heads, kv, dim = c.sizes
        width, inner, latent = c.n_embd, heads * dim, c.ra_mla_latent_dim
        plain = c.attention in ("dot", "cosine")
        into = c.bias and plain if c.attention_bias == "auto" else c.attention_bias in ("qkv", "all")
        after = into if c.attention_bias == "auto" else c.attention_bias == "all"
        score_w2 = c.attention == "mla" and c.ra_mla_score == "w2"
        tau = score_w2 or (c.attention == "w2" and c.w2_kernel == "w2")
        gain = (latent // 2 if score_w2 else latent) if c.attention == "mla" else dim
        self.inner_scale = 1 / math.sqrt(latent if c.attention == "mla" else dim)
        if c.mup and c.mup_base_head:
            self.inner_scale = math.sqrt(c.mup_base_head) / dim
        if plain:
            self.qkv = linear(width, inner + 2 * kv * dim, into)
        elif c.attention == "w2":
            self.q, self.k, self.v = linear(width, 2 * inner, into), linear(width, 2 * kv * dim, into), linear(width, kv * dim, into)
        else:
            self.q, self.k_down = linear(width, inner, into), linear(width, latent, into)
            if not c.ra_mla_joint_kv:
                self.v_down = linear(width, latent, into)
            self.q_latent = nn.Parameter(torch.zeros((heads, dim, latent) if c.ra_mla_per_head_q_latent else (inner, latent)))
            self.v_up = nn.Parameter(torch.zeros((heads, latent, dim) if c.ra_mla_per_head_v_up else (latent, dim)))
        self.out = linear(inner, width, after)
        self.fixed_tau = None
        if c.attention == "cosine" or (tau and c.w2_tau_learned):
            self.log_tau = nn.Parameter(torch.zeros(heads))
        elif tau:
            self.fixed_tau = c.w2_tau or 2 * math.sqrt(latent / 2 if score_w2 else dim)
        if c.qk_norm:
            self.q_norm, self.k_norm = Norm(gain, "rmsnorm", 1e-6, False), Norm(gain, "rmsnorm", 1e-6, False)
        if c.attention_gate != "none":
            self.out_gate = linear(width, heads if c.attention_gate == "head" else inner)
        if c.position == "relative":
            self.rel_bias = nn.Parameter(torch.zeros(c.context))

    def split(self, x, heads):
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)

    def normed(self, which, x):
        """QK-norm, on as many columns as its gain has: W2's deviations stay."""
        if not self.c.qk_norm:
            return x
        norm = self.q_norm if which == "q" else self.k_norm
        width = norm.weight.shape[0]
        return torch.cat((norm(x[..., :width]), x[..., width:]), -1)

    def turned(self, q, k, at):
        return (rotate(q, *at), rotate(k, *at)) if self.c.rope else (q, k)

    def per_head(self, x):
        """Each query head's key or value head."""
        return x.repeat_interleave(self.c.n_head // x.shape[1], 1) if x.shape[1] > 1 else x.expand(-1, self.c.n_head, -1, -1)

    def tau(self, like):
        """What scores are divided by, and the numbers of keys."""
        if self.fixed_tau is not None:
            return self.fixed_tau + 1e-6
        return (self.log_tau.exp() + (0.0 if self.c.attention == "cosine" else 1e-6)).to(like.dtype).view(1, -1, 1, 1)

    def distances(self, q, k, at):
        """-(‖μ_q - μ_k‖² + ‖σ_q - σ_k‖²)/τ without the query's own norm, the same for every key: q, k, and a number for
        each key."""
        half = q.shape[-1] // 2
        mean_q, mean_k = self.turned(q[..., :half], k[..., :half], at)
        q, k = (torch.cat((mean, functional.softplus(t[..., half:])), -1) for mean, t in ((mean_q, q), (mean_k, k)))
        return 2 * q / self.tau(q), k, k.square().sum(-1)

    def overlaps(self, q, k, at):
        half = q.shape[-1] // 2
        sigma_q, sigma_k = (functional.softplus(t[..., half:]) + 1e-4 for t in (q, k))
        q, k = self.turned(q[..., :half] * sigma_q.rsqrt(), k[..., :half] * sigma_k.rsqrt(), at)
        return q, k, 0.5 * (k.square() + sigma_k.log()).sum(-1)

    def from_heads(self, x, at):
        """dot, cosine and W2: q with its scale, k, the keys' numbers or None, v."""
        c = self.c
        heads, kv, dim = c.sizes
        if c.attention == "w2":
            q, k, v = self.split(self.q(x), heads), self.split(self.k(x), kv), self.split(self.v(x), kv)
        else:
            q, k, v = self.split(self.qkv(x), heads + 2 * kv).split((heads, kv, kv), 1)
        q, k = self.normed("q", q), self.normed("k", k)
        if c.attention == "w2":
            return (*(self.distances if c.w2_kernel == "w2" else self.overlaps)(q, k, at), v)
        q, k = self.turned(q, k, at)
        if c.attention == "dot":
            return q * self.inner_scale, k, None, v
        return functional.normalize(q, dim=-1, eps=1e-8) / self.tau(q), functional.normalize(k, dim=-1, eps=1e-8), None, v

    def from_latent(self, x, at, received):
        """MLA, its values as latents, and the latent of its keys."""
        c = self.c
        latent = self.k_down(x)
        if received is not None:
            latent = latent + c.ra_mla_mlp_recip_alpha * received
        latent = self.normed("k", latent)
        value = latent if c.ra_mla_joint_kv else self.v_down(x)
        q = self.q(x)
        if c.ra_mla_per_head_q_latent:
            q = torch.einsum("bhtd,hdl->bhtl", self.split(q, c.n_head), self.q_latent)
        else:
            q = (q @ self.q_latent)[:, None].expand(-1, c.n_head, -1, -1)
        q, k = self.normed("q", q), latent[:, None]
        if c.ra_mla_score == "w2":
            return *self.distances(q, k, at), value[:, None], latent
        q, k = self.turned(q, k, at)
        return q * self.inner_scale, k, None, value[:, None], latent

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

    def forward(self, x, visible, apart, at, gate, received, store):
        """The branch's output, attention's weights where the feed-forward reads them, and MLA's latent."""
        c, latent, weights = self.c, None, None
        if c.attention == "mla":
            q, k, number, v, latent = self.from_latent(x, at, received)
        else:
            q, k, number, v = self.from_heads(x, at)
        bias = torch.zeros_like(visible, dtype=x.dtype).masked_fill(~visible, -math.inf) + self.placed(apart, x)
        if c.attention == "mla" and c.ra_mla_ra_alpha > 0:
            bias = bias + self.swapped(kept(store, "q", q), k, apart)
        k, v = self.per_head(kept(store, "k", k)), kept(store, "v", v)
        v = v @ self.v_up if c.attention == "mla" else self.per_head(v)
        if number is not None:
            number = self.per_head(kept(store, "n", number, -1)[..., None]).transpose(-1, -2)
            bias = bias - (number if c.attention == "w2" and c.w2_kernel == "overlap" else number / self.tau(x))
        v = v.expand(-1, c.n_head, -1, -1)
        if c.ra_mla_mlp_cross_token:
            weights = (q @ k.transpose(-1, -2) + bias).softmax(-1)
            found = weights @ v
        else:
            found = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
        found = found.transpose(1, 2)
        if gate is not None:
            found = found * (1 - c.ra_mla_mlp_gate_alpha + c.ra_mla_mlp_gate_alpha * gate)[..., None]
        if c.attention_gate != "none":
            own = self.out_gate(x).sigmoid()
            found = found * (own[..., None] if c.attention_gate == "head" else own.unflatten(-1, (c.n_head, -1)))
        return self.out(found.flatten(2)), weights, latent


class FeedForward(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        width, hidden, latent = c.n_embd, c.hidden, c.ra_mla_latent_dim
        if c.ffn in ("gelu", "gelu_erf", "relu2"):
            self.fc, self.proj = linear(width, hidden, c.bias), linear(hidden, width, c.bias)
        else:
            self.w1, self.w3, self.w2 = linear(width, hidden), linear(width, hidden), linear(hidden, width)
        if c.ffn == "wsffn":
            dim = hidden // c.wsffn_n_head
            self.z_proj = linear(hidden, hidden) if c.wsffn_z_proj == "dense" else Weight(c.wsffn_n_head, dim, dim)
        if c.ra_mla_mlp_attn_gate:
            self.gate_proj, self.gate_heads = linear(hidden, c.ra_mla_mlp_gate_dim), linear(c.ra_mla_mlp_gate_dim, c.n_head)
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
        """WsFFN's, of what W₁ made."""
        c = self.c
        z = self.z_proj(h).unflatten(-1, (c.wsffn_n_head, -1)) if c.wsffn_z_proj == "dense" else \
            torch.einsum("bthi,hoi->btho", h.unflatten(-1, (c.wsffn_n_head, -1)), self.z_proj.weight)
        size = c.wsffn_lambda_z * z.square().sum(-1).mean()
        context = functional.normalize(z.mean(1).flatten(0, 1), dim=-1, eps=1e-8)
        if context.shape[0] < 2:
            return size
        scores = context @ context.T / c.wsffn_tau
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

    def gates(self, h, real, store):
        """Those of the next layer's heads, [B, T or 1, heads]. `real`: the tokens that are no padding, [B, all, 1]."""
        a, pool = self.gate_proj(h), self.c.ra_mla_mlp_gate_pool
        if pool != "token":
            a = a * real[:, -h.shape[1]:]
        if pool == "cummean":
            a = a.cumsum(1) + (store or {}).get("sum", 0.0)
            if store is not None:
                store["sum"] = a[:, -1:]
            a = a / real.cumsum(1)[:, -h.shape[1]:].clamp_min(1)
        elif pool == "sequence":
            a = a.sum(1, keepdim=True) / real.sum(1, keepdim=True)
        return self.gate_heads(a).sigmoid()

    def heard(self, h, weights, visible, store):
        """What comes of other tokens along attention's routes."""
        low = self.c.ra_mla_mlp_cross_rank > 0
        carried = self.routes(weights, visible) @ kept(store, "h", self.cross_down(h) if low else h)
        return self.cross_up(carried) if low else self.cross_proj(carried)

    def forward(self, x, weights, visible, real, latent, scalars, store):
        """The branch's output, the next layer's gate and what it receives, and the auxiliary loss."""
        c, gate, sent, loss = self.c, None, None, None
        if c.ffn in ("gelu", "gelu_erf", "relu2"):
            h = self.fc(x)
            h = functional.relu(h).square() if c.ffn == "relu2" else functional.gelu(h, approximate="tanh" if c.ffn == "gelu" else "none")
        else:
            h = self.w1(x)
            if self.training and c.ffn == "wsffn" and c.wsffn_aux_loss:
                loss = self.losses(h)
            h = functional.silu(self.w3(x)) * h
        if c.ra_mla_mlp_latent_recip:
            sent, heard = self.coupled(h, latent, scalars)
            h = h + c.ra_mla_mlp_recip_alpha * heard
        if c.ra_mla_mlp_cross_token:
            h = h + c.ra_mla_mlp_cross_alpha * self.heard(h, weights, visible, store)
        if c.ra_mla_mlp_attn_gate:
            gate = self.gates(h, real, store)
        return self.proj(h) if c.ffn in ("gelu", "gelu_erf", "relu2") else self.w2(h), gate, sent, loss


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.ln_1, self.attn, self.ln_2, self.ffn = make_norm(c), Attention(c), make_norm(c), FeedForward(c)

    def added(self, x, y, norm):
        y = functional.dropout(y, self.c.dropout, self.training)
        x = x + (norm(y) if self.c.norm_placement == "reordered" else y)
        return norm(x) if self.c.norm_placement == "post" else x

    def forward(self, x, visible, apart, real, at, gate, received, scalars, store):
        pre = self.c.norm_placement == "pre"
        y, weights, latent = self.attn(self.ln_1(x) if pre else x, visible, apart, at, gate, received, store)
        x = self.added(x, y, self.ln_1)
        y, gate, sent, loss = self.ffn(self.ln_2(x) if pre else x, weights, visible, real, latent, scalars, store)
        return self.added(x, y, self.ln_2), gate, sent, loss


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
        self.h = nn.ModuleList(Layer(c) for _ in range(c.n_layer))
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
        if position_ids is None:
            position_ids = (real.cumsum(1) - 1).clamp_min(0)[:, seen:]
        place = torch.arange(every, device=device)
        apart = place[seen:, None] - place
        visible = real[:, None, None, :] | (apart == 0)  # a row of padding sees itself
        if c.causal:
            visible = visible & (apart >= 0)
        if c.position == "learned":
            x = x + self.wpe(position_ids)
        gate, received, aux, at = None, None, 0.0, rope_tables(c, position_ids, x.dtype)
        for i, layer in enumerate(self.h):
            store = None if past_key_values is None else past_key_values.layers[i]
            x, gate, received, loss = layer(x, visible, apart, real[..., None], at, gate, received, self.couple, store)
            aux = aux if loss is None else aux + loss
        if past_key_values is not None:
            past_key_values.length = every
        x = self.ln_f(x)
        if c.mup:
            x = x * (c.mup_base_width / c.n_embd)
        logits = functional.linear(x, self.wte.weight) if c.weight_tying else self.lm_head(x)
        loss = None
        if labels is not None:
            wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
            loss = functional.cross_entropy(wide[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100) + aux
            if c.lambda_logits_z > 0:
                z = wide.detach() if c.logits_z_detach else wide
                loss = loss + c.lambda_logits_z * z.logsumexp(-1).square().mean()
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)
