"""Chat templates as models publish them: what scripts/chat-template makes of each, and the tokens that `weft serve` then gives to
the model, are those of transformers."""
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

transformers = pytest.importorskip("transformers", reason="transformers renders the templates")
pytest.importorskip("jinja2")

import weft

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAM = os.path.join(os.path.dirname(os.path.realpath(weft.library_path)), "weft")
CHATML = ("{% for message in messages %}{% if loop.first and message['role'] != 'system' %}{{ DEFAULT }}{% endif %}"
          "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
ALTERNATE = ("{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
             "{{ raise_exception('roles must alternate') }}{% endif %}")
BRACKETS = ("{% if messages[0]['role'] == 'system' %}{% set rule = messages[0]['content'] %}{% set rest = messages[1:] %}"
            "{% else %}{% set rule = false %}{% set rest = messages %}{% endif %}{% for message in rest %}" + ALTERNATE)
TURNS = "{% for message in messages %}{% if message['role'] == 'user' %}"

# As the models have them, but for tools and pictures.
TEMPLATES = {
    "chatml": CHATML.replace("DEFAULT", "''"),
    "qwen2.5": CHATML.replace("DEFAULT", "'<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. "
                              "You are a helpful assistant.<|im_end|>\\n'"),
    "qwen3": CHATML.replace("DEFAULT", "''").replace(
        "message['content']", "(message['content'].split('</think>')[-1].lstrip('\\n') if message['role'] == 'assistant' and "
        "'</think>' in message['content'] else message['content'])"),
    "smollm2": CHATML.replace("DEFAULT", "'<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
                              "Face<|im_end|>\\n'"),
    "llama-2": BRACKETS + "{% if loop.index0 == 0 and rule != false %}{% set content = '<<SYS>>\\n' + rule + '\\n<</SYS>>\\n\\n' + "
               "message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}"
               "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
               "{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
    "llama-3": "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
               "message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
               "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
               "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}",
    "mistral": "{{ bos_token }}{% for message in messages %}" + ALTERNATE + "{% if message['role'] == 'user' %}"
               "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
               "{{ message['content'] + eos_token}}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}"
               "{% endif %}{% endfor %}",
    "gemma": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
             "{% for message in messages %}" + ALTERNATE + "{% set role = 'model' if message['role'] == 'assistant' else "
             "message['role'] %}{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
             "{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}",
    "phi-3": "{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\\n' + "
             "message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\\n' + message['content'] + "
             "'<|end|>\\n'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}"
             "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}",
    "zephyr": TURNS + "\n{{ '<|user|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'system' %}\n"
              "{{ '<|system|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'assistant' %}\n"
              "{{ '<|assistant|>\n' + message['content'] + eos_token }}\n{% endif %}\n{% if loop.last and add_generation_prompt %}\n"
              "{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}",
    "deepseek-r1": "{{ bos_token }}{% for message in messages %}{% set content = message['content'] %}{% if message['role'] == "
                   "'user' %}{{ '<|user|>' + content }}{% elif message['role'] == 'assistant' %}{% if '</think>' in content %}"
                   "{% set content = content.split('</think>')[-1] %}{% endif %}{{ '<|assistant|>' + content + eos_token }}"
                   "{% else %}{{ content }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|><think>\n' }}{% endif %}",
    "deepseek": "{{ bos_token }}" + TURNS + "{{ 'User: ' + message['content'] + '\n\n' }}{% elif message['role'] == 'assistant' %}"
                "{{ 'Assistant: ' + message['content'] + eos_token }}{% elif message['role'] == 'system' %}"
                "{{ message['content'] + '\n\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}",
}
# The date of the day, and a text that depends on what was said.
REFUSED = {"date": "{{ strftime_now('%Y') }}" + TEMPLATES["chatml"],
           "count": "{% for message in messages %}{{ loop.length ~ message['role'] ~ message['content'] }}{% endfor %}"}
NO_SYSTEM = ("mistral", "gemma")
SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
            "<start_of_turn>", "<end_of_turn>", "<|user|>", "<|system|>", "<|assistant|>", "<|end|>"]
