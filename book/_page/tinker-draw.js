// What the playground shows, as elements of the page. Words of the reader become text here, never markup.
(() => {
  const SVG = "http://www.w3.org/2000/svg";

  // An element: attributes (a function listens, true and false set or leave out), then children.
  function make(tag, attributes = {}, ...children) {
    const [name, svg] = tag.split(":").reverse();
    const element = svg ? document.createElementNS(SVG, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (typeof value === "function") element.addEventListener(key, value);
      else if (typeof value === "boolean") element.toggleAttribute(key, value);
      else element.setAttribute(key, value);
    }
    element.append(...children);
    return element;
  }

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

  // Probabilities of words: [word, before, after]; after is null where nothing was done to heads.
  function bars(rows) {
    const bar = (p, kind) => {
      const one = make("div", { class: `tinker-bar ${kind}` });
      one.style.setProperty("--part", p);
      return one;
    };
    const edited = rows.some(([, , after]) => after !== null);
    return table(["word", edited ? "before, after" : "", "probability"], rows.map(([word, before, after]) => [
      word, make("div", {}, bar(before, edited ? "before" : "after"), ...(edited ? [bar(after, "after")] : [])),
      edited ? `${percent(before)} → ${percent(after)}` : percent(before),
    ]), { class: "tinker-words" });
  }

  // Arcs from the last position to every label, one colour a head, as wide as the weight; the weights stand beside.
  // `heads`: [{name, weights: one a demonstration, edited}]
  function arcs({ rows, query, trueLabel, heads }) {
    const step = 28, top = 46, edge = 128, column = 33, first = 232, last = top + rows.length * step;
    const width = first + heads.length * column - 8;
    const cut = (words) => (Array.from(words).length > 10 ? `${Array.from(words).slice(0, 9).join("")}…` : words);
    const word = (x, y, words, kind, anchor = "end") =>
      make("svg:text", { x, y, class: kind, "text-anchor": anchor }, words);
    const told = heads.map(({ name, weights }) =>
      `head ${name}: ${rows.map(([, label], i) => `${i + 1}. ${label} ${short(weights[i])}`).join(", ")}`);
    const picture = make("svg:svg", {
      viewBox: `0 0 ${width} ${last + 16}`, role: "img", class: "tinker-arcs",
      "aria-label": `Attention of the last position on the label of each demonstration. ${told.join("; ")}.`,
    });
    heads.forEach(({ name, weights, edited }, k) => {
      weights.forEach((weight, i) => {
        const y = top + i * step - 4 + 2.5 * (k - 2), from = last - 4 + 2.5 * (k - 2);  // heads run side by side
        const far = edge + 30 + (60 * (rows.length - i)) / rows.length + 6 * k;
        picture.append(make("svg:path", {
          d: `M${edge + 4} ${from}C${far.toFixed(1)} ${from} ${far.toFixed(1)} ${y} ${edge + 4} ${y}`,
          class: `tinker-arc head-${k}${edited ? " edited" : ""}`, "stroke-width": Math.max(0.3, 7 * weight).toFixed(2),
        }));
        picture.append(word(first + k * column + 20, top + i * step, short(weight), `head-${k}`));
      });
      picture.append(word(first + k * column + 20, 18, name, `head-${k} name`));
    });
    rows.forEach(([words, label], i) => {
      const y = top + i * step;
      picture.append(word(edge - 52, y, cut(words), ""), word(edge - 44, y, ":", "", "middle"),
        word(edge, y, cut(label), label === trueLabel ? "true" : "false"));
    });
    picture.append(word(edge - 52, last, cut(query), ""), word(edge - 44, last, ":", "", "middle"),
      word(first - 14, 18, "head", ""));
    return picture;
  }

  // Layers x heads as buttons; `cells`: name -> {increase, located, action}. Arrow keys move; Tab reaches one cell.
  function map({ layers, heads, cells, selected, select }) {
    const most = Math.max(...Object.values(cells).map(({ increase }) => Math.abs(increase))) || 1;
    const cell = (name) => {
      const { increase, located, action } = cells[name];
      const button = make("button", {
        type: "button", "data-head": name, tabindex: name === selected ? 0 : -1,
        class: `${increase < 0 ? "lowers" : "raises"}${located ? " located" : ""}`,
        "aria-pressed": String(name === selected), "aria-label": [`head ${name}`, ...(located ? ["located"] : []),
          `${increase.toFixed(3)} nats`, ...(action ? [action] : [])].join(", "),
        click: () => select(name),
      }, signed(increase), make("small", {}, action || ""));
      button.style.setProperty("--part", (Math.abs(increase) / most).toFixed(3));
      return button;
    };
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [1, 0], ArrowDown: [-1, 0] };
    const numbers = (n) => Array.from({ length: n }, (_, i) => i);
    const key = (event) => {
      const by = moves[event.key], from = event.target.dataset.head?.split("-").map(Number);
      if (!by || !from) return;
      event.preventDefault();
      const [layer, head] = [from[0] + by[0], from[1] + by[1]];
      if (cells[`${layer}-${head}`]) select(`${layer}-${head}`, true);
    };
    return table(["layer", ...numbers(heads).map(String)],
      numbers(layers).reverse().map((l) => [String(l), ...numbers(heads).map((h) => cell(`${l}-${h}`))]),
      { class: "tinker-map", keydown: key });
  }

  Object.assign(window.twotowers, { draw: { make, table, bars, arcs, map, percent, short } });
})();
