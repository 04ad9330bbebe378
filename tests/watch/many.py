"""Drives the live page from no runs to forty in headless Chromium. Needs nothing but Python.

    many.py URL RUNS FOLDER [PICTURES]

RUNS is the folder that is watched, which is not there yet: the page says that there are no runs. One that runs is shown
in large, with what it wrote; of forty the page draws what runs and the best, lists texts apart and compares them
in bits per byte; colours follow an option, scores are set against one; a run opens at the side and Escape closes
it; the address brings the view back. At each stage nothing scrolls sideways at 1400 and 390 pixels, light and
dark. With PICTURES, screenshots go there. Ends as watch.py does.
"""
import fcntl
import json
import math
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from chromium import judge  # noqa: E402

RUNS = 40
HELD = []
DRAWN = "new Set([...document.querySelectorAll('#curves .chart:first-child [data-series]')].map(g => g.dataset.series)).size"
LEGEND = "[...document.querySelectorAll('#curves .legend .entry')].map(e => e.textContent)"


def add_run(runs, number, ends=True):
    """Attention and learning rate go round; from 30 on the text is another, of 4 bytes a token."""
    other, attention = number >= 30, ("dot", "w2", "mla", "cosine")[number % 4]
    rate, least = (3e-4, 1e-3, 3e-3)[number // 4 % 3], 2 + 0.01 * number
    folder = os.path.join(runs, "run%d" % number)
    os.makedirs(folder)
    with open(os.path.join(folder, "config"), "w", encoding="utf-8") as out:
        out.write('CONFIG_BATCH_SIZE=4\nCONFIG_CONTEXT=32\nCONFIG_STEPS=1000\nCONFIG_SEED=%d\nCONFIG_ATTENTION="%s"\n'
                  'CONFIG_LEARNING_RATE="%g"\nCONFIG_DATASET="%s"\n' % (number, attention, rate, "book" if other else "embedded"))
    if ends:
        best = 4 * least if other else least
        with open(os.path.join(folder, "result.json"), "w", encoding="utf-8") as out:
            json.dump({"end": "done", "best_val_loss": best, "bits_per_byte": best / math.log(2) / (4 if other else 1)}, out)
    else:
        with open(os.path.join(folder, "samples.jsonl"), "w", encoding="utf-8") as out:
            out.write(json.dumps({"step": 500, "prompt": "The <b>", "text": "river was wide"}) + "\n")
    lines = ""
    for step in range(50, 1001 if ends else 501, 50):
        loss = (least + 2 * (1 - step / 1000)) * (4 if other else 1)
        lines += json.dumps({"step": step, "loss": loss, "val_loss": loss, "lr": rate, "grad_norm": 1, "tokens_per_s": 640}) + "\n"
    out = open(os.path.join(folder, "metrics.jsonl"), "w", encoding="utf-8")
    out.write(lines)
    out.flush()
    if not ends:
        fcntl.flock(out, fcntl.LOCK_EX)  # it runs, however long ago it wrote a line
        HELD.append(out)


def check_looks(b, stage, pictures, wrong):
    for width in (1400, 390):
        b.size(width)
        b.wait("innerWidth === %d" % width)
        for scheme in ("light", "dark"):
            b.scheme(scheme)
            if b.value("document.documentElement.scrollWidth") > width:
                wrong.append("%s: the page scrolls sideways at %d" % (stage, width))
            if pictures:
                height = min(b.value("document.documentElement.scrollHeight"), 2200)
                with open(os.path.join(pictures, "watch-%s-%d-%s.png" % (stage, width, scheme)), "wb") as out:
                    out.write(b.picture((0, 0, width, height)))
    b.size(1400)
    b.scheme("light")


def check_one(b, wrong):
    """500 of 1,000 steps at 128 tokens a step and 640 tokens a second: 100 seconds are left."""
    b.wait("document.querySelector('#now .sample')?.textContent === 'The <b>river was wide'")
    told = b.value("document.querySelector('#now .first').innerText")
    for words in ("run0", "3.0000", "1m40s", "500 of 1,000"):
        if words not in told:
            wrong.append("of what runs it is said: %r" % told)
    if not b.value("document.getElementById('empty').hidden"):
        wrong.append("there are runs, and it says that there are none")


def check_many(b, wrong):
    """run0 is at 3 nats of 1 byte a token; the lowest that have ended are run1 to run6."""
    b.wait("document.getElementById('state').textContent === '%d runs, 1 running'" % RUNS)
    b.wait(DRAWN + " === 7")
    names = [n for n in b.value(LEGEND) if n != "not ticked"]
    if sorted(names) != ["run%d" % i for i in range(7)]:
        wrong.append("of %d are drawn %r" % (RUNS, names))
    if "7 of %d are drawn" % RUNS not in b.value("document.getElementById('marks').textContent"):
        wrong.append("it is not said that not all are drawn")
    texts = b.value("[...document.querySelectorAll('#runs tr.text')].map(e => e.textContent)")
    if len(texts) != 2 or "embedded" not in texts[0] or "book" not in texts[1]:
        wrong.append("texts are listed as %r" % texts)
    lowest = b.value("[...document.querySelectorAll('#runs tr.best td.name')].map(e => e.textContent)")
    if lowest != ["run1", "run30"]:
        wrong.append("the lowest of each text are %r" % lowest)
    b.value("document.getElementById('some').click()")
    label = b.value("document.querySelector('#curves .chart text.name').textContent")
    if "do not compare" in b.value("document.getElementById('curves').textContent"):
        wrong.append("bits per byte compare, and it says that losses do not")
    row = b.value("[...document.querySelectorAll('#runs tbody tr')].find(r => r.textContent.includes('run30')).textContent")
    if label != "bits per byte" or "%.4f" % (2.3 / math.log(2)) not in row:
        wrong.append("texts are compared in %r: %r" % (label, row))
    b.value("document.getElementById('auto').click()")
    b.wait(DRAWN + " === 7")


def check_options(b, wrong):
    """The lowest score of every run against an option, words side by side; and colours by its values."""
    b.value("{ const s = document.getElementById('against'); s.value = 'ATTENTION'; s.dispatchEvent(new Event('change')); }")
    chart = "[...document.querySelectorAll('#curves .chart')].find(f => f.textContent.includes('against ATTENTION'))"
    words = b.value("[...%s.querySelectorAll('text')].map(t => t.textContent)" % chart)
    if not {"cosine", "dot", "mla", "w2"} <= set(words):
        wrong.append("the score against attention has %r" % words)
    marks = b.value("%s.querySelectorAll('[data-series] circle, [data-series] polygon').length" % chart)
    if marks != RUNS:
        wrong.append("%d runs have %d marks" % (RUNS, marks))
    b.value("{ const s = document.getElementById('colour'); s.value = 'ATTENTION'; s.dispatchEvent(new Event('change')); }")
    strokes = b.value("[...document.querySelectorAll('#curves .chart:first-child path.line')].map(p => p.style.stroke)")
    swatches = b.value("[...document.querySelectorAll('#runs .swatch')].map(e => e.style.background).filter(Boolean)")
    if len(strokes) != 7 or len(set(strokes)) != 4 or set(swatches) != set(strokes):
        wrong.append("by attention lines are %r, rows %r" % (strokes, swatches))


def check_drawer(b, wrong):
    name = "[...document.querySelectorAll('#runs td.name button')].find(e => e.textContent === 'run3')"
    b.value(name + ".focus()")
    b.press("Enter", 13)
    b.wait("!document.getElementById('one').hidden && document.getElementById('title').textContent === 'run3'")
    box = b.value("(r => [r.top, r.right, r.bottom])(document.getElementById('one').getBoundingClientRect())")
    if box[0] != 0 or abs(box[1] - b.value("document.documentElement.clientWidth")) > 1 or box[2] != b.value("innerHeight"):
        wrong.append("a run opens at %r" % box)
    b.press("Escape", 27)
    if not b.value("document.getElementById('one').hidden"):
        wrong.append("Escape does not close the run")
    if not b.value("document.activeElement === " + name):
        wrong.append("the keyboard is lost when a run is closed")


def check_address(b, url, wrong):
    b.write("filter", "run3")
    b.value("document.getElementById('filter').dispatchEvent(new Event('input'))")
    b.value("document.getElementById('some').click()")
    b.value("[...document.querySelectorAll('#runs td.name button')].find(e => e.textContent === 'run31').click()")
    b.value("document.getElementById('filter').blur()")
    address, seen = b.value("location.href"), b.value(DRAWN)
    b.call("Page.navigate", url="about:blank")
    b.call("Page.navigate", url=address)
    b.wait("document.getElementById('title')?.textContent === 'run31' && !document.getElementById('one').hidden")
    b.wait(DRAWN + " === %d" % seen)
    if seen != 11 or b.value("document.getElementById('filter').value") != "run3" or b.value("document.getElementById('colour').value") != "ATTENTION":
        wrong.append("the address %s brings back %r of %d" % (address, b.value("document.getElementById('filter').value"), seen))


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    url, runs, folder = sys.argv[1:4]
    pictures = sys.argv[4] if len(sys.argv) > 4 else None

    def drive(b, wrong):
        b.open(url)
        b.size(1400)
        b.wait("!!document.getElementById('empty').offsetParent && document.getElementById('state').textContent === '0 runs, 0 running'")
        if b.value("!!(document.getElementById('list').offsetParent || document.getElementById('curves').offsetParent)"):
            wrong.append("without runs there is a table or a chart")
        check_looks(b, "empty", pictures, wrong)
        add_run(runs, 0, ends=False)
        check_one(b, wrong)
        check_looks(b, "one", pictures, wrong)
        add_run(runs, 30)  # of another text, while nobody knows how many bytes a token of the first has
        b.wait("[...document.querySelectorAll('#curves .about')].some(e => e.textContent.includes('do not compare'))")
        for i in [*range(1, 30), *range(31, RUNS)]:
            add_run(runs, i)
        check_many(b, wrong)
        check_options(b, wrong)
        check_looks(b, "many", pictures, wrong)
        check_drawer(b, wrong)
        check_address(b, url, wrong)
        check_looks(b, "open", pictures, wrong)
        wrong += b.faults()

    judge(folder, drive)


if __name__ == "__main__":
    main()
