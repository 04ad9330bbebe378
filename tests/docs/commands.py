"""Runs the commands of README.md and of every page of the site, page by page, as they stand there.

    commands.py WEFT FOLDER [PAGE...]

Every line of code that begins with a program's name is run by the shell, in the order of its page, in a copy
of the repository's root under FOLDER. Training, studies and servers are cut short by options that are
added; make is asked only whether it could (make -n), except for the study that make without a target runs. A line that is not run is in NOT_RUN below with
where it is tested or what it would need, so that none is overlooked. Ends on 0, or on 1 with a line for
each command that failed.
"""
import glob
import os
import re
import shutil
import subprocess
import sys

# Pages whose commands need the changes that the page describes: follow.py makes them.
FOLLOWED = {"docs/guide/add-an-attention.md", "docs/guide/add-an-operation.md", "docs/guide/add-an-option.md"}
NOT_RUN = [
    ("docs/guide/huggingface.md", r"weft (convert|generate|tokenize|train) ", "convert/test_guide runs this page"),
    ("docs/guide/huggingface.md", r"weft serve ", "needs a model's chat template; python/tests/test_chat.py serves with one"),
    ("docs/guide/watching.md", r"scripts/export ", "needs wandb or trackio; scripts/test_export runs it"),
    ("docs/guide/huggingface.md", r"python3 \S*compare_transformers", "needs transformers; convert/test_convert runs it where that is"),
    ("docs/guide/extending.md", r"python3 \S*make_vectors", "needs the change that the page describes: follow.py makes it"),
    ("docs/guide/serving.md", r"curl ", "serve/test_clients runs it"),
    ("docs/guide/serving.md", r"python3 bench/", "needs PyTorch"),
    ("docs/guide/pruning.md", r"scripts/prune-curve", "takes minutes; convert/test_prune runs its smallest form"),
    ("docs/guide/building.md", r"(sudo )?make (install|deb|dist)", "scripts/test_install runs it"),
    ("docs/guide/building.md", r"pip install", "needs the package index"),
    ("docs/guide/pytorch.md", r"python3 -m venv|pip install", "needs PyTorch from the network; make test-torch runs the rest"),
    ("docs/guide/training.md", r"mpirun ", "needs free cores; the tests of train and comm run mpirun"),
    ("docs/guide/studies.md", r"scripts/corpus|weft tokenize --tokenizer data/|weft tokenizer train .*all-docs", "needs Debian's mirror and GPT-2's files"),
    ("docs/guide/studies.md", r"scripts/evidence", "needs that text; supervise/test_evidence runs its smallest form"),
    ("docs/guide/studies.md", r"weft study .*--slurm", "needs Slurm; supervise/test_slurm runs it"),
    ("docs/internals/cuda.md", r"weft train|make build CUDA=1", "needs a GPU's compiler; the tests of cuda run it"),
    ("docs/results/decoding.md", r"weft bench decode --device cuda", "needs a GPU"),
    ("docs/results/findings.md", r"git clone|docs/results/public-code", "needs the network and PyTorch"),
    ("docs/results/modules.md", r"python bench/", "needs PyTorch; make test-torch runs the modules"),
    ("docs/results/performance.md", r"weft bench train|taskset ", "takes minutes; cli/test_bench runs its smallest forms"),
    ("docs/results/performance.md", r"export ", "is for an x86-64 processor"),
    ("docs/results/(gpt2-real|real-text).md", r"scripts/evidence", "needs its text, and minutes or hours; supervise/test_evidence runs its smallest form"),
    ("docs/results/questions.md", r"scripts/(corpus|evidence|questions|paper)", "needs the corpus and hours; supervise/test_evidence and report/test_questions run it in small"),
    ("docs/results/small-runs.md", r"weft runs runs/", "needs a study of hours"),
]
PROGRAMS = r"(make|weft|build/weft|mpirun|srun|pip|python3?|scripts/\S+|docs/results/\S+|mkdir|b2sum|taskset|curl|docker|git|cp|export|hf|sudo)( |$)|for .*; do$"

