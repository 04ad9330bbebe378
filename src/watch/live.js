/* The live page. Everything that others named is set as text, never as markup. */
"use strict";
(() => {
  const STEP = 0, LOSS = 1, VAL = 2, RATE = 3, NORM = 4, SPEED = 5, MFU = 6;
  const FEW = 12, BEST = 6; /* as many rows are all drawn; of more, what runs and so many of the best */
  const CARDS = 4, COLOURS = 8, LN2 = Math.log(2);
  const byId = (id) => document.getElementById(id);
  const runs = new Map(), studies = new Map(), styles = new Map(), ticked = new Set();
  const unfolded = new Set(); /* groups whose runs are listed */
  const samples = new Map(); /* the last sample of a run that runs: {step, prompt, text} */
  let defaults = {}, sortBy = "status", down = false, open = null, charts = null, waiting = false, pressed = false, shownLog = null;
  let chosen = false; /* the reader ticked, and nothing is ticked for them any more */
  let wished = null;  /* names of the runs that the address ticks, and of the one it opens */

  const node = (kind, parent, text, name) => {
    const made = document.createElement(kind);
    if (text !== undefined) made.textContent = text;
    if (name) made.className = name;
    if (parent) parent.appendChild(made);
    return made;
  };
  const progress = (parent, max, value, of) => {
    const bar = node("progress", parent);
    bar.max = max || 1;
    bar.value = value || 0;
    if (of) bar.setAttribute("aria-label", "progress of " + of);
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
    {key: "mfu", label: "MFU", of: (r) => r.mfu, text: (r) => (known(r.mfu) ? (100 * r.mfu).toFixed(1) + "%" : ""), n: 1, spare: 1},
    {key: "seconds_left", label: "left", of: (r) => r.seconds_left, text: (r) => time(r.seconds_left), n: 1, spare: 1},
    {key: "tags", label: "tags", of: (r) => r.tags, spare: 1}]; /* spare: not there where no run has it */

  const LOWEST = COLUMNS.find((c) => c.key === "best_val_loss");
  const BITS = {key: "bits", label: "bits per byte", of: (r) => bits(r, r.best_val_loss), text: (r) => digits(known(r.bits) ? r.bits : bits(r, r.best_val_loss)), n: 1, score: 1};
  const TITLE = {key: "title", label: "variant", of: (r) => r.title};
  const STUDY = {key: "study", label: "study", of: (r) => studies.get(r.study)?.name};
  const optionOf = (r, key) => (key in r.options ? r.options[key] : defaults[key]);
  const keysOf = (list) => [...new Set(list.flatMap((r) => Object.keys(r.options)))].sort();
  const differing = (list) => keysOf(list).filter((k) => new Set(list.map((r) => JSON.stringify(optionOf(r, k)))).size > 1);
  const optionColumn = (key) => ({key: "option " + key, label: key, of: (r) => optionOf(r, key), option: key, n: 0});
  const value = (v) => (v === undefined || v === null ? "" : String(v));

  /* Losses per token compare where text and tokenizer are the same; between others bits per byte do. How many
     bytes a token is, a run says when it has ended: it holds for all of the same text. */
  const corpusOf = (r) => [optionOf(r, "DATASET"), optionOf(r, "TOKENIZER"), optionOf(r, "VOCAB_SIZE")].map(value).join(" \u00b7 ");
  const bytes = new Map();
  function bits(r, loss) {
    const each = known(r.bytes_per_token) ? r.bytes_per_token : bytes.get(corpusOf(r));
    return known(each) && known(loss) ? loss / LN2 / each : undefined;
  }
  const severalTexts = (list) => new Set(list.map(corpusOf)).size > 1;
  const inBits = (list) => severalTexts(list) && list.every((r) => known(bits(r, 1)));

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
     are shown: the study, the learning rate, the seed. Runs of weft train that are averaged are called by the
     folder that they have in common but for its seed, or by the options in which they differ from the others. */
  function nameOf(r, members, shown) {
    const together = byId("group").checked, count = members.length > 1 ? " (" + members.length + (r.title ? " seeds)" : " runs)") : "";
    if (!r.title) {
      const plain = (o) => o.name.replace(/-seed\d+$/, "");
      if (!together) return r.name;
      const keys = members.every((o) => plain(o) === plain(r)) ? [] : differing(shown).filter((k) => k !== "SEED");
      return (keys.slice(0, 3).map((k) => k + " " + value(optionOf(r, k))).join(", ") || plain(r)) + count;
    }
    const several = (list, of) => new Set(list.map(of)).size > 1, parts = [r.title];
    const same = shown.filter((o) => o.title === r.title && o.study === r.study);
    if (several(same, (o) => optionOf(o, "LEARNING_RATE"))) parts.push("rate " + value(optionOf(r, "LEARNING_RATE")));
    if (!together) parts.push("seed " + value(r.options.SEED));
    return parts.join(", ") + count + (several(shown.filter((o) => o.title), (o) => o.study) ? " \u00b7 " + studies.get(r.study)?.name : "");
  }

  /* Colours go round by group, or by the value of an option. */
  function styleOf(key, r) {
    const by = byId("colour").value, name = by ? by + " " + value(optionOf(r, by)) : key;
    if (!styles.has(name)) styles.set(name, styles.size);
    return styles.get(name);
  }

  /* Training time: the tokens between two lines over the rate that the later one tells. */
  function lineOf(r, column, {times = 1, of = null} = {}) {
    let sum = 0, before = 0;
    const at = r.rows.map((row) => {
      if (known(row[SPEED]) && row[SPEED] > 0) sum += (row[STEP] - before) * r.tokens_per_step / row[SPEED];
      before = row[STEP];
      return sum;
    });
    const factor = of ? of(r, 1) : times, keep = r.rows.map((row, i) => i).filter((i) => known(r.rows[i][column]));
    return {name: r.title && byId("group").checked ? "seed " + value(r.options.SEED) : r.name, x: {step: keep.map((i) => r.rows[i][STEP]), tokens: r.tokens_per_step || 1, seconds: keep.map((i) => at[i])},
      y: keep.map((i) => factor * r.rows[i][column])};
  }

  /* The score of each row against an option: numbers where they are, words side by side. What is not drawn as a
     line is grey. */
  function scatter(groups, rest, by) {
    const of = (r) => optionOf(r, by), all = [...groups, ...rest].flatMap((g) => g.members), bitwise = inBits(all);
    const score = (r) => (bitwise ? bits(r, r.best_val_loss) : r.best_val_loss);
    const numbers = all.every((r) => typeof of(r) === "number"), names = numbers ? null : [...new Set(all.map((r) => value(of(r))))].sort();
    const place = (r) => (numbers ? of(r) : names.indexOf(value(of(r))));
    const at = (g) => g.members.map((r) => ({x: place(r), y: score(r)})).filter((p) => known(p.y));
    const points = groups.map((g, i) => ({series: i, at: at(g)}));
    points.push({series: groups.length, at: rest.flatMap(at)});
    const x = all.map(place).filter((v) => v > 0);
    return {title: "Best held-out loss against " + by, label: bitwise ? "bits per byte" : "nats per token", log: numbers && x.length === all.length && Math.max(...x) > 8 * Math.min(...x),
      points: points.filter((p) => p.at.length), x: {label: by, names}};
  }

  function specification() {
    const isDrawn = (g) => g.members.some((r) => ticked.has(r.id)), listed = grouped([...runs.values()]);
    const list = listed.filter(isDrawn).map((g) => ({...g, members: g.members.filter((r) => ticked.has(r.id))})), all = list.flatMap((g) => g.members);
    const bitwise = inBits(all), label = bitwise ? "bits per byte" : "nats per token", by = byId("against").value;
    const chart = (title, label, column, more = {}) => ({title, label, ...more,
      lines: list.map(({members}, i) => ({series: i, runs: members.map((r) => lineOf(r, column, more)).filter((l) => l.y.length)})).filter((l) => l.runs.length)});
    const loss = {of: bitwise ? bits : null}, rest = grouped(filtered()).filter((g) => !isDrawn(g));
    const series = list.map(({key, members}) => ({key, name: nameOf(members[0], members, all), style: styleOf(key, members[0])}));
    if (by && rest.length) series.push({key: "rest", name: "not ticked", style: 6, grey: true});
    const charts = [chart("Held-out loss", label, VAL, loss), chart("Training loss", label, LOSS, loss),
      ...(by ? [scatter(list, rest, by)] : []),
      chart("Speed", "tokens per second", SPEED, {higher: true}), chart("Learning rate", "learning rate", RATE, {higher: true}),
      chart("Gradient norm", "norm", NORM), chart("Share of the machine's peak rate (MFU)", "percent", MFU, {higher: true, times: 100})].filter((c) => (c.lines || c.points).length);
    if (charts.length) charts[0].large = charts.length > 5 ? 1.15 : 0.8; /* as high as those beside it */
    return {
      note: [list.some(({members}) => members.length > 1) && "A line is the mean of its runs; the band around it goes from the lowest run to the highest.",
        severalTexts(all) && !bitwise && "Losses per token of different texts or tokenizers do not compare; once a run of each has ended, bits per byte are drawn."].filter(Boolean).join(" "),
      x: [{key: "step", label: "training step", unit: "count"}, {key: "tokens", label: "tokens", unit: "count"}, {key: "seconds", label: "training time", unit: "seconds"}],
      series, charts};
  }

  function drawCurves() {
    const spec = specification();
    byId("curves").hidden = !spec.charts.length;
    if (!spec.charts.length) return;
    if (charts) charts.update(spec);
    else charts = weftCharts.group(byId("charts"), spec);
  }

  /* What the reader may colour by, and set the score against: options in which the runs differ. */
  function offer(id, none, keys, first) {
    const select = byId(id), before = select.value, said = JSON.stringify(keys);
    select.parentNode.hidden = !keys.length;
    if (select.dataset.keys === said) return;
    select.dataset.keys = said;
    select.replaceChildren(new Option(none, ""), ...keys.map((k) => new Option(k, k)));
    select.value = [before, wished?.get(id), first].find((k) => k && keys.includes(k)) || "";
  }

  function offerOptions() {
    const list = [...runs.values()], keys = differing(list).filter((k) => k !== "SEED");
    const values = (k) => new Set(list.map((r) => value(optionOf(r, k)))).size;
    offer("colour", "run", keys.filter((k) => values(k) <= COLOURS));
    offer("against", "nothing", keys, byId("against").dataset.touched ? "" : keys.find((k) => known(optionOf(list[0], k)) && values(k) > 2));
  }

  /* Until the reader ticks: everything where there is little; else what runs, and the best. A study's repeats,
     which have the options of another variant, are left out. */
  function tickForThem() {
    if (chosen) return;
    const all = [...runs.values()].sort((a, b) => a.id - b.id), seen = new Set();
    const again = (r) => { const key = JSON.stringify([r.study, r.options]), there = seen.has(key); seen.add(key); return there && r.title && r.status !== "running"; };
    const groups = grouped(all.filter((r) => !again(r)));
    const column = inBits(all) ? BITS : LOWEST, score = (g) => valueOf(g.members, column), runsNow = (g) => g.members.some((r) => r.status === "running");
    const best = groups.filter((g) => known(score(g))).sort((a, b) => score(a) - score(b)).slice(0, BEST);
    ticked.clear();
    for (const g of groups) if (groups.length <= FEW || runsNow(g) || best.includes(g)) for (const r of g.members) ticked.add(r.id);
  }

  function columns(list, titled) {
    const keys = byId("all").checked ? keysOf(list) : differing(list);
    const [name, ...rest] = COLUMNS.filter((c) => !c.spare || list.some((r) => !empty(c.of(r)))), titles = titled && list.some((r) => r.title) ? [TITLE] : [];
    const several = new Set(list.filter((r) => r.title).map((r) => r.study)).size > 1 ? [STUDY] : [];
    const at = rest.indexOf(LOWEST) + 1, bitwise = severalTexts(list) && list.some((r) => known(bits(r, 1))) ? [BITS] : [];
    return [name, ...several, ...titles, ...rest.slice(0, at), ...bitwise, ...rest.slice(at), ...keys.map(optionColumn)];
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
      const cell = node("th", row, undefined, c.n ? "n" : "");
      if (c.key === sortBy) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      nameButton(cell, c.label, "sort " + c.key, () => { down = sortBy === c.key && !down; sortBy = c.key; draw(); });
    }
    byId("runs").tHead.replaceChildren(row);
  }

  /* The group with the lowest held-out loss of those that are listed, as the mean of its runs; null where
     there is but one. */
  function bestOf(groups) {
    const loss = (members) => valueOf(members, LOWEST), told = groups.filter((g) => known(loss(g.members)));
    return told.length > 1 ? told.reduce((a, b) => (loss(b.members) < loss(a.members) ? b : a)) : null;
  }

  function tick(row, label, list, focus, style) {
    const cell = node("td", row), box = node("input", cell), shown = list.filter((r) => ticked.has(r.id)).length;
    const swatch = node("i", cell, undefined, "swatch");
    if (shown) swatch.style.background = "var(--c" + (style % COLOURS) + ")";
    box.type = "checkbox";
    box.checked = shown > 0;
    box.indeterminate = shown > 0 && shown < list.length;
    box.dataset.focus = focus;
    box.setAttribute("aria-label", "show " + label);
    box.addEventListener("click", (e) => {
      e.stopPropagation();
      chosen = true;
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

  /* One run, or the runs of one group by their means. */
  function drawRow(body, members, all, {best, key, inside, shown}) {
    const r = members[0], several = members.length > 1, row = node("tr", body);
    row.classList.toggle("open", !several && r.id === open);
    row.classList.toggle("best", best);
    row.classList.toggle("group", several);
    row.classList.toggle("inside", !!inside);
    if (!several) row.dataset.id = r.id;
    const name = several || (byId("group").checked && !inside) ? nameOf(r, members, shown) : r.name;
    const act = several ? () => { if (!unfolded.delete(key)) unfolded.add(key); draw(); } : () => show(r.id);
    tick(row, name, members, "tick " + (several ? key : r.id), styleOf(groupOf(r), r));
    for (const c of all) {
      const cell = node("td", row, undefined, c.key === "name" ? "name" : c.n ? "n" : "");
      if (c.key === "name") {
        const button = nameButton(cell, name, "name " + (several ? key : r.id), act);
        if (several) button.setAttribute("aria-expanded", String(unfolded.has(key)));
      } else {
        cell.textContent = textOf(members, c);
        if (c.option && members.every((m) => !(c.option in m.options))) cell.classList.add("usual");
        if (c.key === "status") cell.classList.add(several ? ["running", "failed", "diverged"].find((s) => members.some((m) => m.status === s)) || "done" : r.status);
        if (c.key === "step" && !several && r.status === "running" && r.steps) progress(cell, r.steps, r.step, r.name);
      }
      if (c.key === "best_val_loss" && best) markLowest(cell);
    }
    row.addEventListener("click", act);
  }

  /* A word and no medal: that a loss is the lowest does not show that it is better by more than chance. */
  function markLowest(cell) {
    cell.prepend(node("small", null, "lowest", "lowest"), " ");
  }

  /* What the table's marks are, where there are any. */
  function explain(groups, best, texts) {
    const several = groups.some((g) => g.members.length > 1), parts = [];
    if (several) parts.push("A row of several seeds is the mean of its runs, or of those that have ended; \u00b1 is their standard deviation.");
    if (best) parts.push("\u201clowest\u201d marks the lowest held-out loss listed" + (texts > 1 ? " of each text and tokenizer" : "") + (several ? "; a study's report says whether that is more than chance." : "."));
    const drawn = groups.filter((g) => g.members.some((r) => ticked.has(r.id))).length;
    if (drawn < groups.length) parts.push(drawn + " of " + groups.length + " are drawn" + (chosen ? "." : ": what runs, and the best. Tick others to draw them."));
    byId("marks").textContent = parts.join(" ");
    byId("marks").hidden = !parts.length;
  }

  /* What has the keyboard keeps it, though its element is made anew. */
  function drawTable() {
    const list = filtered(), all = columns(list, !byId("group").checked), column = all.find((c) => c.key === sortBy) || all[0];
    const body = byId("runs").tBodies[0], focus = byId("runs").contains(document.activeElement) ? document.activeElement.dataset.focus : undefined;
    drawHead(all);
    body.replaceChildren();
    const groups = grouped(list), texts = [...new Set([...list].sort((a, b) => ORDER[a.status] - ORDER[b.status]).map(corpusOf))]; /* where something runs first */
    let marked = false;
    groups.sort((a, b) => inOrder(valueOf(a.members, column), valueOf(b.members, column)) || a.members[0].name.localeCompare(b.members[0].name, "en", {numeric: true}));
    for (const text of texts) {
      const part = groups.filter((g) => corpusOf(g.members[0]) === text), best = bestOf(part);
      marked = marked || !!best;
      if (texts.length > 1) {
        const head = node("th", node("tr", body, undefined, "text"), text);
        head.colSpan = all.length + 1;
        head.scope = "rowgroup";
      }
      for (const g of part) {
        drawRow(body, g.members, all, {best: g === best, key: g.key, shown: list});
        if (g.members.length > 1 && unfolded.has(g.key)) for (const r of sorted(g.members, column)) drawRow(body, [r], all, {best: false, inside: true, shown: list});
      }
    }
    explain(groups, marked, texts.length);
    if (focus !== undefined) [...byId("runs").querySelectorAll("[data-focus]")].find((e) => e.dataset.focus === focus)?.focus({preventScroll: true});
  }

  function drawCompare() {
    const list = [...runs.values()].filter((r) => ticked.has(r.id)), keys = differing(list), place = byId("compare");
    place.hidden = list.length < 2 || list.length > 12 || !keys.length;
    if (place.hidden) return;
    const head = node("tr", null), body = place.querySelector("tbody");
    node("th", head, "option");
    for (const r of list) node("th", head, nameOf(r, [r], list));
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
      progress(item, all, s.done + s.failed);
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
    byId("list").hidden = !all.length;
    document.title = (busy ? busy + " running \u2013 " : "") + "weft watch";
  }

  /* What runs now: the first in large, with the end of what it last wrote. */
  function drawNow() {
    const now = [...runs.values()].filter((r) => r.status === "running"), place = byId("now");
    const focus = place.contains(document.activeElement) ? document.activeElement.dataset.focus : undefined;
    place.hidden = !now.length;
    place.replaceChildren();
    now.slice(0, CARDS).forEach((r, i) => {
      const card = node("article", place, undefined, i ? "card" : "card first"), left = node("div", card), name = r.title ? r.title + ", seed " + value(r.options.SEED) : r.name;
      nameButton(node("h2", left), name, "now " + r.id, () => show(r.id)).className = "bare";
      const list = node("dl", left);
      const fact = (term, text) => { if (text) { const pair = node("div", list); node("dt", pair, term); node("dd", pair, text); } };
      fact("training loss", digits(r.loss));
      fact("best held-out loss", digits(r.best_val_loss));
      fact("left", time(r.seconds_left));
      if (!i) fact("tokens per second", count(r.tokens_per_s));
      progress(left, r.steps, r.step, name);
      node("p", left, "training step " + count(r.step) + (r.steps ? " of " + count(r.steps) : ""), "about");
      if (i) return;
      const wrote = samples.get(r.id), right = node("div", card);
      readSample(r);
      if (!wrote) return;
      node("p", right, "What it wrote at training step " + count(wrote.step), "about");
      const text = node("pre", right, undefined, "sample"), line = node("span", text, wrote.prompt);
      node("b", line, wrote.text);
    });
    if (now.length > CARDS) node("p", place, "and " + (now.length - CARDS) + " more that run", "about");
    if (focus) [...place.querySelectorAll("[data-focus]")].find((e) => e.dataset.focus === focus)?.focus({preventScroll: true});
  }

  /* Asked for once for each step that was told. */
  const asked = new Map();
  function readSample(r) {
    if (asked.get(r.id) === r.step) return;
    asked.set(r.id, r.step);
    fetch("api/log?samples=1&id=" + r.id).then((a) => a.text()).then((text) => {
      const last = parseSamples(text).pop();
      if (!last || JSON.stringify(last) === JSON.stringify(samples.get(r.id))) return;
      samples.set(r.id, last);
      drawNow();
    }).catch(() => {});
  }

  /* The view as the address has it; runs by their names, which they keep. */
  function keepView() {
    const view = new URLSearchParams(), names = (ids) => ids.map((id) => runs.get(id)?.name).filter(Boolean);
    if (byId("filter").value) view.set("filter", byId("filter").value);
    if (sortBy !== "status" || down) view.set("sort", (down ? "-" : "") + sortBy);
    for (const id of ["colour", "against"]) if (byId(id).value) view.set(id, byId(id).value);
    for (const id of ["group", "all"]) if (byId(id).dataset.touched) view.set(id, byId(id).checked ? "1" : "0");
    if (chosen) for (const name of names([...ticked]).slice(0, 60)) view.append("tick", name);
    if (open !== null) view.set("open", names([open])[0] || "");
    const hash = view.toString();
    if (location.hash.slice(1) !== hash) history.replaceState(null, "", hash ? "#" + hash : location.pathname);
  }

  /* Before the first runs come; which of them are ticked and open, when they have. */
  function takeView() {
    wished = new URLSearchParams(location.hash.slice(1));
    byId("filter").value = wished.get("filter") || "";
    const sort = wished.get("sort");
    if (sort) { down = sort.startsWith("-"); sortBy = sort.replace(/^-/, ""); }
    for (const id of ["group", "all"]) if (wished.has(id)) { byId(id).checked = wished.get(id) === "1"; byId(id).dataset.touched = "1"; }
    chosen = wished.has("tick");
  }

  function draw() {
    offerOptions();
    tickForThem();
    drawState();
    drawStudies();
    drawNow();
    drawCurves();
    drawTable();
    drawCompare();
    drawOne();
    keepView();
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
  function parseSamples(text) {
    return text.split("\n").filter((l) => l.startsWith("{")).map((l) => { try { return JSON.parse(l); } catch (e) { return null; } }).filter(Boolean);
  }

  function readLog(id) {
    fetch("api/log?id=" + id).then((a) => a.text()).then((text) => {
      if (id !== open || text === shownLog) return;
      const place = byId("log"), below = place.scrollTop + place.clientHeight >= place.scrollHeight - 4, wrote = text.includes("{\"step\"");
      const said = wrote ? parseSamples(text).map((s) => "training step " + s.step + ": " + s.prompt + s.text).join("\n\n") : text;
      shownLog = text;
      byId("what").textContent = wrote ? "Samples" : "Log";
      place.textContent = said || "This run has no log of its own.";
      if (below) place.scrollTop = place.scrollHeight;
    }).catch(() => {});
  }

  /* Opens a run at the side; another click, or null, closes it and gives the keyboard back. */
  let before = null;
  function show(id, focus = true) {
    const r = runs.get(id), was = open;
    open = open === id ? null : id;
    if (was === null) before = document.activeElement?.dataset.focus;
    shownLog = null;
    byId("log").textContent = "";
    byId("kept").textContent = "";
    if (r) { byId("tags").value = r.tags; byId("note").value = r.note; }
    draw();
    if (open !== null && focus) byId("one").focus({preventScroll: true});
    if (open === null && before) [...document.querySelectorAll("[data-focus]")].find((e) => e.dataset.focus === before)?.focus({preventScroll: true});
  }

  function take(news) {
    if (news.defaults) defaults = news.defaults;
    if (!runs.size && !byId("group").dataset.touched) { /* seeds are averaged from the start; the box is the reader's after that */
      byId("group").checked = true;
      byId("group").checked = new Set(news.runs.map(groupOf)).size < news.runs.length;
    }
    for (const s of news.studies) studies.set(s.id, s);
    for (const r of news.runs) {
      const before = runs.get(r.id);
      if (before && !r.reset) r.rows = before.rows.concat(r.rows);
      runs.set(r.id, r);
      if (known(r.bytes_per_token)) bytes.set(corpusOf(r), r.bytes_per_token);
      if (before) continue;
      if (chosen && wished?.getAll("tick").includes(r.name)) ticked.add(r.id);
      if (wished?.get("open") === r.name && open === null) { wished.delete("open"); show(r.id, false); }
    }
    if (!waiting) drawSoon();
  }

  /* Not between a button's press and its release: the click would be on an element that is gone. */
  function drawSoon() {
    waiting = true;
    requestAnimationFrame(() => {
      if (pressed) return drawSoon();
      waiting = false;
      draw();
    });
  }

  function start() {
    takeView();
    const stream = new EventSource("api/events");
    stream.addEventListener("open", () => { byId("state").className = ""; });
    stream.addEventListener("news", (e) => take(JSON.parse(e.data)));
    stream.addEventListener("machine", (e) => drawMachine(JSON.parse(e.data).gpus));
    stream.addEventListener("error", () => {
      byId("state").textContent = "no connection; what is shown is of before";
      byId("state").className = "off";
    });
    for (const kind of ["pointerdown", "pointermove", "pointerup", "pointercancel"]) addEventListener(kind, (e) => { pressed = e.buttons > 0; }, true);
    byId("filter").addEventListener("input", () => { draw(); });
    for (const id of ["group", "all", "colour", "against"]) byId(id).addEventListener("change", () => { byId(id).dataset.touched = "1"; styles.clear(); draw(); });
    byId("some").addEventListener("click", () => { chosen = true; ticked.clear(); for (const r of filtered()) ticked.add(r.id); draw(); });
    byId("auto").addEventListener("click", () => { chosen = false; draw(); });
    byId("close").addEventListener("click", () => show(open));
    addEventListener("keydown", (e) => { if (e.key === "Escape" && open !== null && !e.defaultPrevented) show(open); });
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
