"""Reference tokens for the tests of the tokenizers, by tiktoken and Hugging Face's tokenizers.

    make_tokenizer_vectors.py GPT2_FOLDER
        writes tests/vectors/tokenizer.cases.json.gz: [{"text", "tokens": {TOKENIZER: its tokens}}].
        gpt2 by tiktoken from the folder's vocab.bpe and encoder.json; own and split by tokenizers
        from tests/vectors/tokenizer.{own,split}.json; pieces-* by tokenizers from tokenizer.pieces.json, a
        small BPE of SentencePiece's kind that is made here, and unigram-* from its pieces as Unigram; qwen2 by tokenizers from own's vocabulary with
        Qwen2's normalizer and pattern. Also tokenizer.train.json.gz: a text and the
        merges that the trainer of tokenizers learns from it.
    make_tokenizer_vectors.py --stream SEED COUNT ASSIGNED GPT2_FOLDER|TOKENIZER_JSON
        writes COUNT random and adversarial strings and their tokens to standard output: for each,
        little-endian uint32 bytes, the bytes, uint32 tokens, the tokens as uint32.

ASSIGNED is a file of "first last" lines: the code points that may appear, because Unicode versions
differ in the rest. Exit status 3: the package that is needed cannot be imported.
"""

import json
import os
import random
import struct
import sys

from kept import VECTORS, write_json

PATTERN = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""

SPACES = (
    "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009"
    "\u200a\u2028\u2029\u202f\u205f\u3000"
)
# Looks like space and is none, or is one in some library's opinion.
ALMOST = "\u180e\u200b\u200c\u200d\u2060\ufeff\x1c\x1d\x1e\x1f\x00\x7f\x08\u00ad\u034f"
WORDS = (
    "the of and to in is that it was for as with his he be not by but have you which are on or her "
    "had at from this my they all so me no one we what who will if an out up there when their more "
    "time do any some may only new like over such then our me even most after also did many before "
    "Transformer attention gradient matrix Wasserstein reciprocal 2024 1,000,000 3.14159 0x7fff "
    "naïve café Straße Łódź größe こんにちは 世界 你好 Привет мир مرحبا שלום हिन्दी ไทย 한국어 𝔘𝔫𝔦 "
    "e\u0301 \U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1eb\U0001f1f7 ½ ² Ⅷ ٣ 五 "
    "<|endoftext|> <|im_start|> </s> int main(void) { return 0; } https://example.org/a?b=c&d=e"
).split()
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'RE", "'l", "'v", "'r", "''s",
                "'", "\u2019s", " 's", "'\u017f", "'ſ"]


def assigned_points(path):
    points = []
    with open(path, encoding="ascii") as file:
        for line in file:
            first, last = (int(word) for word in line.split())
            points.append((first, last))
    return points


class Maker:
    """Strings that meet the corners of the pattern and of merging."""

    def __init__(self, seed, points):
        self.r = random.Random(seed)
        self.points = points
        self.weights = [last - first + 1 for first, last in points]

    def any_char(self):
        if self.r.random() < 0.5:  # any block of code points as likely as any other
            first, last = self.r.choice(self.points)
        else:
            first, last = self.r.choices(self.points, self.weights)[0]
        return chr(self.r.randint(first, last))

    def atom(self):
        r = self.r
        kind = r.randrange(12)
        if kind < 3:
            return r.choice(WORDS)
        if kind == 3:
            return r.choice(SPACES) * r.randint(1, 4)
        if kind == 4:
            return "".join(r.choice(SPACES) for _ in range(r.randint(1, 5)))
        if kind == 5:
            return r.choice(CONTRACTIONS)
        if kind == 6:
            return "".join(chr(r.randint(0, 127)) for _ in range(r.randint(1, 8)))
        if kind == 7:
            return "".join(self.any_char() for _ in range(r.randint(1, 6)))
        if kind == 8:
            return r.choice(ALMOST)
        if kind == 9:
            return " " * r.randint(1, 3)
        if kind == 10:
            return str(r.randint(0, 10 ** r.randint(1, 12)))
        return r.choice("abcdeAZ!?.-=_*/ \n0") * r.choice([1, 2, 3, 5, 17, 40, 90])

    def text(self):
        r = self.r
        if r.random() < 0.02:  # one long piece: merging without a space in it
            return "".join(r.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(r.randint(60, 400)))
        join = r.choice(["", "", " ", "\n"])
        return join.join(self.atom() for _ in range(r.randint(0, 12)))


