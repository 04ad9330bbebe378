"""Follows the pages on adding an option, an attention, a unary operation and another, to the letter, in a tree that may be changed.

    follow.py TREE [--places] [option] [attention] [unary] [operation]

What is added comes from the pages' own blocks of code; the place where a page says it goes is found by a
line that is there today. Then the page's commands are run. The reference vectors need PyTorch and NumPy in
the python3 of the path: without them those lines, and the tests that need the vectors, are left out.
Ends on 0, or on 1 with what failed. make test-long runs it. --places: runs no command, only looks whether every
place is there.
"""
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from commands import blocks, commands  # noqa: E402

failed = []
places = "--places" in sys.argv


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


class Page:
    def __init__(self, name):
        self.name = name
        self.found = [block for _, block in blocks(read(name))]

    def block(self, word):
        """The block that holds a word, without its indentation."""
        for block in self.found:
            if any(word in line for line in block):
                return "\n".join(line[4:] for line in block).rstrip("\n") + "\n"
        sys.exit("%s: no block has %r any more" % (self.name, word))


def put(path, after, text, before=False):
    """Puts a text after, or before, the one place of a file where a text stands."""
    whole = read(path)
    if whole.count(after) < 1:
        sys.exit("%s: %r is not there any more" % (path, after))
    at = whole.index(after) + (0 if before else len(after))
    write(path, whole[:at] + text + whole[at:])


def run(command, status=0):
    if places:
        return
    done = subprocess.run(["bash", "-c", command], text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False)
    print("$ %s\n  [exit %d] %s" % (command, done.returncode, (done.stdout.strip().split("\n") or [""])[-1][:160]), flush=True)
    if done.returncode != status:
        failed.append("%s ended on %d: %s" % (command, done.returncode, done.stdout[-1500:]))


def run_page(page, torch, expect=(), leave=(), begin=""):
    """The page's commands in order, from the block that holds `begin` on; `expect` fail with status 2, `leave` need a
    terminal."""
    first = next(i for i, block in enumerate(page.found) if begin in "\n".join(block))
    for block in page.found[first:]:
        for command in commands(block):
            if any(word in command for word in leave):
                continue
            if not torch and re.search(r"make_(model_)?vectors|T=model/test_model|T=ops/test_cases", command):
                print("$ %s\n  [left out: no PyTorch]" % command)
                continue
            run(command, 2 if any(word in command for word in expect) else 0)


def follow_option(torch):
    page = Page("docs/guide/add-an-option.md")
    put("src/config/options.def", '       "Dropout on the two residual branches, in training.")\n', page.block("NUMBER(head_scale"))
    put("src/model/transformer.c", "    if (c->mup) x = weft_scale(b->g, x, 1 / weft_config_mup(c)); /* the logits' scale */\n", "    " + page.block("if (c->head_scale"))
    put("tests/reference/model_config.py", '    "DROPOUT": (float, None),\n', "    " + page.block('"HEAD_SCALE": ('))
    put("tests/reference/model.py", '    x = norm(c, params, "ln_f", x)\n', "    " + page.block('x = x * c["HEAD_SCALE"]'))
    config = read("tests/model/configs/dot-rope.config").replace("# rotary positions", "# a factor of the logits", 1)
    write("tests/model/configs/my-dot-scaled.config", config + page.block("CONFIG_HEAD_SCALE="))
    run_page(page, torch, expect=("HEAD_SCALES",), leave=("menuconfig",))


