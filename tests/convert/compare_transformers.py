"""Converted models against transformers: compare_transformers.py WEFT SCRATCH TOKENIZER [--table]

For every model of hf_models.py: its logits by `weft eval` equal those of transformers, `weft generate` gives the tokens of its
greedy generation, the folder that `--to-hf` writes has the same logits, and where it is of the same family the weights again, bit
for bit. Prints a line for each and ends on 1 at the first that differs. Of the published configs one of each family, all of them
with WEFT_TEST_LONG in the environment. --table: the guide's table, of all published configs and nothing else."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

os.environ["HF_MODULES_CACHE"] = f"{sys.argv[2]}/modules"  # where transformers puts the classes that folders bring along

import numpy
import torch
import transformers
from safetensors.torch import load_file
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

import hf_models

LOGITS = 2e-5  # 1.2e-5 was seen: OLMo 3, transformers 5.17, x86-64
NEW_TOKENS = 40
PROMPT = "The lamp was in the river"
VOCAB_END = hf_models.VOCAB - 1


def weft(*arguments):
    done = subprocess.run([*WEFT, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"weft {' '.join(map(str, arguments))}: {done.stderr}")
    return done.stdout


def apart(a, b):
    return float((a - b).abs().max())


def logits_of(folder, tokens):
    numpy.save(SCRATCH / "tokens.npy", tokens.numpy())
    weft("eval", "--model", folder, "--tokens", SCRATCH / "tokens.npy", "--logits", SCRATCH / "logits.safetensors")
    return load_file(SCRATCH / "logits.safetensors")["logits"]


def save(model, folder, name):
    """As transformers does: one name in several files, others in half precision."""
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, max_shard_size="20KB" if name in ("gpt2-untied", "llama-bias") else "5GB")
    pieces = str(pathlib.Path(TOKENIZER).with_name("tokenizer.pieces.json"))  # SentencePiece's
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=pieces if name == "mistral" else TOKENIZER)
    if name.startswith("llama-3"):  # a text begins with a token of its own
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", tokenizer.vocab_size - 1)])
    tokenizer.save_pretrained(folder)
    return tokenizer


def generate(model, folder, tokenizer):
    """The greedy tokens of both behind the prompt. With longrope, whose factors transformers chooses by the length, it is longer
    than the first context."""
    config = model.config
    is_long = getattr(config, "original_max_position_embeddings", 0) < config.max_position_embeddings and "long_factor" in (
        getattr(config, "rope_parameters", None) or {})
    text = " ".join([PROMPT] * (1 + config.original_max_position_embeddings // 8)) if is_long else PROMPT
    prompt = tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        greedy = model.generate(prompt, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0)[0, prompt.shape[1]:].tolist()
    made = json.loads(weft("generate", "--model", folder, "--prompt", text, "--max-tokens", NEW_TOKENS, "--temperature", 0, "--json"))
    return greedy, made


def compare_end(model, name, theirs, tokenizer, greedy):
    """Any of several tokens that a generation_config.json names ends the text; --to-hf writes that file as it was."""
    model.generation_config.eos_token_id = [greedy[NEW_TOKENS // 2], VOCAB_END]
    model.generation_config.save_pretrained(theirs)
    ours, back = SCRATCH / f"{name}.end", SCRATCH / f"{name}.end-back"
    weft("convert", "--force", "--model", theirs, "--out", ours)
    wanted, made = generate(model, ours, tokenizer)
    assert made["tokens"] + [wanted[-1]] == wanted and made["finish"] == "stop", f"ends elsewhere: {made['tokens']} {wanted}"
    weft("convert", "--force", "--model", ours, "--to-hf", "--out", back)
    for file in "generation_config.json", "tokenizer_config.json":
        assert (back / file).read_text() == (theirs / file).read_text(), f"{file} is not what it was"


def compare(name):
    model, published = hf_models.make(name)
    theirs, ours, back = SCRATCH / f"{name}.hf", SCRATCH / f"{name}.weft", SCRATCH / f"{name}.back"
    tokenizer = save(model, theirs, name)
    if published:
        (theirs / "config.json").write_text(json.dumps(published))
    weft("convert", "--force", "--model", theirs, "--out", ours)
    tokens = torch.randint(0, hf_models.VOCAB, (3, 65))
    with torch.no_grad():
        wanted = model(tokens[:, :-1]).logits
    off = apart(logits_of(ours, tokens), wanted)
    assert off <= LOGITS, f"logits are off by {off:g}"

    greedy, made = generate(model, ours, tokenizer)
    text = tokenizer.decode(greedy, clean_up_tokenization_spaces=False)
    assert made["tokens"] == greedy, f"greedy tokens differ: {made['tokens']} {greedy}"
    assert made["text"] == text or name == "mistral", f"greedy text differs: {made['text']!r} {text!r}"

    weft("convert", "--force", "--model", ours, "--to-hf", "--out", back)
    own = name == "qwen2-windows"  # in some layers only
    again = AutoModelForCausalLM.from_pretrained(back, dtype=torch.float32, trust_remote_code=own,
                                                 **hf_models.attention_of(model.config.model_type)).eval()
    same = again.config.model_type if again.config.model_type == model.config.model_type else ""
    same = "" if name == "deepseek-plain" else same  # which has its pairs apart
    for key, value in model.state_dict().items() if same else ():
        less = 1e-6 if same.startswith("gemma") and "norm" in key else 0  # its gains are kept less 1
        assert apart(value, again.state_dict()[key]) <= less, f"{key} is not what it was"
    with torch.no_grad():
        back_off = apart(again(tokens[:, :-1]).logits, wanted)
    assert back_off <= 1e-5, f"logits of what was written back are off by {back_off:g}"
    ids = AutoTokenizer.from_pretrained(back, trust_remote_code=own)(PROMPT)["input_ids"]
    assert ids == tokenizer(PROMPT)["input_ids"], "the tokenizer is not what it was"
    if published:
        compare_end(model, name, theirs, tokenizer, greedy)
    return f"{off:.1e}"


def compare_latent():
    """A rotary model that became MLA leaves in DeepSeek's layout, and transformers computes what weft does."""
    theirs, ours, back = (SCRATCH / f"latent.{end}" for end in ("hf", "weft", "back"))
    tokenizer = save(hf_models.make("llama-tied")[0], theirs, "latent")
    weft("convert", "--force", "--model", theirs, "--to-mla", "--latent", 16, "--rope", 4, "--joint", "--out", ours)
    weft("convert", "--force", "--model", ours, "--to-hf", "--out", back)
    model = AutoModelForCausalLM.from_pretrained(back, dtype=torch.float32).eval()
    assert type(model).__name__ == "DeepseekV3ForCausalLM", type(model)
    tokens = torch.randint(0, hf_models.VOCAB, (3, 65))
    with torch.no_grad():
        off = apart(logits_of(ours, tokens), model(tokens[:, :-1]).logits)
    assert off <= LOGITS, f"logits are off by {off:g}"
    greedy, made = generate(model, ours, tokenizer)
    assert made["tokens"] == greedy, f"greedy tokens differ: {made['tokens']} {greedy}"
    print(f"MLA as DeepSeek's: logits within {off:.1e}, {NEW_TOKENS} greedy tokens the same")