# Stands in for the program: what takes long is cut short, and what waits for Ctrl-C gets it.
WRAPPER = """#!/bin/sh
weft=%s
address=%s/address
case "$1 $*" in
    *--list*|*--help*) exec "$weft" "$@" ;;
    "new "*) exec "$weft" "$@" --minutes 0.01 --device cpu --threads 1 ;;
    "train "*--text*) exec "$weft" "$@" --minutes 0.01 --device cpu -o STEPS=2 -o SAMPLE_PROMPT= ;;
    "train "*) exec "$weft" "$@" --device cpu -o STEPS=2 -o EVAL_SAMPLES=1 -o SAMPLE_PROMPT= --peak-flops 0 ;;
    "study "*) exec "$weft" "$@" --device cpu -o STEPS=2 -o BATCH_SIZE=1 -o EVAL_SAMPLES=1 -o STUDY_SEEDS=2 -o SAMPLE_PROMPT= ;;
    "watch "*|"serve "*)
        : >$address  # the last server's, which would have this one interrupted before it listens
        "$weft" "$@" --port 0 >$address 2>&1 &
        while kill -0 $! && ! grep -q http:// $address; do sleep 0.1; done
        cat $address
        kill -INT $!
        wait $! ;;
    *) exec "$weft" "$@" ;;
esac
"""

# Stands in for make, which is asked once for the same words.
MAKE = """make() {
    local word goal= out= asked="%s/asked-$(printf '%%s' "$*" | tr -c 'a-zA-Z0-9=' -)"
    for word in "$@"; do
        case $word in OUT=*) out=${word#OUT=} ;; *=*) ;; *) goal=$word ;; esac
    done
    [ -e "$asked" ] || command make -C "%s" -n SETUP=no "$@" >/dev/null || return
    : >"$asked"
    [ -n "$goal" ] || weft study --config defconfigs/demo --out "${out:-runs/demo}"
}
"""


def blocks(text):
    """The blocks of code of a page: (language, lines)."""
    fence, block = None, []
    for line in text.split("\n"):
        if line.lstrip().startswith("```"):
            if fence is None:
                fence, block = line.strip()[3:], []
            else:
                yield fence, block
                fence, block = None, []
        elif fence is not None:
            block.append(line)
        elif re.match(r" {4,}\S", line):
            block.append(line)
        elif block and line.strip():
            yield "", block
            block = []
    if block:
        yield "", block


def commands(block):
    """What the shell is to run of a block: lines joined where one continues, and loops as a whole."""
    return split(block)[0]


def split(block):
    """A block's commands, and its lines that are none."""
    lines, found, rest = [l.strip() for l in block if l.strip()], [], []
    while lines:
        line = lines.pop(0)
        while (line.endswith("\\") or re.search(r"(?s)^[^']*'$", line) or ("'\n" in line and not line.endswith("'"))) and lines:
            line += "\n" + lines.pop(0)
        if re.match(r"for .*; do$", line):
            while lines and not line.endswith("done"):
                line += "\n" + lines.pop(0)
        (found if re.match(PROGRAMS, line.split("\n")[0]) else rest).append(line)
    return found, rest


def make_root(weft, root):
    """A folder that looks like the repository's root after make build."""
    here = os.getcwd()
    for name in ("docs", "scripts", "tests", "src", "examples", "README.md"):
        os.symlink(os.path.join(here, name), os.path.join(root, name))
    shutil.copytree("defconfigs", os.path.join(root, "defconfigs"))
    os.mkdir(os.path.join(root, "build"))
    program = os.path.join(root, "build", "weft")
    with open(program, "w", encoding="utf-8") as out:
        out.write(WRAPPER % (weft, root))
    os.chmod(program, 0o755)
    for name in ("book.txt", "other.txt", "my-text.txt"):
        with open(os.path.join(root, name), "w", encoding="utf-8") as out:
            for page in sorted(glob.glob("docs/*/*.md"))[:12]:
                with open(page, encoding="utf-8") as text:
                    out.write(text.read())


