"""A model's config and the tensors it has: keys and defaults, the Kconfig lines, the mixes that are refused, names and shapes."""

import math

# Every model key: its type (a tuple lists the words allowed) and its default; None: must be given.
KEYS = {
    "ATTENTION": (("dot", "w2", "mla", "cosine", "gta"), None),
    "FFN": (("gelu", "swiglu", "wsffn", "relu2", "gelu_erf", "geglu"), None),
    "POSITION": (("learned", "rope", "alibi", "relative", "none"), None),
    "NORM": (("layernorm", "rmsnorm"), None),
    "NORM_EPS": (float, 0.0),
    "NORM_PLACEMENT": (("pre", "post", "reordered", "both"), "pre"),
    "N_LAYER": (int, None),
    "N_HEAD": (int, None),
    "N_EMBD": (int, None),
    "HEAD_DIM": (int, 0),
    "N_FFN": (int, 0),
    "KV_HEADS": (int, 0),
    "KV_SHARE": (int, 1),
    "VOCAB_SIZE": (int, None),
    "CONTEXT": (int, None),
    "MUP": (bool, False),
    "MUP_BASE_WIDTH": (int, 0),
    "MUP_BASE_HEAD": (int, 0),
    "BATCH_SIZE": (int, None),
    "WEIGHT_TYING": (bool, True),
    "EMBED_SCALE": (float, 1.0),
    "BIAS": (bool, True),
    "ATTENTION_BIAS": (("auto", "none", "qkv", "all"), "auto"),
    "FFN_BIAS": (bool, False),
    "PARALLEL_RESIDUAL": (bool, False),
    "QK_NORM": (bool, False),
    "QK_NORM_WHOLE": (bool, False),
    "ATTENTION_GATE": (("none", "head", "element"), "none"),
    "ATTENTION_SCALE": (float, 0.0),
    "WINDOW": (int, 0),
    "WINDOW_EVERY": (int, 0),
    "SOFTCAP_ATTENTION": (float, 0.0),
    "SOFTCAP_LOGITS": (float, 0.0),
    "DOCUMENT_MASK": (bool, False),
    "DOCUMENT_TOKEN": (int, -1),
    "DOCUMENT_POSITIONS": (("continue", "restart"), "continue"),
    "ROPE_THETA": (float, 10000.0),
    "ROPE_DIM": (int, 0),
    "ROPE_SCALING": (("none", "linear", "llama3", "yarn", "longrope"), "none"),
    "ROPE_FACTOR": (float, 1.0),
    "ROPE_CONTEXT": (int, 8192),
    "ROPE_LOW": (float, 1.0),
    "ROPE_HIGH": (float, 4.0),
    "ROPE_AMPLITUDE": (float, 0.0),
    "ROPE_SHORT_FACTORS": (str, ""),
    "ROPE_LONG_FACTORS": (str, ""),
    "ROPE_LOCAL_THETA": (float, 0.0),
    "NOPE_EVERY": (int, 0),
    "DROPOUT": (float, None),
    "LAMBDA_LOGITS_Z": (float, 0.0),
    "LOGITS_Z_DETACH": (bool, False),
    "CAUSAL": (bool, True),
    "ALLOW_FUTURE_LEAK": (bool, False),
    "W2_KERNEL": (("w2", "overlap"), "w2"),
    "W2_TAU": (float, 0.0),
    "W2_TAU_LEARNED": (bool, True),
    "W2_SIGMA_DIM": (int, 0),
    "WSFFN_N_HEAD": (int, 8),
    "WSFFN_Z_PROJ": (("dense", "grouped"), "dense"),
    "WSFFN_LAMBDA_Z": (float, 1e-5),
    "WSFFN_LAMBDA_C": (float, 5e-3),
    "WSFFN_TAU": (float, 0.07),
    "WSFFN_POSITIVE": (("self", "half", "dropout"), "self"),
    "WSFFN_Z_LOGITS": (float, 0.0),
    "WSFFN_AUX_LOSS": (bool, True),
    "RA_MLA_LATENT_DIM": (int, 128),
    "RA_MLA_RA_WINDOW": (int, 64),
    "RA_MLA_RA_ALPHA": (float, 0.0),
    "RA_MLA_PER_HEAD_Q_LATENT": (bool, True),
    "RA_MLA_PER_HEAD_V_UP": (bool, True),
    "RA_MLA_USE_ROPE": (bool, False),
    "RA_MLA_JOINT_KV": (bool, False),
    "RA_MLA_SCORE": (("dot", "w2"), "dot"),
    "RA_MLA_LATENT_HEADS": (int, 1),
    "RA_MLA_ROPE_DIM": (int, 0),
    "RA_MLA_LATENT_NORM": (bool, False),
    "RA_MLA_Q_RANK": (int, 0),
    "RA_MLA_MLP_ATTN_GATE": (bool, None),
    "RA_MLA_MLP_GATE_ALPHA": (float, 0.1),
    "RA_MLA_MLP_GATE_DIM": (int, 64),
    "RA_MLA_MLP_GATE_POOL": (("token", "cummean", "sequence"), "token"),
    "RA_MLA_MLP_GATE_OPEN": (float, 0.0),
    "RA_MLA_MLP_CROSS_TOKEN": (bool, None),
    "RA_MLA_MLP_CROSS_ALPHA": (float, 0.3),
    "RA_MLA_MLP_CROSS_RANK": (int, 0),
    "RA_MLA_MLP_SPARSE_MODE": (("topk", "rms", "none"), "topk"),
    "RA_MLA_MLP_SPARSE_K": (int, 8),
    "RA_MLA_MLP_SPARSE_RMS_THRESHOLD": (float, 0.5),
    "RA_MLA_MLP_SPARSE_NORMALIZE": (bool, True),
    "RA_MLA_MLP_SPARSE_HEAD_AVERAGE": (bool, True),
    "RA_MLA_MLP_ROUTE_AFTER_GATE": (bool, False),
    "RA_MLA_MLP_LATENT_RECIP": (bool, None),
    "RA_MLA_MLP_RECIP_ALPHA": (float, 0.2),
    "RA_MLA_MLP_LATENT_DIM": (int, 128),
    "RA_MLA_MLP_TYING_MODE": (("untied", "tied_transpose", "per_head_scalar"), "tied_transpose"),
    "RA_MLA_MLP_LATENT_DETACH": (bool, False),
    "RA_MLA_MLP_ALPHA_LEARNED": (bool, False),
}


