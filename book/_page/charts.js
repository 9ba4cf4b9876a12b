// Charts take the page's colours: text and lines are drawn in `currentColor`, so light and dark need no redrawing.
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

  const embed = window.vegaEmbed;
  window.vegaEmbed = (element, spec, options) => {
    const config = merge(merge(marks, spec.config || {}), page);
    return embed(element, { ...spec, config, background: "transparent" }, {
      ...options,
      renderer: "svg",
      actions: { export: true, source: false, compiled: false, editor: false },
    }).then((chart) => {
      const box = element.parentElement;
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;  // it scrolls: the keyboard must reach it
      return chart;
    });
  };
})();
