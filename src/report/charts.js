/* Charts of reports and of the live page: lines over training, points over cost, drawn as SVG.
 *
 *   weftCharts.group(element, {x, series, charts, lit, smooth, note})
 *
 * fills an element with charts and returns an object whose update(spec) draws new data and keeps what the
 * reader chose. One toolbar serves all charts of a page, and one legend all groups of the same series. They
 * stand before the first group that they serve, or, where the page is wide enough for its contents to stand
 * beside it, there (#controls).
 *
 *   x       [{key, label, unit}]  what the x axis can be; unit: "count", "seconds" or "bytes"
 *   series  [{key, name, style, baseline, grey}]  one for each thing compared. `style` (0, 1, ...) chooses colour,
 *           dash and marker; `baseline` is the key of the series it is compared with. A series hidden or
 *           coloured in one group is so in all, by its key; `grey` is what is never coloured.
 *   lit     the key of the series that is coloured at first, the others being grey; none: all are coloured
 *   charts  [{title, label, unit, lines | points, difference, front, log, note}]
 *           lines   [{series, runs: [{name, x: {KEY: [..] or a factor of the first key's}, y: [..]}]}]
 *                   runs of one series are averaged where their first x is the same; the band goes from
 *                   the lowest to the highest, and the single runs show while the series is pointed at
 *           points  [{series, at: [{x, y, low, high}], join, fit, least, size}]
 *                   fit: [{x, y}], a curve fitted through them; least: {x, y}, its minimum, which is marked
 *           difference: lines are shown minus their baseline's, run by run of the same name
 *           x       of points: {label, unit, names}; names stand at 0, 1, ... of an axis of words
 *           large   how high it is where it is wide, by its width
 *           front   [[x, y], ..] a staircase, such as a Pareto front
 *           log     its x axis is logarithmic, whatever the toolbar says
 *   note    a sentence about all charts, such as what their bands are; it stands under the legend
 *
 * Nothing is loaded and nothing is sent. Names are set as text, never as markup. Every chart takes the
 * keyboard: arrows move along the x axis and between series, Escape leaves, and what is under the
 * cursor is spoken by a live region.
 *
 * It is a script of our own because the page must be one small file that works offline, and because no
 * packaged library has per-run lines on hover, differences by seed and a keyboard cursor. */