class BadConfig(Exception):
    """A config that means nothing; the message is one line."""


def parse_value(key, text):
    """The value of a key from the right-hand side of its line."""
    if key not in KEYS:
        raise BadConfig(f"CONFIG_{key} is no model key")
    kind = KEYS[key][0]
    word = text[1:-1] if len(text) >= 2 and text[0] == text[-1] == '"' else text
    if kind is bool:
        if word not in ("y", "n"):
            raise BadConfig(f"CONFIG_{key}={text}: y or n")
        return word == "y"
    if isinstance(kind, tuple):
        if word not in kind:
            raise BadConfig(f"CONFIG_{key}={text}: one of {', '.join(kind)}")
        return word
    return kind(word)


def parse_config(text):
    """Kconfig lines to {key: value} with defaults filled in, and the `# name=value` marks beside it."""
    config, marks = {key: default for key, (_, default) in KEYS.items()}, {}
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("# CONFIG_") and line.endswith(" is not set"):
            config[line[len("# CONFIG_"):-len(" is not set")]] = False
        elif line.startswith("# ") and "=" in line and " " not in line[2:]:
            name, value = line[2:].split("=")
            marks[name] = int(value)
        elif line.startswith("CONFIG_"):
            key, value = line[len("CONFIG_"):].split("=", 1)
            config[key] = parse_value(key, value)
        elif line and not line.startswith("#"):
            raise BadConfig(f"not a line of a config: {line}")
    check_config(config)
    return config, marks


