#!/usr/bin/env python3
"""Breaks src/ and python/ at lines drawn at random and says what share of the breaks the tests notice.

A line is drawn, then one of the mutants that a generator (universalmutator) makes of it. In a copy of the tree
(tests/mutate --copy) the objects that depend on the file are compiled and the tests of its folder are run, as
tests/rooms.txt names them. A mutant is

  caught    a test fails, or takes ten times as long as all of them do unbroken, and at least a minute
  survived  all pass: FOLDER/survivor-K.diff is what was changed
  equal     its object code (of Python, its byte code) is that of the original; not counted
  listed    tests/equivalent.txt says why no test can notice it; not counted
  invalid   it does not compile or link; not counted
  not here  this machine cannot run its folder's tests, or its file is not part of the build; not counted

until N are caught or survived. The K-th draw of a seed is the same mutant for the same sources. Results are in
BUILD/mutants/SEED[-ROOM...]/results, one line of JSON each: after an interrupt the same command goes on, and a
larger N adds to what is there. They are begun anew when a file of the tree that counts has changed.

  tests/mutate_random.py N SEED [ROOM...]   rooms: folders of src/, and python; without them, all
  tests/mutate_random.py --check            whether tests/rooms.txt and tests/equivalent.txt are up to date

BUILD, CC, NVCC: as in tests/mutate. GENERATOR: its command (BUILD/mutate-venv/bin/mutate). MUTANT_SECONDS: how
long the tests of a mutant may take. PYTHON: the interpreter of make test-torch.
"""
import ast
import difflib
import fcntl
import glob
import hashlib
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

BUILD = os.environ.get("BUILD") or "build"
SOURCES = ("src/**/*.c", "src/**/*.h", "src/**/*.cu", "src/**/*.cuh", "python/**/*.py")
# What a verdict may depend on.
COUNTED = SOURCES + ("src/**/*", "include/**/*", "tests/**/*", "mk/*", "Makefile", "scripts/*", "bench/*",
                     "defconfigs/*", "examples/*")

# Draws in a row of which none can be judged, after which there are taken to be no more.
IN_VAIN = 60


class Failure(Exception):
    """Ends the run with a line."""


def read(path, errors="strict"):
    with open(path, encoding="utf-8", errors=errors) as file:
        return file.read()


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def lines_of(text):
    """With their ends; a form feed ends none."""
    return re.findall(r".*\n|.+", text)


def room_of(path):
    parts = path.split("/")
    return "python" if parts[0] == "python" else parts[1]


def list_files(patterns):
    found = {f for p in patterns for f in glob.glob(p, recursive=True) if os.path.isfile(f)}
    return sorted(f for f in found if "__pycache__" not in f)


def list_sources():
    return [f for f in list_files(SOURCES) if not f.startswith(("python/tests/", "python/conftest", "python/setup"))]


def digest_tree():
    """Of all that a verdict may depend on. What is listed as equivalent is looked up whenever it is needed."""
    total = hashlib.sha256()
    for file in list_files(COUNTED):
        if file != "tests/equivalent.txt":
            with open(file, "rb") as content:
                total.update(file.encode() + b"\0" + hashlib.sha256(content.read()).digest())
    return total.hexdigest()


def read_rooms():
    lines = [line for line in read("tests/rooms.txt").splitlines() if line and line[0] != "#"]
    return {name: words.split() for name, _, words in (line.partition(":") for line in lines)}


def key_of(file, old, new):
    """What a mutant is known by wherever its line moves to."""
    return file, old.strip(), "\n".join(line.strip() for line in new.splitlines())


def read_equivalents():
    """The reasons by key; an entry is `FILE: reason`, then the lines of a diff."""
    entries = {}
    text = read("tests/equivalent.txt") if os.path.exists("tests/equivalent.txt") else ""
    for file, reason, diff in re.findall(r"^([^#\s+-][^:\n]*): *(.*)\n((?:[+-].*\n)*)", text, re.M):
        old, new = (re.sub(r"^.", "", "".join(re.findall(rf"^[{c}].*\n", diff, re.M)), flags=re.M) for c in "-+")
        entries[key_of(file, old, new)] = reason
    return entries


