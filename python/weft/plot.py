"""Pictures of what a model does, with matplotlib.

    weft.plot.attention(model, tokens, layer=0)      # weights of each head
    weft.plot.sigma(model)                           # W2: standard deviations of queries and keys
    weft.plot.gates(model, tokens)                   # reciprocal gates by layer and head
    weft.plot.routes(model, tokens, layer=0)         # where the cross-token mechanism listens

`model` is a weft.torch.LanguageModel, or anything weft.load takes; tokens are [time] or [1, time], or a
text for a model that has a tokenizer. Each function draws on `axes` or on a new figure, and returns the
numbers it drew beside the figure: (figure, array).
"""
import math

import torch
from torch.nn import functional


def _axes(axes, count, width=3.0):
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ImportError("weft.plot draws with matplotlib: pip install matplotlib") from None
    if axes is not None:
        some = list(axes.flat) if hasattr(axes, "flat") else [axes] if not isinstance(axes, (list, tuple)) else list(axes)
        if len(some) < count:
            raise ValueError(f"weft.plot: {count} axes are wanted, {len(some)} were given")
        return some[0].figure, some
    columns = min(count, 4)
    figure, made = plt.subplots(-(-count // columns), columns, figsize=(width * columns, width * -(-count // columns)),
                                squeeze=False, layout="constrained")
    for spare in list(made.flat)[count:]:
        spare.axis("off")
    return figure, list(made.flat)


def _model(model):
    if isinstance(model, torch.nn.Module):
        return model
    from . import load
    return load(model)


def _tokens(model, tokens):
    if isinstance(tokens, str):
        with model.engine_model() as engine:
            tokens = engine.tokenizer.encode(tokens)
    tokens = torch.as_tensor(tokens, device=model.wte.weight.device)
    tokens = tokens[None] if tokens.dim() == 1 else tokens
    if tokens.dim() != 2 or tokens.shape[0] != 1:
        raise ValueError(f"weft.plot: one sequence of tokens is wanted, not {tuple(tokens.shape)}")
    return tokens


def _layer_inputs(model, tokens):
    """What each layer reads, and what the layer before has sent to it."""
    seen, hooks = [], []
    for layer in model.h:
        hooks.append(layer.register_forward_pre_hook(lambda _, args: seen.append(args)))
    try:
        model.hidden(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _normed(model, layer, x):
    if layer.options.get("NORM_PLACEMENT", "pre") in ("post", "reordered"):
        return x
    weight, bias = layer.ln_1.weight, getattr(layer.ln_1, "bias", None)
    x, own = x.double(), float(model.config["NORM_EPS"])
    if model.config["NORM"] == "layernorm":
        return functional.layer_norm(x, x.shape[-1:], weight.double(), None if bias is None else bias.double(), own or 1e-5)
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + (own or 1e-6)) * weight.double()


def _rotated(x):
    from .torch import RotaryEmbedding, apply_rotary_pos_emb
    cos, sin = RotaryEmbedding(x.shape[-1])(x, seq_len=x.shape[-2])
    return apply_rotary_pos_emb(x, x, cos, sin)[0]


def _queries_keys(model, layer, x):
    """q [B, H, T, D'], k of the same or one head, and what to add for each key."""
    heads, kind = int(model.config["N_HEAD"]), model.config["ATTENTION"]
    rope = model.config["POSITION"] == "rope"
    p = {name: w.detach().double() for name, w in zip(layer.names, layer.weights(model._shared()))}
    batch, time, width = x.shape
    dim = width // heads

    def split(y, count):
        return y.view(batch, time, count, -1).transpose(1, 2)

    if kind == "dot":
        joined = functional.linear(x, p["attn.qkv.weight"], p.get("attn.qkv.bias"))
        kv = (joined.shape[-1] // dim - heads) // 2
        q, k = split(joined[..., :width], heads), split(joined[..., width:width + kv * dim], kv)
        if rope:
            q, k = _rotated(q), _rotated(k)
        return q / math.sqrt(dim), k.repeat_interleave(heads // kv, 1), None
    if kind == "w2" and layer.options.get("W2_KERNEL", "w2") == "w2" and "attn.log_tau" in p:
        q, k = (split(functional.linear(x, p[f"attn.{n}.weight"]), heads) for n in "qk")
        mean = [_rotated(t[..., :dim]) if rope else t[..., :dim] for t in (q, k)]
        q, k = (torch.cat((m, functional.softplus(t[..., dim:])), -1) for m, t in zip(mean, (q, k)))
        tau = (p["attn.log_tau"].exp() + 1e-6).view(1, heads, 1, 1)
        return 2 * q / tau, k, -k.pow(2).sum(-1)[:, :, None] / tau
    raise ValueError(f"weft.plot: the weights of {kind} attention with these options are not drawn; `weft eval --scores` "
                     "writes them for every model")


def _weights(model, layer, args):
    plain = float(layer.options.get("ROPE_THETA", 10000)) == 10000 and layer.options.get("ROPE_SCALING", "none") == "none"
    biased = any(name in layer.names for name in ("attn.q.bias", "attn.k.bias", "attn.v.bias"))
    if not plain or biased:
        raise ValueError("weft.plot: rotary positions of another base and biases of single projections are not drawn; "
                         "`weft eval --scores` writes the scores of every model")
    x = _normed(model, layer, args[0])
    if model.config["ATTENTION"] == "mla":
        return _latent_weights(model, layer, x, args)
    q, k, added = _queries_keys(model, layer, x)
    return _softmax(q @ k.transpose(-1, -2) + (0 if added is None else added), model, layer)


def _latent_weights(model, layer, x, args):
    if layer.options.get("RA_MLA_SCORE", "dot") != "dot" or layer.options.get("RA_MLA_USE_ROPE", "n") == "y" \
            or model.config["POSITION"] == "rope" or float(layer.options.get("RA_MLA_RA_ALPHA", 0)) > 0:
        raise ValueError("weft.plot: mla is drawn with plain dot scores; `weft eval --scores` writes the others")
    p = {name: w.detach().double() for name, w in zip(layer.names, layer.weights(model._shared()))}
    heads = int(model.config["N_HEAD"])
    q = functional.linear(x, p["attn.q.weight"])
    if p["attn.q_latent"].dim() == 2:
        q = (q @ p["attn.q_latent"])[:, None]
    else:
        q = torch.einsum("bthd,hdl->bhtl", q.view(*q.shape[:2], heads, -1), p["attn.q_latent"])
    k = functional.linear(x, p["attn.k_down.weight"])
    if len(args) > 1 and model.config["RA_MLA_MLP_LATENT_RECIP"] == "y":
        k = k + args[-1].double()
    return _softmax(q @ k[:, None].transpose(-1, -2) / math.sqrt(k.shape[-1]), model, layer).expand(-1, heads, -1, -1)


def _softmax(scores, model, layer):
    if model.config["POSITION"] in ("alibi", "relative"):
        raise ValueError("weft.plot: scores with alibi or relative positions are not drawn; `weft eval --scores` writes them")
    if layer.options.get("CAUSAL", "y") == "y":
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1), -math.inf)
    return scores.softmax(-1)


def _picture(axis, values, title, x="key", y="query", **options):
    image = axis.imshow(values.cpu().numpy(), aspect="auto", interpolation="nearest", **options)
    axis.set(title=title, xlabel=x, ylabel=y)
    axis.figure.colorbar(image, ax=axis, shrink=0.8)


@torch.no_grad()
def attention(model, tokens, layer=0, axes=None):
    """The attention weights of a layer, [heads, time, time]."""
    model = _model(model)
    part = model.h[layer]
    weights = _weights(model, part, _layer_inputs(model, _tokens(model, tokens))[layer % len(model.h)])[0]
    figure, some = _axes(axes, len(weights))
    for head, (axis, values) in enumerate(zip(some, weights)):
        _picture(axis, values, f"layer {layer}, head {head}", vmin=0)
    return figure, weights.cpu().numpy()


@torch.no_grad()
def sigma(model, tokens, layer=None, axes=None):
    """W2 attention: the mean standard deviation of queries and keys for each layer and head,
    [2, layers, heads]."""
    model = _model(model)
    if model.config["ATTENTION"] != "w2":
        raise ValueError(f"weft.plot.sigma: the model's attention is {model.config['ATTENTION']}; w2 has deviations")
    heads, rows = int(model.config["N_HEAD"]), []
    for part, args in zip(model.h, _layer_inputs(model, _tokens(model, tokens))):
        x = _normed(model, part, args[0])
        p = dict(zip(part.names, part.weights(model._shared())))
        rows.append(torch.stack([functional.softplus(
            functional.linear(x, p[f"attn.{n}.weight"].double()).unflatten(-1, (heads, -1))[..., x.shape[-1] // heads:]
        ).mean((0, 1, 3)) for n in "qk"]))
    values = torch.stack(rows, 1)
    figure, some = _axes(axes, 2, 4.0)
    for axis, data, title in zip(some, values, ("σ of queries", "σ of keys")):
        _picture(axis, data, title, "head", "layer", vmin=0)
    return figure, values.cpu().numpy()


@torch.no_grad()
def gates(model, tokens, axes=None):
    """The gates that each layer sends to the next one's heads, mean over time, [layers - 1, heads]."""
    model = _model(model)
    if model.config["RA_MLA_MLP_ATTN_GATE"] != "y":
        raise ValueError("weft.plot.gates: the model has none; RA_MLA_MLP_ATTN_GATE=y makes them")
    seen = _layer_inputs(model, _tokens(model, tokens))
    if len(seen) < 2:
        raise ValueError("weft.plot.gates: one layer alone has nobody to send a gate to")
    values = torch.stack([args[1].double().sigmoid().mean((0, 1)) for args in seen[1:]])
    figure, some = _axes(axes, 1, 5.0)
    _picture(some[0], values, "gates", "head", "layer", vmin=0, vmax=1)
    return figure, values.cpu().numpy()


@torch.no_grad()
def routes(model, tokens, layer=0, axes=None):
    """Where the feed-forward listens: the weights of the tokens that a row keeps, [time, time]."""
    from .torch import top_routes
    model = _model(model)
    part = model.h[layer]
    if part.options.get("RA_MLA_MLP_CROSS_TOKEN") != "y":
        raise ValueError("weft.plot.routes: the model has none; RA_MLA_MLP_CROSS_TOKEN=y makes them")
    if part.options.get("RA_MLA_MLP_ROUTE_AFTER_GATE") == "y":
        raise ValueError("weft.plot.routes: routes after the gate are not drawn; `weft inspect --out FILE` shows them")
    weights = _weights(model, part, _layer_inputs(model, _tokens(model, tokens))[layer % len(model.h)])
    index, weight = top_routes(weights, int(part.options.get("RA_MLA_MLP_SPARSE_K", 8)),
                               part.options.get("RA_MLA_MLP_SPARSE_NORMALIZE", "y") == "y")
    time = weights.shape[-1]
    values = torch.zeros(1, time, time, dtype=weight.dtype, device=weight.device)
    values.scatter_add_(2, index.long().clamp_min(0), weight.masked_fill(index < 0, 0))
    figure, some = _axes(axes, 1, 5.0)
    _picture(some[0], values[0], f"routes of layer {layer}", vmin=0)
    return figure, values[0].cpu().numpy()
