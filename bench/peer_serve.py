"""PyTorch's server beside weft's, for `weft bench serve --url`: a GPT-2 that weft wrote, behind /v1/completions.

    peer_serve.py DIR [--device cuda] [--dtype bf16] [--sequences 16] [--threads N] [--port N]

DIR is a checkpoint of weft's with dot attention, learned positions and GELU. Prompts are lists of tokens, texts are
greedy, answers are streams. A loop as one would write it: a prompt that comes is read whole, then all texts get their
next token in one step (continuous batching, at most --sequences at once), by scaled_dot_product_attention over caches
that are allocated once. Nothing is compiled, and prompts are not read in pieces. It prints its address.
"""
import argparse
import http.server
import json
import pathlib
import queue
import threading

import torch
import torch.nn.functional as F


def read_weights(path):
    data = torch.from_file(str(path), size=path.stat().st_size, dtype=torch.uint8)
    head = int.from_bytes(bytes(data[:8].tolist()), "little")
    for name, entry in json.loads(bytes(data[8:8 + head].tolist())).items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            yield name, data[8 + head + first:8 + head + last].clone().view(torch.float32).view(entry["shape"])


class Model:
    """Texts in the places 0 to n − 1 of the caches."""

    def __init__(self, folder, device, dtype, sequences):
        c = json.loads((folder / "config.json").read_text())
        if (c["attention"], c["position"], c["ffn"]) != ("dot", "learned", "gelu") or c["dtype"] != "f32":
            raise SystemExit(f"{folder}: not a GPT-2 in f32: dot attention, learned positions and GELU are needed")
        self.w = {name: t.to(device, dtype) for name, t in read_weights(folder / "model.safetensors")}
        self.layers, self.heads, self.context, self.device = c["n_layer"], c["n_head"], c["context"], device
        shape = self.layers, sequences, self.heads, self.context, c["n_embd"] // c["n_head"]
        self.k, self.v = (torch.empty(shape, dtype=dtype, device=device) for _ in range(2))

    def linear(self, x, name):
        return F.linear(x, self.w[name + ".weight"], self.w[name + ".bias"])

    def norm(self, x, name):
        return F.layer_norm(x, x.shape[-1:], self.w[name + ".weight"], self.w[name + ".bias"])

    def run(self, tokens, positions, attend):
        """The likeliest tokens behind the last of each row."""
        x = self.w["wte.weight"][tokens] + self.w["wpe.weight"][positions]
        for i in range(self.layers):
            y = self.linear(self.norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.qkv")
            q, k, v = y.view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            x = x + self.linear(attend(i, q, k, v).transpose(1, 2).reshape(x.shape), f"h.{i}.attn.out")
            y = F.gelu(self.linear(self.norm(x, f"h.{i}.ln_2"), f"h.{i}.ffn.fc"), approximate="tanh")
            x = x + self.linear(y, f"h.{i}.ffn.proj")
        return F.linear(self.norm(x[:, -1], "ln_f"), self.w["wte.weight"]).argmax(-1).tolist()

    def read(self, place, prompt):
        def attend(i, q, k, v):
            self.k[i, place, :, :len(prompt)], self.v[i, place, :, :len(prompt)] = k[0], v[0]
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        tokens = torch.tensor([prompt], device=self.device)
        return self.run(tokens, torch.arange(len(prompt), device=self.device), attend)[0]

    def step(self, tokens, positions):
        n, longest, at = len(tokens), max(positions) + 1, torch.tensor(positions, device=self.device)
        rows = torch.arange(n, device=self.device)
        mask = (torch.arange(longest, device=self.device) <= at[:, None])[:, None, None]

        def attend(i, q, k, v):
            self.k[i, rows, :, at], self.v[i, rows, :, at] = k[:, :, 0], v[:, :, 0]
            return F.scaled_dot_product_attention(q, self.k[i, :n, :, :longest], self.v[i, :n, :, :longest], mask)

        return self.run(torch.tensor(tokens, device=self.device)[:, None], at[:, None], attend)

    def move(self, last, place, length):
        for cache in self.k, self.v:
            cache[:, place, :, :length] = cache[:, last, :, :length]


class Text:
    def __init__(self, prompt, most):
        self.prompt, self.left, self.position, self.token, self.gone = prompt, most, len(prompt), None, False
        self.out = queue.Queue()

    def put(self, token):
        self.token, self.left = token, self.left - 1
        self.out.put(token)


@torch.inference_mode()
def work(model, waiting, sequences):
    texts = []
    while True:
        while len(texts) < sequences and (not texts or not waiting.empty()):
            text = waiting.get()
            text.put(model.read(len(texts), text.prompt))
            texts.append(text)
        for i in reversed(range(len(texts))):
            if texts[i].left > 0 and not texts[i].gone:
                continue
            texts[i].out.put(None)
            last = texts.pop()
            if i < len(texts):
                model.move(len(texts), i, last.position)
                texts[i] = last
        if texts:
            for text, token in zip(texts, model.step([t.token for t in texts], [t.position for t in texts])):
                text.position += 1
                text.put(token)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        room = self.server.context - len(request["prompt"])
        self.send_response(200 if room > 0 else 400)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        if room <= 0:
            return
        text = Text(request["prompt"], min(request["max_tokens"], room))
        self.server.waiting.put(text)
        try:
            while (token := text.out.get()) is not None:
                self.say(json.dumps({"choices": [{"index": 0, "token_ids": [token]}]}))
            self.say("[DONE]")
        except OSError:
            text.gone = True

    def say(self, event):
        self.wfile.write(f"data: {event}\n\n".encode())

    def log_message(self, *_):
        pass


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("--device", default="cpu")
    p.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    p.add_argument("--sequences", type=int, default=16)
    p.add_argument("--threads", type=int)
    p.add_argument("--port", type=int, default=0)
    a = p.parse_args()
    if a.threads:
        torch.set_num_threads(a.threads)
    model = Model(a.folder, a.device, {"f32": torch.float32, "bf16": torch.bfloat16}[a.dtype], a.sequences)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", a.port), Handler)
    server.daemon_threads, server.waiting, server.context = True, queue.Queue(), model.context
    threading.Thread(target=work, args=(model, server.waiting, a.sequences), daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
