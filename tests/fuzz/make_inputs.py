#!/usr/bin/env python3
"""Writes tests/fuzz/inputs: the small files from which `make fuzz` starts, and `make test` runs them.

Each is a whole file as its reader wants it, or nearly one, as short as it can be: a fuzzer finds the
damaged ones by itself. What the bytes of each target mean is said at the head of
tests/fuzz/fuzz_TARGET.c."""
import gzip
import json
import pathlib
import struct

INPUTS = pathlib.Path(__file__).parent / "inputs"


def write(target, name, *parts):
    folder = INPUTS / target
    folder.mkdir(parents=True, exist_ok=True)
    data = b"".join(p if isinstance(p, bytes) else p.encode() for p in parts)
    (folder / name).write_bytes(data)


def safetensors(tensors, metadata=None):
    """tensors: name, type, shape, bytes."""
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, kind, shape, raw in tensors:
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def zeros(*shape):
    n = 4
    for s in shape:
        n *= s
    return bytes(n)


# The model of fuzz_safetensors.c: one layer, one head, all widths 2.
MODEL = {
    "h.0.attn.out.bias": [2], "h.0.attn.out.weight": [2, 2], "h.0.attn.qkv.bias": [6],
    "h.0.attn.qkv.weight": [6, 2], "h.0.ffn.fc.bias": [2], "h.0.ffn.fc.weight": [2, 2],
    "h.0.ffn.proj.bias": [2], "h.0.ffn.proj.weight": [2, 2], "h.0.ln_1.bias": [2],
    "h.0.ln_1.weight": [2], "h.0.ln_2.bias": [2], "h.0.ln_2.weight": [2], "ln_f.bias": [2],
    "ln_f.weight": [2], "wpe.weight": [2, 2], "wte.weight": [2, 2],
}


def make_safetensors():
    write("safetensors", "empty", safetensors([]))
    write("safetensors", "types", safetensors(
        [("a", "F32", [2], bytes(8)), ("b", "I64", [], bytes(8)), ("c", "BF16", [1, 3], bytes(6)),
         ("d", "F64", [0, 5], b"")], {"format": "pt"}))
    write("safetensors", "model", safetensors([(n, "F32", s, zeros(*s)) for n, s in MODEL.items()]))
    write("safetensors", "optimizer", safetensors(
        [(f"{k}.{n}", "F32", s, zeros(*s)) for k in "mv" for n, s in MODEL.items()]
        + [("state", "F64", [8], bytes(64))]))


def make_configs():
    write("config", "keys", 'CONFIG_N_LAYER=2\n# CONFIG_CAUSAL is not set\nCONFIG_ATTENTION="w2"\n',
          'CONFIG_LEARNING_RATE="1e-3"\nCONFIG_DROPOUT=0.1\nCONFIG_DATASET="a\\"b\\\\c"\n# words\n')
    write("config", "overrides", "n_layer=2\nCONFIG_FFN=swiglu\nDATASET=\"x\"\nTOKENIZER=\nSEED=9007199254740991")
    write("config_json", "keys", json.dumps(
        {"n_layer": 2, "n_head": 2, "n_embd": 4, "attention": "mla", "causal": True,
         "learning_rate": 0.001, "dataset": "embedded", "ffn": "wsffn", "wsffn_n_head": 2}))
    write("study", "ablation", 'CONFIG_ATTENTION="mla"\nCONFIG_RA_MLA_ABLATION_STEPS="0,1,2,3,4,5"\n',
          'CONFIG_STUDY_SEEDS=2\nCONFIG_STUDY_LEARNING_RATES="1e-3, 3e-3"\n')
    write("study", "steps", 'CONFIG_STUDY_VARIANTS="dot; w2 vs dot: ATTENTION=w2 N_FFN=16; x vs w2:',
          ' FFN=swiglu DROPOUT=\\"0.1\\""\nCONFIG_STUDY_EQUAL="parameters"\nCONFIG_STUDY_RATE_SEED=7\n')
    write("study", "tokens", 'CONFIG_STUDY_EQUAL="tokens"\nCONFIG_STEPS=7\nCONFIG_STUDY_SCORE="train_loss"\n')


def make_state():
    state = {"format": 2, "iteration": 12, "skipped": 0, "skipped_in_a_row": 0, "best_val_loss": 3.5,
             "logged_every": 10, "dataset_crc32c": "01234567", "files": {
                 "config.json": {"bytes": 2, "crc32c": "00000000"},
                 "model.safetensors": {"bytes": 2, "crc32c": "00000000"},
                 "optimizer.safetensors": {"bytes": 0, "crc32c": "00000000"}}}
    text = json.dumps(state, indent=2)
    write("state_json", "summed", "1", text[:-2])  # the target adds the checksum
    write("state_json", "format-1", "0", json.dumps(dict(state, format=1)), "\n")


BYTE_LEVEL = '{"type":"ByteLevel","add_prefix_space":false,"use_regex":%s}'
SPLIT = '{"type":"Split","behavior":"Isolated","pattern":{"%s":%s}}'