TALKS = [
    [("user", "Hello there")],
    [("user", " What is <s> in the text?\n"), ("assistant", "\nA token. "), ("user", "and then")],
    [("user", "Why?"), ("assistant", "<think>\nhm\n</think>\n\nYes."), ("user", "and then")],
    [("system", " Be brief. "), ("user", "one"), ("assistant", "two"), ("user", "three ")],
]


def messages(talk):
    return [{"role": role, "content": content} for role, content in talk]


def run(*arguments):
    return subprocess.run([str(a) for a in arguments], capture_output=True, text=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with a tokenizer that has the special tokens of all these."""
    if not os.path.exists(PROGRAM):
        pytest.skip(f"{PROGRAM} is not there: run make build")
    folder = tmp_path_factory.mktemp("chat")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(ROOT / "tests/vectors/tokenizer.own.json"),
                                                     bos_token="<s>", eos_token="</s>")
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIALS})
    tokenizer.save_pretrained(folder / "tokenizer")
    made = run(PROGRAM, "init", "--out", folder / "model", *(word for key in (
        "N_LAYER=1", "N_EMBD=16", "N_HEAD=2", "CONTEXT=512", f"VOCAB_SIZE={len(tokenizer)}",
        f"TOKENIZER={folder / 'tokenizer/tokenizer.json'}") for word in ("-o", key)))
    assert made.returncode == 0, made.stderr
    return folder


def form_of(folder, template):
    (folder / "tokenizer/chat_template.jinja").write_text(template)
    return run(sys.executable, ROOT / "scripts/chat-template", folder / "tokenizer")


@contextlib.contextmanager
def server(folder, form):
    process = subprocess.Popen([PROGRAM, "serve", "--model", folder / "model", "--port", "0", "-o", f"CHAT_TEMPLATE={form}"],
                               stdout=subprocess.PIPE, text=True)
    try:
        yield next(match[0] for line in process.stdout if (match := re.search(r"http://[\d.:]+", line)))
    finally:
        process.terminate()
        process.communicate()


def prompt_of(address, talk):
    body = json.dumps({"messages": messages(talk), "max_tokens": 1, "return_token_ids": True}).encode()
    with urllib.request.urlopen(urllib.request.Request(address + "/v1/chat/completions", body,
                                                       {"Content-Type": "application/json"})) as answer:
        return json.load(answer)["choices"][0]["prompt_token_ids"]


@pytest.mark.parametrize("name", TEMPLATES)
def test_published_templates_give_the_tokens_of_transformers(folder, name):
    made = form_of(folder, TEMPLATES[name])
    assert made.returncode == 0, made.stderr
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "tokenizer")
    with server(folder, made.stdout.rstrip("\n")) as address:
        for talk in TALKS:
            if talk[0][0] == "system" and name in NO_SYSTEM:
                with pytest.raises(urllib.error.HTTPError) as refused:
                    prompt_of(address, talk)
                assert refused.value.code == 400 and "no system message" in refused.value.read().decode()
                continue
            text = tokenizer.apply_chat_template(messages(talk), tokenize=False, add_generation_prompt=True)
            # What people write is text: the name of a special token in it is none.
            want = tokenizer(text, add_special_tokens=False)["input_ids"] if "<s>" not in talk[0][1] else None
            got = prompt_of(address, talk)
            assert tokenizer.decode(got, skip_special_tokens=False, clean_up_tokenization_spaces=False) == text
            assert want is None or got == want


@pytest.mark.parametrize("name", REFUSED)
def test_other_templates_are_refused(folder, name):
    made = form_of(folder, REFUSED[name])
    assert made.returncode == 1 and not made.stdout
    assert made.stderr.count("\n") == 1 and "CHAT_TEMPLATE" in made.stderr
