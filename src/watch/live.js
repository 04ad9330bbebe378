/* The live page. Everything that others named is set as text, never as markup. */
"use strict";
(() => {
  const STEP = 0, LOSS = 1, VAL = 2, RATE = 3, NORM = 4, SPEED = 5, MFU = 6;
  const AT_FIRST = 12, GROUPED_AT_FIRST = 60; /* runs that are ticked when the page opens */
  const byId = (id) => document.getElementById(id);
  const runs = new Map(), studies = new Map(), styles = new Map(), ticked = new Set();
  const unfolded = new Set(); /* groups whose runs are listed */
  let defaults = {}, sortBy = "status", down = false, open = null, charts = null, waiting = false, shownLog = "";

  const node = (kind, parent, text, name) => {
    const made = document.createElement(kind);
    if (text !== undefined) made.textContent = text;
    if (name) made.className = name;
    if (parent) parent.appendChild(made);
    return made;
  };
  const known = (v) => typeof v === "number" && isFinite(v);
  const digits = (v, n = 4) => (known(v) ? v.toFixed(n) : "");
  const count = (v) => (known(v) ? Math.round(v).toLocaleString("en") : "");
  const time = (s) => {
    if (!known(s)) return "";
    if (s < 60) return Math.round(s) + "s";
    if (s < 3600) return Math.floor(s / 60) + "m" + String(Math.floor(s % 60)).padStart(2, "0") + "s";
    if (s < 86400) return Math.floor(s / 3600) + "h" + String(Math.floor((s / 60) % 60)).padStart(2, "0") + "m";
    return Math.floor(s / 86400) + "d" + String(Math.floor((s / 3600) % 24)).padStart(2, "0") + "h";
  };

  /* What a run is called and how its columns are read. */
  const ORDER = {running: 0, waiting: 1, diverged: 2, ended: 3, stopped: 4, done: 5};
  const COLUMNS = [
    {key: "name", label: "run", of: (r) => r.name},
    {key: "status", label: "status", of: (r) => ORDER[r.status], text: (r) => r.status},
    {key: "step", label: "training step", of: (r) => r.step, text: (r) => count(r.step) + (r.steps ? " of " + count(r.steps) : ""), n: 1},
    {key: "loss", label: "loss", of: (r) => r.loss, text: (r) => digits(r.loss), n: 1, score: 1},
    {key: "val_loss", label: "held-out loss", of: (r) => r.val_loss, text: (r) => digits(r.val_loss), n: 1, score: 1},
    {key: "best_val_loss", label: "best", of: (r) => r.best_val_loss, text: (r) => digits(r.best_val_loss), n: 1, score: 1},
    {key: "tokens_per_s", label: "tokens/s", of: (r) => r.tokens_per_s, text: (r) => count(r.tokens_per_s), n: 1},
    {key: "mfu", label: "MFU", of: (r) => r.mfu, text: (r) => (known(r.mfu) ? (100 * r.mfu).toFixed(1) + "%" : ""), n: 1},
    {key: "seconds_left", label: "left", of: (r) => r.seconds_left, text: (r) => time(r.seconds_left), n: 1},
    {key: "tags", label: "tags", of: (r) => r.tags}];

  const LOWEST = COLUMNS.find((c) => c.key === "best_val_loss");
  const TITLE = {key: "title", label: "variant", of: (r) => r.title};
  const STUDY = {key: "study", label: "study", of: (r) => studies.get(r.study)?.name};
  const optionOf = (r, key) => (key in r.options ? r.options[key] : defaults[key]);
  const keysOf = (list) => [...new Set(list.flatMap((r) => Object.keys(r.options)))].sort();
  const differing = (list) => keysOf(list).filter((k) => new Set(list.map((r) => JSON.stringify(optionOf(r, k)))).size > 1);
  const optionColumn = (key) => ({key: "option " + key, label: key, of: (r) => optionOf(r, key), option: key, n: 0});
  const value = (v) => (v === undefined || v === null ? "" : String(v));

  /* "mla done LEARNING_RATE>1e-3": all of the words hold. */
  function passes(r, words) {
    return words.every((word) => {
      const m = /^([A-Za-z_0-9]+)(=|<|>)(.*)$/.exec(word);
      if (!m) return [r.name, r.title || "", r.status, r.tags, r.note].some((t) => t.toLowerCase().includes(word.toLowerCase()));
      const key = [...Object.keys(r.options), ...Object.keys(defaults)].find((k) => k.toLowerCase() === m[1].toLowerCase());
      const own = key ? optionOf(r, key) : r[m[1].toLowerCase()];
      if (m[2] === "=") return value(own).toLowerCase() === m[3].toLowerCase() || (+own === +m[3] && m[3] !== "");
      return own !== undefined && own !== null && (m[2] === "<" ? +own < +m[3] : +own > +m[3]);
    });
  }

  const filtered = () => {
    const words = byId("filter").value.split(/\s+/).filter(Boolean);
    return [...runs.values()].filter((r) => passes(r, words));
  };

  /* Runs that differ by their seed alone have one name. */
  function groupOf(r) {
    if (!byId("group").checked) return "run " + r.id;
    const rest = {...r.options};
    delete rest.SEED;
    return JSON.stringify([r.study, r.title, rest]);
  }

  function grouped(list) {
    const groups = new Map();
    for (const r of list) {
      const key = groupOf(r);
      if (!groups.has(key)) groups.set(key, {key, members: []});
      groups.get(key).members.push(r);
    }
    return [...groups.values()];
  }

  /* A study's run is called by its variant's title, and by as much more as tells it from the others that
     are shown: the study, the learning rate, the seed. */
  function nameOf(r, members, shown) {
    const together = byId("group").checked, count = members > 1 ? " (" + members + (r.title ? " seeds)" : " runs)") : "";
    if (!r.title) return (together ? r.name.replace(/-seed\d+$/, "") : r.name) + count;
    const several = (list, of) => new Set(list.map(of)).size > 1, parts = [r.title];
    const same = shown.filter((o) => o.title === r.title && o.study === r.study);
    if (several(same, (o) => optionOf(o, "LEARNING_RATE"))) parts.push("rate " + value(optionOf(r, "LEARNING_RATE")));
    if (!together) parts.push("seed " + value(r.options.SEED));
    return parts.join(", ") + count + (several(shown.filter((o) => o.title), (o) => o.study) ? " \u00b7 " + studies.get(r.study)?.name : "");
  }

  function styleOf(key) {
    if (!styles.has(key)) styles.set(key, styles.size);
    return styles.get(key);
  }

  /* Training time: the tokens between two lines over the rate that the later one tells. */
  function seconds(r) {
    let sum = 0, before = 0;
    return r.rows.map((row) => {
      if (known(row[SPEED]) && row[SPEED] > 0) sum += (row[STEP] - before) * r.tokens_per_step / row[SPEED];
      before = row[STEP];
      return sum;
    });
  }

  function lineOf(r, column, {times = 1} = {}) {
    const at = seconds(r), keep = r.rows.map((row, i) => i).filter((i) => known(r.rows[i][column]));
    return {name: r.title && byId("group").checked ? "seed " + value(r.options.SEED) : r.name, x: {step: keep.map((i) => r.rows[i][STEP]), tokens: r.tokens_per_step || 1, seconds: keep.map((i) => at[i])},
      y: keep.map((i) => times * r.rows[i][column])};
  }

  function specification() {
    const list = grouped([...runs.values()].filter((r) => ticked.has(r.id))), all = list.flatMap((g) => g.members);
    const chart = (title, label, column, more) => ({title, label, ...more,
      lines: list.map(({members}, i) => ({series: i, runs: members.map((r) => lineOf(r, column, more)).filter((l) => l.y.length)})).filter((l) => l.runs.length)});
    return {
      note: list.some(({members}) => members.length > 1) ? "A line is the mean of its runs; the band around it goes from the lowest run to the highest." : "",
      x: [{key: "step", label: "training step", unit: "count"}, {key: "tokens", label: "tokens", unit: "count"}, {key: "seconds", label: "training time", unit: "seconds"}],
      series: list.map(({key, members}) => ({key, name: nameOf(members[0], members.length, all), style: styleOf(key)})),
      charts: [chart("Held-out loss", "nats per token", VAL), chart("Training loss", "nats per token", LOSS),
        chart("Speed", "tokens per second", SPEED, {higher: true}), chart("Share of the machine's peak rate (MFU)", "percent", MFU, {higher: true, times: 100}), chart("Learning rate", "learning rate", RATE, {higher: true}),
        chart("Norm of the gradient", "norm", NORM)].filter((c) => c.lines.length)};
  }

  function drawCurves() {
    const spec = specification();
    byId("curves").hidden = !spec.charts.length;
    if (!spec.charts.length) return;
    if (charts) charts.update(spec);
    else charts = weftCharts.group(byId("curves"), spec);
  }

  function columns(list, titled) {
    const keys = byId("all").checked ? keysOf(list) : differing(list);
    const [name, ...rest] = COLUMNS, titles = titled && list.some((r) => r.title) ? [TITLE] : [];
    const several = new Set(list.filter((r) => r.title).map((r) => r.study)).size > 1 ? [STUDY] : [];
    return [name, ...several, ...titles, ...rest, ...keys.map(optionColumn)];
  }

  const empty = (v) => v === undefined || v === null || v === "";

  /* What is not there comes last, in either direction. */
  function inOrder(x, y) {
    if (empty(x) !== empty(y)) return empty(x) ? 1 : -1;
    const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", {numeric: true});
    return down ? -order : order;
  }

  const sorted = (list, column) => list.sort((a, b) => inOrder(column.of(a), column.of(b)) || a.id - b.id);

  const mean = (list) => list.reduce((sum, v) => sum + v, 0) / list.length;

  function spread(list) {
    const middle = mean(list);
    return Math.sqrt(list.reduce((sum, v) => sum + (v - middle) ** 2, 0) / (list.length - 1));
  }

  /* A score is of the runs that have ended, where there are any: one that has just begun would hide them. */
  function scored(members, column) {
    const ended = column.score ? members.filter((r) => r.status !== "running" && r.status !== "waiting") : [];
    return (ended.length ? ended : members).map(column.of).filter((v) => !empty(v));
  }

  /* A column's value of several runs: the mean of numbers, what all have in common of the rest. */
  function valueOf(members, column) {
    const all = scored(members, column);
    if (!all.length) return undefined;
    if (column.key === "status") return Math.min(...all);
    if (all.every((v) => v === all[0])) return all[0];
    return all.every(known) ? mean(all) : "";
  }

  function textOf(members, column) {
    const all = scored(members, column), first = members[0];
    if (column.key === "status" && members.length > 1) return [...new Set(members.map((r) => r.status))].map((s) => members.filter((r) => r.status === s).length + " " + s).join(", ");
    if (members.length === 1 || (all.length === members.length && all.every((v) => v === all[0]))) return column.text ? column.text(first) : value(column.of(first));
    if (!all.length || !all.every(known)) return "";
    const say = (v) => (column.text ? column.text({...first, [column.key]: v}) : String(+v.toPrecision(4)));
    if (!column.score || all.length < 2) return column.score || column.key === "tokens_per_s" || column.key === "mfu" ? say(mean(all)) : "";
    return say(mean(all)) + " \u00b1 " + digits(spread(all));
  }

  function drawHead(all) {
    const row = node("tr", null);
    node("th", row, "");
    for (const c of all) {
      const cell = node("th", row, undefined, c.n ? "n" : ""), button = node("button", cell, c.label);
      button.type = "button";
      button.dataset.focus = "sort " + c.key;
      if (c.key === sortBy) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      button.addEventListener("click", () => { down = sortBy === c.key && !down; sortBy = c.key; draw(); });
    }
    byId("runs").tHead.replaceChildren(row);
  }

  /* The group with the lowest held-out loss of those that are listed, as the mean of its runs; null where
     there is but one. */
  function bestOf(groups) {
    const loss = (members) => valueOf(members, LOWEST), told = groups.filter((g) => known(loss(g.members)));
    return told.length > 1 ? told.reduce((a, b) => (loss(b.members) < loss(a.members) ? b : a)) : null;
  }

  function tick(row, label, list, focus) {
    const box = node("input", node("td", row)), shown = list.filter((r) => ticked.has(r.id)).length;
    box.type = "checkbox";
    box.checked = shown > 0;
    box.indeterminate = shown > 0 && shown < list.length;
    box.dataset.focus = focus;
    box.setAttribute("aria-label", "show " + label);
    box.addEventListener("click", (e) => {
      e.stopPropagation();
      for (const r of list) if (box.checked) ticked.add(r.id); else ticked.delete(r.id);
      draw();
    });
  }

  function nameButton(cell, text, focus, act) {
    const button = node("button", cell, text);
    button.type = "button";
    button.dataset.focus = focus;
    button.addEventListener("click", (e) => { e.stopPropagation(); act(); });
    return button;
  }

  function fillCell(cell, members, column) {
    const r = members[0];
    cell.textContent = textOf(members, column);
    if (column.option && members.every((m) => !(column.option in m.options))) cell.classList.add("usual");
    if (column.key === "status") cell.classList.add(members.length === 1 ? r.status : ["running", "failed", "diverged"].find((s) => members.some((m) => m.status === s)) || "done");
    if (column.key === "step" && members.length === 1 && r.status === "running" && r.steps) {
      const bar = node("progress", cell);
      bar.max = r.steps;
      bar.value = r.step || 0;
      bar.setAttribute("aria-label", "progress of " + r.name);
    }
  }

  /* One run, or the runs of one group by their means. */
  function drawRow(body, members, all, {best, key, inside}) {
    const r = members[0], several = members.length > 1, row = node("tr", body);
    row.classList.toggle("open", !several && r.id === open);
    row.classList.toggle("best", best);
    row.classList.toggle("group", several);
    row.classList.toggle("inside", !!inside);
    if (!several) row.dataset.id = r.id;
    const name = several || (byId("group").checked && !inside) ? nameOf(r, members.length, members) : r.name;
    const act = several ? () => { if (!unfolded.delete(key)) unfolded.add(key); draw(); } : () => show(r.id);
    tick(row, name, members, "tick " + (several ? key : r.id));
    for (const c of all) {
      const cell = node("td", row, undefined, c.key === "name" ? "name" : c.n ? "n" : "");
      if (c.key === "name") {
        const button = nameButton(cell, name, "name " + (several ? key : r.id), act);
        if (several) button.setAttribute("aria-expanded", String(unfolded.has(key)));
      } else fillCell(cell, members, c);
      if (c.key === "best_val_loss" && best) markLowest(cell);
    }
    row.addEventListener("click", act);
  }

  /* A word and no medal: that a loss is the lowest does not show that it is better by more than chance. */
  function markLowest(cell) {
    cell.prepend(node("small", null, "lowest", "lowest"), " ");
  }

  /* What the table's marks are, where there are any. */
  function explain(groups, best) {
    const several = groups.some((g) => g.members.length > 1), parts = [];
    if (several) parts.push("A row of several seeds is the mean of its runs, or of those that have ended; \u00b1 is their standard deviation.");
    if (best) parts.push("\u201clowest\u201d marks the lowest held-out loss listed" + (several ? "; a study's report says whether that is more than chance." : "."));
    byId("marks").textContent = parts.join(" ");
    byId("marks").hidden = !parts.length;
  }

  /* What has the keyboard keeps it, though its element is made anew. */
  function drawTable() {
    const list = filtered(), all = columns(list, !byId("group").checked), column = all.find((c) => c.key === sortBy) || all[0];
    const body = byId("runs").tBodies[0], focus = byId("runs").contains(document.activeElement) ? document.activeElement.dataset.focus : undefined;
    drawHead(all);
    body.replaceChildren();
    const groups = grouped(list), best = bestOf(groups);
    groups.sort((a, b) => inOrder(valueOf(a.members, column), valueOf(b.members, column)) || a.members[0].id - b.members[0].id);
    for (const g of groups) {
      drawRow(body, g.members, all, {best: g === best, key: g.key});
      if (g.members.length > 1 && unfolded.has(g.key)) for (const r of sorted(g.members, column)) drawRow(body, [r], all, {best: false, inside: true});
    }
    explain(groups, best);
    if (focus !== undefined) [...byId("runs").querySelectorAll("[data-focus]")].find((e) => e.dataset.focus === focus)?.focus({preventScroll: true});
  }

  function drawCompare() {
    const list = [...runs.values()].filter((r) => ticked.has(r.id)), keys = differing(list), place = byId("compare");
    place.hidden = list.length < 2 || list.length > 12 || !keys.length;
    if (place.hidden) return;
    const head = node("tr", null), body = place.querySelector("tbody");
    node("th", head, "option");
    for (const r of list) node("th", head, nameOf(r, 1, list));
    place.querySelector("thead").replaceChildren(head);
    body.replaceChildren();
    const line = (name, of) => {
      const row = node("tr", body);
      node("th", row, name);
      for (const r of list) node("td", row, of(r));
    };
    for (const k of keys) line(k, (r) => value(optionOf(r, k)));
    line("best held-out loss", (r) => digits(r.best_val_loss));
    const cells = body.lastChild.querySelectorAll("td"), best = bestOf(list.map((r) => ({members: [r]})));
    if (best) markLowest(cells[list.indexOf(best.members[0])]);
  }

  function drawStudies() {
    const place = byId("studies");
    place.hidden = !studies.size;
    place.replaceChildren();
    for (const s of studies.values()) {
      const all = s.waiting + s.running + s.done + s.failed;
      const left = [...runs.values()].filter((r) => r.study === s.id).map((r) => r.seconds_left).filter(known);
      const item = node("li", place, s.name + ": " + s.done + " of " + all + " runs done" + (s.running ? ", " + s.running + " running" : "") +
        (s.failed ? ", " + s.failed + " failed" : "") + (left.length ? ", this one " + time(Math.max(...left)) + " left" : ""));
      const bar = node("progress", item);
      bar.max = all || 1;
      bar.value = s.done + s.failed;
    }
  }

  function drawMachine(gpus) {
    const place = byId("machine");
    place.hidden = !gpus.length;
    place.replaceChildren();
    for (const g of gpus) {
      const parts = [g.name];
      if (known(g.percent)) parts.push(g.percent + "% busy");
      if (known(g.watts)) parts.push(Math.round(g.watts) + " W");
      if (known(g.mhz)) parts.push(g.mhz + " MHz");
      if (known(g.used_bytes)) parts.push((g.used_bytes / 2 ** 30).toFixed(1) + " of " + (g.bytes / 2 ** 30).toFixed(1) + " GiB");
      node("li", place, parts.join(" \u00b7 "));
    }
  }

  function drawState() {
    const all = [...runs.values()], busy = all.filter((r) => r.status === "running").length;
    byId("state").textContent = all.length + (all.length === 1 ? " run" : " runs") + ", " + busy + " running";
    byId("state").className = "";
    byId("empty").hidden = all.length > 0;
    document.title = (busy ? busy + " running \u2013 " : "") + "weft watch";
  }

  function draw() {
    drawState();
    drawStudies();
    drawCurves();
    drawTable();
    drawCompare();
    drawOne();
  }

  function drawOne() {
    const r = runs.get(open);
    byId("one").hidden = !r;
    if (!r) return;
    byId("title").textContent = r.title ? r.name + ": " + r.title : r.name;
    byId("facts").textContent = [r.status, "training step " + count(r.step) + (r.steps ? " of " + count(r.steps) : ""),
      known(r.best_val_loss) ? "best held-out loss " + digits(r.best_val_loss) + ", perplexity " + digits(Math.exp(r.best_val_loss), 2) : "",
      known(r.seconds_left) ? time(r.seconds_left) + " left" : ""].filter(Boolean).join(" \u00b7 ");
    const body = byId("options").tBodies[0];
    body.replaceChildren();
    for (const k of Object.keys(r.options).sort()) {
      const row = node("tr", body);
      node("th", row, k);
      node("td", row, value(r.options[k]));
    }
    readLog(r.id);
  }

  /* JSON lines of samples are shown as text. */
  function asText(text) {
    if (!text.includes("{\"step\"")) return text;
    return text.split("\n").filter((l) => l.startsWith("{")).map((l) => {
      try { const s = JSON.parse(l); return "training step " + s.step + ": " + s.prompt + s.text; } catch (e) { return ""; }
    }).join("\n\n");
  }

  function readLog(id) {
    fetch("api/log?id=" + id).then((a) => a.text()).then((text) => {
      if (id !== open || text === shownLog) return;
      const place = byId("log"), below = place.scrollTop + place.clientHeight >= place.scrollHeight - 4;
      shownLog = text;
      byId("what").textContent = text.includes("{\"step\"") ? "Samples" : "Log";
      place.textContent = asText(text) || "This run has no log of its own.";
      if (below) place.scrollTop = place.scrollHeight;
    }).catch(() => {});
  }

  function show(id) {
    const r = runs.get(id);
    open = open === id ? null : id;
    shownLog = "";
    byId("log").textContent = "";
    byId("kept").textContent = "";
    if (r) { byId("tags").value = r.tags; byId("note").value = r.note; }
    draw();
  }

  /* A study's seeds are averaged from the start; the box is the reader's after that. */
  function beginWith(news) {
    const titles = news.runs.filter((r) => r.title).map((r) => r.study + " " + r.title);
    byId("group").checked = new Set(titles).size < titles.length;
  }

  /* What runs now is, and of what ran before as much as can be told apart; a study's repeats, which have
     the options of another variant, are not. */
  function isShownAtFirst(r) {
    if (r.status === "running") return true;
    const same = (o) => o.id < r.id && o.study === r.study && JSON.stringify(o.options) === JSON.stringify(r.options);
    if (r.title && [...runs.values()].some(same)) return false;
    return ticked.size < (r.title && byId("group").checked ? GROUPED_AT_FIRST : AT_FIRST);
  }

  function take(news) {
    if (news.defaults) defaults = news.defaults;
    if (!runs.size) beginWith(news);
    for (const s of news.studies) studies.set(s.id, s);
    for (const r of news.runs) {
      const before = runs.get(r.id);
      if (before && !r.reset) r.rows = before.rows.concat(r.rows);
      runs.set(r.id, r);
      if (!before && isShownAtFirst(r)) ticked.add(r.id);
    }
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  }

  function start() {
    const stream = new EventSource("api/events");
    stream.addEventListener("open", () => { byId("state").className = ""; });
    stream.addEventListener("news", (e) => take(JSON.parse(e.data)));
    stream.addEventListener("machine", (e) => drawMachine(JSON.parse(e.data).gpus));
    stream.addEventListener("error", () => {
      byId("state").textContent = "no connection; what is shown is of before";
      byId("state").className = "off";
    });
    byId("filter").addEventListener("input", () => { draw(); });
    for (const id of ["group", "all"]) byId(id).addEventListener("change", () => { styles.clear(); draw(); });
    byId("some").addEventListener("click", () => { ticked.clear(); for (const r of filtered()) ticked.add(r.id); draw(); });
    byId("none").addEventListener("click", () => { ticked.clear(); draw(); });
    byId("csv").addEventListener("click", () => {
      const list = filtered(), all = columns(list, true), quote = (t) => "\"" + String(t === undefined || t === null ? "" : t).replace(/"/g, "\"\"") + "\"";
      const lines = [all.map((c) => quote(c.label)), ...list.map((r) => all.map((c) => quote(c.key === "status" ? r.status : c.of(r))))];
      const link = node("a", null);
      link.href = URL.createObjectURL(new Blob([lines.map((l) => l.join(",")).join("\r\n") + "\r\n"], {type: "text/csv"}));
      link.download = "runs.csv";
      link.click();
    });
    byId("notes").addEventListener("submit", (e) => {
      e.preventDefault();
      fetch("api/note", {method: "POST", headers: {"Content-Type": "application/json"},
        body: JSON.stringify({id: open, note: byId("note").value, tags: byId("tags").value})})
        .then((a) => { byId("kept").textContent = a.ok ? "kept" : "not kept"; }).catch(() => { byId("kept").textContent = "not kept"; });
    });
  }
  start();
})();
