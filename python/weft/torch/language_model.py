"""A whole model: embedding, layers on weft's kernels, final norm, head.

Parameters have the names of a checkpoint, so state_dict() and model.safetensors are the same list.
Layers are modules of their own (model.h[3]), which hooks, freezing and replacing can take hold of.
"""
import torch
from torch import nn
from torch.nn import functional

from .. import _blocks
from .._library import text
from .._model import Model, checkpoint_folder, folder_options
from . import _ops
from ._part import Part, drawn_seed, owner_of, read_tensor

EPS = {"layernorm": 1e-5, "rmsnorm": 1e-6}
COUPLE = ("couple.attn_to_mlp", "couple.mlp_to_attn")
# What they make goes to the next layer; the last one's is read by nobody.
TO_NEXT = ("ffn.gate_proj.weight", "ffn.gate_heads.weight", "ffn.gate_heads.bias", "ffn.mlp_down.weight", "ffn.mlp_to_attn.weight")
# Read by the model around the layers.
KEYS = ("N_LAYER", "N_EMBD", "VOCAB_SIZE", "CONTEXT", "POSITION", "NORM", "NORM_EPS", "WEIGHT_TYING",
        "LAMBDA_LOGITS_Z", "LOGITS_Z_DETACH", "RA_MLA_MLP_ATTN_GATE", "RA_MLA_MLP_LATENT_RECIP", "DTYPE", "ATTENTION",
        "FFN", "N_HEAD", "MUP", "MUP_BASE_WIDTH", "NOPE_EVERY", "WINDOW_EVERY", "EMBED_SCALE", "SOFTCAP_LOGITS")
# A layer does not depend on these, and blocks are found by their options.
NOT_LAYERS = ("N_LAYER", "VOCAB_SIZE", "SEED", "DTYPE", "DEVICE", "PRESET", "TOKENIZER", "NOPE_EVERY", "WINDOW_EVERY",
              "EMBED_SCALE", "SOFTCAP_LOGITS")