def check_config(c):
    """Fills in derived sizes (D, F, KV, L) and refuses the impossible mixes."""
    for key, value in c.items():
        if value is None or key not in KEYS:
            raise BadConfig(f"CONFIG_{key} is {'unknown' if key not in KEYS else 'not given'}")
    heads, mla = c["N_HEAD"], c["ATTENTION"] == "mla"
    derived = {
        "D": c["HEAD_DIM"] or c["N_EMBD"] // heads,
        "F": c["N_FFN"] or 4 * c["N_EMBD"],
        "KV": c["KV_HEADS"] or heads,
        "L": c["RA_MLA_LATENT_DIM"],
        "G": c["RA_MLA_LATENT_HEADS"],
        "R": c["RA_MLA_ROPE_DIM"],
    }
    derived["S"] = c["W2_SIGMA_DIM"] or derived["D"]
    rules = [
        (c["HEAD_DIM"] or c["N_EMBD"] % heads == 0, "N_HEAD must divide N_EMBD"),
        (heads % derived["KV"] == 0, "KV_HEADS must divide N_HEAD"),
        (not mla or derived["KV"] == heads, "mla has no KV_HEADS"),
        (c["FFN"] != "wsffn" or derived["F"] % c["WSFFN_N_HEAD"] == 0, "WSFFN_N_HEAD must divide N_FFN"),
        (mla or not c["RA_MLA_MLP_LATENT_RECIP"], "LATENT_RECIP needs mla"),
        (c["KV_SHARE"] == 1 or not c["RA_MLA_MLP_LATENT_RECIP"], "LATENT_RECIP needs a latent in each layer"),
        (derived["G"] == 1 or not c["RA_MLA_MLP_LATENT_RECIP"], "LATENT_RECIP needs one latent"),
        (not mla or heads % derived["G"] == 0, "LATENT_HEADS must divide N_HEAD"),
        (not mla or derived["R"] % 2 == 0, "ROPE_DIM must be even"),
        (not mla or not derived["R"] or not (c["RA_MLA_USE_ROPE"] or c["RA_MLA_SCORE"] == "w2"), "ROPE_DIM has the rotation"),
        (not mla or not c["RA_MLA_LATENT_NORM"] or (c["RA_MLA_JOINT_KV"] and not c["QK_NORM"]), "LATENT_NORM is of one latent"),
        (c["ATTENTION"] != "gta" or (derived["D"] % 4 == 0 and not c["QK_NORM"]), "gta: D by 4, no QK_NORM"),
        (c["RA_MLA_MLP_GATE_POOL"] != "sequence" or not c["RA_MLA_MLP_ATTN_GATE"] or not c["CAUSAL"]
         or c["ALLOW_FUTURE_LEAK"], "GATE_POOL=sequence sees the future"),
        (c["CAUSAL"] or not (c["WINDOW"] or c["DOCUMENT_MASK"]), "WINDOW and DOCUMENT_MASK need CAUSAL"),
        (not c["DOCUMENT_MASK"] or 0 <= c["DOCUMENT_TOKEN"] < c["VOCAB_SIZE"], "DOCUMENT_MASK needs DOCUMENT_TOKEN"),
        (not c["DOCUMENT_MASK"] or not c["RA_MLA_MLP_ATTN_GATE"] or c["RA_MLA_MLP_GATE_POOL"] != "sequence",
         "DOCUMENT_MASK does not go with GATE_POOL=sequence"),
        (not c["SOFTCAP_ATTENTION"] or not (c["ATTENTION"] == "w2" or has_tau(c)), "no soft-cap of distances"),
        (c["ROPE_DIM"] % 2 == 0, "ROPE_DIM is even"),
        (c["KV_SHARE"] == 1 or not c["ROPE_LOCAL_THETA"], "shared keys have one law of angles"),
        (derived["S"] <= derived["D"] and (derived["S"] == derived["D"] or c["W2_KERNEL"] == "w2"), "no more deviations than means"),
        (c["WSFFN_POSITIVE"] != "half" or c["CONTEXT"] % 2 == 0, "halves need an even CONTEXT"),
        (c["WSFFN_Z_LOGITS"] == 0 or c["WSFFN_AUX_LOSS"], "Z_LOGITS is one of the losses of AUX_LOSS"),
        (not c["RA_MLA_MLP_ROUTE_AFTER_GATE"] or not (c["RA_MLA_MLP_ALPHA_LEARNED"] or c["RA_MLA_MLP_GATE_POOL"] == "sequence"),
         "ROUTE_AFTER_GATE needs gates of tokens and a fixed alpha"),
        (c["CAUSAL"] or c["POSITION"] not in ("alibi", "relative"), "alibi and relative need CAUSAL"),
        (c["CAUSAL"] or not (mla and c["RA_MLA_RA_ALPHA"] > 0), "RA_ALPHA needs CAUSAL"),
    ]
    if mla and c["RA_MLA_SCORE"] == "w2":
        rules.append((derived["L"] % (4 if uses_rope(c) else 2) == 0, "LATENT_DIM must be a multiple of 2, of 4 with rope"))
        rules.append((c["RA_MLA_RA_ALPHA"] == 0, "RA_ALPHA goes with RA_MLA_SCORE=dot"))
    elif uses_rope(c):
        rules.append((((derived["R"] or derived["L"]) if mla else derived["D"]) % 2 == 0, "rope needs an even width"))
    if c["RA_MLA_MLP_LATENT_RECIP"] and c["RA_MLA_MLP_TYING_MODE"] == "per_head_scalar":
        even = derived["F"] % heads == 0 and derived["L"] % heads == 0 and derived["F"] % derived["L"] == 0
        rules.append((even, "per_head_scalar: H must divide F and L, and L must divide F"))
    for holds, message in rules:
        if not holds:
            raise BadConfig(message)
    c.update(derived)


