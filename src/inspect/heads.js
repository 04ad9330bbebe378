/* Where each head looks from the token that the reader points at: data and table are inspect/page.c's. */
'use strict';
(() => {
  const data = JSON.parse(document.getElementById('weft-looks').textContent);
  const strip = document.getElementById('looks'), status = document.getElementById('look'),
    routes = document.getElementById('routes');
  const tokens = [...strip.querySelectorAll('.tk')];
  const table = [...document.querySelectorAll('table')]
    .find(t => t.compareDocumentPosition(strip) & Node.DOCUMENT_POSITION_PRECEDING);
  const rows = [...table.tBodies[0].rows];
  const heads = data.layers.flatMap(l => l.heads.map((w, h) =>
    ({name: l.layer + 1 + '.' + (h + 1), w, sigma: l.sigma && l.sigma[h], gate: l.gates && l.gates[h], routes: l.routes, layer: l.layer + 1})));
  let at = tokens.length - 1, head = 0, held = false;
  table.classList.add('looks');

  const seen = i => '\u201c' + (data.tokens[i].replace(/\n/g, '\u23ce') || '\u2205') + '\u201d';
  function best(w, n) {
    return w.map((x, j) => [x, j]).sort((a, b) => b[0] - a[0]).slice(0, n).filter(x => x[0] > 0)
      .map(([x, j]) => seen(j) + ' ' + x + '%').join(', ') || '\u2013';
  }
  function draw() {
    const h = heads[head], w = h.w[at] || [], strongest = Math.max(1, ...w), bars = h.sigma || h.gate, most = h.sigma ? Math.max(...h.sigma) : 100;
    tokens.forEach((t, j) => {
      t.style.setProperty('--w', (w[j] || 0) / strongest);
      t.style.setProperty('--d', bars && most > 0 ? bars[j] / most : 0);
      t.classList.toggle('at', j === at);
    });
    rows.forEach((r, k) => {
      r.classList.toggle('on', k === head);
      r.cells[2].textContent = best(heads[k].w[at] || [], 2);
    });
    status.textContent = 'From ' + seen(at) + ', token ' + (at + 1) + ', head ' + h.name + ' looks at ' + best(w, 4) +
      (h.sigma ? '; its deviation is ' + h.sigma[at].toPrecision(3) : '') + (h.gate ? '; the gate is at ' + h.gate[at] + '%' : '') + '.';
    routes.textContent = '';
    if (!h.routes) return;
    /* An arc to each token that cross-token reads at this one, in the chosen head's layer. */
    const n = tokens.length, x = i => (i + 0.5) * 900 / n, kept = h.routes[at];
    const arcs = kept.map(j => `<path d="M${x(at)} 0A${Math.abs(x(at) - x(j)) / 2 + 1} 90 0 0 1 ${x(j)} 0" fill="none" stroke="var(--c2)" stroke-width="2"/>`);
    const dots = data.tokens.map((t, i) => `<circle cx="${x(i)}" cy="4" r="${i === at ? 7 : 4}" fill="var(--${kept.includes(i) ? 'c2' : 'faint'})"/>`);
    routes.innerHTML = `<p class="facts">Cross-token in layer ${h.layer} reads ${kept.length} tokens here: ` +
      `<span></span></p><svg viewBox="0 -4 900 104" role="img" aria-label="routes">${arcs.join('')}${dots.join('')}</svg>`;
    routes.querySelector('span').textContent = kept.map(seen).join(' ');
  }
  tokens.forEach((t, i) => {
    const choose = () => { at = i; draw(); };
    t.addEventListener('mouseenter', () => { if (!held) choose(); });
    t.addEventListener('focus', choose);
    t.addEventListener('click', () => { held = !held || at !== i; choose(); });
  });
  rows.forEach((r, k) => {
    const cell = r.cells[0], b = document.createElement('button');
    b.className = 'bare';
    b.textContent = cell.textContent;
    cell.replaceChildren(b);
    r.addEventListener('click', () => { head = k; draw(); });
  });
  draw();
})();
