// Charts are drawn from the data that stand in the page (book/_ext/assemble.py). They take the page's colours: text and
// lines are drawn in `currentColor`, so light and dark need no redrawing.
(() => {
  const ink = { labelColor: "currentColor", titleColor: "currentColor", subtitleColor: "currentColor" };
  const lines = { domainColor: "currentColor", tickColor: "currentColor", gridColor: "currentColor", gridOpacity: 0.15 };
  const page = {
    background: "transparent",
    axis: { ...ink, ...lines },
    legend: ink,
    header: ink,
    title: { color: "currentColor", subtitleColor: "currentColor" },
    view: { stroke: "transparent" },
  };
  const marks = { text: { color: "currentColor" }, rule: { color: "currentColor" } };  // where the chart does not say

  function merge(below, above) {
    const both = { ...below };
    for (const [key, value] of Object.entries(above)) {
      const deep = value && typeof value === "object" && !Array.isArray(value);
      both[key] = deep ? merge(both[key] || {}, value) : value;
    }
    return both;
  }

  // Vega breaks no lines, and a title wider than the page would squeeze the plot.
  function broken(text, size, width) {
    const most = Math.max(12, Math.floor(width / (0.56 * size)));
    const lines = [""];
    for (const word of [text].flat().join(" ").split(" ")) {
      const last = lines.pop();
      lines.push(...(last && last.length + word.length >= most ? [last, word] : [`${last} ${word}`.trim()]));
    }
    return lines;
  }

  function titleFor(title, config, width) {
    if (!title) return title;
    const whole = typeof title === "object" && !Array.isArray(title) ? { ...title } : { text: title };
    const sizes = { fontSize: 13, subtitleFontSize: 11, ...config.title, ...whole };
    if (whole.text) whole.text = broken(whole.text, sizes.fontSize, width);
    if (whole.subtitle) whole.subtitle = broken(whole.subtitle, sizes.subtitleFontSize, width);
    return whole;
  }

  // Vega measures a chart's box when the window changes, which can be before the page has settled into its new shape.
  // When a box has found its width, every chart measures again, once.
  let settled;
  const widths = new WeakMap();
  const boxes = new ResizeObserver((entries) => {
    const changed = entries.filter(({ target }) => widths.get(target) !== target.clientWidth);
    changed.forEach(({ target }) => widths.set(target, target.clientWidth));
    if (!changed.length) return;
    clearTimeout(settled);
    settled = setTimeout(() => window.dispatchEvent(new Event("resize")), 100);
  });

  // Data stand in the page as columns, which repeat no name.
  function rows(columns) {
    const names = Object.keys(columns), length = names.length ? columns[names[0]].length : 0;
    return Array.from({ length }, (_, i) => Object.fromEntries(names.map((name) => [name, columns[name][i]])));
  }

  function draw(element, { datasets = {}, ...spec }) {
    const box = element.parentElement;
    const phone = box.clientWidth < 500;
    const config = merge(merge(marks, spec.config || {}), page);
    if (phone) config.legend.columns = 2;
    const title = titleFor(spec.title, config, box.clientWidth - (phone ? 10 : 50));
    const data = Object.fromEntries(Object.entries(datasets).map(([name, columns]) => [name, rows(columns)]));
    return vegaEmbed(element, { ...spec, datasets: data, title, config, background: "transparent" }, {
      mode: "vega-lite",
      renderer: "svg",
      ast: true,  // expressions are interpreted: the page's policy lets no text become code
      actions: { export: true, source: false, compiled: false, editor: false },
    }).then((chart) => {
      boxes.observe(box);
      element.querySelector("summary")?.setAttribute("aria-label", "Save this chart");
      if (spec.width === "container") element.dataset.fills = "";
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;  // it scrolls: the keyboard must reach it
      return chart;
    });
  }

  for (const data of document.querySelectorAll('script.chart[type="application/json"]')) {
    const element = data.previousElementSibling;
    draw(element, JSON.parse(data.textContent)).catch((error) => {
      element.textContent = `This chart cannot be drawn: ${error.message}`;
      throw error;
    });
  }
})();