def compare_half():
    """Weights of half precision are read as they are."""
    model = hf_models.make("llama")[0].half()
    theirs, ours = SCRATCH / "half.hf", SCRATCH / "half.weft"
    save(model, theirs, "half")
    weft("convert", "--force", "--model", theirs, "--out", ours)
    mine = load_file(ours / "model.safetensors")
    assert torch.equal(mine["wte.weight"], model.model.embed_tokens.weight.float()), "half precision is not read as it is"
    print("float16: read bit for bit")


if __name__ == "__main__":
    WEFT, SCRATCH, TOKENIZER = sys.argv[1].split(), pathlib.Path(sys.argv[2]), sys.argv[3]
    SCRATCH.mkdir(exist_ok=True)
    table = sys.argv[4:] == ["--table"]
    transformers.utils.logging.disable_progress_bar()
    if table:
        print("| family | published config | most that a logit differs | greedy tokens that are the same |\n| --- | --- | ---: | ---: |")
    families = {name: json.loads(path.read_text())["model_type"] for name, path in hf_models.PUBLISHED.items()}
    published = sorted(families, key=lambda name: (families[name], name))
    if not table and "WEFT_TEST_LONG" not in os.environ:
        published = {families[name]: name for name in published}.values()
    for case in [*published, *(() if table else hf_models.CASES)]:
        try:
            apart_by = compare(case)
        except AssertionError as failed:
            raise SystemExit(f"{case}: {failed}") from None
        print(f"| `{families[case]}` | {case} | {apart_by} | {NEW_TOKENS} of {NEW_TOKENS} |" if table else
              f"{case}: logits within {apart_by}, {NEW_TOKENS} greedy tokens the same, written back the same")
    if not table:
        compare_latent()
        compare_half()
