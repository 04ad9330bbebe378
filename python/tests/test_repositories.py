"""The write-ups' packages as their repositories have them: names, state_dicts, and the functions they compute."""
import copy
import math
import pickle
from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from torch.nn import functional

import w2attn
import WsFFN
from w2attn.ffn import RMSNorm

B, T = 2, 7
CONFIG = w2attn.ModelConfig(hidden_size=24, num_attention_heads=3, intermediate_size=36, vocab_size=50, max_position_embeddings=16,
                            num_hidden_layers=2, rms_norm_eps=1e-3)
CAUSAL = torch.full((T, T), -math.inf).triu(1)[None, None]
SLOPES = {3: [1 / 16, 1 / 256, 1 / 4], 4: [1 / 4, 1 / 16, 1 / 64, 1 / 256]}


def drawn(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def rotated(x):
    """Each pair of columns rotated as a complex number, position by position."""
    half = x.shape[-1] // 2
    angle = torch.arange(T)[:, None] * 10000 ** (-torch.arange(half, dtype=torch.float64) / half)
    y = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((y.real, y.imag), -1)


def plain_scores(config, p, q, k, standard):
    """The scores [B, H, T, T] without positions that are added, pair by pair."""
    dim = config.hidden_size // config.num_attention_heads
    turn = rotated if config.position_embedding_type == "rope" else lambda x: x
    if standard:
        return turn(q) @ turn(k).transpose(-1, -2) / math.sqrt(dim)
    (mq, sq), (mk, sk) = ((t[..., :dim], functional.softplus(t[..., dim:])) for t in (q, k))
    if config.w2_kernel == "w2":
        mq, mk = turn(mq), turn(mk)
        apart = (mq[..., :, None, :] - mk[..., None, :, :]).square() + (sq[..., :, None, :] - sk[..., None, :, :]).square()
        return -apart.sum(-1) / (p["log_tau"].exp().view(1, -1, 1, 1) + 1e-6)
    sq, sk = sq + 1e-4, sk + 1e-4
    mq, mk = turn(mq / sq.sqrt()), turn(mk / sk.sqrt())
    apart = (mq[..., :, None, :] - mk[..., None, :, :]).square().sum(-1)
    return -(apart + sq.log().sum(-1)[..., :, None] + sk.log().sum(-1)[..., None, :]) / 2


def plain_attention(config, p, x, mask, standard=False):
    q, k, v = (functional.linear(x, p[f"{n}_proj.weight"]).view(B, T, config.num_attention_heads, -1).transpose(1, 2) for n in "qkv")
    scores = plain_scores(config, p, q, k, standard)
    for i in range(T):
        for j in range(T):
            if config.position_embedding_type == "alibi":
                scores[:, :, i, j] -= torch.tensor(SLOPES[config.num_attention_heads]).double() * abs(i - j)
            elif config.position_embedding_type == "relative" and not standard:
                scores[:, :, i, j] += p["relative_embedding.weight"][config.max_position_embeddings + i - j, 0]
    found = (scores if mask is None else scores + mask).softmax(-1) @ v
    return functional.linear(found.transpose(1, 2).reshape(x.shape), p["o_proj.weight"])


def values(module):
    return {name: value.detach().double() for name, value in module.state_dict().items()}


@pytest.mark.parametrize("position", ("rope", "alibi", "relative", "none"))
@pytest.mark.parametrize("kind", ("w2", "overlap", "standard"))
def test_attention_is_that_of_the_formulas_under_any_mask(kind, position):
    config = replace(CONFIG, position_embedding_type=position, w2_kernel="overlap" if kind == "overlap" else "w2")
    torch.manual_seed(0)
    attention = (w2attn.StandardAttention if kind == "standard" else w2attn.W2Attention)(config).double()
    with torch.no_grad():
        for value in attention.parameters():
            value.copy_(drawn(*value.shape) * 0.3)
    x, p = drawn(B, T, 24), values(attention)
    tables = w2attn.RotaryEmbedding(8, max_position_embeddings=16)(x, seq_len=T)
    some = (drawn(T, T) > 0) | torch.eye(T, dtype=torch.bool)
    for mask in (None, CAUSAL, some):
        given = mask if mask is not some else torch.zeros(T, T, dtype=torch.float64).masked_fill(~some, -math.inf)
        assert torch.allclose(attention(x, tables, mask), plain_attention(config, p, x, given, kind == "standard"), atol=1e-9)
    assert torch.allclose(attention(x, tables, is_causal=True), attention(x, tables, CAUSAL), atol=1e-9)


@pytest.mark.parametrize("heads", (3, 4))
def test_slopes_are_those_of_alibi(heads):
    slopes = w2attn.attention.alibi_slopes(heads)
    assert torch.equal(slopes, torch.tensor(SLOPES[heads]))


NAMES = {"embed.weight", "rotary.inv_freq", "final_norm.weight", "final_norm.bias", "lm_head.weight"} | {
    f"layers.{i}.{name}.weight" for i in range(2) for name in
    ("input_layernorm", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
     *(f"attention.{n}_proj" for n in "qkvo"))}


@pytest.mark.parametrize("kind,position,more", (
    ("standard", "rope", ()), ("standard", "alibi", ("alibi_slopes",)), ("overlap", "rope", ()), ("overlap", "none", ()),
    ("overlap", "alibi", ("alibi_slopes",)), ("overlap", "relative", ("relative_embedding.weight",)), ("w2", "rope", ("log_tau",))))
def test_a_state_dict_has_the_repositorys_names_both_ways(kind, position, more):
    config = replace(CONFIG, position_embedding_type=position, w2_kernel="w2" if kind == "w2" else "overlap")
    block_type = "standard" if kind == "standard" else "w2"
    model = w2attn.LanguageModel(config, block_type=block_type)
    state = model.state_dict()
    assert set(state) == NAMES | {f"layers.{i}.attention.{name}" for i in range(2) for name in more}
    assert {name for name, _ in model.named_parameters()} == {name for name in state if not name.endswith(("inv_freq", "alibi_slopes"))}
    again = w2attn.LanguageModel(config, block_type=block_type)
    ids = torch.arange(B * T).view(B, T) % 50
    assert not torch.equal(again(ids), model(ids))
    again.load_state_dict(state)
    assert torch.equal(again(ids), model(ids)) and torch.equal(again(ids, return_embeddings=True), model(ids, True))
    if kind == "overlap":
        with pytest.raises(RuntimeError, match="log_tau"):
            w2attn.LanguageModel(replace(config, w2_kernel="w2"), block_type="w2").load_state_dict(state)


def plain_block(config, state, x, mask, standard):
    p = {name.partition("attention.")[2]: value for name, value in state.items() if name.startswith("attention.")}

    def norm(x, weight):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + config.rms_norm_eps) * weight
    x = x + plain_attention(config, p, norm(x, state["input_layernorm.weight"]), mask, standard)
    y = norm(x, state["post_attention_layernorm.weight"])
    gate, up, down = (state[f"mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    return x + functional.linear(functional.silu(functional.linear(y, gate)) * functional.linear(y, up), down)


@pytest.mark.parametrize("kind", ("w2", "overlap", "standard", "alibi"))
def test_blocks_are_their_parts(kind):
    config = replace(CONFIG, w2_kernel="overlap" if kind == "overlap" else "w2", position_embedding_type="alibi" if kind == "alibi" else "rope")
    torch.manual_seed(1)
    block = (w2attn.StandardBlock if kind == "standard" else w2attn.W2TransformerBlock)(config).double()
    x = drawn(B, T, 24).requires_grad_()
    tables = w2attn.RotaryEmbedding(8)(x, seq_len=T)
    want = plain_block(config, values(block), x, CAUSAL, kind == "standard")
    y = block(x, tables, CAUSAL)
    assert torch.allclose(y, want, atol=1e-9)
    y.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in block.parameters())
    normed = block.input_layernorm(x)
    mid = x + block.attention(normed, tables, CAUSAL)
    assert torch.allclose(mid + block.mlp(block.post_attention_layernorm(mid)), want, atol=1e-9)
    for other in (copy.deepcopy(block), pickle.loads(pickle.dumps(block))):
        with torch.no_grad():
            other.mlp.down_proj.weight.zero_()
        assert not torch.equal(other(x, tables, CAUSAL), y) and torch.equal(block(x, tables, CAUSAL), y)


def test_a_projection_is_a_linear_layer_that_counts():
    attention = w2attn.W2Attention(CONFIG)
    x = torch.randn(1, 4, 24)
    assert torch.allclose(attention.q_proj(x), functional.linear(x, attention.q_proj.weight))
    before = attention(x)
    attention.k_proj.weight.data.copy_(attention.q_proj.weight.data)
    assert not torch.equal(attention(x), before)
    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    assert torch.allclose(compiled(x), attention(x), atol=1e-6)
    assert (attention.num_heads, attention.head_dim, attention.pe_type) == (3, 8, "rope")


def test_the_language_model_and_its_errors():
    torch.manual_seed(0)
    model = w2attn.LanguageModel(CONFIG, block_type="w2")
    ids = torch.arange(B * T).view(B, T) % 50
    logits = model(ids)
    loss, again = model(ids, labels=ids)
    assert logits.shape == (B, T, 50) and torch.equal(logits, again)
    want = functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert loss.item() == pytest.approx(want.item(), abs=1e-6)
    changed = ids.clone()
    changed[:, 5:] = 1
    assert torch.allclose(model(changed)[:, :5], logits[:, :5], atol=1e-6)
    assert w2attn.LanguageModel(CONFIG).block_type == "standard"
    assert w2attn.FeedForward(CONFIG)(torch.randn(2, 3, 24)).shape == RMSNorm(hidden_size=24)(torch.randn(2, 3, 24)).shape
    with pytest.raises(ValueError, match="block_type"):
        w2attn.LanguageModel(CONFIG, block_type="gauss")
    with pytest.raises(ValueError, match="position_embedding_type"):
        w2attn.W2Attention(replace(CONFIG, position_embedding_type="learned"))


def test_wsffn_losses_names_and_configs():
    config = WsFFN.Config(d_model=24, d_ffn=36, n_head=4)
    assert (config.lambda_z, config.lambda_c, config.lambda_logits_z, config.use_aux_loss) == (1e-5, 5e-3, 1e-4, True)
    tuned = replace(config, lambda_c=0.5).for_finetuning()
    assert tuned == WsFFN.Config(24, 36, 4, lambda_c=0.5, use_aux_loss=False) and tuned.for_pretraining().use_aux_loss
    with pytest.raises(FrozenInstanceError):
        config.n_head = 2
    module = WsFFN.wsFFN(replace(config, lambda_z=0.3, lambda_c=0.7)).double()
    state = module.state_dict()
    assert {name: tuple(value.shape) for name, value in state.items()} == {
        "w1.weight": (36, 24), "w2.weight": (24, 36), "w3.weight": (36, 24), "z_projection.weight": (36, 36)}
    module.load_state_dict({name: drawn(*value.shape) * 0.3 for name, value in state.items()})
    x = drawn(B, T, 24)
    y, aux = module(x)
    assert torch.allclose(y, module.w2(functional.silu(module.w3(x)) * module.w1(x)), atol=1e-9)
    z = module.z_projection(module.w1(x)).detach().view(B, T, 4, 9)
    rows = z.reshape(-1, 9)
    size = 0.3 * sum(float(row @ row) for row in rows) / len(rows)
    assert WsFFN.z_regularization_loss(rows, 0.3).item() == pytest.approx(size, rel=1e-9)
    context = z.mean(1).reshape(-1, 9)
    apart = 0.0
    for a in context:
        scores = [float(a @ b / (a.norm() * b.norm())) / 0.07 for b in context]
        apart += math.log(sum(map(math.exp, scores))) - 1 / 0.07
    contrast = WsFFN.contrastive_loss_wsffn_batched(context, 0.7, 4, B)
    assert contrast.item() == pytest.approx(0.7 * apart / len(context), rel=1e-9)
    assert WsFFN.contrastive_loss_wsffn_batched(context[:1], 0.7, 1, 1).item() == 0
    assert aux.item() == pytest.approx(size + contrast.item(), rel=1e-9)
    module.use_aux_loss = False
    assert module(x)[1] is None and WsFFN.wsFFN(config.for_finetuning())(x.float())[1] is None


def gpt2(**options):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=61, n_positions=32, n_embd=24, n_layer=3, n_head=3, bos_token_id=0, eos_token_id=0, **options)).eval()