def uses_rope(c):
    return c["POSITION"] == "rope" or (c["ATTENTION"] == "mla" and c["RA_MLA_USE_ROPE"])


def has_tau(c):
    """Whether scores are distances over a temperature."""
    return (c["ATTENTION"] == "w2" and c["W2_KERNEL"] == "w2") or (c["ATTENTION"] == "mla" and c["RA_MLA_SCORE"] == "w2")


def norm_shapes(c, name):
    shapes = {f"{name}.weight": (c["N_EMBD"],)}
    if c["NORM"] == "layernorm" and c["BIAS"]:
        shapes[f"{name}.bias"] = (c["N_EMBD"],)
    return shapes


def attention_biases(c):
    """Whether the projections into queries, keys and values have biases, and whether the output's has."""
    if c["ATTENTION_BIAS"] == "auto":
        there = c["BIAS"] and c["ATTENTION"] in ("dot", "cosine")
        return there, there
    return c["ATTENTION_BIAS"] in ("qkv", "all"), c["ATTENTION_BIAS"] == "all"


def shares_keys(c, layer):
    """Whether a layer has the keys and values of one below it."""
    return layer % c["KV_SHARE"] != 0


def attention_shapes(c, layer):
    e, h, d, latent = c["N_EMBD"], c["N_HEAD"], c["D"], c["L"]
    inner = h * d
    if c["ATTENTION"] in ("dot", "cosine"):
        rows = inner + 2 * c["KV"] * d
        shapes = {"qkv.weight": (rows, e), "out.weight": (e, inner)}
        if shares_keys(c, layer):
            shapes = {"q.weight": (inner, e), "out.weight": (e, inner)}
    elif c["ATTENTION"] == "gta":
        shapes = {"q.weight": (inner, e), "kv.weight": (c["KV"] * d, e), "k_rope.weight": (d // 2, e), "out.weight": (e, inner)}
    elif c["ATTENTION"] == "w2":
        shared = c["KV"] * d
        rows = d + c["S"]
        shapes = {"q.weight": (h * rows, e), "k.weight": (c["KV"] * rows, e), "v.weight": (shared, e), "out.weight": (e, inner)}
    else:
        rank, latents, rope = c["RA_MLA_Q_RANK"], c["G"] * latent, c["R"]
        shapes = {
            "q.weight": (inner, rank or e),
            "k_down.weight": (latents, e),
            "q_latent": (h, d, latent) if c["RA_MLA_PER_HEAD_Q_LATENT"] else (inner, latent),
            "v_up": (h, latent, d) if c["RA_MLA_PER_HEAD_V_UP"] else (latent, d),
            "out.weight": (e, inner),
        }
        if not c["RA_MLA_JOINT_KV"]:
            shapes["v_down.weight"] = (latents, e)
        if rank:
            shapes |= {"q_down.weight": (rank, e), "q_down_norm.weight": (rank,)}
        if rope:
            shapes |= {"q_rope.weight": (h * rope, rank or e), "k_rope.weight": (rope, e)}
        if c["RA_MLA_LATENT_NORM"]:
            shapes["latent_norm.weight"] = (latent,)
    inputs, output = attention_biases(c)
    for name in ("qkv", "q", "k", "v", "k_down", "v_down", "kv", "k_rope", "q_rope", "q_down"):
        if inputs and f"{name}.weight" in shapes:
            shapes[f"{name}.bias"] = shapes[f"{name}.weight"][:1]
    if output:
        shapes["out.bias"] = (e,)
    if c["ATTENTION"] == "cosine" or (has_tau(c) and c["W2_TAU_LEARNED"]):
        shapes["log_tau"] = (h,)
    if c["ATTENTION_GATE"] != "none":
        shapes["out_gate.weight"] = (h if c["ATTENTION_GATE"] == "head" else inner, e)
    if c["QK_NORM"]:
        width = d if c["ATTENTION"] != "mla" else latent // 2 if has_tau(c) else latent
        width = inner if c["QK_NORM_WHOLE"] else width
        shapes |= {"q_norm.weight": (width,), "k_norm.weight": (width,)}
    if c["POSITION"] == "relative":
        shapes["rel_bias"] = (c["CONTEXT"],)
    if c["RA_MLA_MLP_ATTN_GATE"] and c["RA_MLA_MLP_ALPHA_LEARNED"] and layer > 0:
        shapes["gate_alpha"] = (1,)
    if shares_keys(c, layer):
        of_keys = ("k", "v", "kv", "k_down", "v_down", "k_rope", "k_norm", "latent_norm")
        shapes = {name: shape for name, shape in shapes.items() if name.split(".")[0] not in of_keys}
    return shapes


def ffn_shapes(c, layer):
    e, f, h, latent = c["N_EMBD"], c["F"], c["N_HEAD"], c["L"]
    if c["FFN"] in ("gelu", "gelu_erf", "relu2"):
        shapes = {"fc.weight": (f, e), "proj.weight": (e, f)}
        if c["BIAS"]:
            shapes |= {"fc.bias": (f,), "proj.bias": (e,)}
    else:
        shapes = {"w1.weight": (f, e), "w3.weight": (f, e), "w2.weight": (e, f)}
        if c["FFN"] == "swiglu" and c["FFN_BIAS"]:
            shapes |= {"w1.bias": (f,), "w3.bias": (f,), "w2.bias": (e,)}
    if c["FFN"] == "wsffn":
        n = c["WSFFN_N_HEAD"]
        shapes["z_proj.weight"] = (f, f) if c["WSFFN_Z_PROJ"] == "dense" else (n, f // n, f // n)
        if c["WSFFN_Z_LOGITS"] and layer == c["N_LAYER"] - 1:
            shapes["z_logits.weight"] = (e, f)
    if c["RA_MLA_MLP_ATTN_GATE"]:
        shapes |= {"gate_proj.weight": (c["RA_MLA_MLP_GATE_DIM"], f), "gate_heads.weight": (h, c["RA_MLA_MLP_GATE_DIM"])}
        if c["RA_MLA_MLP_GATE_OPEN"]:
            shapes["gate_heads.bias"] = (h,)
    if c["RA_MLA_MLP_CROSS_TOKEN"]:
        r = c["RA_MLA_MLP_CROSS_RANK"]
        shapes |= {"cross_down.weight": (r, f), "cross_up.weight": (f, r)} if r else {"cross_proj.weight": (f, f)}
        if c["RA_MLA_MLP_ALPHA_LEARNED"]:
            shapes["cross_alpha"] = (1,)
    if c["RA_MLA_MLP_LATENT_RECIP"]:
        lm = c["RA_MLA_MLP_LATENT_DIM"]
        if c["RA_MLA_MLP_TYING_MODE"] == "tied_transpose":
            shapes["couple.weight"] = (f, latent)
        elif c["RA_MLA_MLP_TYING_MODE"] == "untied":
            shapes |= {"mlp_down.weight": (lm, f), "attn_to_mlp.weight": (f, latent), "mlp_to_attn.weight": (latent, lm)}
        if c["RA_MLA_MLP_ALPHA_LEARNED"]:
            shapes["recip_alpha"] = (1,)
    return shapes


def parameter_shapes(c):
    """Every tensor of the checkpoint: {name: shape}."""
    v, e = c["VOCAB_SIZE"], c["N_EMBD"]
    shapes = {"wte.weight": (v, e)}
    if c["POSITION"] == "learned":
        shapes["wpe.weight"] = (c["CONTEXT"], e)
    for i in range(c["N_LAYER"]):
        for name in ("ln_1_post", "ln_2_post") if c["NORM_PLACEMENT"] == "both" else ():
            shapes |= norm_shapes(c, f"h.{i}.{name}")
        shapes |= norm_shapes(c, f"h.{i}.ln_1")
        shapes |= {f"h.{i}.attn.{name}": shape for name, shape in attention_shapes(c, i).items()}
        shapes |= norm_shapes(c, f"h.{i}.ln_2")
        shapes |= {f"h.{i}.ffn.{name}": shape for name, shape in ffn_shapes(c, i).items()}
    if c["RA_MLA_MLP_LATENT_RECIP"] and c["RA_MLA_MLP_TYING_MODE"] == "per_head_scalar":
        shapes |= {"couple.attn_to_mlp": (c["N_HEAD"],), "couple.mlp_to_attn": (c["N_HEAD"],)}
    shapes |= norm_shapes(c, "ln_f")
    if not c["WEIGHT_TYING"]:
        shapes["lm_head.weight"] = (v, e)
    return shapes


def count_parameters(c):
    return sum(math.prod(shape) for shape in parameter_shapes(c).values())
