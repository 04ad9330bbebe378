"""Opens a report in headless Chromium and looks at what is drawn. Needs nothing but Python.

    browser.py REPORT.html FOLDER WIDTHS COLOURS

WIDTHS are page widths in pixels and COLOURS what each plot must show, both with commas: 1280,390 and
#0072B2,#D55E00. For each width a page in FOLDER holds the report in a frame of that width; it writes
down where the plots are, what the script of the report threw, what was loaded, and whether the page
scrolls sideways. A screenshot is then taken, decoded, and the pixels inside each plot are
counted: those that are not background, and those of each colour left of the labels. So a plot whose
tags are there but that shows nothing fails.

Ends on 0 when all is well, 1 with a line for each thing that is not, 77 where there is no Chromium.
"""
import html
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
LEAST_DRAWN = 0.01  # share of a plot's pixels
LEAST_COLOURED = 0.00025  # share that has a step's colour
LABELS = 0.88  # what is right of this share of the width are names
NEAR = 30  # how far a channel may be from a colour

# In the report's own page: first of all, and last of all.
BEFORE = """<script>window.faults = [];
window.onerror = (m) => { faults.push(String(m)); };
console.error = (...m) => { faults.push(m.join(" ")); };</script>"""
AFTER = """<script>
const rects = [...document.querySelectorAll("figure svg")].map((f) => {
  const r = f.getBoundingClientRect();
  return [r.left + scrollX, r.top + scrollY, r.width, r.height];
});
const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
window.seen = JSON.stringify({rects: rects, faults: faults, width: innerWidth,
  scroll: document.documentElement.scrollWidth, height: document.documentElement.scrollHeight,
  loaded: performance.getEntriesByType("resource").map((e) => e.name),
  twice: ids.filter((id, i) => ids.indexOf(id) !== i), tables: document.querySelectorAll("table").length,
  scripts: document.scripts.length});</script>"""
FRAME = """<!DOCTYPE html><meta charset="utf-8"><style>body{{margin:0;background:#fff}}
iframe{{border:0;display:block;width:{width}px;height:{height}px}}</style>
<iframe srcdoc="{page}"></iframe><pre id="seen"></pre>
<script>onload = () => {{
  document.getElementById("seen").textContent = frames[0].seen || "";
}};</script>"""


def find_browser():
    for name in BROWSERS:
        if shutil.which(name):
            return shutil.which(name)
    return None


def run_browser(browser, page, folder, *options):
    with tempfile.TemporaryDirectory(dir=folder) as profile:
        words = [browser, "--headless", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
                 "--disable-extensions", "--disable-background-networking", "--disable-dev-shm-usage",
                 "--force-device-scale-factor=1", "--virtual-time-budget=4000",
                 "--user-data-dir=" + profile, *options, "file://" + os.path.abspath(page)]
        if os.getuid() == 0:
            words.insert(1, "--no-sandbox")
        return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=240,
                              check=False).stdout.decode("utf-8", "replace")


