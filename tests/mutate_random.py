#!/usr/bin/env python3
"""Breaks src/ and python/ at lines drawn at random and says what share of the breaks the tests notice.

A line is drawn, then one of the mutants that a generator (universalmutator) makes of it. In a copy of the tree
(tests/mutate --copy) the objects that depend on the file are compiled and the tests of its folder are run, as
tests/rooms.txt names them. JOBS mutants are judged at a time, each by a worker with a copy and processors of its
own. A mutant is

  caught    a test fails, or they take ten times as long as unbroken beside as many workers, and at least a minute;
            what passes is tried once more in a build with sanitizers
  survived  all pass: FOLDER/survivor-K.diff is what was changed
  equal     its object code (of Python, its byte code) is that of the original; not counted
  listed    tests/equivalent.txt says why no test can notice it; not counted
  invalid   it does not compile or link; not counted
  not here  this machine cannot run its folder's tests, or its file is not part of the build; not counted

until N are caught or survived. The K-th draw of a seed is the same mutant for the same sources, and they count in
the order of draws, whatever JOBS is. Results are in BUILD/mutants/SEED[-ROOM...]/results, one line of JSON each:
after an interrupt the same command goes on, and a larger N adds to what is there. They are begun anew when a file of
the tree that counts has changed.

  tests/mutate_random.py N SEED [ROOM...]   rooms: folders of src/, and python; without them, all
  tests/mutate_random.py --check            whether tests/rooms.txt and tests/equivalent.txt are up to date

BUILD, CC, NVCC: as in tests/mutate. JOBS: workers (one for two processors). GENERATOR: its command
(BUILD/mutate-venv/bin/mutate). MUTANT_SECONDS: how long the tests of a mutant may take. SANITIZERS: those of the
second look (address,undefined), or no. PYTHON: the interpreter of make test-torch.
"""
import difflib
import fcntl
import glob
import hashlib
import json
import math
import os
import random
import re
import shutil
import signal
import sys
import tempfile

sys.dont_write_bytecode = True
from mutants import INTERRUPTS, Failure, Team, interrupt, lines_of, list_processors, read, replace, room_of, run, write  # noqa: E402

BUILD = os.environ.get("BUILD") or "build"
SOURCES = ("src/**/*.c", "src/**/*.h", "src/**/*.cu", "src/**/*.cuh", "python/**/*.py")
# What a verdict may depend on.
COUNTED = SOURCES + ("src/**/*", "include/**/*", "tests/**/*", "mk/*", "Makefile", "scripts/*", "bench/*",
                     "defconfigs/*", "examples/*")

# Draws in a row of which none can be judged, after which there are taken to be no more.
IN_VAIN = 60


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

# ---- Draws.

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

def read_records(path):
    """The whole lines of a file of JSON: an interrupt may have cut the last."""
    return [json.loads(line) for line in (lines_of(read(path)) if os.path.exists(path) else []) if line.endswith("\n")]


def open_results(folder, path, digest, listed):
    """What is there of these sources; of others it is removed. The first line says of which."""
    results = read_records(path)
    if not results or results[0].get("digest") != digest:
        for old in glob.glob(folder + "/*"):
            shutil.rmtree(old) if os.path.isdir(old) else os.remove(old)
        results = [{"digest": digest}]
    for r in results[1:]:
        if r["verdict"] == "survived" and key_of(r["file"], r["old"], r["new"]) in listed:
            r["verdict"] = "listed"  # since then
            os.remove(os.path.join(folder, f"survivor-{r['draw']}.diff"))
    replace(path, "".join(json.dumps(r) + "\n" for r in results))
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


