"""Drives the live page of runs in headless Chromium. Needs nothing but Python.

    watch.py URL RUNS FOLDER [PICTURES]

RUNS is the folder that is watched. A run that arrives must appear, and its new lines with it; pointing at
a curve tells its values and hides no other chart; a click on the legend hides it; seeds are one row that
unfolds; the filter and the table's heads work; the lowest is marked; what marks
and bands mean is said; a note is kept; nothing scrolls sideways
at 390 and 1280 pixels; the page's script has no fault and asks nobody but its server. With PICTURES, screenshots go there. Ends on 0 when all is well, 1 with a line for each thing
that is not, 77 where there is no Chromium.
"""
import fcntl
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from chromium import judge  # noqa: E402

HELD = []
ROWS = "document.querySelectorAll('#runs tbody tr:not(.text)').length"
NAMES = "[...document.querySelectorAll('#runs tbody td.name')].map(e => e.textContent)"
# Of the first text and tokenizer: rows are sorted within each.
SORTED = """(() => { const rows = [...document.querySelectorAll("#runs tbody tr")].slice(1), end = rows.findIndex(r => r.classList.contains("text"));
  return rows.slice(0, end < 0 ? rows.length : end).map(r => r.querySelector("td.name").textContent); })()"""


def add_run(runs, name, seed, lines):
    folder = os.path.join(runs, name)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config"), "w", encoding="utf-8") as out:
        out.write("CONFIG_N_LAYER=3\nCONFIG_BATCH_SIZE=4\nCONFIG_CONTEXT=32\n"
                  "CONFIG_STEPS=1000\nCONFIG_SEED=%d\n" % seed)
    add_lines(runs, name, 0, lines, seed)
    HELD.append(open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8"))
    fcntl.flock(HELD[-1], fcntl.LOCK_EX)  # it runs, however long ago it wrote a line


def add_lines(runs, name, first, count, seed=1):
    with open(os.path.join(runs, name, "metrics.jsonl"), "a", encoding="utf-8") as out:
        for i in range(first, first + count):
            row = {"step": 10 * (i + 1), "loss": 2 + 3 / (i + 1) + 0.01 * seed, "lr": 1e-3, "grad_norm": 1.0,
                   "tokens_per_s": 5000 + i}
            if i % 2:
                row["val_loss"] = 2.1 + 3 / (i + 1) + 0.01 * seed
            out.write(json.dumps(row) + "\n")


def check_arrival(b, runs, wrong):
    before = b.value(ROWS)
    add_run(runs, "late-seed1", 1, 20)
    add_run(runs, "late-seed2", 2, 20)
    b.wait(ROWS + " === %d" % (before + 2))
    add_lines(runs, "late-seed1", 20, 5)
    b.wait("[...document.querySelectorAll('#runs tbody tr')].some(r => r.textContent.includes('late-seed1')"
           " && r.textContent.includes('250'))")
    shown = b.value(NAMES)
    if "<img src=x onerror=alert(1)>" not in shown:
        wrong.append("names: %r" % shown)
    if b.value("document.querySelectorAll('#runs img').length"):
        wrong.append("a name became markup")


def middle(b, selector):
    b.value("document.querySelector(%s).scrollIntoView({block: 'center'})" % json.dumps(selector))
    return b.value("(() => { const r = document.querySelector(%s).getBoundingClientRect();"
                   " return [r.left + r.width / 2, r.top + r.height / 2]; })()" % json.dumps(selector))


def tick(b, selector, on):
    """Clicks at a box until it is so: the page may move under the pointer as runs are told."""
    for _ in range(20):
        if b.value("document.querySelector(%s).checked" % json.dumps(selector)) == on:
            return
        b.click(*middle(b, selector))
    raise RuntimeError("no click at %s makes it %s" % (selector, on))


def check_study(b, wrong):
    """A study's runs go by their step's title, averaged over the seeds."""
    b.wait("document.querySelector('#curves .legend').textContent.includes('Plain <b>attention</b> (2 seeds)')")
    if not b.value("document.getElementById('group').checked"):
        wrong.append("seeds are not averaged")
    b.value("document.getElementById('group').click()")
    b.wait("document.querySelector('#curves .legend').textContent.includes('Plain <b>attention</b>, seed 2')")


def check_curves(b, wrong):
    b.wait("document.querySelectorAll('#curves .chart .line').length > 1")
    b.move(*middle(b, "#curves .chart > svg"))
    b.wait("[...document.querySelectorAll('#curves .tip')].some(t => !t.hidden && t.textContent.length > 5)")
    tick(b, "#curves .legend input", False)
    lines = b.value("document.querySelectorAll('#curves .chart .line').length")
    tick(b, "#curves .legend input", True)
    b.wait("document.querySelectorAll('#curves .chart .line').length > %d" % lines)
    b.value("document.getElementById('group').click()")
    b.wait("document.querySelector('#curves .legend').textContent.includes('late (2 runs)')")


# Charts other than its own that the box of values covers.
COVERED = """(() => {
  const tip = document.querySelector(".tip:not([hidden])"), box = tip.getBoundingClientRect();
  return [...document.querySelectorAll("#curves .chart > svg")].filter((svg) => {
    const r = svg.getBoundingClientRect();
    return !tip.parentNode.contains(svg) && box.left < r.right && box.right > r.left && box.top < r.bottom && box.bottom > r.top;
  }).length; })()"""


# How much of its own chart the box of values hides, and how much it may.
SHARE = """(() => {
  const tip = document.querySelector(".tip:not([hidden])"), box = tip.getBoundingClientRect();
  const r = tip.parentNode.querySelector(":scope > svg").getBoundingClientRect();
  return Math.max(0, Math.min(box.right, r.right) - Math.max(box.left, r.left)) *
    Math.max(0, Math.min(box.bottom, r.bottom) - Math.max(box.top, r.top)) / (r.width * r.height); })()"""
SHARE_MOST = 0.2


def check_box(b, wrong):
    """The values of a chart hide no other chart, wherever the pointer is, and a run that has ended before
    is not among them."""
    for width in (390, 1280):
        b.size(width)
        b.wait("innerWidth === %d" % width)
        check_boxes(b, wrong)
    x, y = middle(b, "#curves .chart:nth-child(2) svg")
    b.move(x + b.value("document.querySelector('#curves .chart:nth-child(2) svg').clientWidth") * 0.45, y)
    b.wait("document.querySelectorAll('.tip:not([hidden])').length")
    told = b.value("document.querySelector('.tip:not([hidden])').textContent")
    if "late" not in told or "Plain" in told:
        wrong.append("after the end of all others the box tells %r" % told)
    b.move(2, 2)


def check_boxes(b, wrong):
    for chart in range(b.value("document.querySelectorAll('#curves .chart > svg').length")):
        b.value("document.querySelectorAll('#curves .chart > svg')[%d].scrollIntoView({block: 'center'})" % chart)
        left, top, width, height = b.value("""(() => { const r = document.querySelectorAll("#curves .chart > svg")[%d]
            .getBoundingClientRect(); return [r.left, r.top, r.width, r.height]; })()""" % chart)
        for share in (0.3, 0.55, 0.95):
            b.move(left + share * width, top + height / 2)
            b.wait("document.querySelectorAll('.tip:not([hidden])').length")
            if b.value(COVERED):
                wrong.append("the values of chart %d hide another at %g" % (chart, share))
            hidden = b.value(SHARE)
            if hidden > SHARE_MOST:
                wrong.append("the values of chart %d hide %.0f%% of it at %g: %r" % (
                    chart, 100 * hidden, share, b.value("document.querySelector('.tip:not([hidden])').innerText")))


def check_groups(b, wrong):
    """Runs that differ by their seed alone are one row with the mean of their scores; it unfolds, and keeps
    the keyboard while runs are written."""
    group = "[...document.querySelectorAll('#runs tr.group')].find(r => r.textContent.includes('late'))"
    # The least held-out losses are 2.1 + 3/24 + 0.01 and 2.1 + 3/20 + 0.02.
    if "2.2525 \u00b1 0.0247" not in b.value(group + ".textContent"):
        wrong.append("a group is told as %r" % b.value(group + ".textContent"))
    if b.value("[...document.querySelectorAll('#runs .inside')].length"):
        wrong.append("groups are unfolded")
    check_marks(b, True, wrong)
    b.value(group + ".querySelector('td.name button').focus()")
    b.press("Enter", 13)
    b.wait("document.querySelectorAll('#runs .inside').length === 2")
    return group


def check_focus(b, runs, group, wrong):
    add_run(runs, "late-seed7", 7, 3)
    b.wait("[...document.querySelectorAll('#runs td.name')].some(e => e.textContent.includes('late-seed7'))")
    if not b.value("document.activeElement === %s?.querySelector('td.name button')" % group):
        wrong.append("the keyboard is lost when a run arrives")
    b.press("Enter", 13)
    b.wait("document.querySelectorAll('#runs .inside').length === 0")
    b.value("document.getElementById('group').click()")


def check_table(b, wrong):
    rows = b.value(ROWS)
    b.write("filter", "late- N_HEAD=12")  # the default, which no run names
    b.wait(ROWS + " === 3")
    b.write("filter", "late SEED=2")
    b.wait(ROWS + " === 1")
    if b.value(NAMES) != ["late-seed2"]:
        wrong.append("filtered: %r" % b.value(NAMES))
    b.write("filter", "")
    b.value("document.getElementById('filter').dispatchEvent(new Event('input'))")
    b.wait(ROWS + " === %d" % rows)
    b.value("[...document.querySelectorAll('#runs th button')].find(e => e.textContent === 'run').click()")
    names = b.value(SORTED)
    b.value("[...document.querySelectorAll('#runs th button')].find(e => e.textContent === 'run').click()")
    if len(names) < 4 or b.value(SORTED) != names[::-1]:
        wrong.append("sorted: %r and %r" % (names, b.value(SORTED)))


def check_best(b, wrong):
    """The run with the lowest held-out loss is marked, among those that are listed."""
    marked = "[...document.querySelectorAll('#runs tr.best')].map(r => r.querySelector('td.name').textContent)"
    for words, best in (("late-", ["late-seed1"]), ("late SEED=2", [])):
        b.write("filter", words)
        b.wait(ROWS + " === %d" % (3 if best else 1))
        if b.value(marked) != best:
            wrong.append("of '%s' the best is marked as %r" % (words, b.value(marked)))
    b.write("filter", "")
    b.value("document.getElementById('filter').dispatchEvent(new Event('input'))")
    b.wait(ROWS + " > 2")
    if b.value("document.querySelectorAll('#runs .lowest').length") != 1:
        wrong.append("%d runs are the lowest" % b.value("document.querySelectorAll('#runs .lowest').length"))
    check_marks(b, False, wrong)


def check_marks(b, averaged, wrong):
    """What a mark or a band means is said while there are any."""
    said = {"\u201clowest\u201d marks": True, "standard deviation": averaged, "more than chance": averaged}
    shown = "(e => e.offsetParent ? e.textContent : '')(document.querySelector('%s'))"
    text = b.value(shown % "#marks")
    for words, there in said.items():
        if (words in text) != there:
            wrong.append("averaged %r: the marks are explained as %r" % (averaged, text))
    band = b.value(shown % "#curves .about")
    if ("from the lowest run to the highest" in band) != averaged:
        wrong.append("averaged %r: of bands it says %r" % (averaged, band))


def check_machine(b, wrong):
    """Where the server found a GPU, or the test's own."""
    shown = b.value("document.getElementById('machine').textContent")
    if shown and "<b>GPU</b>" in shown and "322 W" not in shown:
        wrong.append("the GPU: %r" % shown)
    if b.value("document.querySelectorAll('#machine b').length"):
        wrong.append("a GPU's name became markup")


def count_news(b):
    return sum(e.get("method") == "Network.eventSourceMessageReceived" and e["params"]["eventName"] == "news" for e in b.events)


def open_slowly(b, runs):
    """Presses a run's button, and lets go of it when something else was told meanwhile."""
    b.value("[...document.querySelectorAll('#runs td.name button')].find(e => e.textContent === 'late-seed2').id = 'slow'")
    x, y = middle(b, "#slow")
    b.move(x, y)
    b.call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", buttons=1, clickCount=1)
    news = count_news(b)
    add_lines(runs, "late-seed7", 3, 1)
    while count_news(b) == news:
        b.value("window.frame = 0")
    b.value("requestAnimationFrame(() => requestAnimationFrame(() => { window.frame = 1; }))")
    b.wait("window.frame")
    b.call("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, button="left", clickCount=1)


def check_note(b, runs, wrong):
    open_slowly(b, runs)
    b.wait("!document.getElementById('one').hidden")
    b.write("tags", "tagged")
    b.value("document.getElementById('notes').requestSubmit()")
    b.wait("document.getElementById('kept').textContent === 'kept'")
    b.value("document.activeElement.blur()")
    b.wait("[...document.querySelectorAll('#runs tbody tr')].some(r => r.textContent.includes('tagged'))")


def check_looks(b, pictures, wrong):
    for width in (390, 1280):
        b.size(width)
        b.wait("innerWidth === %d" % width)
        if b.value("document.documentElement.scrollWidth") > width:
            wrong.append("the page scrolls sideways at %d" % width)
        if pictures:
            height = min(b.value("document.documentElement.scrollHeight"), 2000)
            with open(os.path.join(pictures, "watch-%d.png" % width), "wb") as out:
                out.write(b.picture((0, 0, width, height)))
        cut = b.value("""(() => { const field = document.getElementById("filter"), style = getComputedStyle(field);
            const pen = document.createElement("canvas").getContext("2d"); pen.font = style.font;
            const room = field.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
            return pen.measureText(field.placeholder).width > room ? field.placeholder : ""; })()""")
        if cut:
            wrong.append("%d: what the filter takes is cut off: %s" % (width, cut))
    unnamed = b.value("[...document.querySelectorAll('input,select,textarea')]"
                      ".filter(e => !e.labels.length && !e.getAttribute('aria-label')).length")
    if unnamed:
        wrong.append("%d fields have no label" % unnamed)
    levels = b.value("[...document.querySelectorAll('h1, h2, h3, h4')].filter(e => e.offsetParent).map(e => +e.tagName[1])")
    if any(after > before + 1 for before, after in zip(levels, levels[1:])):
        wrong.append("levels of headings are left out: %r" % levels)


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    url, runs, folder = sys.argv[1:4]
    pictures = sys.argv[4] if len(sys.argv) > 4 else None

    def drive(b, wrong):
        b.open(url)
        b.wait(ROWS + " > 0")
        check_study(b, wrong)
        check_arrival(b, runs, wrong)
        check_curves(b, wrong)
        check_box(b, wrong)
        check_focus(b, runs, check_groups(b, wrong), wrong)
        check_table(b, wrong)
        check_best(b, wrong)
        check_note(b, runs, wrong)
        check_machine(b, wrong)
        check_looks(b, pictures, wrong)
        wrong += b.faults()
        wrong += ["it loads %s" % r for r in b.requests() if not r.startswith((url, "data:", "about:", "blob:"))]

    judge(folder, drive)


if __name__ == "__main__":
    main()
