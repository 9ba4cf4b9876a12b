// The plane of heads: a point a head, two lines to drag, the counts in four quadrants; and the numbers of all heads.
(() => {
  const { make } = window.twotowers.draw;

  // What the axes show: two quantities, their titles, and where the lines stand first (a share of the logit difference where null).
  const AXES = {
    ranking: { title: "attention against written logit difference", x: "attention difference", y: "written logit difference", bounds: ["attention difference", "written logit difference"],
      names: ["prefers labels of the query’s class", "writes labels, nats"] },
    parts: { title: "attention by text, by predicted label", x: "by text", y: "by predicted label",
      bounds: ["attention difference", "attention difference"],
      names: ["attends by text", "attends by predicted label"] },
    effect: { title: "effect against direct effect", x: "direct effect", y: "effect", bounds: [null, null],
      names: ["direct effect of its attention, nats", "total effect of its attention, nats"] },
  };
  const MATTERS = 0.05;  // of the logit difference: the book's smallest effect of interest

  // The heads of one model on words or sentences, as they are shown.
  class Heads {
    constructor(model, texts, bounds) {
      Object.assign(this, model.suites[texts], { model, texts, bounds, total: model.layers * model.heads });
      this.names = Array.from({ length: this.total }, (_, i) => `${Math.floor(i / model.heads)}-${i % model.heads}`);
    }

    at(name) {
      return this.names.indexOf(name);
    }

    has(quantity) {
      return quantity in this.columns;
    }

    mean(quantity, name) {
      return this.columns[quantity]?.mean[this.at(name)] ?? null;
    }

    // Names, those with most of a quantity first.
    ranked(quantity) {
      const { mean } = this.columns[quantity];
      return [...this.names.keys()].sort((a, b) => mean[b] - mean[a]).map((i) => this.names[i]);
    }

    rank(quantity, name) {
      const { mean } = this.columns[quantity], own = mean[this.at(name)];
      return 1 + mean.filter((value) => value > own).length;
    }

    line(axes, side) {
      const bound = AXES[axes].bounds[side === "x" ? 0 : 1];
      return bound ? this.bounds[bound] : Number((MATTERS * this.logit_difference).toPrecision(2));
    }
  }

  // How many heads stand on each side of the lines; mean attention difference of those above as a share of those to the right, of all and
  // of the first few: the headline of an earlier edition.
  function counted(heads, axes, { x, y }) {
    const [xs, ys] = [heads.columns[AXES[axes].x].mean, heads.columns[AXES[axes].y].mean];
    const counts = { both: 0, right: 0, above: 0, neither: 0 };
    xs.forEach((value, i) => { counts[value >= x ? (ys[i] >= y ? "both" : "right") : ys[i] >= y ? "above" : "neither"] += 1; });
    const mean = (of) => of.reduce((sum, i) => sum + xs[i], 0) / of.length;
    const most = (values, line) => [...values.keys()].filter((i) => values[i] >= line).sort((a, b) => values[b] - values[a]);
    const share = (n) => mean(most(ys, y).slice(0, n)) / mean(most(xs, x).slice(0, n));
    return { counts, share: share(heads.total), ofTop: share(heads.bounds.top) };
  }

  const WIDE = 400, HIGH = 340, LEFT = 50, BOTTOM = 40, TOP = 22, RIGHT = 22, NEAR = 16, NAMED = 7;

  function ticks(low, high) {
    const rough = (high - low) / 5, ten = 10 ** Math.floor(Math.log10(rough));
    const step = ten * [1, 2, 5, 10].find((of) => of * ten >= rough);
    const from = Math.ceil(low / step), n = Math.floor(high / step) - from + 1;
    return Array.from({ length: n }, (_, i) => Number(((from + i) * step).toPrecision(6)));
  }

  // The ends of a line over the whole plane, at a place on one side.
  const across = (side, at) =>
    (side === "x" ? { x1: at, x2: at, y1: TOP, y2: HIGH - BOTTOM } : { x1: LEFT, x2: WIDE - RIGHT, y1: at, y2: at });

  class Plane {
    // pin(name, beside): a head was clicked; moved(side, value): a line was dragged.
    constructor(pin, moved) {
      this.picture = make("svg:svg", {
        viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", class: "heads-plane", click: (event) => {
          const name = this.nearest(event);
          if (name && !this.dragged) pin(name, event.shiftKey);
          this.dragged = false;
        },
        pointermove: (event) => (this.dragging ? this.drag(event, moved) : this.hover(this.nearest(event))),
        pointerleave: () => this.hover(""),
        pointerup: () => { this.dragging = ""; },
      });
    }

    point(event) {
      const box = this.picture.getBoundingClientRect();
      return [((event.clientX - box.left) * WIDE) / box.width, ((event.clientY - box.top) * HIGH) / box.height];
    }

    nearest(event) {
      const [x, y] = this.point(event), far = ({ at }) => Math.hypot(at[0] - x, at[1] - y);
      const best = [...this.points.values()].reduce((a, b) => (far(b) < far(a) ? b : a));
      return far(best) < NEAR ? best.name : "";
    }

    // The head under the pointer: its name and where it stands.
    hover(name) {
      for (const [other, { dot }] of this.points) dot.classList.toggle("hovered", other === name);
      this.note?.remove();
      if (!name) return;
      const { at: [x, y], told } = this.points.get(name), isRight = x > WIDE / 2;
      this.note = make("svg:text", { x: x + (isRight ? -14 : 14), y: y + 4, class: "name", "text-anchor": isRight ? "end" : "start" }, told);
      this.picture.append(this.note);
    }

    drag(event, moved) {
      const [x, y] = this.point(event), [low, high] = this.domain[this.dragging];
      const part = this.dragging === "x" ? (x - LEFT) / (WIDE - LEFT - RIGHT) : (HIGH - BOTTOM - y) / (HIGH - BOTTOM - TOP);
      this.dragged = true;
      moved(this.dragging, Number((low + Math.min(1, Math.max(0, part)) * (high - low)).toPrecision(3)));
    }

    // `other`: the same model on its other texts, so that both have one scale and the points glide between them.
    show(heads, other, axes, lines, head, beside) {
      const { x, y, names } = AXES[axes], quantities = { x, y };
      this.domain = {};
      for (const side of ["x", "y"]) {
        const all = [heads, other].flatMap((of) => of?.columns[quantities[side]]?.mean ?? []);
        const [low, high] = [Math.min(0, ...all), Math.max(0.01, ...all)], room = 0.06 * (high - low);
        this.domain[side] = [low - room, high + room];
      }
      const scale = (side, value) => {
        const [low, high] = this.domain[side], part = (value - low) / (high - low);
        return side === "x" ? LEFT + part * (WIDE - LEFT - RIGHT) : HIGH - BOTTOM - part * (HIGH - BOTTOM - TOP);
      };
      if (this.scene !== heads.model.name) this.build(heads);
      this.scene = heads.model.name;
      const most = heads.has("effect") ? Math.max(...heads.columns.effect.mean.map(Math.abs)) : 0;
      const [xs, ys] = [heads.columns[x].mean, heads.columns[y].mean];
      heads.names.forEach((name, i) => {
        const one = this.points.get(name), effect = heads.mean("effect", name) ?? 0;
        one.at = [scale("x", xs[i]), scale("y", ys[i])];
        one.told = `${name}: → ${xs[i].toFixed(2)}, ↑ ${ys[i].toFixed(2)}`.replaceAll(" -0.00", " 0.00").replaceAll(" -", " −");
        one.dot.style.transform = `translate(${one.at[0].toFixed(1)}px, ${one.at[1].toFixed(1)}px)`;
        one.dot.setAttribute("r", (2.5 + (most ? 9 * Math.sqrt(Math.abs(effect) / most) : 1)).toFixed(1));
        one.dot.setAttribute("class", effect < 0 ? "holds" : "helps");
        one.dot.classList.toggle("pinned", name === head);
        one.dot.classList.toggle("beside", name === beside);
      });
      this.frame.replaceChildren(...this.axis("x", scale, names[0]), ...this.axis("y", scale, names[1]));
      const origin = ["x", "y"].map((side) => scale(side, 0)), pinned = [head, beside].filter(Boolean);
      this.over.replaceChildren(...["x", "y"].flatMap((side) => this.line(side, scale(side, lines[side]))),
        ...this.labels(origin, pinned));
      const places = pinned.map((name) => `${name} at ${heads.mean(x, name)}, ${heads.mean(y, name)}`);
      this.picture.setAttribute("aria-label",
        `${heads.total} heads of ${heads.model.shown}: ${names.join(", up: ")}. Pinned: ${places.join("; ")}.`);
    }

    build(heads) {
      [this.frame, this.over] = [make("svg:g"), make("svg:g")];
      const dot = (name) => make("svg:circle", {}, make("svg:title", {}, name));
      this.points = new Map(heads.names.map((name) => [name, { name, dot: dot(name) }]));
      this.picture.replaceChildren(this.frame, make("svg:g", {}, ...[...this.points.values()].map(({ dot }) => dot)), this.over);
    }

    axis(side, scale, name) {
      const marks = ticks(...this.domain[side]).flatMap((value) => {
        const at = scale(side, value);
        const place = side === "x" ? { x: at, y: HIGH - BOTTOM + 15, "text-anchor": "middle" }
          : { x: LEFT - 5, y: at + 4, "text-anchor": "end" };
        return [make("svg:line", { ...across(side, at), class: value === 0 ? "zero" : "grid" }),
          make("svg:text", place, String(value).replace("-", "−"))];
      });
      const title = side === "x" ? { x: (LEFT + WIDE) / 2, y: HIGH - 6, "text-anchor": "middle" }
        : { x: -(HIGH - BOTTOM) / 2, y: 11, transform: "rotate(-90)", "text-anchor": "middle" };
      return [...marks, make("svg:text", title, name)];
    }

    line(side, at) {
      const grip = side === "x" ? { cx: at, cy: TOP - 10 } : { cx: WIDE - RIGHT + 10, cy: at };  // beside the plane: it covers no head
      const pointerdown = (event) => {
        this.dragging = side;
        this.picture.setPointerCapture(event.pointerId);
      };
      return [make("svg:line", { ...across(side, at), class: "line" }),
        make("svg:circle", { ...grip, r: 9, class: `grip ${side}`, pointerdown }, make("svg:title", {}, "drag this line"))];
    }

    // Names of the pinned heads, and of those farthest out whose name covers neither another name nor a large point.
    labels(origin, pinned) {
      const far = ({ at }) => Math.hypot(at[0] - origin[0], at[1] - origin[1]), all = [...this.points.values()];
      const area = ({ name, at: [x, y], dot }, r = Number(dot.getAttribute("r"))) => ({ name, r, left: x - r, right: x + r, top: y - r, bottom: y + r });
      const dots = all.map((point) => area(point)).filter(({ r }) => r > 4), placed = [];
      const covers = (a, b) => a.name !== b.name && a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
      const rest = [...all].sort((a, b) => far(b) - far(a)).slice(0, 3 * NAMED);
      for (const point of new Set([...pinned.map((name) => this.points.get(name)), ...rest])) {
        const { name, at: [x, y] } = point, isPinned = pinned.includes(name), { r } = area(point);
        const width = (isPinned ? 9 : 7) * name.length, sides = [x + r + 4, x - r - 4 - width];
        const places = sides.filter((left) => left > LEFT && left + width < WIDE)
          .map((left) => ({ name, left, right: left + width, top: y - 7, bottom: y + 7, isPinned }));
        const place = places.find((one) => ![...placed, ...dots].some((other) => covers(one, other)));
        if (place || isPinned) placed.push(place ?? places[0]);
        if (placed.length >= NAMED) break;
      }
      return placed.map(({ name, left, top, isPinned }) =>
        make("svg:text", { x: left, y: top + 11, class: isPinned ? "name pinned" : "name" }, name));
    }
  }

  window.twotowers.heads = { AXES, Heads, Plane, counted };
})();
