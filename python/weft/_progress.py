"""How far a long call is: tqdm's bar where it can be imported, else a line as the weft program draws one."""
import contextlib
import os
import shutil
import sys
import time

DELAY, REDRAW = 0.5, 0.1  # seconds: a call that is over sooner shows nothing
BAR = 40
ERASE = "\r\033[K"


def is_wanted():
    """Whether someone looks on: standard error is a terminal, and WEFT_LOG does not ask for less."""
    if os.environ.get("WEFT_LOG") in ("warn", "error") or os.environ.get("TERM") in (None, "", "dumb"):
        return False
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


@contextlib.contextmanager
def shown(wanted, label, unit, total):
    """A function to be called with what more was done. `wanted` None: on a terminal only."""
    if not (is_wanted() if wanted is None else wanted):
        yield lambda n: None
        return
    try:
        from tqdm.auto import tqdm
        bar = tqdm(total=total, desc=label, unit=" " + unit, leave=False, delay=DELAY)
    except ImportError:
        bar = Line(label, unit, total)
    try:
        yield bar.update
    finally:
        bar.close()


class Line:
    """generate [=====>     ] 48/256, 12.3 tokens/s, 17s left"""

    def __init__(self, label, unit, total, file=None, clock=time.monotonic):
        self.label, self.unit, self.total, self.done = label, unit, total, 0
        self.file, self.clock = file or sys.stderr, clock
        self.begun = clock()
        self.next = self.begun + DELAY
        self.drawn = False

    def update(self, n):
        self.done += n
        now = self.clock()
        if now < self.next:
            return
        self.next, self.drawn = now + REDRAW, True
        self.file.write(ERASE + self.text(now - self.begun, shutil.get_terminal_size().columns - 1))
        self.file.flush()

    def text(self, passed, width):
        left = round((self.total - self.done) * passed / self.done) if 0 < self.done <= self.total else 0
        left = f"{left}s" if left < 60 else f"{left // 60}m{left % 60:02d}s" if left < 3600 else f"{left // 3600}h{left // 60 % 60:02d}m"
        words = f"{self.done}/{self.total}, {self.done / passed:.1f} {self.unit}s/s, {left} left"
        room = min(BAR, width - len(self.label) - len(words) - 4)
        if room < 8:
            return f"{self.label} {words}"[:width]
        full = min(room, room * self.done // self.total)
        bar = "=" * (full - 1) + ">" if 0 < full < room else "=" * full
        return f"{self.label} [{bar:<{room}}] {words}"

    def close(self):
        if self.drawn:
            self.file.write(ERASE)
            self.file.flush()
