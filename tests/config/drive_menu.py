"""Runs a command on a terminal and plays a person in its menu.

    drive_menu.py COMMAND...            sets CONFIG_ATTENTION to w2
    drive_menu.py --leave COMMAND...    closes the terminal while the menu is shown
    drive_menu.py --wrong COMMAND...    gives CONFIG_DROPOUT a number that it cannot have, then 0.3
    drive_menu.py --save COMMAND...     saves what the menu begins with

Ends as the command does; 77 where the system gives no terminal; 1 where the screen does not show what
the next key is for within a minute, or where a process is left that the terminal was closed for. No
process is left in any case.
"""

import os
import pty
import select
import signal
import sys
import time

PATIENCE_S = 60
# What must be on the screen, then what is typed.
SCRIPT = [
    (b"Model", b"\n"),
    (b"Attention, by the score", b"\n"),
    (b"2  w2", b"2"),
    (b"w2", b"q"),
    (b"(Y)es", b"y"),
]

WRONG = [
    (b"Model", b"/"),
    (b"Jump to", b"DROPOUT\n"),
    (b"Dropout on the two", b"\n"),
    (b"0.0", b"\x7f\x7f\x7f7\n"),
    (b"outside 0 to 0.99", b"\x1b"),
    (b"7", b"\x7f0.3\n"),
    (b"3", b"q"),
    (b"(Y)es", b"y"),
]
SAVE = [(b"Model", b"q"), (b"(Y)es", b"y")]


def read_until(terminal, word):
    """Reads until the word was shown, or to the end for None. Tells whether it was."""
    seen, end = b"", time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if not select.select([terminal], [], [], 1)[0]:
            continue
        try:
            piece = os.read(terminal, 65536)
        except OSError:
            piece = b""
        if not piece:
            return word is None
        seen += piece
        if word and word in seen:
            # The rest of this drawing belongs to it.
            while select.select([terminal], [], [], 0.3)[0] and os.read(terminal, 65536):
                pass
            return True
    return False


def start(command, leaves):
    try:
        child, terminal = pty.fork()
    except OSError:
        sys.exit(77)
    if child == 0:
        os.environ["TERM"] = "xterm"
        if leaves:  # as under nohup: only the closed terminal itself tells
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.execvp(command[0], command)
    return child, terminal


def play(child, terminal, script=SCRIPT):
    for word, keys in script:
        if not read_until(terminal, word):
            sys.exit(f"drive_menu: {word.decode()} was not shown")
        os.write(terminal, keys)
    if not read_until(terminal, None):
        sys.exit("drive_menu: the menu does not end")
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def is_left(group):
    """Whether a process of the group is still there; the child itself is waited for."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        pass
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def leave(child, terminal):
    if not read_until(terminal, SCRIPT[0][0]):
        sys.exit("drive_menu: the menu was not shown")
    os.close(terminal)
    end = time.monotonic() + PATIENCE_S / 2
    while is_left(child) and time.monotonic() < end:
        time.sleep(0.05)
    if is_left(child):
        sys.exit("drive_menu: the menu goes on without its terminal")
    return 0


def main():
    leaves, named = sys.argv[1] == "--leave", sys.argv[1].startswith("--")
    child, terminal = start(sys.argv[2 if named else 1:], leaves)
    try:
        if leaves:
            sys.exit(leave(child, terminal))
        sys.exit(play(child, terminal, {"--wrong": WRONG, "--save": SAVE}.get(sys.argv[1], SCRIPT)))
    finally:
        try:
            os.killpg(child, signal.SIGKILL)
        except ProcessLookupError:
            pass


if __name__ == "__main__":
    main()
