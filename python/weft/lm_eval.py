"""A model for lm-evaluation-harness (pip install lm-eval), registered under the name "weft".

    import lm_eval, weft.lm_eval
    lm_eval.simple_evaluate(model="weft", model_args="model=runs/demo/best", tasks=["hellaswag"])

or, with a model that is open: lm_eval.simple_evaluate(model=weft.lm_eval.Weft(model), ...).
"""
import numpy as np

from ._model import Model

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

LEAST = 16


@register_model("weft")
class Weft(TemplateLM):
    """`model` is a checkpoint's folder or a weft.Model; other options are a config's, such as DTYPE."""

    def __init__(self, model=None, pretrained=None, batch_size=8, device="cpu", max_gen_toks=256, **options):
        super().__init__()
        model = model if model is not None else pretrained
        if model is None:
            raise ValueError("weft: name a checkpoint: model_args='model=DIR'")
        ignored = ("max_batch_size",)
        self.model = model if isinstance(model, Model) else Model(
            model, device=device or "cpu", **{k: v for k, v in options.items() if k not in ignored})
        if self.model.option("CAUSAL") != "y":
            raise ValueError("weft: a model with CAUSAL=n has seen the answers; its likelihoods mean nothing")
        self.tokenizer = self.model.tokenizer
        self.max_length = int(self.model.option("CONTEXT"))
        self.batch_size = 8 if batch_size in (None, "auto") else int(batch_size)
        self.max_gen_toks = int(max_gen_toks)

    @property
    def eot_token_id(self):
        return self.tokenizer.end

    @property
    def prefix_token_id(self):
        if self.eot_token_id is None:
            raise ValueError("weft: a context is empty, and the tokenizer has no token to begin with")
        return self.eot_token_id

    @property
    def tokenizer_name(self):
        return self.tokenizer.name.replace("/", "__")

    def tok_encode(self, string, add_special_tokens=None, **_):
        return self.tokenizer.encode(string)

    def tok_decode(self, tokens):
        return self.tokenizer.decode(tokens)

    def _padded(self, n):
        """Passes are built for a few lengths: powers of two up to the model's own."""
        time = LEAST
        while time < n:
            time *= 2
        return min(time, self.max_length)

    def _loglikelihood_tokens(self, requests, disable_tqdm=False, **_):
        """Requests are ((context, continuation), context's tokens, continuation's tokens)."""
        jobs = []
        for i, (_, context, continuation) in enumerate(requests):
            if not continuation or len(continuation) > self.max_length:
                raise ValueError(f"weft: a continuation has {len(continuation)} tokens; 1 to {self.max_length} can be told")
            whole = (list(context) + list(continuation))[-(self.max_length + 1):]
            jobs.append((self._padded(len(whole) - 1), i, whole, len(continuation)))
        jobs.sort(key=lambda job: job[:2])
        out, bar = [None] * len(jobs), _bar(len(jobs), disable_tqdm)
        at = 0
        while at < len(jobs):
            some = [job for job in jobs[at:at + self.batch_size] if job[0] == jobs[at][0]]
            tokens = np.zeros((len(some), some[0][0]), np.int32)
            for row, (_, _, whole, _) in zip(tokens, some):
                row[:len(whole) - 1] = whole[:-1]
            logits = self.model.logits(tokens).astype(np.float64)
            for rows, (_, i, whole, n) in zip(logits, some):
                rows, told = rows[len(whole) - 1 - n:len(whole) - 1], np.array(whole[-n:])
                most = rows.max(-1, keepdims=True)
                lse = most[:, 0] + np.log(np.exp(rows - most).sum(-1))
                out[i] = float((rows[np.arange(n), told] - lse).sum()), bool((rows.argmax(-1) == told).all())
                self.cache_hook.add_partial("loglikelihood", requests[i][0], out[i])
            at += len(some)
            bar.update(len(some))
        bar.close()
        return out

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        """Whole texts, in windows of the model's length that each tell every token once."""
        out = []
        for (text,) in (request.args for request in requests):
            tokens = self.tok_encode(text)
            windows = list(map(make_disjoint_window, get_rolling_token_windows(
                token_list=tokens, prefix_token=self.prefix_token_id, max_seq_len=self.max_length, context_len=1)))
            scored = self._loglikelihood_tokens([(("", text), *window) for window in windows], disable_tqdm=True)
            out.append(sum(score for score, _ in scored))
        return out

    def generate_until(self, requests, disable_tqdm=False):
        out, bar = [], _bar(len(requests), disable_tqdm)
        for context, options in (request.args for request in requests):
            options = dict(options)
            until = options.pop("until", []) or []
            until = [until] if isinstance(until, str) else list(until)
            most = int(options.pop("max_gen_toks", options.pop("max_tokens", self.max_gen_toks)))
            sample = bool(options.pop("do_sample", float(options.get("temperature", 0) or 0) > 0))
            sampling = {k: options[k] for k in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed") if k in options}
            if not sample:
                sampling["temperature"] = 0
            out.append(self._text_until(context, until, min(most, self.max_length - 1), sampling))
            bar.update(1)
        bar.close()
        return out

    def _text_until(self, context, until, most, sampling):
        prompt = (self.tok_encode(context) or [self.prefix_token_id])[-(self.max_length - most):]
        made = []
        for token in self.model.generate(prompt, stream=True, max_tokens=most, **sampling):
            if token.token == self.eot_token_id:
                break
            made.append(token.token)
            text = self.tok_decode(made)
            ends = [text.index(stop) for stop in until if stop and stop in text]
            if ends:
                return text[:min(ends)]
        return self.tok_decode(made)


class _NoBar:
    def update(self, n=1):
        pass

    def close(self):
        pass


def _bar(total, disable):
    try:
        from tqdm import tqdm
    except ImportError:
        return _NoBar()
    return tqdm(total=total, disable=disable, desc="weft")
