"""The modules against the same mathematics in plain PyTorch, in float64, and against themselves."""
import copy
import math
import pickle

import pytest
import torch
from torch.nn import functional

from weft.torch import (Config, MLAttention, ReciprocalBlock, ReciprocalFFN, RotaryEmbedding, State, SwiGLU, W2Attention,
                        W2TransformerBlock, WsFFN, top_routes)

B, T, E, H, F = 2, 9, 24, 3, 36
D = E // H


class W2Config:
    hidden_size, num_attention_heads, intermediate_size, rms_norm_eps = E, H, F, 1e-3


def heads(x, w, count):
    return functional.linear(x, w).view(B, T, count, -1).transpose(1, 2)


def attend(scores, v, w_out, causal):
    if causal:
        scores = scores.masked_fill(~torch.ones(T, T, dtype=torch.bool).tril(), -math.inf)
    return functional.linear((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, E), w_out)


def rotated(x, base):
    """Each pair of columns rotated as a complex number, position by position."""
    rate = base ** (-torch.arange(D // 2, dtype=torch.float64) * 2 / D)
    rotation = torch.polar(torch.ones(T, D // 2, dtype=torch.float64), torch.arange(T)[:, None] * rate)
    y = torch.complex(x[..., :D // 2], x[..., D // 2:]) * rotation
    return torch.cat((y.real, y.imag), -1)


def plain_w2(x, p, causal, at="attn.", mask=None, base=10000):
    q, k = heads(x, p[at + "q.weight"], H), heads(x, p[at + "k.weight"], H)
    v = heads(x, p[at + "v.weight"], H)
    mq, mk = rotated(q[..., :D], base), rotated(k[..., :D], base)
    sq, sk = functional.softplus(q[..., D:]), functional.softplus(k[..., D:])
    distance = (mq[..., :, None, :] - mk[..., None, :, :]).pow(2).sum(-1) + (sq[..., :, None, :] - sk[..., None, :, :]).pow(2).sum(-1)
    tau = p[at + "log_tau"].exp().view(1, H, 1, 1) + 1e-6
    scores = -distance / tau
    return attend(scores if mask is None else scores + mask, v, p[at + "out.weight"], causal)


def plain_swiglu(x, p, at="ffn."):
    h1, h2 = functional.linear(x, p[at + "w1.weight"]), functional.linear(x, p[at + "w3.weight"])
    return functional.linear(functional.silu(h2) * h1, p[at + "w2.weight"]), h1


def norm(x, w):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + W2Config.rms_norm_eps) * w


def plain_block(x, p, causal, mask=None, base=10000):
    x = x + plain_w2(norm(x, p["ln_1.weight"]), p, causal, mask=mask, base=base)
    return x + plain_swiglu(norm(x, p["ln_2.weight"]), p)[0]


def plain_mla(x, p, causal):
    latent = p["attn.k_down.weight"].shape[0]
    q = torch.einsum("bhtd,hdl->bhtl", heads(x, p["attn.q.weight"], H), p["attn.q_latent"])
    k, v = (functional.linear(x, p[f"attn.{n}_down.weight"])[:, None] for n in "kv")
    v = torch.einsum("bgtl,hld->bhtd", v, p["attn.v_up"])
    return attend(q @ k.transpose(-1, -2) / math.sqrt(latent), v, p["attn.out.weight"], causal)


def plain_wsffn(x, p, c):
    y, h1 = plain_swiglu(x, p)
    z = functional.linear(h1, p["ffn.z_proj.weight"]).view(B, T, c.n_head, -1)
    ctx = functional.normalize(z.mean(1).reshape(B * c.n_head, -1), dim=-1, eps=1e-8)
    s = ctx @ ctx.T / c.tau
    return y, c.lambda_z * z.pow(2).sum(-1).mean() + c.lambda_c * (s.logsumexp(-1) - s.diagonal()).mean()


def route(weights, k):
    """Top-k routing as a matrix: the mean over heads, the k largest of a row, divided by their sum."""
    mean = weights.mean(1).detach()
    kept = torch.zeros_like(mean).scatter_(-1, mean.topk(k, -1).indices, 1.0) * mean
    return kept / kept.sum(-1, keepdim=True)


def plain_reciprocal(x, p, routes, latent, gate, at="ffn."):
    """y, what the layer sends to the next one's gate and latent."""
    h = functional.gelu(functional.linear(x, p[at + "fc.weight"], p[at + "fc.bias"]), approximate="tanh")
    couple = p[at + "couple.weight"]
    sent = 0.2 * h @ couple
    h = h + 0.2 * functional.linear(latent, couple)
    if at + "cross_proj.weight" in p:
        h = h + 0.3 * functional.linear(routes @ h, p[at + "cross_proj.weight"])
    gate = functional.linear(functional.linear(h, p[at + "gate_proj.weight"]), p[at + "gate_heads.weight"])
    return functional.linear(h, p[at + "proj.weight"], p[at + "proj.bias"]), gate, sent


def layer_norm(x, p, name):
    return functional.layer_norm(x, (E,), p[name + ".weight"], p[name + ".bias"], 1e-5)


def plain_reciprocal_block(x, p, gate=None, received=None):
    latent = p["attn.k_down.weight"].shape[0]
    normed = layer_norm(x, p, "ln_1")
    q = torch.einsum("bhtd,hdl->bhtl", heads(normed, p["attn.q.weight"], H), p["attn.q_latent"])
    k, v = (functional.linear(normed, p[f"attn.{n}_down.weight"]) for n in "kv")
    if received is not None:
        k = k + received
    scores = (q @ k[:, None].transpose(-1, -2) / math.sqrt(latent)).masked_fill(~MASK, -math.inf)
    weights = scores.softmax(-1)
    o = torch.einsum("bhts,bsl,hld->bthd", weights, v, p["attn.v_up"])
    if gate is not None:
        o = o * (0.9 + 0.1 * gate.sigmoid())[..., None]
    x = x + functional.linear(o.reshape(B, T, E), p["attn.out.weight"])
    y, gate, sent = plain_reciprocal(layer_norm(x, p, "ln_2"), p, route(weights, 3), k, gate)
    return x + y, gate, sent


GATE, SENT = (torch.randn(B, T, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) for n in (H, 5))
WEIGHTS = torch.randn(B, H, T, T, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).softmax(-1)


def added(y, state):
    return y.sum() + state[0].sin().sum() + state[1].cos().sum()


def plain_ffn_case(x, p):
    y, gate, sent = plain_reciprocal(x, p, route(WEIGHTS, 3), SENT, None)
    return added(y, (gate, sent))


def plain_block_case(x, p, *before):
    y, *state = plain_reciprocal_block(x, p, *before)
    return added(y, state)


WS = Config(d_model=E, d_ffn=F, n_head=4, lambda_z=0.1, lambda_c=0.2)
SOME = torch.rand(T, T, generator=torch.Generator().manual_seed(2)) < 0.5
SOME |= torch.eye(T, dtype=torch.bool)
ADDED = torch.randn(B, 1, T, T, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
MASK = torch.ones(T, T, dtype=torch.bool).tril()
ROPE = RotaryEmbedding(D, base=77.0)


class ThetaConfig(W2Config):
    rope_theta = 500


CASES = {
    "w2 attention": (lambda: W2Attention(E, H), lambda m, x: m(x), lambda x, p: plain_w2(x, p, False)),
    "w2 attention, causal": (lambda: W2Attention(E, H), lambda m, x: m(x, attention_mask=MASK),
                             lambda x, p: plain_w2(x, p, True)),
    "w2 block": (lambda: W2TransformerBlock(W2Config()), lambda m, x: m(x), lambda x, p: plain_block(x, p, False)),
    "mla": (lambda: MLAttention(E, H, latent_dim=5), lambda m, x: m(x), lambda x, p: plain_mla(x, p, True)),
    "wsffn": (lambda: WsFFN(WS), lambda m, x: sum(t.sum() for t in m(x)),
              lambda x, p: sum(t.sum() for t in plain_wsffn(x, p, WS))),
    "w2 attention, any mask": (lambda: W2Attention(E, H), lambda m, x: m(x, attention_mask=SOME),
                               lambda x, p: plain_w2(x, p, False, mask=torch.zeros(T, T).masked_fill(~SOME, -math.inf))),
    "w2 block, added numbers": (lambda: W2TransformerBlock(W2Config()), lambda m, x: m(x, attention_mask=ADDED),
                                lambda x, p: plain_block(x, p, False, mask=ADDED)),
    "w2 attention, another base": (lambda: W2Attention(E, H, base=9), lambda m, x: m(x), lambda x, p: plain_w2(x, p, False, base=9)),
    "w2 block, another base": (lambda: W2TransformerBlock(ThetaConfig()), lambda m, x: m(x),
                               lambda x, p: plain_block(x, p, False, base=500)),
    "swiglu": (lambda: SwiGLU(E, F), lambda m, x: m(x), lambda x, p: plain_swiglu(x, p)[0]),
    "reciprocal ffn": (lambda: ReciprocalFFN(E, F, H, latent_dim=5, top_k=3),
                       lambda m, x: added(*m(x, routes=top_routes(WEIGHTS, 3), latent=SENT)), plain_ffn_case),
    "reciprocal block, first": (lambda: ReciprocalBlock(E, H, F, latent_dim=5, top_k=3), lambda m, x: added(*m(x)),
                                plain_block_case),
    "reciprocal block": (lambda: ReciprocalBlock(E, H, F, latent_dim=5, top_k=3), lambda m, x: added(*m(x, State(GATE, SENT))),
                         lambda x, p: plain_block_case(x, p, GATE, SENT)),
    "reciprocal block, gate and latent": (lambda: ReciprocalBlock(E, H, F, latent_dim=5, cross_token=False),
                                          lambda m, x: added(*m(x, State(GATE, SENT))),
                                          lambda x, p: plain_block_case(x, p, GATE, SENT)),
}


def shaken(make):
    torch.manual_seed(3)
    module = make().double()
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return module, torch.randn(B, T, E, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("case", CASES)
def test_equals_plain_pytorch(case):
    make, run, plain = CASES[case]
    module, x = shaken(make)
    p = {name.removeprefix("core."): t for name, t in module.named_parameters()}
    ours, theirs = run(module, x), plain(x, p)
    assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-9)
    towards = torch.randn_like(ours)
    wanted = torch.autograd.grad(theirs, [x, *p.values()], towards, allow_unused=True)
    for name, got, want in zip(["x", *p], torch.autograd.grad(run(module, x), [x, *p.values()], towards), wanted):
        want = torch.zeros_like(got) if want is None else want
        assert torch.allclose(got, want, rtol=1e-7, atol=1e-9), name


@pytest.mark.parametrize("case", CASES)
def test_gradcheck(case):
    make, run, _ = CASES[case]
    if "reciprocal block" in case and "gate" not in case:
        pytest.skip("routes are constants to the gradient, and finite differences see them move; the case with gate "
                    "and latent alone is checked")
    module, x = shaken(make)
    assert torch.autograd.gradcheck(lambda *a: run(module, a[0]), (x, *module.parameters()), fast_mode=True, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_compiled_equals_eager(case):
    make, run, _ = CASES[case]
    module, x = shaken(make)
    torch._dynamo.reset()
    compiled = torch.compile(lambda a: run(module, a), backend="aot_eager", fullgraph=True)
    got, want = compiled(x), run(module, x)
    # A mask's values are not looked at while tracing: it goes through PyTorch's own attention.
    assert torch.allclose(got, want, rtol=1e-10) if "causal" in case or "mask" in case else torch.equal(got, want)
    towards = torch.randn_like(want)
    inputs = [x, *module.parameters()]
    ours = torch.autograd.grad(got, inputs, towards, allow_unused=True)
    for a, b in zip(ours, torch.autograd.grad(want, inputs, towards, allow_unused=True)):
        assert (a is None and b is None) or torch.allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_copies_and_pickles_compute_the_same(case):
    make, run, _ = CASES[case]
    module, x = shaken(make)
    want = run(module, x)
    assert torch.equal(run(copy.deepcopy(module), x), want)
    assert torch.equal(run(pickle.loads(pickle.dumps(module)), x), want)
    other = make().double()
    other.load_state_dict(module.state_dict())
    assert torch.equal(run(other, x), want)


def test_bf16_and_autocast():
    torch.manual_seed(0)
    module, x = W2TransformerBlock(W2Config()), torch.randn(B, T, E, requires_grad=True)
    want = module(x)
    wanted = torch.autograd.grad(want.sum(), [x, *module.parameters()])
    with torch.autocast("cpu", torch.bfloat16):
        got = module(x)
    assert got.dtype == torch.bfloat16 and (got.float() - want).abs().max() < 0.1
    grads = torch.autograd.grad(got.float().sum(), [x, *module.parameters()])
    for g, w in zip(grads, wanted):  # in the types of the parameters, not in autocast's
        assert g.dtype == torch.float32 and (g - w).abs().max() < 0.1 * w.abs().max() + 0.02


@pytest.mark.parametrize("case", ("w2 block", "mla", "wsffn", "swiglu", "reciprocal block"))
def test_calls_read_and_write_the_tensors_themselves(case, monkeypatch):
    """No copies: the addresses that C gets are those of x, of the parameters, of the outputs and of the gradients."""
    from weft import _blocks
    make, run, _ = CASES[case]
    module, x = shaken(make)
    at = []
    monkeypatch.setattr(_blocks.Frame, "fill", lambda frame, *args, own=_blocks.Frame.fill: (at.extend(args[0]), own(frame, *args))[1])
    monkeypatch.setattr(_blocks.Frame, "fill_back", lambda frame, *args, own=_blocks.Frame.fill_back: (at.extend(args[0]), own(frame, *args))[1])
    made = []
    hooks = [m.register_forward_hook(lambda _, args, out: made.extend(out.values() if isinstance(out, dict) else []))
             for m in module.modules()]
    y = run(module, x)
    for hook in hooks:
        hook.remove()
    outputs = [t for t in made if torch.is_tensor(t)]
    assert outputs and x.data_ptr() in at
    assert {p.data_ptr() for p in module.parameters()} <= set(at) and {t.data_ptr() for t in outputs} <= set(at)
    before = len(at)
    grads = torch.autograd.grad(y.sum(), list(module.parameters()), allow_unused=True)
    assert {g.data_ptr() for g in grads if g is not None} <= set(at[before:])


def test_losses_only_in_training():
    x = torch.randn(B, T, E)
    module = WsFFN(WS)
    assert module(x)[1].dim() == 0 and module.eval()(x)[1] is None
    assert WsFFN(Config(d_model=E, d_ffn=F, n_head=4).for_finetuning())(x)[1] is None
    with pytest.raises(ValueError, match="36.*5"):
        WsFFN(Config(d_model=E, d_ffn=F, n_head=5))


def test_tables_set_the_base():
    module, x = shaken(lambda: W2TransformerBlock(W2Config()))
    p = {name.removeprefix("core."): t for name, t in module.named_parameters()}
    tables = ROPE(x, seq_len=T)
    assert ROPE(x, seq_len=T)[0] is tables[0]
    for mask in None, MASK, ADDED:
        want = plain_block(x, p, mask is MASK, mask=ADDED if mask is ADDED else None, base=77)
        assert torch.allclose(module(x, rotary_emb_outputs=tables, attention_mask=mask), want, rtol=1e-9, atol=1e-9)
    usual = plain_block(x, p, False)
    assert torch.allclose(module(x, rotary_emb_outputs=RotaryEmbedding(D)(x, seq_len=T)), usual, rtol=1e-9, atol=1e-9)
    foreign = tuple(t.clone() for t in tables)
    with pytest.raises(ValueError, match="rope_theta"):
        module(x, rotary_emb_outputs=foreign)
    own = tuple(t.clone() for t in RotaryEmbedding(D)(x, seq_len=T))
    assert torch.equal(module(x, rotary_emb_outputs=own), module(x))
    own[0].mul_(-1)
    with pytest.raises(ValueError, match="rotary_emb_outputs"):
        module(x, rotary_emb_outputs=own)
    with pytest.raises(ValueError, match="rotary_emb_outputs"):
        module(x, rotary_emb_outputs=RotaryEmbedding(D)(x, seq_len=T + 1))


def test_tables_of_another_base_are_told_when_compiled():
    """Values are unknown while tracing: the compiled block looks at them when it runs."""
    module, x = shaken(lambda: W2TransformerBlock(W2Config()))
    module.requires_grad_(False)
    x = x.detach()
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, rotary_emb_outputs=RotaryEmbedding(D)(x, seq_len=T)), module(x))
    with pytest.raises(RuntimeError, match="rope_theta"):
        compiled(x, rotary_emb_outputs=ROPE(x, seq_len=T))


def test_wrong_input_is_told():
    module = W2Attention(E, H)
    with pytest.raises(ValueError, match="to_dense"):
        module(torch.randn(B, T, E).to_sparse())
    with pytest.raises(ValueError, match="nothing to compute"):
        module(torch.randn(0, T, E))
    with pytest.raises(TypeError, match="float32"):
        module(torch.randn(B, T, E).half(), attention_mask=SOME)
    for x in torch.randn(B, T, E + 1), torch.randn(T, E):
        with pytest.raises(ValueError, match="wanted"):
            module(x)
    with pytest.raises(TypeError, match="float32"):
        module(torch.randn(B, T, E).half())
    with pytest.raises(TypeError, match="attention_mask"):
        module(torch.randn(B, T, E), attention_mask=torch.eye(T).int())
    with pytest.raises(ValueError, match="None, None"):
        module(torch.randn(B, T, E), attention_mask=torch.arange(T) < torch.tensor([[3], [5]]))
    with pytest.raises(ValueError, match="move"):
        module(torch.randn(B, T, E, device="meta"))


def test_a_view_that_is_not_dense_is_taken():
    torch.manual_seed(1)
    module, x = W2Attention(E, H), torch.randn(T, B, E + 1)[..., 1:].transpose(0, 1)
    assert torch.equal(module(x), module(x.clone(memory_format=torch.contiguous_format)))