"use strict";
const weftCharts = (() => {
  const holder = document.createElement("template");
  holder.innerHTML = "<svg></svg>";
  const SVG = holder.content.firstChild.namespaceURI; /* so that no address stands in the page */
  const DASHES = ["", "9 4", "4 3", "9 4 2 4", "2 3"];
  const MARKERS = ["circle", "square", "up", "diamond", "down", "cross", "ring"];
  const COLOURS = 8, RUNS_TOLD = 8, ROW = 19; /* pixels of a row of values */
  const NARROW = 430; /* a chart that is less wide has a box without names, which the legend has */
  const hidden = new Set(), lit = new Set(); /* keys of series; none lit: all are coloured */
  const groups = [], legends = [];
  const state = {x: "", logX: false, logY: false, smooth: 0}; /* what the toolbar says, of all charts */

  /* Round numbers: 1, 2 or 5 times a power of ten, at most `most` of them within the range. */
  function ticks(low, high, most) {
    if (!(high > low) || !isFinite(high - low)) return [];
    let step = 10 ** Math.floor(Math.log10((high - low) / most));
    for (const times of [1, 2, 5, 10]) {
      if ((high - low) / (step * times) <= most) { step *= times; break; }
    }
    const list = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high * (1 + 1e-12) + step * 1e-9; i++) list.push(i * step);
    return list.map((v) => +v.toPrecision(12));
  }

  /* On a logarithmic axis: powers of ten, with 2 and 5 between them where there is room. */
  function logTicks(low, high, most) {
    const from = Math.floor(Math.log10(low)), to = Math.ceil(Math.log10(high));
    for (const times of [[1, 2, 5], [1, 3], [1]]) {
      const list = [];
      for (let p = from; p <= to; p++) {
        for (const t of times) list.push(+(t * 10 ** p).toPrecision(12));
      }
      const inside = list.filter((v) => v >= low * (1 - 1e-9) && v <= high * (1 + 1e-9));
      if (inside.length <= most && inside.length > 1) return inside;
    }
    const every = Math.ceil((to - from) / most), list = [];
    if (to - from < 2) return ticks(low, high, most);
    for (let p = from; p <= to; p += every) list.push(10 ** p);
    return list.filter((v) => v >= low && v <= high);
  }

  const UNITS = ["", "k", "M", "G", "T", "P", "E", "Z", "Y"];

  /* The labels of an axis: one unit for all of them, and as many decimals as the step has. */
  function labels(values, log) {
    const most = Math.max(...values.map(Math.abs), 0);
    if (log) return values.map((v) => short(v, 3));
    let unit = 0, scale = 1;
    if (most >= 1e4) while (most / scale >= 1000 && unit < UNITS.length - 1) { scale *= 1000; unit++; }
    const step = values.length > 1 ? Math.abs(values[1] - values[0]) / scale : most / scale || 1;
    if (most > 0 && step < 1e-6) return values.map((v) => v.toExponential(1).replace("e+", "e"));
    let decimals = 0;
    while (decimals < 8 && Math.abs(Math.round(step * 10 ** decimals) - step * 10 ** decimals) > 1e-6 * step * 10 ** decimals) decimals++;
    return values.map((v) => {
      const text = minus((v / scale).toFixed(decimals));
      return +text.replace("\u2212", "-") === 0 ? "0" : text + UNITS[unit];
    });
  }

  const minus = (text) => text.replace("-", "\u2212");

  /* A value for people: digits that count, and a unit letter for large ones. */
  function short(value, digits = 4) {
    if (!isFinite(value)) return "\u2013";
    let unit = 0, v = value;
    if (Math.abs(v) >= 1e4) while (Math.abs(v) >= 999.5 && unit < UNITS.length - 1) { v /= 1000; unit++; }
    if (v !== 0 && Math.abs(v) < 1e-4) return minus(v.toExponential(digits - 1));
    return minus(String(+v.toPrecision(digits))) + UNITS[unit];
  }

  /* What the axis counts in: seconds become minutes or hours, bytes KiB, MiB or GiB. */
  function scaleOf(unit, most) {
    const steps = unit === "seconds" ? [[1, "s"], [60, "min"], [3600, "h"], [86400, "days"]]
      : unit === "bytes" ? [[1, "bytes"], [1024, "KiB"], [1024 ** 2, "MiB"], [1024 ** 3, "GiB"], [1024 ** 4, "TiB"]] : [[1, ""]];
    const enough = unit === "seconds" ? 2 : 1;
    let chosen = steps[0];
    for (const s of steps) if (most >= enough * s[0]) chosen = s;
    return {by: chosen[0], name: chosen[1]};
  }

  const fullLabel = (label, unit) => (unit ? label + " (" + unit + ")" : label);

  function fill(node, attributes, parent, text) {
    for (const name in attributes) node.setAttribute(name, attributes[name]);
    if (text !== undefined) node.textContent = text;
    if (parent) parent.appendChild(node);
    return node;
  }

  const make = (kind, ...rest) => fill(document.createElementNS(SVG, kind), ...rest);
  const html = (kind, ...rest) => fill(document.createElement(kind), ...rest);

  const dashOf = (style) => DASHES[style % DASHES.length];

  /* 2: coloured. 1: what a coloured one is compared with, in ink. 0: grey. */
  function rankOf(s, all, active) {
    if (s.grey) return 0;
    if (!lit.size || lit.has(s.key) || (active && active.key === s.key)) return 2;
    return all.some((o) => lit.has(o.key) && o.baseline === s.key) ? 1 : 0;
  }

  const colourOf = (style, rank) => (rank === 2 ? "var(--c" + (style % COLOURS) + ")" : rank ? "var(--ink)" : "var(--faint)");

  function marker(parent, {style, colour: c}, x, y, size) {
    const s = size, kind = MARKERS[style % MARKERS.length];
    const shapes = {
      square: [[-s, -s], [s, -s], [s, s], [-s, s]], diamond: [[0, -1.4 * s], [1.4 * s, 0], [0, 1.4 * s], [-1.4 * s, 0]],
      up: [[0, -1.3 * s], [1.2 * s, s], [-1.2 * s, s]], down: [[0, 1.3 * s], [1.2 * s, -s], [-1.2 * s, -s]],
      cross: [[-s, 0.35 * s], [-s, -0.35 * s], [-0.35 * s, -0.35 * s], [-0.35 * s, -s], [0.35 * s, -s], [0.35 * s, -0.35 * s],
        [s, -0.35 * s], [s, 0.35 * s], [0.35 * s, 0.35 * s], [0.35 * s, s], [-0.35 * s, s], [-0.35 * s, 0.35 * s]]};
    if (shapes[kind]) return make("polygon", {points: shapes[kind].map((p) => (x + p[0]) + "," + (y + p[1])).join(" "), style: "fill:" + c}, parent);
    return make("circle", {cx: x, cy: y, r: s, style: kind === "ring" ? "fill:none;stroke-width:2;stroke:" + c : "fill:" + c}, parent);
  }

  /* The exponential moving average, corrected for its start. */
  function smoothed(y, weight) {
    if (!weight) return y;
    let sum = 0, rest = 1;
    return y.map((v) => {
      sum = weight * sum + (1 - weight) * v;
      rest *= weight;
      return sum / (1 - rest);
    });
  }

  /* The runs of one series as {name, key: [first x], x, y}, minus the baseline's of the same name. */
  function runsOf(line, base, keys) {
    const first = keys[0].key, chosen = keys.some((k) => k.key === state.x) ? state.x : first;
    const xOf = (own, r) => (typeof own === "number" ? r.x[first].map((v) => v * own) : own || []); /* its own numbers, or a factor of the first key's */
    const plain = (l) => l.runs.map((r) => ({name: r.name, at: r.x[first] || [], x: xOf(r.x[chosen], r), y: smoothed(r.y, state.smooth)}));
    const runs = plain(line);
    if (!base) return runs;
    const others = new Map(plain(base).map((r) => [r.name, new Map(r.at.map((v, i) => [v, r.y[i]]))]));
    return runs.filter((r) => others.has(r.name)).map((r) => {
      const other = others.get(r.name), keep = r.at.map((v, i) => i).filter((i) => other.has(r.at[i]));
      return {name: r.name, at: keep.map((i) => r.at[i]), x: keep.map((i) => r.x[i]), y: keep.map((i) => r.y[i] - other.get(r.at[i]))};
    });
  }

  /* Mean, least and most over the runs, where every run has a number. */
  function summary(runs) {
    const sums = new Map();
    for (const r of runs) {
      r.at.forEach((at, i) => {
        if (!isFinite(r.y[i]) || !isFinite(r.x[i])) return;
        const s = sums.get(at) || {x: 0, y: 0, low: Infinity, high: -Infinity, n: 0};
        s.x += r.x[i]; s.y += r.y[i]; s.n++;
        s.low = Math.min(s.low, r.y[i]); s.high = Math.max(s.high, r.y[i]);
        sums.set(at, s);
      });
    }
    const most = runs.filter((r) => r.at.length).length;
    return [...sums.entries()].sort((a, b) => a[0] - b[0]).filter((e) => e[1].n === most)
      .map(([, s]) => ({x: s.x / s.n, y: s.y / s.n, low: s.low, high: s.high}));
  }

  /* What a chart shows now: [{series, style, points, runs, join}]. */
  function shown(chart, spec, active) {
    const list = [];
    const look = (s) => { const rank = rankOf(s, spec.series, active); return {series: s, style: s.style, rank, colour: colourOf(s.style, rank)}; };
    for (const line of chart.lines || []) {
      const s = spec.series[line.series];
      if (!s || hidden.has(s.key)) continue;
      let base = null;
      if (chart.difference) {
        base = chart.lines.find((l) => spec.series[l.series].key === s.baseline);
        if (!base || base === line) continue;
      }
      const runs = runsOf(line, base, spec.x);
      list.push({...look(s), runs, points: summary(runs), join: true, band: true});
    }
    for (const set of chart.points || []) {
      const s = spec.series[set.series];
      if (s && !hidden.has(s.key)) list.push({...look(s), runs: [], points: set.at.filter((p) => isFinite(p.x) && isFinite(p.y)), join: set.join, fit: set.fit, least: set.least, size: set.size || 1, bars: true});
    }
    return list.filter((l) => l.points.length);
  }

  /* The first steps fall from far above and would press the rest flat; a linear axis leaves them out. */
  function rangeOf(list, chart, logX) {
    let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity, late = -Infinity;
    for (const l of list) {
      const end = l.points[l.points.length - 1].x;
      for (const p of l.points) {
        const low = isFinite(p.low) ? p.low : p.y, high = isFinite(p.high) ? p.high : p.y;
        if (logX && !(p.x > 0)) continue;
        if (state.logY && !chart.difference && !(low > 0)) continue;
        x0 = Math.min(x0, p.x); x1 = Math.max(x1, p.x);
        y0 = Math.min(y0, low); y1 = Math.max(y1, high);
        if (p.x >= 0.2 * end) late = Math.max(late, high);
      }
      for (const p of l.fit || []) { y0 = Math.min(y0, p.y); y1 = Math.max(y1, p.y); }
    }
    for (const p of chart.front || []) { y0 = Math.min(y0, p[1]); y1 = Math.max(y1, p[1]); }
    if (chart.difference) {
      const bound = list.flatMap((l) => l.points.slice(Math.floor(l.points.length * 0.1))).map((p) => Math.max(Math.abs(p.low), Math.abs(p.high)));
      const most = Math.max(...bound, 1e-9);
      y0 = Math.max(Math.min(y0, 0), -most); y1 = Math.min(Math.max(y1, 0), most);
    } else if (!state.logY && chart.lines && !chart.higher && late > y0 && y1 - y0 > 1.5 * (late - y0)) {
      y1 = late;
    }
    const grow = (a, b, share, log) => {
      if (log) return [a / (b / a || 1) ** share / (a === b ? 1.1 : 1), b * (b / a || 1) ** share * (a === b ? 1.1 : 1)];
      const room = b > a ? (b - a) * share : Math.max(Math.abs(b) * 0.05, 1e-6);
      return [a - room, b + room];
    };
    if (!(x1 >= x0)) return null;
    const points = !chart.lines;
    if (points || x0 === x1) [x0, x1] = grow(x0, x1, 0.08, logX);
    else if (!logX) x0 = Math.min(0, x0);
    [y0, y1] = grow(y0, y1, 0.06, state.logY && !chart.difference);
    return {x0, x1, y0, y1};
  }

  function drawChart(view, spec, active) {
    const {chart, figure} = view, width = Math.max(240, Math.floor(figure.clientWidth || 600));
    const wideEnough = chart.large && width > 500;
    const height = Math.round(Math.min(Math.max(width * (wideEnough ? chart.large : 0.58), 220), wideEnough ? 780 : 400));
    const logX = state.logX || !!chart.log, list = shown(chart, spec, active), range = rangeOf(list, chart, logX);
    const drawn = [...list].sort((a, b) => a.rank - b.rank); /* colours lie on grey */
    const svg = view.svg;
    svg.replaceChildren();
    fill(svg, {viewBox: "0 0 " + width + " " + height, height});
    view.map = null;
    if (!range) {
      make("text", {x: width / 2, y: height / 2, "text-anchor": "middle", class: "soft"}, svg, "nothing to draw");
      return;
    }
    const axis = chart.points ? chart.x || spec.x[0] : spec.x.find((a) => a.key === state.x) || spec.x[0];
    const logY = state.logY && !chart.difference;
    const sx = scaleOf(axis.unit, range.x1);
    const yTicks = logY ? logTicks(range.y0, range.y1, height / 36) : ticks(range.y0, range.y1, height / 44);
    const yText = labels(yTicks, false);
    const left = 14 + 7.6 * Math.max(3, ...yText.map((t) => t.length)), right = 14, top = 30, bottom = 44;
    const most = Math.max(2, Math.floor((width - left - right) / 72));
    const xTicks = axis.names ? axis.names.map((n, i) => i) : logX ? logTicks(range.x0 / sx.by, range.x1 / sx.by, most) : ticks(range.x0 / sx.by, range.x1 / sx.by, most);
    const cut = (n) => { const room = Math.floor((width - left - right) / axis.names.length / 8); return n.length > room ? n.slice(0, Math.max(1, room - 1)) + "\u2026" : n; };
    const xText = axis.names ? axis.names.map(cut) : labels(xTicks, logX);
    const place = (v, a, b, log) => (log ? Math.log(v / a) / Math.log(b / a) : (v - a) / (b - a));
    const px = (v) => left + place(v, range.x0, range.x1, logX) * (width - left - right);
    const py = (v) => height - bottom - place(v, range.y0, range.y1, logY) * (height - top - bottom);

    for (const [i, v] of yTicks.entries()) {
      make("line", {x1: left, x2: width - right, y1: py(v), y2: py(v), class: "grid"}, svg);
      make("text", {x: left - 7, y: py(v) + 4.5, "text-anchor": "end"}, svg, yText[i]);
    }
    for (const [i, v] of xTicks.entries()) {
      const at = px(v * sx.by), anchor = at > width - 26 ? "end" : "middle";
      make("line", {x1: at, x2: at, y1: height - bottom, y2: height - bottom + 5, class: "axis"}, svg);
      make("text", {x: anchor === "end" ? width - 4 : at, y: height - bottom + 20, "text-anchor": anchor}, svg, xText[i]);
    }
    make("line", {x1: left, x2: width - right, y1: height - bottom, y2: height - bottom, class: "axis"}, svg);
    if (chart.difference) make("line", {x1: left, x2: width - right, y1: py(0), y2: py(0), class: "zero"}, svg);
    make("text", {x: 4, y: 16, class: "name"}, svg, fullLabel(chart.label, chart.unit));
    make("text", {x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle", class: "name"}, svg, fullLabel(axis.label, sx.name));

    const id = "clip" + view.id, clip = make("clipPath", {id}, svg);
    make("rect", {x: left - 2, y: top - 5, width: width - left - right + 8, height: height - top - bottom + 7}, clip);
    const area = make("g", {"clip-path": "url(#" + id + ")"}, svg);
    const path = (points, y) => points.filter((p) => (!logX || p.x > 0) && (!logY || y(p) > 0))
      .map((p, i) => (i ? "L" : "M") + px(p.x).toFixed(1) + " " + py(y(p)).toFixed(1)).join("");
    for (const l of drawn) {
      if (!l.band || l.runs.length < 2 || !l.rank) continue;
      const low = path([...l.points].reverse(), (p) => p.low).replace("M", "L");
      make("path", {d: path(l.points, (p) => p.high) + low + "Z", class: "band", style: "fill:" + l.colour}, area);
    }
    if (chart.front && chart.front.length) {
      let d = "";
      chart.front.forEach((p, i) => { d += i ? "H" + px(p[0]) + "V" + py(p[1]) : "M" + px(p[0]) + " " + py(p[1]); });
      make("path", {d: d + "H" + (width - right), class: "front"}, area);
    }
    for (const l of drawn) {
      const on = active && active.key === l.series.key, dim = active && active.key && !on;
      const g = make("g", {class: dim ? "dim" : "", "data-series": l.series.key}, area);
      if (on) for (const r of l.runs) {
        const points = r.x.map((x, i) => ({x, y: r.y[i]})).filter((p) => isFinite(p.x) && isFinite(p.y));
        make("path", {d: path(points, (p) => p.y), class: "run", style: "stroke:" + l.colour}, g);
      }
      const line = l.fit || (l.join && l.points);
      if (l.fit) make("circle", {cx: px(l.least.x), cy: py(l.least.y), r: 9, style: "fill:none;stroke:" + l.colour}, g);
      if (line) make("path", {d: path(line, (p) => p.y), class: on ? "line on" : "line", style: "stroke:" + l.colour, "stroke-dasharray": dashOf(l.style)}, g);
      const every = l.bars ? 1 : Math.max(1, Math.ceil(l.points.length / 6));
      l.points.forEach((p, i) => {
        if (logX && !(p.x > 0)) return;
        if (l.bars && isFinite(p.low) && isFinite(p.high)) make("line", {x1: px(p.x), x2: px(p.x), y1: py(p.low), y2: py(p.high), class: "bar", style: "stroke:" + l.colour}, g);
        if (i % every === (l.bars ? 0 : Math.floor(every / 2))) marker(g, l, px(p.x), py(p.y), l.bars ? 5 * l.size : 3);
      });
    }
    view.map = {px, py, left, right: width - right, top, bottom: height - bottom, list, axis, sx, width, height};
    view.cursor = make("line", {class: "cursor", y1: top - 6, y2: height - bottom, visibility: "hidden"}, svg);
  }

  function valueText(v, chart) {
    const text = short(v, chart.difference ? 3 : 5);
    return chart.difference && v > 0 ? "+" + text : text;
  }

  /* Which of some numbers is nearest to one. */
  const closest = (list, x) => list.reduce((best, v, i) => (Math.abs(v - x) < Math.abs(list[best] - x) ? i : best), 0);

  /* The point of a line nearest to a place on the screen. */
  const nearest = (l, map, x) => l.points[closest(l.points.map((p) => map.px(p.x)), x)];

  /* How far a place is before a line's first point or after its last: there it has no value. */
  function beyond(l, map, x) {
    return Math.max(0, map.px(l.points[0].x) - x, x - map.px(l.points[l.points.length - 1].x));
  }

  /* The cells of CELL pixels that lines and points run through, so that a box can keep clear of them. */
  const CELL = 8;

  function covered(map) {
    if (map.cells) return map.cells;
    const found = new Map();
    for (const l of map.list) {
      let before = null;
      for (const p of l.points) {
        const here = [map.px(p.x), map.py(p.y)];
        const from = l.join && before ? before : here, n = Math.min(200, 1 + Math.ceil(Math.hypot(here[0] - from[0], here[1] - from[1]) / CELL));
        for (let i = 1; i <= n; i++) {
          const cell = [0, 1].map((k) => Math.floor((from[k] + (here[k] - from[k]) * i / n) / CELL) * CELL);
          found.set(cell.join(), cell);
        }
        before = here;
      }
    }
    map.cells = [...found.values()];
    return map.cells;
  }

  /* Puts the box beside the pointer, where it hides the least of the curves and never the point itself. It
     stays in its own chart; being less than half as wide, it fits to one side of any point. */
  function placeTip(view, x, y) {
    const {map, tip, figure} = view, picture = view.svg.getBoundingClientRect(), frame = figure.getBoundingClientRect();
    const share = picture.width / map.width, w = tip.offsetWidth / share, h = tip.offsetHeight / share, gap = 14;
    const left = Math.max(0, map.width - w), down = Math.max(0, map.bottom - h), cells = covered(map);
    const places = [x + gap, x - gap - w, x - w / 2].map((a) => Math.max(0, Math.min(a, left)));
    let best = null;
    for (const a of places) {
      for (const by of [y - h / 2, y - h - gap, y + gap, -26, map.bottom - h]) {
        const b = Math.max(-26, Math.min(by, down)); /* up to the title, whose right end is free */
        let cost = 0.02 * Math.hypot(Math.max(a - x, 0, x - a - w), Math.max(b - y, 0, y - b - h));
        cost += (a < map.left ? 2 : 0) + (b < 22 && a < 190 ? 4 : 0);
        if (x > a - 6 && x < a + w + 6 && y > b - 6 && y < b + h + 6) cost += 1000;
        for (const [i, k] of cells) if (i > a - CELL && i < a + w && k > b - CELL && k < b + h) cost++;
        if (!best || cost < best.cost) best = {cost, a, b};
      }
    }
    tip.style.left = picture.left - frame.left + best.a * share + "px";
    tip.style.top = picture.top - frame.top + best.b * share + "px";
  }

  /* One line's value at a place, and under the one that is pointed at what its runs are; in a narrow chart
     the name of that one alone, and its runs' range. */
  function tellRow(view, r, x, narrow) {
    const row = html("div", {class: r.on ? "row on" : "row"}, view.tip), several = r.on && r.line.runs.length > 1;
    row.appendChild(sample(r.line.style, r.line.colour, 12));
    if (r.on || !narrow) html("span", {}, row, r.line.series.name);
    html("b", {}, row, r.text);
    if (r.spread && r.on && !several) html("small", {}, row, r.spread.trim());
    if (several && narrow) html("div", {class: "runs"}, view.tip, r.spread.trim().slice(1, -1) || r.line.runs.length + " equal runs");
    else if (several) { /* "seed 1: 2.41, seed 2: 2.43" */
      const runs = r.line.runs.slice(0, RUNS_TOLD).map((one) => one.name + ": " + valueText(one.y[closest(one.x, x)], view.chart));
      html("div", {class: "runs"}, view.tip, "its runs: " + runs.join(", ") + (r.line.runs.length > RUNS_TOLD ? ", \u2026" : ""));
    }
  }

  const placeText = (map, x) => map.axis.label + " " + (map.axis.names ? map.axis.names[x] : short(x / map.sx.by, 5) + (map.sx.name ? " " + map.sx.name : ""));

  /* The values at a place: a box beside the pointer, a line through it, the single runs of the series
     that is nearest. */
  function point(view, group, x, y, key) {
    if (!view.map) return;
    const {map, chart} = view;
    let found = map.list.map((line) => ({line, point: nearest(line, map, x)}));
    if (!found.length) return;
    const far = (f) => Math.hypot(chart.lines ? beyond(f.line, map, x) : map.px(f.point.x) - x, map.py(f.point.y) - y);
    const focus = key !== undefined ? (found.find((f) => f.line.series.key === key) || found[0]) : found.reduce((a, b) => (far(b) < far(a) ? b : a));
    const here = map.px(focus.point.x);
    if (chart.lines) found = found.filter((f) => f === focus || beyond(f.line, map, here) < CELL).map((f) => (f === focus ? f : {line: f.line, point: nearest(f.line, map, here)}));
    else found = found.filter((f) => Math.abs(map.px(f.point.x) - here) < 4 || f === focus);
    if (view.active !== focus.line.series.key) {
      view.active = focus.line.series.key;
      drawChart(view, group.spec, {key: view.active});
    }
    view.at = {x: map.px(focus.point.x), y: map.py(focus.point.y), key: focus.line.series.key, value: focus.point.x, height: focus.point.y};
    const at = view.map.px(focus.point.x), high = view.map.py(focus.point.y);
    fill(view.cursor, {x1: at, x2: at, visibility: "visible"});
    view.svg.querySelectorAll(".focus").forEach((n) => n.remove());
    marker(view.svg, focus.line, at, high, 5).setAttribute("class", "focus");
    const tip = view.tip, narrow = view.figure.clientWidth < NARROW, say = (v) => valueText(v, chart);
    const rows = [...found].sort((a, b) => b.point.y - a.point.y).map(({line, point: p}) => {
      const wide = isFinite(p.low) && isFinite(p.high) && p.high > p.low;
      return {line, text: say(p.y), spread: wide ? " (" + say(p.low) + " to " + say(p.high) + ")" : "", on: line === focus.line};
    });
    /* Of many rows those around the one that is pointed at, so that the box has room in its chart. */
    const most = Math.max(3, Math.floor(map.height / ROW) - 5);
    const from = Math.max(0, Math.min(rows.findIndex((r) => r.on) - Math.floor(most / 2), rows.length - most)), told = rows.slice(from, from + most);
    tip.replaceChildren();
    tip.classList.toggle("narrow", narrow);
    html("div", {class: "at"}, tip, placeText(map, focus.point.x));
    for (const r of told) tellRow(view, r, focus.point.x, narrow);
    if (rows.length > told.length) html("div", {class: "at"}, tip, "and " + (rows.length - told.length) + " more");
    tip.hidden = false;
    placeTip(view, at, high);
    return rows;
  }

  function leave(view, group) {
    view.tip.hidden = true;
    if (view.active !== null) {
      view.active = null;
      drawChart(view, group.spec, null);
    }
    view.at = null;
  }

  function keys(view, group, event) {
    const map = view.map;
    if (!map || !map.list.length) return;
    if (event.key === "Escape") {
      if (view.at) event.preventDefault();
      leave(view, group);
      return;
    }
    const order = map.list.map((l) => l.series.key);
    let key = view.at ? view.at.key : order[0];
    let line = map.list.find((l) => l.series.key === key) || map.list[0];
    let i = view.at ? closest(line.points.map((p) => p.x), view.at.value) : line.points.length - 1;
    const moves = {ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9};
    if (event.key in moves) {
      if (view.at) i += moves[event.key];
    } else if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      key = order[(order.indexOf(key) + (event.key === "ArrowUp" ? order.length - 1 : 1)) % order.length];
      line = map.list.find((l) => l.series.key === key);
      i = Math.min(i, line.points.length - 1);
    } else return;
    event.preventDefault();
    const p = line.points[Math.max(0, Math.min(i, line.points.length - 1))];
    const rows = point(view, group, map.px(p.x), map.py(p.y), key), on = rows.find((r) => r.on);
    view.say.textContent = line.series.name + ", " + placeText(map, p.x) + ": " + on.text + on.spread;
  }

  let count = 0;

  function buildView(group, chart) {
    const figure = html("figure", {class: "chart"}, group.pictures), id = ++count;
    const head = html("div", {class: "head"}, figure);
    if (chart.title) html("h" + group.level, {id: "title" + id, class: "title"}, head, chart.title);
    const save = html("button", {type: "button", class: "bare", "aria-label": "save as SVG: " + (chart.title || chart.label)}, head, "SVG");
    const svg = make("svg", {role: "application", tabindex: "0", "aria-label": (chart.title || chart.label) + ". Arrow keys read the values."}, figure);
    const tip = html("div", {class: "tip"}, figure), say = html("div", {class: "unseen", "aria-live": "polite"}, figure);
    tip.hidden = true;
    if (chart.note) html("figcaption", {}, figure, chart.note);
    const view = {chart, figure, svg, tip, say, id, active: null, at: null, map: null};
    const moved = (e) => {
      if (!view.map) return;
      const r = svg.getBoundingClientRect(), share = view.map.width / r.width;
      point(view, group, (e.clientX - r.left) * share, (e.clientY - r.top) * share);
    };
    svg.addEventListener("pointermove", moved);
    svg.addEventListener("pointerdown", moved);
    svg.addEventListener("pointerleave", () => leave(view, group));
    svg.addEventListener("blur", () => leave(view, group));
    svg.addEventListener("keydown", (e) => keys(view, group, e));
    save.addEventListener("click", () => saveFigure(view));
    return view;
  }

  /* How a series is drawn: its line, where there is room for one, and its marker. */
  function sample(style, colour, width = 34) {
    const svg = make("svg", {viewBox: "0 0 " + width + " 12", width, height: 12, "aria-hidden": "true"});
    if (width > 12) make("line", {x1: 1, x2: width - 1, y1: 6, y2: 6, style: "stroke-width:2.4;stroke:" + colour, "stroke-dasharray": dashOf(style)}, svg);
    marker(svg, {style, colour}, width / 2, 6, 4);
    return svg;
  }

  /* A copy of a drawing whose colours and letters are its own, so that it looks the same elsewhere. */
  function standAlone(svg) {
    const copy = svg.cloneNode(true), from = [svg, ...svg.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
    const kept = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-family", "text-anchor"];
    from.forEach((e, i) => {
      const style = getComputedStyle(e);
      to[i].setAttribute("style", kept.map((k) => k + ":" + style.getPropertyValue(k)).join(";"));
      to[i].removeAttribute("class");
    });
    copy.querySelectorAll("[visibility=hidden]").forEach((e) => e.remove());
    return copy;
  }

  /* The figure as a file for a paper: the chart as it is now, upon the page's colour, and its legend below. */
  function saveFigure(view) {
    const {width, height, list} = view.map || {width: 0, height: 0, list: []}, row = 20, all = height + row * list.length + 8;
    const whole = standAlone(view.svg), paper = getComputedStyle(document.body);
    fill(whole, {viewBox: "0 0 " + width + " " + all, width, height: all});
    whole.prepend(make("rect", {width, height: all, style: "fill:" + paper.backgroundColor}));
    list.forEach((l, i) => {
      const part = make("g", {transform: "translate(8 " + (height + row * i) + ")"}, whole);
      const drawn = sample(l.style, l.colour);
      view.figure.appendChild(drawn);
      part.append(...standAlone(drawn).childNodes);
      drawn.remove();
      make("text", {x: 42, y: 11, style: "font:13px " + paper.fontFamily.replaceAll('"', "'") + ";fill:" + paper.color}, part, l.series.name);
    });
    const link = html("a", {download: (view.chart.title || "figure").toLowerCase().replace(/[^a-z0-9]+/g, "-") + ".svg"});
    link.href = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(whole)], {type: "image/svg+xml"}));
    link.click();
    return link;
  }

  function drawAll() {
    for (const l of legends) l.draw();
    for (const g of groups) g.draw();
  }

  /* Of all groups with the same series: a box hides one, its name colours it. */
  function buildLegend(legend) {
    const series = legend.groups[0].spec.series, place = legend.element, entries = [];
    const used = new Set(legend.groups.flatMap((g) => g.spec.charts.flatMap((c) => [...(c.lines || []), ...(c.points || [])].map((l) => l.series))));
    place.replaceChildren();
    series.forEach((s, i) => {
      if (!used.has(i)) return;
      const entry = html("span", {class: "entry"}, place), box = html("input", {type: "checkbox", "aria-label": "show " + s.name}, entry);
      const button = html("button", {type: "button", class: "bare", "data-key": s.key, title: "Click: colour this one, or grey it"}, entry);
      box.addEventListener("change", () => { if (box.checked) hidden.delete(s.key); else hidden.add(s.key); drawAll(); });
      button.addEventListener("click", () => { if (!lit.delete(s.key)) lit.add(s.key); drawAll(); });
      const hint = (on) => () => { for (const g of legend.groups) for (const v of g.views) drawChart(v, g.spec, on ? {key: s.key} : null); };
      for (const kind of ["pointerenter", "focus"]) button.addEventListener(kind, hint(true));
      for (const kind of ["pointerleave", "blur"]) button.addEventListener(kind, hint(false));
      entries.push(() => {
        const rank = rankOf(s, series, null);
        box.checked = !hidden.has(s.key);
        entry.classList.toggle("off", hidden.has(s.key));
        button.setAttribute("aria-pressed", String(rank === 2));
        button.replaceChildren(sample(s.style, colourOf(s.style, rank)));
        html("span", {}, button, s.name);
      });
    });
    const all = html("button", {type: "button", class: "all"}, place, "colour all");
    all.addEventListener("click", () => { lit.clear(); drawAll(); });
    place.hidden = entries.length < 2;
    legend.draw = () => { all.hidden = !lit.size; for (const draw of entries) draw(); };
    legend.draw();
  }

  const tools = html("div", {class: "tools", role: "toolbar", "aria-label": "How the charts are drawn"});

  function buildTools() {
    const axes = (groups.find((g) => g.spec.charts.some((c) => c.lines)) || {spec: {x: []}}).spec.x, said = JSON.stringify(axes);
    if (tools.dataset.axes === said) return;
    tools.dataset.axes = said;
    tools.replaceChildren();
    if (axes.length > 1) {
      const label = html("label", {}, tools, "x axis "), select = html("select", {name: "x"}, label);
      for (const a of axes) html("option", {value: a.key}, select, a.label);
      state.x = select.value = axes.some((a) => a.key === state.x) ? state.x : axes[0].key;
      select.addEventListener("change", () => { state.x = select.value; drawAll(); });
    }
    const check = (name, text) => {
      const label = html("label", {}, tools), box = html("input", {type: "checkbox", name}, label);
      label.append(" " + text);
      box.checked = state[name];
      box.addEventListener("change", () => { state[name] = box.checked; drawAll(); });
    };
    check("logX", "log x");
    check("logY", "log y");
    if (axes.length) {
      const label = html("label", {}, tools, "smoothing "), slide = html("input", {type: "range", name: "smooth", min: 0, max: 0.99, step: 0.01, value: state.smooth}, label);
      const out = html("output", {}, label, state.smooth.toFixed(2));
      slide.addEventListener("input", () => { state.smooth = +slide.value; out.textContent = state.smooth.toFixed(2); drawAll(); });
    }
  }

  /* Beside the page where there is room for it, before the charts where there is not. */
  const wide = matchMedia("(min-width: 1100px)");

  function placeControls(onPaper) {
    const beside = wide.matches && onPaper !== true ? document.getElementById("controls") : null;
    if (groups.length) (beside ? (e) => beside.append(e) : (e) => groups[0].element.before(e))(tools);
    for (const l of legends) {
      if (beside && legends.length === 1) beside.append(l.element);
      else l.groups[0].element.before(l.element);
    }
  }
  wide.addEventListener("change", placeControls);

  function group(element, spec) {
    element.replaceChildren();
    element.classList.add("charts");
    /* The level of its headings: one below the heading that is before it. */
    const before = [...document.querySelectorAll("h1, h2, h3")].filter((h) => h.compareDocumentPosition(element) & Node.DOCUMENT_POSITION_FOLLOWING).pop();
    const g = {element, spec, views: [], level: before ? +before.tagName[1] + 1 : 2};
    if (spec.lit) lit.add(spec.lit);
    if (spec.smooth && !groups.length) state.smooth = spec.smooth;
    g.note = html("p", {class: "about"}, element);
    g.pictures = html("div", {class: spec.charts.length > 2 ? "pictures small" : "pictures"}, element);
    g.draw = () => {
      g.note.textContent = g.spec.note || "";
      g.note.hidden = !g.spec.note;
      for (const v of g.views) {
        const {at, active} = v;
        drawChart(v, g.spec, active ? {key: active} : null);
        if (at && v.map) point(v, g, v.map.px(at.value), v.map.py(at.height), at.key); /* what is pointed at stays so */
      }
    };
    g.update = (next) => {
      const same = next.charts.length === g.views.length && next.charts.every((c, i) => c.title === g.views[i].chart.title);
      const series = JSON.stringify(next.series);
      g.spec = next;
      if (!same) {
        g.pictures.replaceChildren();
        g.views = next.charts.map((c) => buildView(g, c));
      } else next.charts.forEach((c, i) => { g.views[i].chart = c; });
      if (series !== g.legend.key || !same) {
        g.legend.key = series;
        buildLegend(g.legend);
      }
      buildTools();
      g.draw();
    };
    groups.push(g);
    const key = JSON.stringify(spec.series);
    g.legend = legends.find((l) => l.key === key);
    if (g.legend) g.legend.groups.push(g);
    else legends.push(g.legend = {key, groups: [g], draw: () => {}, element: html("div", {class: "legend", role: "group", "aria-label": "What is shown"})});
    placeControls();
    g.update(spec);
    let width = element.clientWidth;
    new ResizeObserver(() => { if (element.clientWidth !== width) { width = element.clientWidth; g.draw(); } }).observe(element);
    return g;
  }

  /* Colours one series in place of others. */
  function light(key, others) {
    for (const other of others) lit.delete(other);
    lit.add(key);
    drawAll();
  }

  /* A report: each element with data-charts is filled from the JSON in the page. */
  function start() {
    const data = document.getElementById("weft-charts");
    if (!data) return;
    const list = JSON.parse(data.textContent);
    for (const element of document.querySelectorAll("[data-charts]")) {
      const spec = list[+element.dataset.charts];
      if (spec) group(element, spec);
    }
  }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
  return {group, light, placeControls};
})();