def write_configs(page, found, root):
    """The configs that a page tells to write."""
    names = {"docs/guide/extending.md": "defconfigs/my-study", "docs/guide/studies.md": "my.config"}
    for _, block in found:
        lines = [l.strip() for l in block]
        if page in names and sum(l.startswith("CONFIG_") for l in lines) > 4:
            with open(os.path.join(root, names[page]), "w", encoding="utf-8") as out:
                out.write("\n".join(lines) + "\n")


def reason(page, command):
    for where, pattern, why in NOT_RUN:
        if re.fullmatch(where, page) and re.match(pattern, command):
            return why
    return None


def run_page(page, root):
    """The commands that failed, how many were run, and a line for each that was not."""
    with open(page, encoding="utf-8") as file:
        found = list(blocks(file.read()))
    write_configs(page, found, root)
    failed, ran, left_out = [], 0, []
    here = os.getcwd()
    start = MAKE % (root, here) + 'PATH="%s/build:$PATH"\nunset MAKEFLAGS MAKELEVEL MFLAGS\n' % root
    for language, block in found:
        typed, rest = split(block) if language in ("", "sh") else ([], [])
        strange = [line for line in rest if not line.startswith("#")] if typed else []
        failed += ["%s: a program that this test does not know: %s" % (page, line) for line in strange]
        for command in typed:
            why = reason(page, command)
            if why:
                left_out.append("%s: not run: %s (%s)" % (page, command.split("\n")[0], why))
                continue
            done = subprocess.run(["bash", "-c", start + command], cwd=root, text=True, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, env={**os.environ, "WEFT": os.path.join(root, "build", "weft"), "WEFT_WATCH": "no"})
            ran += 1
            if done.returncode != 0:
                failed.append("%s: %s\n    ended on %d: %s" % (page, command, done.returncode, done.stdout.strip()[-400:]))
    return failed, ran, left_out


def shared_folders(pages):
    """The folders that commands of two pages begin to write, in blocks or in sentences: whoever follows both pages
    would find the second command refused, or another page's runs beside its own."""
    owners, failed = [], []
    for page in pages:
        with open(page, encoding="utf-8") as file:
            text = file.read()
        typed = [c for _, block in blocks(text) for c in commands(block)]
        typed += [c.strip("`") for line in text.split("\n") if not line.startswith("    ") for c in re.findall(r"`[^`]+`", line)]
        for command in typed:
            for line in command.replace("\\\n", "").split("\n"):
                found = re.match(r"\s*(?:build/)?weft (?:train|study) .*--out ([a-z][^\s$]*)", line)
                if found and "--resume" not in line:
                    owners.append((found.group(1).rstrip("/"), page, line))
    for folder, page, line in owners:
        for other, where, _ in owners:
            same, within = folder == other and page > where, folder.startswith(other + "/") and page != where
            if same or within:
                failed.append("%s: %s\n    writes into %s, which is a folder of %s" % (page, line, other, where))
    return failed


def main():
    weft, folder = os.path.abspath(sys.argv[1]), sys.argv[2]
    guide, site = sorted(glob.glob("docs/guide/*.md")), sorted(glob.glob("docs/**/*.md", recursive=True))
    pages = sys.argv[3:] or [page for page in ["README.md", "CONTRIBUTING.md", "SECURITY.md"] + guide +
                             [page for page in site if page not in guide] if page not in FOLLOWED]
    root = os.path.join(os.path.abspath(folder), "root")
    os.makedirs(root)
    make_root(weft, root)  # one for all pages: a reader has what the pages before left
    failed, ran, summary = shared_folders(pages), 0, []
    for page in pages:
        wrong, n, left_out = run_page(page, root)
        failed, ran = failed + wrong, ran + n
        summary += ["%s: %d commands run, %d failed" % (page, n, len(wrong))] + left_out
    for line in failed + summary:
        print(line)
    sys.exit(1 if failed or ran < (30 if not sys.argv[3:] else 1) else 0)


if __name__ == "__main__":
    main()