IDS = torch.arange(2 * 9).view(2, 9) * 7 % 61


@pytest.mark.parametrize("options", ({}, {"gate": False}, {"cross_token": False}, {"cross_rank": 4}))
def test_a_patched_gpt2_starts_as_it_was(options):
    from weft.torch import patch_gpt2
    model = gpt2()
    if options.get("cross_token", True):
        model.set_attn_implementation("eager")
    before, names = model(IDS).logits, {name for name, _ in model.named_parameters()}
    assert patch_gpt2(model, **options) is model
    assert torch.equal(model(IDS).logits, before)
    new = {name: p for name, p in model.named_parameters() if name not in names}
    assert new and all(".reciprocal." in name for name in new)
    copied = copy.deepcopy(model)
    model(IDS, labels=IDS).loss.backward()
    assert all(p.grad.abs().sum() > 0 for name, p in new.items() if name.endswith(("cross_proj.weight", "gate_heads.weight")))
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    assert not torch.equal(model(IDS).logits, before) and torch.equal(copied(IDS).logits, before)
    changed = IDS.clone()
    changed[:, 6:] = 3
    assert torch.allclose(model(changed).logits[:, :6], model(IDS).logits[:, :6], atol=1e-5)
    assert model.generate(IDS, max_new_tokens=3, do_sample=False).shape == (2, 12)