class Run:
    """Draws, lets the workers judge, and counts in the order of draws."""

    def __init__(self, wanted, seed, chosen, folder, digest):
        self.wanted, self.seed, self.chosen, self.folder = wanted, seed, chosen, folder
        self.sources = {f: lines_of(read(f)) for f in list_sources() if not chosen or room_of(f) in chosen}
        self.generator = (os.environ.get("GENERATOR") or os.path.abspath(BUILD + "/mutate-venv/bin/mutate")).split()
        self.path, self.ahead = os.path.join(folder, "results"), os.path.join(folder, "ahead")
        self.listed = read_equivalents()
        self.results = open_results(folder, self.path, digest, self.listed)
        self.seen = {(r["file"], r["line"], r["new"]) for r in self.results}
        self.drawn = self.counted = self.results[-1]["draw"] if self.results else 0
        self.open = {}  # by draw, what is not counted yet; None of a draw without a mutant
        self.early = {r["draw"]: r for r in read_records(self.ahead) if r["draw"] > self.counted}  # of a run before

    def judged(self):
        return [r["draw"] for r in self.results if r["verdict"] in ("caught", "survived")]

    def is_over(self):
        judged = self.judged()
        return len(judged) >= self.wanted or self.counted >= max(judged, default=0) + IN_VAIN

    def may_draw(self):
        """Not where it could not count, whatever becomes of those before."""
        return self.drawn < max(self.judged() + [k for k, r in self.open.items() if r], default=0) + IN_VAIN

    def draw_next(self, team):
        """Draws once, and gives it to a worker unless its verdict is known."""
        self.drawn += 1
        self.open[self.drawn] = None
        mutant = draw(self.seed, self.chosen, self.drawn, self.sources, self.generator, self.folder)
        if not mutant or (mutant[0], mutant[1] + 1, mutant[3]) in self.seen:
            return
        file, at, old, new = mutant
        self.seen.add((file, at + 1, new))
        result = {"draw": self.drawn, "file": file, "line": at + 1, "old": old, "new": new}
        early = self.early.pop(self.drawn, None)
        if key_of(file, old, new) in self.listed:
            result.update(verdict="listed", why="", seconds=0)
        elif early:
            result = early
        else:
            team.give(self.drawn, file, self.text_of(result))
        self.open[self.drawn] = result

    def text_of(self, r):
        """The file with the mutant in it."""
        lines = self.sources[r["file"]]
        return "".join(lines[:r["line"] - 1]) + r["new"] + "".join(lines[r["line"]:])

    def finish(self, verdicts):
        """Keeps what is judged before its turn comes."""
        for number, verdict, why, seconds in verdicts:
            self.open[number].update(verdict=verdict, why=why, seconds=seconds)
        known = [r for r in [*self.open.values(), *self.early.values()] if r and r.get("verdict", "listed") != "listed"]
        replace(self.ahead, "".join(json.dumps(r) + "\n" for r in known))

    def count(self, out):
        """Counts the draws whose turn it is, one after another."""
        while self.counted < self.drawn and not self.is_over():
            result = self.open[self.counted + 1]
            if result and "verdict" not in result:
                return
            self.counted += 1
            del self.open[self.counted]
            if not result:
                continue
            file, why, seconds = result["file"], result.pop("why"), result.pop("seconds")
            if result["verdict"] == "survived":
                why = os.path.join(self.folder, f"survivor-{self.counted}.diff")
                write(why, "".join(difflib.unified_diff(self.sources[file], lines_of(self.text_of(result)), "a/" + file, "b/" + file)))
            print(f"{result['verdict']:<9} {file}:{result['line']}  {why}{' ' * bool(why)}({seconds:.0f} s)", flush=True)
            self.results.append(result)
            out.write(json.dumps(result) + "\n")
            out.flush()

    def go(self, team):
        with open(self.path, "a", encoding="utf-8") as out:
            while True:
                self.count(out)
                if self.is_over():
                    return
                draws = not team.is_busy() and self.may_draw()
                if draws:
                    self.draw_next(team)
                verdicts = team.take(not draws)
                if verdicts:
                    self.finish(verdicts)


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
    jobs = os.environ.pop("JOBS", "")
    if not re.fullmatch(r"([1-9]\d*)?", jobs):
        raise Failure(f"JOBS={jobs}: it is how many mutants are judged at a time")
    os.environ.update(PYTHONDONTWRITEBYTECODE="1", PYTHONUTF8="1")
    for number in INTERRUPTS:
        signal.signal(number, interrupt)

    digest = digest_tree()
    home = os.path.abspath(os.path.join(BUILD, "mutants"))
    folder = os.path.join(home, "-".join([seed] + chosen))
    os.makedirs(folder, exist_ok=True)
    lock = open(os.path.join(home, "lock"), "w", encoding="utf-8")  # until the process ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise Failure(f"{home}: another run breaks this copy; wait for it, or give BUILD=") from error
    drawing = Run(wanted, seed, chosen, folder, digest)
    if drawing.results:
        print(f"{len(drawing.results)} mutants are there already: {drawing.path}")
    if not drawing.is_over():
        team = Team(home, digest, int(jobs or max(1, len(list_processors()) // 2)))
        try:
            team.start(rooms)
            drawing.go(team)
        finally:
            team.end()
    sum_up(drawing.results, wanted)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Failure as failure:
        print(f"tests/mutate_random.py: {failure}", file=sys.stderr)
        sys.exit(2)
