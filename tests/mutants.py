"""The workers of tests/mutate_random.py: copies of the tree, one file of which is broken at a time, and whether the
tests notice.

A worker is a process with a copy, and with processors, of its own. It is sent a file's text and answers with a verdict.
What it runs is in a session by itself, so that an interrupt at any moment ends all of it.
"""
import ast
import glob
import hashlib
import json
import multiprocessing
import multiprocessing.connection
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time


class Failure(Exception):
    """Ends the run with a line."""


def read(path, errors="strict"):
    with open(path, encoding="utf-8", errors=errors) as file:
        return file.read()


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def replace(path, text):
    """Writes it whole, or not at all."""
    write(path + ".new", text)
    os.replace(path + ".new", path)


def lines_of(text):
    """With their ends; a form feed ends none."""
    return re.findall(r".*\n|.+", text)


def room_of(path):
    parts = path.split("/")
    return "python" if parts[0] == "python" else parts[1]

# ---- Commands: in a session of their own.

running = None
memory_shares = 2
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


def prepare_child(bounded):
    """A mutant may allocate without end; sanitizers need more than there is."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)
    share = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // memory_shares
    for what, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_DATA, share))[:2 if bounded else 1]:
        hard = resource.getrlimit(what)[1]
        resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def run(words, log, limit=None, cwd=None, bounded=True):
    """The exit status, None past the limit; what it said is in the file `log`."""
    global running
    with open(log, "wb") as out:
        signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)  # until it is known what to end
        running = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=cwd,
                                   start_new_session=True, preexec_fn=lambda: prepare_child(bounded))
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)
            return running.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            end_running()


def interrupt(number, _):
    for other in INTERRUPTS:  # another one changes nothing; it may have come already
        signal.signal(other, lambda *_: None)
    sys.exit(128 + number)  # by way of the `finally` above


# ---- A copy: one file of it is broken at a time, and put back with its objects.

class Copy:
    def __init__(self, folder, threads):
        self.folder, self.tree, self.threads = folder, os.path.join(folder, "tree"), threads
        self.log, self.keep = os.path.join(folder, "log"), os.path.join(folder, "keep")
        self.baselines, self.linked = {}, {}
        os.makedirs(folder, exist_ok=True)
        os.environ["COPY"] = folder

    def make(self, *words, limit=None):
        return run(["tests/mutate", "--make", f"-j{self.threads}", f"JOBS={self.threads}", *words], self.log, limit,
                   bounded=not any(w.startswith("SAN=") for w in words))

    def said(self):
        """What the last command printed; a mutant may print any bytes."""
        return read(self.log, "replace")

    def open(self, digest):
        """The copy of these sources, made unless it is there."""
        stamp = os.path.join(self.folder, "copied")
        if not os.path.exists(stamp) or read(stamp) != digest:
            print(f"making a copy to break: {self.tree}", flush=True)
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

    def link(self, words, *more):
        """Whether the room's test programs could be made; those of python have none."""
        return not words or self.make("tests", "T=" + " ".join(words), *more) == 0

    def baseline(self, room, words, *more):
        """Seconds that the room's tests take unbroken; None where they are not run here. Their programs are made in
        this copy first: an object that a mutant was the first to need would not be put back."""
        goal = self.test_words(room, words)
        key = " ".join((room,) + more)
        if key not in self.linked:
            self.linked[key] = bool(goal) and self.link(words, *more)
        if key not in self.baselines:
            status, seconds = 1, None
            for _ in range(3 if self.linked[key] else 0):  # one may fail by chance
                began = time.monotonic()
                status = self.make(*goal, *more)
                seconds = time.monotonic() - began
                if status == 0:
                    break
            if goal and status != 0:
                print(f"{key}: its tests fail unbroken, so none of its mutants is judged:\n" + self.said()[-2000:])
                seconds = None
            elif goal and "test-torch: skipped:" in self.said():
                print(f"{room}: " + self.said().strip())
                seconds = None
            self.baselines[key] = seconds
        return self.baselines[key] if self.linked[key] else None

    def test(self, room, words, seconds, *more):
        """(verdict, what there is to say of it) of tests that take so long unbroken."""
        limit = float(os.environ.get("MUTANT_SECONDS") or max(60, 10 * seconds))
        status = self.make(*self.test_words(room, words), *more, limit=limit)
        failed = re.findall(r"^(?:failed|FAILED) (.*)", self.said(), re.M)
        if status is None:
            return "caught", f"by its time, {limit:.0f} s"
        return ("survived", "") if status == 0 else ("caught", "by " + (failed + ["a test"])[0])


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