def test_a_patched_gpt2_computes_the_mechanisms():
    """The last layer's feed-forward and the middle one's gate, from what the model itself shows of its inside."""
    from weft.torch import patch_gpt2
    model = patch_gpt2(gpt2(), top_k=2)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if ".reciprocal." in name:
                p.copy_(drawn(*p.shape).float() * 0.2)
    seen = {}
    last, middle = model.transformer.h[2], model.transformer.h[1]
    keep = [last.mlp.act.register_forward_hook(lambda m, a, y: seen.update(h=y)),
            last.attn.register_forward_hook(lambda m, a, y: seen.update(weights=y[1], attended=y[0])),
            last.mlp.c_proj.register_forward_hook(lambda m, a, y: seen.update(y=y)),
            last.attn.c_attn.register_forward_hook(lambda m, a, y: seen.update(qkv=y)),
            middle.mlp.c_proj.register_forward_hook(lambda m, a, y: seen.update(told=a[0]))]
    model(IDS)
    mean = seen["weights"].mean(1)
    routed = torch.zeros_like(seen["h"])
    for b in range(2):
        for t in range(9):
            best = sorted(range(t + 1), key=lambda j: -mean[b, t, j].item())[:2]
            total = sum(mean[b, t, j] for j in best)
            routed[b, t] = sum(mean[b, t, j] / total * seen["h"][b, j] for j in best)
    h = seen["h"] + 0.3 * functional.linear(routed, last.reciprocal.cross_proj.weight)
    assert torch.allclose(seen["y"], h @ last.mlp.c_proj.weight + last.mlp.c_proj.bias, atol=1e-5)
    gate = torch.sigmoid(middle.reciprocal.gate_heads(middle.reciprocal.gate_proj(seen["told"])))
    value = seen["qkv"][..., 48:].view(2, 9, 3, 8).transpose(1, 2)
    found = (seen["weights"] @ value).transpose(1, 2) * (0.9 + 0.2 * gate)[..., None]
    assert torch.allclose(seen["attended"], found.flatten(-2) @ last.attn.c_proj.weight + last.attn.c_proj.bias, atol=1e-5)
    for hook in keep:
        hook.remove()


def test_what_patch_gpt2_refuses():
    from weft.torch import patch_gpt2
    model = gpt2()
    with pytest.raises(ValueError, match="change nothing"):
        patch_gpt2(model, gate=False, cross_token=False)
    with pytest.raises(TypeError, match="GPT-2"):
        patch_gpt2(torch.nn.Linear(2, 2))
    model.transformer.gradient_checkpointing = True
    with pytest.raises(ValueError, match="gradient checkpointing"):
        patch_gpt2(model)
    model.transformer.gradient_checkpointing = False
    patch_gpt2(model)
    with pytest.raises(ValueError, match="already"):
        patch_gpt2(model)
    with pytest.raises(ValueError, match="use_cache=False"):
        model(IDS[:, :1], past_key_values=model(IDS, use_cache=True).past_key_values)