def check_lists():
    """What is wrong with the two tables."""
    wrong = []
    rooms = read_rooms()
    tests = [t[len("tests/"):-2] for t in glob.glob("tests/*/test_*.c")]
    for room in sorted({room_of(f) for f in list_sources()} ^ set(rooms)):
        wrong.append(f"tests/rooms.txt: {room}: " + ("is no folder of src/" if room in rooms else "has no line"))
    for room, words in rooms.items():
        wrong += [f"tests/rooms.txt: {room}: no test has '{w}' in its path" for w in words if not any(w in t for t in tests)]
    for (file, old, _), reason in read_equivalents().items():
        if not os.path.exists(file) or old not in (line.strip() for line in read(file).splitlines()):
            wrong.append(f"tests/equivalent.txt: '{old}' is not a line of {file}")
        elif not reason:
            wrong.append(f"tests/equivalent.txt: {file}: '{old}' has no reason")
    return wrong


def wilson(hits, of):
    """The 95% interval of a share."""
    if of == 0:
        return 0.0, 1.0
    z, p = 1.959964, hits / of
    middle, width = p + z * z / (2 * of), z * math.sqrt(p * (1 - p) / of + z * z / (4 * of * of))
    return max(0.0, (middle - width) / (1 + z * z / of)), min(1.0, (middle + width) / (1 + z * z / of))


# ---- Commands: in a session of their own, so that all they started ends with them.

running = None
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def end_running():
    """Ends the whole session and waits for it: on SIGTERM tests/run ends what the tests started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + 60
        try:
            os.killpg(running.pid, number)
            while time.monotonic() < until:
                running.poll()
                os.killpg(running.pid, 0)
                time.sleep(0.02)
        except ProcessLookupError:
            return


def prepare_child():
    """A mutant may allocate without end."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    for what, most in ((resource.RLIMIT_DATA, half), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(what)[1]
        resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def run(words, log, limit=None, cwd=None):
    """The exit status, None past the limit; what it said is in the file `log`."""
    global running
    with open(log, "wb") as out:
        signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)  # until it is known what to end
        running = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=cwd,
                                   start_new_session=True, preexec_fn=prepare_child)
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)
            return running.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            end_running()


def interrupt(number, _):
    for other in INTERRUPTS:
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)  # by way of the `finally` above


# ---- The copy: one file of it is broken at a time, and put back with its objects.

