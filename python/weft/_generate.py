"""Generation: texts that a model goes on with, all at once or as they come.

A generation has a cache for each sequence and works on all of them at a time. Sequences do not
influence each other: each makes the tokens it would make alone.
"""
import codecs
import ctypes
from ctypes import byref, c_float, c_int, c_int32, c_int64

from . import _blocks, _door, _progress
from ._library import InputError, check, handle, lib, text, texts

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "sample", "max_tokens", "end_token")
TAKEN, MAX_TOKENS = 64, 256


class Token:
    """One token as it comes: its number, its text where that is whole, its log-probability, and which
    prompt it goes on with."""
    __slots__ = ("token", "text", "logprob", "prompt")

    def __init__(self, token, text, logprob, prompt):
        self.token, self.text, self.logprob, self.prompt = token, text, logprob, prompt

    def __repr__(self):
        return f"Token({self.token}, {self.text!r}, logprob={self.logprob:.4f})"

    def __str__(self):
        return self.text


class _Sequence:
    def __init__(self, id, model, prompt):
        self.id, self.prompt, self.ended = id, prompt, False
        self.tokenizer = model.tokenizer if model is not None else None
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def text(self, token):
        if self.tokenizer is None:
            return ""
        if token >= self.tokenizer.vocabulary:  # a vocabulary that was padded has numbers without a text
            return "\ufffd"
        return self.decoder.decode(self.tokenizer.decode_bytes([token]))


def _tokens(model, prompt):
    if isinstance(prompt, (str, bytes)):
        return model.tokenizer.encode(prompt)
    return prompt


def _sampling(options, end):
    unknown = set(options) - set(SAMPLING)
    if unknown:
        raise TypeError(f"weft.generate: unknown option {sorted(unknown)[0]!r}; there are " + ", ".join(SAMPLING))
    options = {key: value for key, value in options.items() if value is not None}
    if end is not None:
        options.setdefault("end_token", end)
    return [f"{key}={text(value)}" for key, value in options.items()]


def stream(model, prompts, context=0, sequences=0, **options):
    """Yields the tokens of all prompts as they are made."""
    known = all(not isinstance(p, (str, bytes)) for p in prompts)
    end = None
    texted = model
    if known:
        try:
            end = model.tokenizer.end
        except Exception:  # tokens alone are wanted, and a tokenizer is not there
            texted = None
    else:
        end = model.tokenizer.end
    said = texts(_sampling(options, end))
    engine = _blocks.engine("cpu")
    with model._lock:
        generation = handle(lib.weft_generation_open, engine, model._open(), sequences or min(len(prompts), 64), context)
        model._generations.append(generation)  # it reads the model's weights, and goes before them
    try:
        running = []
        for i, prompt in enumerate(prompts):
            (array, count), id = _door.tokens(_tokens(model, prompt)), c_int64()
            if not count:
                raise InputError("weft.generate: the prompt is empty; give it one token at least")
            with model._lock:
                model._open()
                check(lib.weft_generation_add(generation, array, count, said, byref(id)))
            running.append(_Sequence(id, texted, i))
        made, logprobs = (c_int32 * TAKEN)(), (c_float * TAKEN)()
        busy, ended, broken = c_int(1), c_int(), None
        while running:
            with model._lock:
                model._open()
                if busy.value:
                    check(lib.weft_generation_step(generation, byref(busy)))
            for sequence in running:
                with model._lock:
                    model._open()
                    n = lib.weft_generation_take(generation, sequence.id, made, logprobs, TAKEN, byref(ended))
                for k in range(n):
                    yield Token(made[k], sequence.text(made[k]), logprobs[k], sequence.prompt)
                sequence.ended = bool(ended.value)
                if ended.value < 0 and broken is None:
                    broken = lib.weft_error_message().decode(errors="replace")
            running = [sequence for sequence in running if not sequence.ended]
        if broken is not None:
            raise InputError(broken)
    finally:
        with model._lock:
            if generation in model._generations:
                model._generations.remove(generation)
                lib.weft_generation_close(generation)


def generate(model, prompt, stream=False, n=1, progress=None, context=0, **options):
    """How a text goes on.

    `model` is a weft.Model or the folder of a checkpoint; `prompt` a text, a list of tokens, or a list
    of either. Returns the text that follows, or the tokens where tokens were given; a list for a list,
    and for n > 1 samples of one prompt. With `stream` it returns an iterator of Token in place of
    that. `progress` True shows a bar (tqdm's, where it can be imported), False none; unless it is given,
    there is one where standard error is a terminal and the call takes a while. Options: temperature,
    top_k, top_p, min_p, repetition_penalty, seed, sample, max_tokens, end_token.
    """
    from ._model import Model
    own = not isinstance(model, Model)
    if own:
        model = Model(model)
    one = isinstance(prompt, (str, bytes)) or (len(prompt) > 0 and not isinstance(prompt[0], (str, bytes, list, tuple))
                                               and not hasattr(prompt[0], "__len__"))
    prompts = [prompt] if one else list(prompt)
    if not prompts:
        raise InputError("weft.generate: there is no prompt")
    if n < 1:
        raise InputError(f"weft.generate: n is {n}, but one sample is the least")
    if n > 1 and not one:
        raise InputError("weft.generate: n > 1 goes with one prompt")
    if stream:
        if n > 1:
            raise InputError("weft.generate: stream goes with n = 1; call it with sample=1, 2, ... for others")
        return _stream(model, prompts, context=context, **options)
    most = options.get("max_tokens")
    with _progress.shown(progress, "generate", "token", n * len(prompts) * (MAX_TOKENS if most is None else int(most))) as told:
        if n == 1:
            out = _whole(model, prompts, told, context=context, **options)
            return out[0] if one else out
        first = int(options.pop("sample", 0))
        return [_whole(model, prompts, told, context=context, sample=first + i, **options)[0] for i in range(n)]


_stream = stream


def _text(tokenizer, tokens):
    if tokens and tokens[-1] == tokenizer.end:
        tokens = tokens[:-1]
    return tokenizer.decode([t for t in tokens if t < tokenizer.vocabulary])


def _whole(model, prompts, told, **options):
    """How each prompt goes on; `told` of each token."""
    made = [[] for _ in prompts]
    for token in _stream(model, prompts, **options):
        made[token.prompt].append(token.token)
        told(1)
    return [_text(model.tokenizer, tokens) if isinstance(p, (str, bytes)) else tokens for p, tokens in zip(prompts, made)]