def decode_png(data, bottom=1 << 30):
    """8-bit RGB or RGBA without interlace, as browsers write it: width, height, bytes a pixel, rows of
    bytes; rows from `bottom` on are left out."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed = 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour, _, _, interlace = struct.unpack(">IIBBBBB", body)
            assert depth == 8 and colour in (2, 6) and interlace == 0
            step = 3 if colour == 2 else 4
        elif kind == b"IDAT":
            packed += body
        at += length + 12
    raw, rows, before = zlib.decompress(packed), [], bytearray(width * step)
    height = min(height, bottom)
    for y in range(height):
        start = y * (width * step + 1)
        kind, row = raw[start], bytearray(raw[start + 1:start + 1 + width * step])
        if kind == 1:
            for i in range(step, len(row)):
                row[i] = (row[i] + row[i - step]) & 255
        elif kind == 2:
            row = bytearray((a + b) & 255 for a, b in zip(row, before))
        elif kind == 3:
            for i in range(len(row)):
                left = row[i - step] if i >= step else 0
                row[i] = (row[i] + (left + before[i]) // 2) & 255
        elif kind == 4:
            for i in range(len(row)):
                a = row[i - step] if i >= step else 0
                b, c = before[i], before[i - step] if i >= step else 0
                p = a + b - c
                pa, pb, pc = abs(p - a), abs(p - b), abs(p - c)
                row[i] = (row[i] + (a if pa <= pb and pa <= pc else b if pb <= pc else c)) & 255
        rows.append(row)
        before = row
    return width, height, step, rows


def count(picture, rect, colours):
    """Pixels in a rectangle: all, not background, of each colour left of the labels."""
    width, height, step, rows = picture
    left, top = max(0, int(rect[0])), max(0, int(rect[1]))
    right, bottom = min(width, int(rect[0] + rect[2])), min(height, int(rect[1] + rect[3]))
    names = left + int(LABELS * (right - left))
    seen = {}
    for y in range(top, bottom):
        row = rows[y]
        for x in range(left, right):
            key = (bytes(row[x * step:x * step + 3]), x < names)
            seen[key] = seen.get(key, 0) + 1
    ground = max(seen, key=seen.get)[0] if seen else b"\0\0\0"
    near = lambda a, b: all(abs(p - q) <= NEAR for p, q in zip(a, b))
    drawn = sum(n for (c, _), n in seen.items() if not near(c, ground))
    found = [sum(n for (c, inside), n in seen.items() if inside and near(c, colour))
             for colour in colours]
    return (right - left) * (bottom - top), drawn, found


def look(browser, report, folder, width, colours):
    """Everything that is wrong at one width."""
    page = re.sub("<head>", lambda m: m.group(0) + BEFORE, report, count=1)
    page = page.replace("</body>", AFTER + "</body>")
    path = os.path.join(folder, "page-%d.html" % width)
    shot = os.path.join(folder, "report-%d.png" % width)

    def frame(height):
        with open(path, "w", encoding="utf-8") as out:
            out.write(FRAME.format(width=width, height=height, page=html.escape(page)))

    frame(2000)
    dom = run_browser(browser, path, folder, "--window-size=1600,2100", "--dump-dom")
    found = re.search('<pre id="seen">(.*?)</pre>', dom, re.S)
    if not found or not found.group(1):
        return ["%d: the page told nothing of itself: %.300s" % (width, dom)]
    seen = json.loads(html.unescape(found.group(1)))
    wrong = ["a script fault: %s" % fault for fault in seen["faults"]]
    if seen["width"] != width:
        wrong.append("the frame is %s wide" % seen["width"])
    if seen["scroll"] > width:
        wrong.append("the page scrolls sideways: it is %d wide" % seen["scroll"])
    if seen["loaded"]:
        wrong.append("it loads %s" % ", ".join(seen["loaded"]))
    if seen["twice"]:
        wrong.append("ids that are there twice: %s" % ", ".join(seen["twice"][:5]))
    if seen["scripts"] != 2:
        wrong.append("it has a script of its own")
    if len(seen["rects"]) < 5 or seen["tables"] < 4:
        wrong.append("%d plots and %d tables" % (len(seen["rects"]), seen["tables"]))
    frame(seen["height"])
    if os.path.exists(shot):
        os.remove(shot)
    run_browser(browser, path, folder, "--window-size=%d,%d" % (max(width, 800), seen["height"]),
                "--screenshot=" + shot)
    if not os.path.exists(shot):
        return wrong + ["%d: no screenshot was taken" % width]
    bottom = max((int(r[1] + r[3]) + 1 for r in seen["rects"]), default=0)
    picture = decode_png(open(shot, "rb").read(), bottom)
    for i, rect in enumerate(seen["rects"]):
        area, drawn, coloured = count(picture, rect, colours)
        print("width %d, plot %d: %d of %d pixels drawn; by colour %s" %
              (width, i, drawn, area, coloured))
        if drawn < LEAST_DRAWN * area or drawn == 0:
            wrong.append("plot %d: only %d of %d pixels are drawn" % (i, drawn, area))
        for colour, n in zip(colours, coloured):
            if n < max(LEAST_COLOURED * area, 8):
                wrong.append("plot %d: %d pixels of colour %s" % (i, n, colour.hex()))
    return ["width %d: %s" % (width, line) for line in wrong]


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    browser = find_browser()
    if not browser:
        print("none of %s is installed" % ", ".join(BROWSERS))
        sys.exit(77)
    report = open(sys.argv[1], encoding="utf-8").read()
    colours = [bytes.fromhex(c.lstrip("#")) for c in sys.argv[4].split(",")]
    wrong = []
    for width in sys.argv[3].split(","):
        wrong += look(browser, report, sys.argv[2], int(width), colours)
    print("\n".join(wrong))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