class Copy:
    def __init__(self, folder):
        self.folder, self.tree = folder, os.path.join(folder, "tree")
        self.log, self.keep = os.path.join(folder, "log"), os.path.join(folder, "keep")
        self.baselines = {}
        os.environ["COPY"] = folder
        os.environ.update(PYTHONDONTWRITEBYTECODE="1", PYTHONUTF8="1")

    def make(self, *words, limit=None):
        return run(["tests/mutate", "--make", *words], self.log, limit)

    def said(self):
        """What the last command printed; a mutant may print any bytes."""
        return read(self.log, "replace")

    def open(self, digest):
        """The copy of these sources, made unless it is there."""
        stamp = os.path.join(self.folder, "copied")
        if not os.path.exists(stamp) or read(stamp) != digest:
            print("making a copy to break", flush=True)
            write(stamp, "")
            shutil.rmtree(self.keep, ignore_errors=True)
            if run(["tests/mutate", "--copy"], self.log) != 0:
                raise Failure("the tree could not be copied:\n" + self.said())
            write(stamp, digest)
        self.restore()

    def is_source(self, stem):
        return any(os.path.exists(os.path.join(self.tree, stem + end)) for end in ("", ".c"))

    def dependents(self, file):
        """The objects, by their paths in the tree, that are compiled from a file."""
        found = []
        for path in glob.glob(self.tree + "/build/**/*.d", recursive=True):
            rule = read(path).replace("\\\n", " ").split("\n")[0]
            target, _, needs = rule.partition(": ")
            if file in needs.split():
                found.append(target)
        return sorted(found)

    def break_file(self, file, text, objects):
        """Keeps the file and its objects, then writes the text in its place."""
        new = self.keep + ".new"
        shutil.rmtree(new, ignore_errors=True)
        for path in [file] + [p for o in objects for p in (o, o[:-2] + ".d")]:
            at = os.path.join(self.tree, path)
            if os.path.exists(at):
                os.makedirs(os.path.join(new, os.path.dirname(path)), exist_ok=True)
                shutil.copy2(at, os.path.join(new, path))
        os.rename(new, self.keep)
        write(os.path.join(self.tree, file), text)

    def restore(self):
        """Puts back what is kept: the source as old as it was, objects as of now, so that all is linked again."""
        if not os.path.isdir(self.keep):
            return
        for folder, _, names in os.walk(self.keep):
            for name in names:
                kept = os.path.join(folder, name)
                at = os.path.join(self.tree, os.path.relpath(kept, self.keep))
                shutil.copy2(kept, at)
                if name.endswith((".o", ".d")):
                    os.utime(at)
        shutil.rmtree(self.keep)

    @staticmethod
    def code_of(root, objects):
        """The objects' code and data without what is there for a debugger."""
        total = hashlib.sha256()
        with tempfile.TemporaryDirectory() as folder:
            for path in objects:
                bare = os.path.join(folder, "bare")
                subprocess.run(["strip", "-g", "-o", bare, os.path.join(root, path)], check=True)
                with open(bare, "rb") as file:
                    total.update(hashlib.sha256(file.read()).digest())
        return total.hexdigest()

    def test_words(self, room, words):
        """make's words for the tests of a room; None where this machine cannot run them."""
        if room == "python":
            return ["test-torch"] + (["PYTHON=" + os.environ["PYTHON"]] if os.environ.get("PYTHON") else [])
        if room == "cuda":
            found = re.findall(r"^CONFIG_(?:NVCC|GPUS) := *(\S+)", read(self.tree + "/build/config.mk"), re.M)
            return ["test-cuda", "T=" + " ".join(words)] if len(found) == 2 else None
        return ["test", "T=" + " ".join(words)]

    def baseline(self, room, words):
        """Seconds that the room's tests take unbroken; None where they are not run here."""
        if room not in self.baselines:
            goal, seconds = self.test_words(room, words), None
            if goal:
                for turn in range(3):  # the first may have had to compile, and one may fail by chance
                    for library in glob.glob(self.tree + "/build/*.a"):
                        os.utime(library)  # all is linked again, as with a mutant
                    began = time.monotonic()
                    status = self.make(*goal)
                    seconds = time.monotonic() - began
                    if turn > 0 and status == 0:
                        break
                said = self.said()
                if status != 0:
                    print(f"{room}: its tests fail unbroken, so none of its mutants is judged:\n" + said[-2000:])
                    seconds = None
                elif "test-torch: skipped:" in said:
                    print(f"{room}: " + said.strip())
                    seconds = None
            self.baselines[room] = seconds
        return self.baselines[room]


def code_of_python(text):
    """Its byte code without line numbers and docstrings; None where it is not Python."""
    def parts(code):
        return (code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_flags,
                code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, getattr(code, "co_exceptiontable", None),
                [parts(c) if hasattr(c, "co_code") else repr(c) for c in code.co_consts])

    try:
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node, False):
                node.body[0].value.value = ""
        return parts(compile(tree, "mutant", "exec"))
    except (SyntaxError, ValueError):
        return None


# ---- Draws and verdicts.

