"""Runs a command on a terminal and plays a person who sets CONFIG_ATTENTION to w2 in its menu.

Ends as the command does; 77 where the system gives no terminal; 1 where the screen does not show what
the next key is for within a minute.
"""

import os
import pty
import select
import sys
import time

PATIENCE_S = 60
# What must be on the screen, then what is typed.
SCRIPT = [
    (b"Model", b"\n"),
    (b"ATTENTION", b"\n"),
    (b"dot", b"\x7f\x7f\x7fw2\n"),
    (b"w2", b"q"),
    (b"(Y)es", b"y"),
]


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


def main():
    try:
        child, terminal = pty.fork()
    except OSError:
        sys.exit(77)
    if child == 0:
        os.environ["TERM"] = "xterm"
        os.execvp(sys.argv[1], sys.argv[1:])
    for word, keys in SCRIPT:
        if not read_until(terminal, word):
            sys.exit(f"drive_menu: {word.decode()} was not shown")
        os.write(terminal, keys)
    if not read_until(terminal, None):
        sys.exit("drive_menu: the menu does not end")
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    main()
