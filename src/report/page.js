/* A report's own manners: commands are copied, a name in the contents opens its part and tells which one is being
 * read, a row of the forest colours its variant in the charts, paper shows what is folded. */
(() => {
  for (const button of document.querySelectorAll(".copy button")) {
    button.addEventListener("click", () => {
      const code = button.previousElementSibling, range = document.createRange();
      range.selectNodeContents(code);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      button.textContent = document.execCommand("copy") ? "Copied" : "Press Ctrl+C";
    });
  }
  const reveal = () => { const at = document.getElementById(location.hash.slice(1)); if (at && at.tagName === "DETAILS") at.open = true; };
  addEventListener("hashchange", reveal);
  reveal();
  const links = [...document.querySelectorAll(".contents a")], parts = links.map((a) => document.getElementById(a.hash.slice(1)));
  const mark = () => {
    const at = Math.max(0, parts.findLastIndex((e) => e && e.getBoundingClientRect().top < 120));
    links.forEach((a, i) => { if (i === at) a.setAttribute("aria-current", "true"); else a.removeAttribute("aria-current"); });
  };
  addEventListener("scroll", mark, {passive: true});
  mark();
  for (const row of document.querySelectorAll(".forest [data-key]")) {
    row.addEventListener("click", () => {
      if (getSelection().toString()) return;
      const rows = [...row.parentNode.querySelectorAll("[data-key]")];
      for (const other of rows) other.classList.toggle("lit", other === row);
      weftCharts.light(row.dataset.key, rows.map((r) => r.dataset.key));
    });
  }
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((d) => { d.open = true; });
    weftCharts.placeControls(true);
  });
  addEventListener("afterprint", () => weftCharts.placeControls());
})();