def draw(seed, rooms, number, sources, generator, folder):
    """The number-th draw: (file, line, its text, what stands in its place), None where a line has no mutant."""
    rng = random.Random(f"{seed} {' '.join(rooms)} {number}")
    at = rng.randrange(sum(len(lines) for lines in sources.values()))
    for file, lines in sources.items():
        if at < len(lines):
            break
        at -= len(lines)
    if not lines[at].strip():
        return None
    with tempfile.TemporaryDirectory(dir=folder) as made:
        write(os.path.join(made, "lines"), f"{at + 1}\n")
        language = "python" if file.endswith(".py") else "c"
        status = run(generator + [os.path.abspath(file), language, "--noCheck", "--mutantDir", made, "--lines",
                                  os.path.join(made, "lines")], os.path.join(folder, "log"), cwd=made)
        mutants = {read(m) for m in glob.glob(made + "/*.mutant.*")}
    if status != 0:
        raise Failure("the generator failed:\n" + read(os.path.join(folder, "log"))[-2000:])
    mutants = sorted(mutants - {"".join(lines)})
    if not mutants:
        return None
    new = lines_of(rng.choice(mutants))
    return file, at, lines[at], "".join(new[at:at + 1 + len(new) - len(lines)])


def judge(copy, mutant, text, rooms, listed):
    """(verdict, what there is to say of it)."""
    file, _, old, new = mutant
    room = room_of(file)
    if key_of(file, old, new) in listed:
        return "listed", ""
    seconds = copy.baseline(room, rooms[room])
    if seconds is None:
        return "not here", ""
    limit = float(os.environ.get("MUTANT_SECONDS") or max(60, 10 * seconds))
    objects = []
    if room == "python":
        code = code_of_python(text)
        if code is None:
            return "invalid", ""
        if code == code_of_python(read(os.path.join(copy.tree, file))):
            return "equal", ""
    else:
        objects = copy.dependents(file)
        own = [o for o in objects if copy.is_source("src" + re.sub(r"(\.\w+\.(32|64))?\.o$", "", o[len("build/obj"):]))]
        if not own:
            return "not here", "it is not part of this build"
    copy.break_file(file, text, objects)
    try:
        if objects:
            if copy.make(*own) != 0:
                return "invalid", ""
            if copy.code_of(copy.tree, own) == copy.code_of(copy.keep, own):
                return "equal", ""
        status = copy.make(*copy.test_words(room, rooms[room]), limit=limit)
        failed = re.findall(r"^(?:failed|FAILED) (.*)", copy.said(), re.M)
        if status is None:
            return "caught", f"by its time, {limit:.0f} s"
        if status != 0 and not failed and room != "python":
            return "invalid", "it does not link"
        return ("survived", "") if status == 0 else ("caught", "by " + (failed + ["a test"])[0])
    finally:
        copy.restore()


def open_results(folder, path, digest, listed):
    """What is there of these sources; of others it is removed. The first line says of which."""
    results = []
    for line in lines_of(read(path)) if os.path.exists(path) else []:
        if line.endswith("\n"):  # else an interrupt cut it
            results.append(json.loads(line))
    if not results or results[0].get("digest") != digest:
        for old in glob.glob(folder + "/*"):
            shutil.rmtree(old) if os.path.isdir(old) else os.remove(old)
        results = [{"digest": digest}]
    for r in results[1:]:
        if r["verdict"] == "survived" and key_of(r["file"], r["old"], r["new"]) in listed:
            r["verdict"] = "listed"  # since then
            os.remove(os.path.join(folder, f"survivor-{r['draw']}.diff"))
    with open(path + ".new", "w", encoding="utf-8") as out:
        out.writelines(json.dumps(r) + "\n" for r in results)
    os.replace(path + ".new", path)
    return results[1:]