def tokenizer(pre, vocab="", merges="", added="", more=""):
    return ('{"added_tokens":[%s],"pre_tokenizer":%s,"model":{"type":"BPE","vocab":{"@"%s},"merges":[%s]%s}}'
            % (added, pre, vocab, merges, more))


def make_tokenizers():
    text = "\0The cat's 12\n caf\u00e9 <|end|>"
    end = '{"id":300,"content":"<|end|>","special":true}'
    write("tokenizer_json", "gpt2", tokenizer(BYTE_LEVEL % "true", ',"he":256,"The":257', '"h e","T he"', end), text)
    write("tokenizer_json", "steps", tokenizer(
        '{"type":"Sequence","pretokenizers":[%s,%s,{"type":"Digits","individual_digits":true},%s]}'
        % (SPLIT % ("Regex", '"\\\\p{L}+|[^a-z]"'), SPLIT % ("String", '"."'), BYTE_LEVEL % "false"),
        ',"ab":256', '["a","b"]', "", ',"ignore_merges":true'), text)
    write("merges", "numbered", "#version: 0.2\nh e\nT he\n\0\0The end", b"\xff")
    write("merges", "encoder", "h e\r\nhe y\n", '\0{"@","he":256,"hey":257,"<|endoftext|>":258}\0hey <|endoftext|>')
    write("regex", "gpt4", r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|\s+(?!\S)|\s+", "\0It's 12345  caf\u00e9\n")
    write("regex", "groups", r"(a|b)*?c(?=d)|x{2,}|[A-Z^&]++|\p{Lu}(?!x)", "\0ababcd xx ABC")


def make_tokens():
    head = "{'descr': '<i4', 'fortran_order': False, 'shape': (1, 3), }"
    head += " " * ((-10 - len(head) - 1) % 16) + "\n"
    data = struct.pack("<3i", 1, 2, 3)
    write("npy", "array", b"\x93NUMPY\x01\x00", struct.pack("<H", len(head)), head, data)
    wide = head.replace("<i4", "<i8").replace("(1, 3)", "(3,)  ")
    write("npy", "version-2", b"\x93NUMPY\x02\x00", struct.pack("<I", len(wide)), wide, struct.pack("<3q", 1, 2, 3))
    tokens = struct.pack("<8H", *range(8))
    write("npy", "shard", struct.pack("<3i", 20240520, 1, 8), bytes(1012), tokens)
    # The target puts in the zeros of the header.
    write("shards", "uint16", b"\x01", struct.pack("<3i", 20240520, 1, 8), tokens)
    write("shards", "uint32", b"\x7f", struct.pack("<3i", 20240801, 7, 8), struct.pack("<8I", *range(8)))
    write("shards", "whole", b"\x81", struct.pack("<3i", 20240520, 1, 8), bytes(1012), tokens)


def make_lines():
    line = '{"text": "a\\u00e9b", "n": 1}\n'
    write("jsonl", "lines", b"\x64", line * 3, "\n", '{"text": "end"}')
    text = b"one two\nthree\n" * 3
    write("jsonl", "text", b"\x48", text)
    write("jsonl", "gzip", b"\x48", gzip.compress(text, mtime=0))
    write("jsonl", "zstd", b"\x48", b"\x28\xb5\x2f\xfd\x20", bytes([len(text)]), struct.pack("<I", len(text) << 3 | 1)[:3], text)
    row = '{"step": %d, "loss": 2.5, "cross_entropy": 2.5, "tokens_per_s": 10.0}\n'
    write("metrics", "rows", struct.pack("<2q", 3, 1), row % 1, row % 2, row % 3)
    write("metrics", "damaged", struct.pack("<2q", 4, 2), row % 2, "{}\n", row % 4, row % 6, '{"step": 8')


def make_requests():
    write("request", "completion", b"\0\0", json.dumps(
        {"model": "m", "prompt": ["a", "b"], "max_tokens": 4, "temperature": 0.5, "top_p": 0.9, "n": 2,
         "stop": ["\n"], "seed": 7, "logprobs": 2}))
    write("request", "tokens", b"\0\0", json.dumps({"prompt": [1, 2, 3], "echo": True, "stream": True}))
    write("request", "chat", b"\x01", "{role}:\\n{content}\\n\\n", b"\0", json.dumps(
        {"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": [
            {"type": "text", "text": "y"}]}], "max_completion_tokens": 4, "top_logprobs": 2, "logprobs": True}))


def make_database():
    number = struct.pack
    write("runs_db", "whole", b"")
    # table, column, row, kind of value, value
    write("runs_db", "values", b"\x02\x03\x00\x01", number("<q", 99), b"\x02\x06\x01\x04", "why\0",
          b"\x03\x02\x00\x03", number("<d", 1e300), b"\x01\x06\x00\x02\x05")
    write("runs_db", "rows", b"\x03\x80\x00\x04\x80\x00\x05\x80\x01")
    write("runs_db", "names", b"\x01\x01\x00\x04", "\x1b[31m<b>&\0", b"\x00\x03\x00\x04", "N_LAYER=2\0")


if __name__ == "__main__":
    for make in (make_safetensors, make_configs, make_state, make_tokenizers, make_tokens, make_lines,
                 make_requests, make_database):
        make()