def load(source):
    """The reference's encoding of plain text, as a function."""
    try:
        if os.path.isdir(source):
            import tiktoken
            from tiktoken.load import data_gym_to_mergeable_bpe_ranks

            ranks = data_gym_to_mergeable_bpe_ranks(
                os.path.join(source, "vocab.bpe"), os.path.join(source, "encoder.json")
            )
            reference = tiktoken.Encoding(
                "gpt2", pat_str=PATTERN, mergeable_ranks=ranks,
                special_tokens={"<|endoftext|>": 50256},
            )
            return reference.encode_ordinary
        import tokenizers
    except ImportError as missing:
        print(f"{missing.name} cannot be imported", file=sys.stderr)
        sys.exit(3)
    with open(source, encoding="utf-8") as file:
        description = json.load(file)
    # Special tokens are text here, as they are to us unless asked for.
    description["added_tokens"] = [t for t in description["added_tokens"] if not t["special"]]
    reference = tokenizers.Tokenizer.from_str(json.dumps(description))
    return lambda text: reference.encode(text, add_special_tokens=False).ids


def stream(seed, count, assigned, source):
    encode = load(source)
    maker = Maker(seed, assigned_points(assigned))
    for _ in range(count):
        text = maker.text()
        data, tokens = text.encode(), encode(text)
        sys.stdout.buffer.write(struct.pack("<I", len(data)) + data)
        sys.stdout.buffer.write(struct.pack(f"<I{len(tokens)}I", len(tokens), *tokens))


def kept_texts():
    """Characters here are old: every library knows them alike."""
    points = [(0x20, 0x7E), (0xA1, 0xFF), (0x100, 0x17F), (0x391, 0x3A1), (0x3B1, 0x3C9),
              (0x410, 0x44F), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0x1F600, 0x1F640)]
    maker = Maker(4, points)
    texts = ["", " ", "  ", "\n", " \n a", "a  b", "a   ", "\u180e a \u180e", "don't DON'T we'll",
             "<|endoftext|>", "a" * 300, " " * 70 + "x", "\x00\x01", "ab" * 200]
    return texts + [maker.text() for _ in range(250)]


def add_cases(cases, name, texts, encode):
    for text in texts:
        cases.setdefault(text, {})[name] = encode(text)