def sum_up(results, wanted):
    """Prints the score, overall and by room."""
    counts = {}
    for r in results:
        for name in (room_of(r["file"]), "all"):
            of = counts.setdefault(name, {})
            of[r["verdict"]] = of.get(r["verdict"], 0) + 1
    kinds = ("caught", "survived", "equal", "listed", "invalid", "not here")
    print(f"{'room':<10}" + "".join(f"{k:>9}" for k in kinds) + "    score  95% interval")
    for name in sorted(counts, key=lambda n: (n == "all", n)):
        of = counts[name]
        caught, judged = of.get("caught", 0), of.get("caught", 0) + of.get("survived", 0)
        low, high = wilson(caught, judged)
        share = f"   {caught / judged:6.1%}  {low:.1%} to {high:.1%}" if judged else "        -"
        print(f"{name:<10}" + "".join(f"{of.get(k, 0):>9}" for k in kinds) + share)
    judged = sum(r["verdict"] in ("caught", "survived") for r in results)
    if judged < wanted:
        print(f"{judged} of {wanted} were judged: too few of the mutants drawn can be run here")


def main(words):
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    if words == ["--help"]:
        print(__doc__.strip())
        return 0
    if words == ["--check"]:
        wrong = check_lists()
        print("\n".join(wrong)) if wrong else None
        return 1 if wrong else 0
    rooms, chosen = read_rooms(), sorted(words[2:])
    if len(words) < 2 or not re.fullmatch(r"[1-9]\d*", words[0]) or not re.fullmatch(r"\w+", words[1]):
        print("tests/mutate_random.py: usage: N SEED [ROOM...]; --help says more", file=sys.stderr)
        return 2
    for room in chosen:
        if room not in rooms:
            raise Failure(f"no room '{room}'; tests/rooms.txt names them: {' '.join(rooms)}")
    wanted, seed = int(words[0]), words[1]
    for number in INTERRUPTS:
        signal.signal(number, interrupt)

    sources = {f: lines_of(read(f)) for f in list_sources() if not chosen or room_of(f) in chosen}
    digest = digest_tree()
    home = os.path.abspath(os.path.join(BUILD, "mutants"))
    folder = os.path.join(home, "-".join([seed] + chosen))
    os.makedirs(folder, exist_ok=True)
    generator = (os.environ.get("GENERATOR") or os.path.abspath(BUILD + "/mutate-venv/bin/mutate")).split()
    lock = open(os.path.join(home, "lock"), "w", encoding="utf-8")  # until the process ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise Failure(f"{home}: another run breaks this copy; wait for it, or give BUILD=") from error
    listed, path = read_equivalents(), os.path.join(folder, "results")
    results = open_results(folder, path, digest, listed)
    if results:
        print(f"{len(results)} mutants are there already: {path}")

    copy = Copy(home)
    copy.open(digest)
    seen = {(r["file"], r["line"], r["new"]) for r in results}
    number = results[-1]["draw"] if results else 0
    with open(path, "a", encoding="utf-8") as out:
        while True:
            judged = [r["draw"] for r in results if r["verdict"] in ("caught", "survived")]
            if len(judged) >= wanted or number >= max(judged, default=0) + IN_VAIN:
                break
            number += 1
            mutant = draw(seed, chosen, number, sources, generator, folder)
            if not mutant or (mutant[0], mutant[1] + 1, mutant[3]) in seen:
                continue
            file, at, old, new = mutant
            lines = sources[file]
            text = "".join(lines[:at]) + new + "".join(lines[at + 1:])
            began = time.monotonic()
            verdict, why = judge(copy, mutant, text, rooms, listed)
            if verdict == "survived":
                why = os.path.join(folder, f"survivor-{number}.diff")
                write(why, "".join(difflib.unified_diff(lines, lines_of(text), "a/" + file, "b/" + file)))
            print(f"{verdict:<9} {file}:{at + 1}  {why}{' ' * bool(why)}({time.monotonic() - began:.0f} s)", flush=True)
            results.append({"draw": number, "file": file, "line": at + 1, "old": old, "new": new, "verdict": verdict})
            seen.add((file, at + 1, new))
            out.write(json.dumps(results[-1]) + "\n")
            out.flush()
    sum_up(results, wanted)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Failure as failure:
        print(f"tests/mutate_random.py: {failure}", file=sys.stderr)
        sys.exit(2)
