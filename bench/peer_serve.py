"""A model of transformers behind /v1/completions, for `weft bench serve --url`: one request after the other.

    peer_serve.py DIR [PORT]

DIR is a folder that transformers reads, such as `weft convert --to-hf` writes. Prompts are lists of tokens, answers
are streams; a request that comes while another is answered waits, as in a loop around `generate`.
"""
import http.server
import json
import sys
import threading

import torch
import transformers

ONE = threading.Lock()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        with ONE, torch.inference_mode():
            tokens, cache = torch.tensor([request["prompt"]]), None
            for _ in range(request["max_tokens"]):
                out = MODEL(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
                tokens, cache = out.logits[:, -1:].argmax(-1), out.past_key_values
                self.say({"choices": [{"index": 0, "token_ids": tokens[0].tolist()}]})
        self.wfile.write(b"data: [DONE]\n\n")

    def say(self, event):
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    MODEL = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2]) if len(sys.argv) == 3 else 8001), Handler)
    print("http://127.0.0.1:%d" % server.server_port, flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