def follow_attention(torch):
    page = Page("docs/guide/add-an-attention.md")
    kinds = read("src/config/kinds.h")
    last = re.search(r"#define WEFT_ATTENTIONS\(KIND\)(?:.*\\\n)+(.*)\n", kinds).group(1)
    put("src/config/kinds.h", last, " \\\n    " + page.block("KIND(EUCLID").rstrip("\n"))
    write("src/model/attention_euclid.c", page.block("static weft_tensor *build_euclid"))
    put("tests/reference/model_config.py", '"mla", "cosine"', ', "euclid"')
    shapes = re.sub(r"(?m)^", "    ", page.block('elif c["ATTENTION"] == "euclid"')).rstrip(" ")
    put("tests/reference/model_config.py", '    elif c["ATTENTION"] == "w2":\n', shapes, before=True)
    put("tests/reference/model.py", "def attention(c, p, x, gate, received, kept, layer, ids):", page.block("def euclid_attention") + "\n\n", before=True)
    put("tests/reference/model.py", '"cosine": cosine_attention', ', "euclid": euclid_attention')
    config = read("tests/model/configs/dot-rope.config").replace("# rotary positions", "# Euclidean attention", 1)
    write("tests/model/configs/my-euclid.config", config.replace('CONFIG_ATTENTION="dot"\n', page.block('CONFIG_ATTENTION="euclid"')))
    run_page(page, torch, begin="KIND(EUCLID")


def follow_unary(torch):
    page = Page("docs/guide/extending.md")
    lines = re.search(r"(?m)^#define WEFT_UNARY_OPS.*\n", read("src/ops/list.h")).group(0)
    put("src/ops/list.h", lines, "    " + page.block("F(X, softsign").lstrip())
    put("tests/reference/activation.py", "def unary(f)", page.block('UNARY["softsign"]').lstrip() + "\n\n", before=True)
    run("make build WERROR=1")
    if torch:
        run("python3 tests/reference/make_vectors.py activation")
        run("make test T=ops/test_cases")


def follow_operation(torch):
    page = Page("docs/guide/add-an-operation.md")
    put("src/ops/list.h", "    WEFT_GATE_OPS(WEFT_OP_PAIR, X)", re.sub(r"(?m)^", "    ", page.block("X(reglu)")).rstrip(" "), before=True)
    write("src/ops/activation.h", read("src/ops/activation.h") + "\n" + page.block("weft_tensor *weft_reglu(weft_graph *g, weft_tensor *a"))
    write("src/ops/activation.c", read("src/ops/activation.c") + "\n" + page.block("static weft_status reglu_infer"))
    write("src/cpu/activation.c", read("src/cpu/activation.c") + "\n" + page.block("VECTOR_FN(reglu_vector)"))
    write("src/cuda/elements/activation.cu", read("src/cuda/elements/activation.cu") + "\n" + page.block("CUDA_ELEMENTS(reglu, 2"))
    put("tests/reference/activation.py", "# The operations of one element", page.block("def reglu(c)") + "\n\n", before=True)
    put("tests/reference/activation.py", "(silu_mul, softplus, gate_mix", ", reglu")
    put("tests/support/case_activation.c", "const case_builder cases_activation[] = {\n", "    {\"reglu\", build_reglu},\n")
    put("tests/support/case_activation.c", "const case_builder cases_activation[] = {", page.block("static void build_reglu") + "\n", before=True)
    write("tests/ops/cases/activation.txt", read("tests/ops/cases/activation.txt") + page.block("reglu M=1"))
    write("tests/mutations.txt", read("tests/mutations.txt") + page.block("reglu: the gate"))
    put("include/weft/graph.h", "WEFT_API weft_tensor *weft_graph_norm(",
        "WEFT_API weft_tensor *weft_graph_reglu(weft_graph *g, weft_tensor *a, weft_tensor *b);\n", before=True)
    put("src/api/graph.c", "OF_TWO(dot)\n", page.block("    OF_TWO(reglu)"))
    run("make build WERROR=1")
    run_page(page, torch)


def main():
    os.chdir(sys.argv[1])
    torch = subprocess.run(["python3", "-c", "import torch, numpy"], stderr=subprocess.DEVNULL, check=False).returncode == 0
    pages = {"option": follow_option, "attention": follow_attention, "unary": follow_unary, "operation": follow_operation}
    for name in [name for name in sys.argv[2:] if name != "--places"] or list(pages):
        print("## add an %s" % name)
        pages[name](torch)
    for line in failed:
        print("FAILED " + line)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
