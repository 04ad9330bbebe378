"""PyTorch's attention on a GPU, forward and backward, at T = 1k, 4k, 16k: what `make bench-cuda` sets
beside bench/attention_cuda.

    python bench/peer_attention_cuda.py [--forms dot,w2] [--lengths 1024]      a JSON object per line
    python bench/peer_attention_cuda.py --worker     compiles, says so, and waits for a line to measure

32,768 tokens, 12 heads, causal, bf16. `dot` is 64 wide, `w2` has 128-wide queries and keys, 64-wide
values and a number per key, `mla` one key head for all queries, 128 wide. Ways to write it:

    flash cudnn   the backends of scaled_dot_product_attention; w2's number is one more column of
                  queries and keys, which are then 136 wide
    flex          FlexAttention, compiled; w2's number is a score modification

Other sizes: `dot80` and so on; `w2_80`, whose queries and keys are 160 wide; `mla256`.

Operations are counted alike for all: two products forward, five backward, of the pairs that are seen
and of the form's own widths.
"""

import argparse
import json
import sys

import torch
import torch.nn.functional as F

TOKENS, HEADS, REPEATS = 32768, 12, 10
FORMS = {  # queries' and keys' width, values', key heads, ways
    "dot": (64, 64, HEADS, ("flash", "cudnn", "flex")),
    "w2": (128, 64, HEADS, ("cudnn", "flex")),
    "mla": (128, 128, 1, ("flash", "cudnn")),
}


def find_form(name):
    if name in FORMS:
        return FORMS[name]
    head = int(name.removeprefix("dot").removeprefix("w2_").removeprefix("mla"))
    if name.startswith("w2"):
        return 2 * head, head, HEADS, ("flex",)
    return head, head, 1 if name.startswith("mla") else HEADS, ("flash", "cudnn")


def choose_backend(way):
    cuda = torch.backends.cuda
    cuda.enable_cudnn_sdp(way == "cudnn")
    cuda.enable_flash_sdp(way == "flash")
    cuda.enable_mem_efficient_sdp(False)
    cuda.enable_math_sdp(False)


class Case:
    """A form at a length, written one way: inputs on the GPU and the two passes."""

    def __init__(self, form, time, way):
        self.form, self.time, self.way = form, time, way
        self.dqk, self.dv, self.key_heads, _ = find_form(form)
        batch = TOKENS // time
        self.numbers = form.startswith("w2")
        gap = 8 if self.numbers and way != "flex" else 0
        torch.manual_seed(1)

        def heads(n, width):
            x = torch.randn(batch, time, n, width, device="cuda", dtype=torch.bfloat16)
            return x.transpose(1, 2).requires_grad_()

        self.inputs = [heads(HEADS, self.dqk + gap), heads(self.key_heads, self.dqk + gap), heads(self.key_heads, self.dv)]
        if self.numbers and way == "flex":
            self.inputs.append(torch.randn(batch, HEADS, time, device="cuda").requires_grad_())
        self.upstream = torch.randn(batch, HEADS, time, self.dv, device="cuda", dtype=torch.bfloat16)
        self.mask = self.flex = None
        if way == "flex":
            from torch.nn.attention.flex_attention import create_block_mask, flex_attention

            self.mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, time, time, device="cuda")
            self.flex = torch.compile(flex_attention, dynamic=False)

    def forward(self):
        shared = self.key_heads != HEADS
        scale = self.dqk**-0.5
        if self.way != "flex":
            q, k, v = self.inputs
            choose_backend(self.way)
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=shared)
        q, k, v = self.inputs[:3]
        numbers = self.inputs[3] if self.numbers else None

        def add_number(score, b, h, i, j):
            return score + numbers[b, h, j]

        return self.flex(q, k, v, score_mod=add_number if numbers is not None else None, block_mask=self.mask, scale=scale,
                         enable_gqa=shared)

    def backward(self, o):
        return torch.autograd.grad(o, self.inputs, self.upstream, retain_graph=True)

    def measure(self):
        o = self.forward()
        forward = seconds_of(self.forward)
        backward = seconds_of(lambda: self.backward(o))
        pairs = TOKENS // self.time * HEADS * self.time * (self.time + 1) / 2
        work = (2 * pairs * (self.dqk + self.dv), 2 * pairs * (3 * self.dqk + 2 * self.dv))
        return dict(form=self.form, time=self.time, way=self.way, forward_ms=1e3 * forward, backward_ms=1e3 * backward,
                    forward_tflops=1e-12 * work[0] / forward, backward_tflops=1e-12 * work[1] / backward)


def seconds_of(run):
    for _ in range(3):
        run()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(REPEATS):
        run()
    end.record()
    torch.cuda.synchronize()
    return 1e-3 * start.elapsed_time(end) / REPEATS


def prepare(form, time, way):
    """A case that has run once, so that it is compiled; or the line that says why there is none."""
    try:
        case = Case(form, time, way)
        case.backward(case.forward())
        torch.cuda.synchronize()
        return case, None
    except Exception as problem:  # a way that this PyTorch cannot run is no row
        text = f"{type(problem).__name__}: {problem}".strip().splitlines()[0][:200]
        return None, dict(form=form, time=time, way=way, error=text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument("--lengths", default="1024,4096,16384")
    parser.add_argument("--cases", default="", help="FORM:LENGTH, separated by commas, in place of both")
    parser.add_argument("--worker", action="store_true")
    args = parser.parse_args()
    torch._dynamo.config.recompile_limit = 64  # a compiled function for each form and length
    cases = args.cases or ",".join(f"{f}:{t}" for f in args.forms.split(",") for t in args.lengths.split(","))
    cases = [prepare(f, int(t), w) for f, t in (c.split(":") for c in cases.split(",")) for w in find_form(f)[3]]
    if args.worker:
        print(json.dumps(dict(ready=True)), flush=True)
        if not sys.stdin.readline():
            return 0
    for case, error in cases:
        print(json.dumps(error or case.measure()), flush=True)
    if args.worker:
        print(json.dumps(dict(done=True)), flush=True)
        sys.stdin.readline()
    return 0


if __name__ == "__main__":
    sys.exit(main())
