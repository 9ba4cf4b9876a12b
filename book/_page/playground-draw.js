// What the playground shows, as elements of the page. Words of the reader become text here, never markup.
(() => {
  const SVG = "http://www.w3.org/2000/svg";

  // An element: attributes (a function listens, true and false set or leave out, style is an object), then children.
  function make(tag, attributes = {}, ...children) {
    const [name, svg] = tag.split(":").reverse();
    const element = svg ? document.createElementNS(SVG, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (typeof value === "function") element.addEventListener(key, value);
      else if (typeof value === "boolean") element.toggleAttribute(key, value);
      else if (key === "style") for (const [name, of] of Object.entries(value)) element.style.setProperty(name, of);
      else element.setAttribute(key, value);
    }
    element.append(...children);
    return element;
  }

  const button = (text, click, attributes = {}, ...more) => make("button", { type: "button", click, ...attributes }, text, ...more);
  const small = (...text) => make("p", { class: "playground-small" }, ...text);
  const part = (title, ...body) => make("section", {}, make("h2", {}, title), ...body);
  const parsed = (name) => name.split("-").map(Number);  // "3-1" -> layer, head
  const nats = (x) => `${x < 0 ? "−" : "+"}${Math.abs(x).toFixed(1)}`;
  // A query (a cross) or a key (a circle) of a class, on a plane.
  const mark = ([x, y], r, attributes, query) => (query
    ? make("svg:path", { d: `M${x - r} ${y - r}L${x + r} ${y + r}M${x - r} ${y + r}L${x + r} ${y - r}`, ...attributes })
    : make("svg:circle", { cx: x, cy: y, r, ...attributes }));
  // Which colour is which class.
  const legend = (classes) => classes.flatMap((cls, c) => [c ? ", " : "", make("b", { class: `class-${c}` }, "●"), ` ${cls}`]);

  const percent = (p) => (p > 0 && p < 0.005 ? "<1%" : `${Math.round(100 * p)}%`);
  const short = (value) => value.toFixed(2).replace(/^0\./, ".");
  const signed = (value) => {  // four signs at most: a cell of the map is narrow on a phone
    const size = Math.abs(value);
    return size < 0.005 ? "0" : (value < 0 ? "−" : "+") + (size < 0.995 ? short(size) : size.toFixed(1));
  };

  function table(head, rows, attributes = {}) {
    const cells = (tag, row) => make("tr", {}, ...row.map((cell, i) => {
      if (cell instanceof Element) return make("td", {}, cell);
      if (tag === "th") return make("th", { scope: "col" }, cell);
      return i ? make("td", {}, cell) : make("th", { scope: "row" }, make("bdi", {}, cell));
    }));
    const body = make("tbody", {}, ...rows.map((row) => cells("td", row)));
    return make("table", attributes, make("thead", {}, cells("th", head)), body);
  }

  // Probabilities of words: [word, now, before]; before, which is `than`, is null where nothing was changed yet.
  function bars(rows, than) {
    const bar = (p, kind) => make("div", { class: `playground-bar ${kind}`, style: { "--part": p } });
    return table(["answer", `now, and ${than}`, "probability"], rows.map(([word, now, before]) => [
      word, make("div", {}, bar(now, "now"), ...(before === null ? [] : [bar(before, "before")])),
      before === null ? percent(now) : `${percent(before)} → ${percent(now)}`,
    ]), { class: "playground-answers" });
  }

  // Arcs from the query, the last row, to the label of every row above it, as wide as the mean attention of some heads;
  // in colour: the share of the chosen head. `heads`: [{name, weights: one a row, edited}], `chosen`: one of them or another.
  // Rows are ROW high, as in the style sheet.
  const ROW = 38, WIDEST = 24;
  function arcs(labels, heads, chosen) {
    const height = (labels.length + 1) * ROW, from = height - ROW / 2, width = 100;
    const told = heads.map(({ name, weights }) =>
      `head ${name}: ${labels.map((label, i) => `${i + 1}. ${label} ${short(weights[i])}`).join(", ")}`);
    const picture = make("svg:svg", {
      viewBox: `0 0 ${width} ${height}`, height, preserveAspectRatio: "none", role: "img", class: "playground-arcs",
      "aria-label": `Attention of the query on the label of each demonstration. ${told.join("; ")}.`,
    });
    const k = heads.findIndex(({ name }) => name === chosen.name), every = heads.every(({ edited }) => edited);
    labels.forEach((label, i) => {
      const to = (i + 0.5) * ROW, far = 25 + (95 * (labels.length - i)) / labels.length;
      const arc = (weight, kind, edited, title) => make("svg:path", {
        d: `M2 ${from}C${far.toFixed(1)} ${from} ${far.toFixed(1)} ${to} 2 ${to}`,
        class: `playground-arc ${kind}${edited ? " edited" : ""}`, "vector-effect": "non-scaling-stroke",
        "stroke-width": Math.max(0.3, (WIDEST * weight) / heads.length).toFixed(2),
      }, make("svg:title", {}, title));
      const all = heads.reduce((sum, { weights }) => sum + weights[i], 0), own = chosen.weights[i];
      picture.append(arc(all, "all", every, `heads in colour, on average: ${short(all / heads.length)}`),
        arc(own, `head-${k}`, chosen.edited, `head ${chosen.name}: ${short(own)}`));
    });
    return picture;
  }

  // Layers x heads as buttons; `cells`: name -> {nats, arc, action}. Arrow keys move; Tab reaches one cell.
  function map({ layers, heads, cells, selected, select }) {
    const most = Math.max(...Object.values(cells).map(({ nats }) => Math.abs(nats))) || 1;
    const cell = (name) => {
      const { nats, arc, action } = cells[name];
      return button(signed(nats), () => select(name), {
        "data-head": name, tabindex: name === selected ? 0 : -1, style: { "--part": (Math.abs(nats) / most).toFixed(3) },
        class: `${nats < 0 ? "lowers" : "raises"}${arc >= 0 ? ` writer head-${arc}` : ""}`,
        "aria-pressed": String(name === selected), "aria-label": [`head ${name}`, ...(arc >= 0 ? ["with arcs"] : []),
          `${nats.toFixed(3)} nats`, ...(action ? [action] : [])].join(", "),
      }, make("small", {}, action || ""));
    };
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [1, 0], ArrowDown: [-1, 0] };
    const numbers = (n) => Array.from({ length: n }, (_, i) => i);
    const key = (event) => {
      const by = moves[event.key], from = event.target.dataset.head?.split("-").map(Number);
      if (!by || !from) return;
      event.preventDefault();
      const [layer, head] = [from[0] + by[0], from[1] + by[1]];
      if (cells[`${layer}-${head}`]) select(`${layer}-${head}`);
    };
    return table(["layer ↓ head →", ...numbers(heads).map(String)],
      numbers(layers).reverse().map((l) => [String(l), ...numbers(heads).map((h) => cell(`${l}-${h}`))]),
      { class: "playground-map", keydown: key });
  }

  window.twotowers = { ...window.twotowers, draw: {
    make, button, small, part, parsed, nats, mark, legend, table, bars, arcs, map, percent, short,
  } };
})();