def judge(copy, file, text, rooms):
    """(verdict, what there is to say of it)."""
    room = room_of(file)
    seconds = copy.baseline(room, rooms[room])
    if seconds is None:
        return "not here", ""
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
        if not copy.link(rooms[room]):
            return "invalid", "it does not link"
        return copy.test(room, rooms[room], seconds)
    finally:
        copy.restore()


def judge_again(copy, file, text, rooms, sanitizers):
    """What survived is looked at once more with sanitizers, as make test SAN=... does: (verdict, what there is to say)."""
    room, more = room_of(file), "SAN=" + sanitizers
    seconds = copy.baseline(room, rooms[room], more)
    if seconds is None:
        return "survived", ""
    copy.break_file(file, text, copy.dependents(file))
    try:
        if not copy.link(rooms[room], more):
            return "survived", ""
        verdict, why = copy.test(room, rooms[room], seconds, more)
        return verdict, why and "with sanitizers " + why
    finally:
        copy.restore()


def work(parent, ends, folder, processors, digest, rooms):
    """A worker: judges what it is sent until it is ended, or what started it is no more. Without processors of its
    own it shares all."""
    ends.close()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)
    sanitizers = os.environ.get("SANITIZERS", "address,undefined")
    if processors and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, processors)
    try:
        copy = Copy(folder, max(1, len(processors)))
        copy.open(digest)
        while True:
            file, text, copy.baselines = parent.recv()
            began = time.monotonic()
            verdict, why = judge(copy, file, text, rooms)
            if verdict == "survived" and sanitizers != "no" and room_of(file) not in ("python", "cuda"):
                verdict, why = judge_again(copy, file, text, rooms, sanitizers)
            parent.send((verdict, why, time.monotonic() - began, copy.baselines))
    except Failure as failure:
        parent.send(failure)
    except (EOFError, BrokenPipeError):
        pass


def list_processors():
    """Those that this process may use; where the system does not tell which, as many without a number."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [None] * (os.cpu_count() or 1)


class Team:
    """The workers. What tests take unbroken is measured by the first that needs it, while the others work too, and
    kept for later runs with as many."""

    def __init__(self, home, digest, jobs):
        global memory_shares
        memory_shares = jobs + 1
        self.home, self.digest, self.jobs = home, digest, jobs
        self.processes, self.tasks = {}, {}  # by the connection to them; the draws that they judge
        self.path, self.key = os.path.join(home, "seconds"), f"{digest} {jobs}"
        self.baselines = json.loads(read(self.path)).get(self.key, {}) if os.path.exists(self.path) else {}

    def start(self, rooms):
        processors = list_processors()
        share = len(processors) // self.jobs
        for k in range(self.jobs):
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.get_context("fork").Process(target=work, args=(
                theirs, ours, os.path.join(self.home, f"copy-{k + 1}"), processors[k * share:(k + 1) * share], self.digest, rooms))
            signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)  # until it is known whom to end
            process.start()
            self.processes[ours] = process
            signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)
            theirs.close()

    def end(self):
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.join()

    def is_busy(self):
        return len(self.tasks) == len(self.processes)

    def give(self, number, file, text):
        to = next(c for c in self.processes if c not in self.tasks)
        self.tasks[to] = number
        to.send((file, text, self.baselines))

    def take(self, wait):
        """What has been judged: (draw, verdict, what there is to say of it, seconds) each."""
        judged = []
        for of in multiprocessing.connection.wait(list(self.processes), None if wait else 0):
            try:
                answer = of.recv()
            except EOFError:  # it was interrupted alone, or failed
                self.processes[of].join()
                code = self.processes[of].exitcode
                sys.exit(128 - code if code < 0 else code or 2)
            if isinstance(answer, Failure):
                raise answer
            verdict, why, seconds, baselines = answer
            for room, took in baselines.items():
                self.baselines[room] = max((t for t in (took, self.baselines.get(room)) if t is not None), default=None)
            judged.append((self.tasks.pop(of), verdict, why, seconds))
        if judged:
            replace(self.path, json.dumps({self.key: {r: t for r, t in self.baselines.items() if t is not None}}))
        return judged