def add_qwen2(cases):
    """What Qwen2's vocab.json and merges.txt leave unsaid, as its tokenizer.json says it."""
    import tokenizers

    with open(os.path.join(VECTORS, "tokenizer.own.json"), encoding="utf-8") as file:
        description = json.load(file)
    pattern = (r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"""
               r"""|\s*[\r\n]+|\s+(?!\S)|\s+""")
    description["added_tokens"] = []
    description["normalizer"] = {"type": "NFC"}
    description["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}]}
    reference = tokenizers.Tokenizer.from_str(json.dumps(description))
    texts = ["Hello 123456", "e\u0301te\u0301", "A\u030a \u212b", "\u1100\u1161\u11a8", "\u0958 q\u0307\u0323", "\u0344x"]
    add_cases(cases, "qwen2", kept_texts() + texts, lambda text: reference.encode(text, add_special_tokens=False).ids)


def pieces_description(form):
    """SentencePiece's BPE as tokenizer.json has it: spaces are U+2581, unknown characters their bytes. `form` is Llama 2's
    normalizer ("normalizer"), Gemma's ("gemma"), or Mistral's Metaspace ("first")."""
    with open(os.path.join(VECTORS, "tokenizer.pieces.json"), encoding="utf-8") as file:
        description = json.load(file)
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    if form == "first":
        description["normalizer"] = None
        description["pre_tokenizer"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": form, "split": False}
    elif form == "gemma":
        description["normalizer"] = replace
        description["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    return description


def unigram_description(form):
    """The pieces as Unigram, with scores that have nothing to do with their merges: as Llama's converter writes it, or
    ("split") with a Metaspace that splits before spaces, or ("unknown") that too and without bytes to fall back to."""
    description = pieces_description("normalizer")
    vocab = sorted(description["model"]["vocab"].items(), key=lambda entry: entry[1])
    scores = [[piece, -1000.0 if number < 259 else -3 - number * 37 % 101 / 8] for piece, number in vocab]
    unknown = form == "unknown"
    if unknown:
        scores = scores[:3] + scores[259:]
    description["model"] = {"type": "Unigram", "unk_id": 0, "vocab": scores, "byte_fallback": not unknown}
    if form != "normalizer":
        description["normalizer"] = None
        description["pre_tokenizer"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    return description


def make_pieces():
    from tokenizers import Tokenizer, models, normalizers, trainers

    named = ["<unk>", "<s>", "</s>"]
    trained = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    text = " ".join(WORDS) + " " + " ".join(kept_texts()[14:40])
    ascii_only = "".join(c for c in text if " " <= c <= "~" or c in "éïñß世界Привет")
    trained.train_from_iterator([ascii_only], trainers.BpeTrainer(
        vocab_size=620, min_frequency=2, show_progress=False,
        special_tokens=named + [f"<0x{byte:02X}>" for byte in range(256)]))
    description = json.loads(trained.to_str())
    description["added_tokens"] = [t for t in description["added_tokens"] if t["content"] in named]
    description["post_processor"] = {
        "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    with open(os.path.join(VECTORS, "tokenizer.pieces.json"), "w", encoding="ascii") as file:
        json.dump(description, file, indent=0)
        file.write("\n")


def add_pieces(cases):
    import tokenizers

    texts = ["", " ", "  a", "a", "\u2581a", "a\u2581 b", "the attention", " the attention", "世界 ж e\u0301", "\n\n x", "\U0001f600"]
    texts += kept_texts()[:80]
    forms = {f"pieces-{form}": pieces_description(form) for form in ("normalizer", "gemma", "first")}
    forms |= {f"unigram-{form}": unigram_description(form) for form in ("normalizer", "split", "unknown")}
    for name, description in forms.items():
        reference = tokenizers.Tokenizer.from_str(json.dumps(description | {"added_tokens": [], "post_processor": None}))
        add_cases(cases, name, texts, lambda text: reference.encode(text, add_special_tokens=False).ids)


def keep_training():
    """Words by rank, frequent ones short: many pairs are as frequent as others, so ties count."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    r = random.Random(5)
    stems = ["".join(r.choice("aeioustrnl") for _ in range(r.randint(1, 7))) for _ in range(120)]
    text = ""
    for _ in range(1500):
        text += r.choice(["", " ", " ", " ", "\n", ", "]) + stems[int(120 * r.random() ** 3)]
        text += r.choice(["", "", "'s", " é", str(r.randint(0, 99))])
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=599, min_frequency=2, show_progress=False, special_tokens=[],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    merges = json.loads(trained.to_str())["model"]["merges"]
    kept = {"vocab": 600, "text": text,
            "merges": [" ".join(merge) if isinstance(merge, list) else merge for merge in merges]}
    write_json("tokenizer.train", kept)


def main():
    if len(sys.argv) == 6 and sys.argv[1] == "--stream":
        stream(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5])
    elif len(sys.argv) == 2 and not sys.argv[1].startswith("-"):
        cases = {}
        add_cases(cases, "gpt2", kept_texts(), load(sys.argv[1]))
        for name in "own", "split":
            add_cases(cases, name, kept_texts(), load(os.path.join(VECTORS, f"tokenizer.{name}.json")))
        add_qwen2(cases)
        make_pieces()
        add_pieces(cases)
        write_json("tokenizer.cases", [{"text": text, "tokens": tokens} for text, tokens in cases.items()])
        keep_training()
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
