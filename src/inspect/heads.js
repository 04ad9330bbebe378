/* Where each head looks from the token that the reader points at: data and table are inspect/page.c's. */
'use strict';
(() => {
  const data = JSON.parse(document.getElementById('weft-looks').textContent);
  const strip = document.getElementById('looks'), status = document.getElementById('look');
  const tokens = [...strip.querySelectorAll('.tk')];
  const table = [...document.querySelectorAll('table')]
    .find(t => t.compareDocumentPosition(strip) & Node.DOCUMENT_POSITION_PRECEDING);
  const rows = [...table.tBodies[0].rows];
  const heads = data.layers.flatMap(l => l.heads.map((w, h) =>
    ({name: l.layer + '.' + h, w, sigma: l.sigma ? l.sigma[h] : null})));
  let at = tokens.length - 1, head = 0, held = false;
  table.classList.add('looks');

  const seen = i => '\u201c' + (data.tokens[i].replace(/\n/g, '\u23ce') || '\u2205') + '\u201d';
  function best(w, n) {
    return w.map((x, j) => [x, j]).sort((a, b) => b[0] - a[0]).slice(0, n).filter(x => x[0] > 0)
      .map(([x, j]) => seen(j) + ' ' + x + '%').join(', ') || '\u2013';
  }
  function draw() {
    const h = heads[head], w = h.w[at] || [], most = h.sigma ? Math.max(...h.sigma) : 0;
    tokens.forEach((t, j) => {
      t.style.setProperty('--w', (w[j] || 0) / 100);
      t.style.setProperty('--d', most > 0 ? h.sigma[j] / most : 0);
      t.classList.toggle('at', j === at);
    });
    rows.forEach((r, k) => {
      r.classList.toggle('on', k === head);
      r.cells[2].textContent = best(heads[k].w[at] || [], 2);
    });
    status.textContent = 'From ' + seen(at) + ', token ' + at + ', head ' + h.name + ' looks at ' + best(w, 4) +
      (h.sigma ? '; its deviation is ' + h.sigma[at].toPrecision(3) : '') + '.';
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