class LanguageModel(nn.Module):
    """A model by the options of a weft config: LanguageModel(ATTENTION="w2", N_LAYER=4, N_EMBD=256, N_HEAD=4).

        logits = model(tokens)                    # [B, T] → [B, T, vocabulary]
        logits, loss = model(tokens, targets)     # targets [B, T], -1: does not count
        model.losses(tokens, targets)             # the loss by parts

    In training the loss has the auxiliary parts too. Weights start as the engine starts them, from
    torch's random seed; SEED= sets another."""

    def __init__(self, **options):
        super().__init__()
        options = {key.upper(): text(value) for key, value in options.items()}
        options.setdefault("SEED", str(drawn_seed()))
        with Model(**options) as model:
            self._build(model, options)

    @classmethod
    def load(cls, path, **options):
        """The model of a checkpoint, or of a run's folder."""
        folder = checkpoint_folder(path)
        with Model(folder, **options) as model:
            self = cls.__new__(cls)
            nn.Module.__init__(self)
            self._build(model, {**folder_options(folder), **{key.upper(): text(value) for key, value in options.items()}})
            self.text = model.text
        return self

    def _build(self, model, options):
        self.options, self.text = options, None
        self.config = {key: model.option(key) for key in KEYS}
        wide = torch.float64 if self.config["DTYPE"] == "f64" else torch.float32
        matrix = _ops.TYPES[self.config["DTYPE"]]
        names = model.names()
        layer = {k: v for k, v in options.items() if k not in NOT_LAYERS and not k.startswith(("STUDY_", "SPAM_", "ADAM_"))}
        layer.update(self._layer_sizes(model))
        self.h = nn.ModuleList()
        for i in range(int(self.config["N_LAYER"])):
            head = f"h.{i}."
            own = {name[len(head):]: read_tensor(model, name) for name in names if name.startswith(head)}
            other = {option: value for key, option, value in (("NOPE_EVERY", "POSITION", "none"), ("WINDOW_EVERY", "WINDOW", "0"))
                     if int(self.config[key]) and (i + 1) % int(self.config[key]) == 0}
            self.h.append(Part("layer", first=i == 0, weights=own, shared=COUPLE, **(layer | other)))
        self.h[-1].unread = TO_NEXT
        for name in names:
            if not name.startswith("h."):
                value = read_tensor(model, name)
                owner_of(self, name, make=True).register_parameter(name.rpartition(".")[2], nn.Parameter(value))
        self._set_types(matrix, wide)

    @staticmethod
    def _layer_sizes(model):
        """Sizes that a preset or a default may have set."""
        return {key: model.option(key) for key in
                ("N_EMBD", "N_HEAD", "N_FFN", "ATTENTION", "FFN", "NORM", "POSITION", "BIAS", "CONTEXT",
                 "DROPOUT", "RA_MLA_LATENT_DIM", "RA_MLA_MLP_ATTN_GATE", "RA_MLA_MLP_CROSS_TOKEN",
                 "RA_MLA_MLP_LATENT_RECIP", "WSFFN_N_HEAD", "WSFFN_Z_PROJ", "QK_NORM")}

    def _set_types(self, matrix, wide):
        """Each parameter in the type that a checkpoint of this DTYPE keeps it in."""
        for layer in self.h:
            kinds = dict(_ops.describe("cpu", "layer", layer._text(matrix), layer.first, _blocks.TRAIN | _blocks.GRADIENT)[1])
            for name in layer.names:
                if name not in COUPLE:
                    parameter = getattr(owner_of(layer, name), name.rpartition(".")[2])
                    parameter.data = parameter.data.to(kinds[name])
        for name, parameter in self.named_parameters():
            if not name.startswith("h."):
                parameter.data = parameter.data.to(matrix if name.split(".")[0] in ("wte", "wpe", "lm_head") else wide)

    @property
    def dtype(self):
        return self.wte.weight.dtype

    def _shared(self):
        return {name: getattr(owner_of(self, name), name.rpartition(".")[2]) for name in COUPLE} \
            if hasattr(self, "couple") else None

    def _embed(self, tokens):
        if tokens.dim() != 2 or not tokens.numel() or tokens.is_floating_point():
            raise ValueError(f"weft: tokens are {tuple(tokens.shape)} {tokens.dtype}, but whole numbers [batch, time] are wanted")
        time, most = tokens.shape[1], int(self.config["CONTEXT"])
        if self.config["POSITION"] in ("learned", "relative") and time > most:
            raise ValueError(f"weft: {time} tokens, but CONTEXT is {most}")
        x = functional.embedding(tokens, self.wte.weight)
        x = x + self.wpe.weight[:time] if hasattr(self, "wpe") else x
        return x * float(self.config["EMBED_SCALE"])

    def _norm(self, x):
        kind = self.config["NORM"]
        eps = float(self.config["NORM_EPS"]) or EPS[kind]
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        if kind == "layernorm":
            bias = getattr(self.ln_f, "bias", None)
            y = functional.layer_norm(wide, wide.shape[-1:], self.ln_f.weight.to(wide.dtype),
                                      None if bias is None else bias.to(wide.dtype), eps)
        else:
            y = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * self.ln_f.weight.to(wide.dtype)
        return y.to(x.dtype)

    def hidden(self, tokens):
        """What the head reads, [B, T, N_EMBD], and the layers' auxiliary losses by name."""
        x, shared, aux = self._embed(tokens), self._shared(), {}
        passed = [name for key, name in (("RA_MLA_MLP_ATTN_GATE", "gate"), ("RA_MLA_MLP_LATENT_RECIP", "sent"))
                  if self.config[key] == "y"]
        out = {}
        for i, layer in enumerate(self.h):
            out = layer(x, *([out[name] for name in passed] if i else []), shared=shared)
            x = out["y"]
            for name in ("aux_z", "aux_contrastive"):
                if name in out:
                    aux[name] = aux[name] + out[name] if name in aux else out[name]
        return self._norm(x), aux

    def forward(self, tokens, targets=None):
        logits, losses = self._run(tokens, targets)
        return logits if targets is None else (logits, losses["loss"])

    def losses(self, tokens, targets):
        """"loss", the sum of the others: "cross_entropy", "logits_z", "aux_z", "aux_contrastive"."""
        return self._run(tokens, targets)[1]

    def _run(self, tokens, targets):
        x, aux = self.hidden(tokens)
        head = self.lm_head.weight if hasattr(self, "lm_head") else self.wte.weight
        if self.config["MUP"] == "y":
            x = x * (float(self.config["MUP_BASE_WIDTH"]) / float(self.config["N_EMBD"]))
        logits, cap = functional.linear(x, head.to(x.dtype)), float(self.config["SOFTCAP_LOGITS"])
        if cap:
            logits = cap * torch.tanh(logits / cap)
        if targets is None:
            return logits, None
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        count = (targets != -1).sum().clamp_min(1)
        cross = functional.cross_entropy(wide.flatten(0, 1), targets.flatten().long(), ignore_index=-1, reduction="sum") / count
        losses = {"cross_entropy": cross}
        factor = float(self.config["LAMBDA_LOGITS_Z"])
        if factor > 0:
            z = wide.detach() if self.config["LOGITS_Z_DETACH"] == "y" else wide
            losses["logits_z"] = factor * z.logsumexp(-1).pow(2).mean()
        losses.update(aux)
        losses["loss"] = sum(losses.values())
        return logits, losses

    def engine_model(self, **options):
        """A weft.Model with these weights, for instance to generate with."""
        kind = _ops.type_name(self.dtype)
        model = Model(**{**self.options, **options, "DTYPE": kind})
        state = {name: t.detach() for name, t in self.named_parameters()}
        if set(state) != set(model.names()):
            raise ValueError("weft: the module's parameters are not those of its options: "
                             + ", ".join(sorted(set(state) ^ set(model.names()))[:4]))
        for name, value in state.items():
            value = value.to("cpu", torch.float64 if kind == "f64" else torch.float32).contiguous().resolve_neg()
            model.write_from(name, value, value.dtype, torch.device("cpu"))
        model.text = self.text
        return model

    def save(self, folder):
        """Writes a model's folder that weft's commands read, with the very numbers of the parameters; see weft.Model.save."""
        with self.engine_model() as model:
            model.save(folder)

    @torch.no_grad()
    def generate(self, prompt, **options):
        """How a text or a list of tokens goes on; see weft.generate. The weights are copied once for
        each call; for many calls use model.engine_model().generate."""
        with self.engine_model() as model:
            out = model.generate(prompt, **options)
            return list(out) if options.get("stream") else out

    def extra_repr(self):
        count = sum(p.numel() for p in self.parameters())
        c = self.config
        return f"{c['ATTENTION']}, {c['FFN']}, {c['N_LAYER']} layers of width {c['N_EMBD']}, {count:,} parameters"
