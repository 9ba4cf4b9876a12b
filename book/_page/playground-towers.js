// The two towers of a head: queries and keys of the book's own prompts, by class; the direction between two classes, which
// chapter 11 steers along; and the plane in which chapter 4 shows them.
(() => {
  const { encode, draw: { make, parsed, nats, mark } } = window.twotowers;

  function mean(vectors) {
    const sum = new Float64Array(vectors[0].length);
    for (const vector of vectors) add(sum, vector, 1 / vectors.length);
    return sum;
  }

  // The two directions in which rows vary most, by power iteration.
  function components(rows) {
    const axes = [];
    for (let c = 0; c < 2; c++) {
      let axis = Float64Array.from(rows[0], (_, i) => 1 + (i === c));
      for (let step = 0; step < 200; step++) {
        const next = new Float64Array(axis.length);
        for (const row of rows) add(next, row, dot(row, axis));
        for (const first of axes) add(next, first, -dot(next, first));
        const length = Math.hypot(...next) || 1;
        axis = next.map((x) => x / length);
      }
      axes.push(axis);
    }
    return axes;
  }

  const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
  const add = (sum, row, times) => row.forEach((x, i) => { sum[i] += times * x; });

  class Towers {
    // `texts`: {selection, cloud}, prompts such as "love : foo one : bar two :"; `classes`: word -> class.
    constructor(model, tokenizer, texts, classes) {
      Object.assign(this, { model, tokenizer, texts, classes, runs: new Map(), planes: new Map() });
      this.known = new Set(texts.selection.flatMap((text) => text.split(" ").map((word) => classes[word]).filter(Boolean)));
    }

    // Runs of the prompts of a kind that show a class.
    runsOf(cls, kind) {
      return this.texts[kind].flatMap((text) => {
        const words = text.split(" "), query = words.at(-2), demonstrations = [];
        for (let i = 0; i + 3 < words.length; i += 3) demonstrations.push([words[i], words[i + 2]]);
        const shown = demonstrations.map(([word]) => this.classes[word]);
        if (!shown.includes(cls)) return [];
        if (!this.runs.has(text)) {
          const prompt = encode({ demonstrations, query, true_label: demonstrations[0][1] }, this.model, this.tokenizer);
          this.runs.set(text, { labelAt: prompt.labelAt, seen: this.model.run(prompt.ids) });
        }
        return [{ ...this.runs.get(text), asked: this.classes[query], shown }];
      });
    }

    vectors(cls, name, kind) {
      const at = parsed(name), queries = [], keys = [];
      for (const { labelAt, seen, asked, shown } of this.runsOf(cls, kind)) {
        if (asked === cls) queries.push(this.model.tower(seen, ...at, "query", seen.n - 1));
        shown.forEach((of, i) => { if (of === cls) keys.push(this.model.tower(seen, ...at, "key", labelAt[i])); });
      }
      return { queries, keys };
    }

    // What a dose of 1 adds to a head's query: mean query of one class minus that of another.
    direction(from, to, name) {
      const [a, b] = [from, to].map((cls) => mean(this.vectors(cls, name, "selection").queries));
      return b.map((x, i) => x - a[i]);
    }

    // Queries and keys of two classes, each moved to their own centre and scaled alike, on their first two components.
    plane(pair, name) {
      const key = [name, ...pair].join();
      if (!this.planes.has(key)) {
        const both = pair.map((cls) => this.vectors(cls, name, "cloud")), change = {};
        for (const part of ["queries", "keys"]) {
          const all = both.flatMap((of) => of[part]), centre = mean(all), flat = all.flatMap((row) => [...row]);
          const middle = mean(flat.map((x) => [x]))[0];
          const spread = Math.sqrt(flat.reduce((sum, x) => sum + (x - middle) ** 2, 0) / flat.length) || 1;
          change[part] = (row) => row.map((x, i) => (x - centre[i]) / spread);
        }
        const points = both.flatMap((of, c) => ["queries", "keys"].flatMap((part) =>
          of[part].map((row) => ({ part, c, row: change[part](row) }))));
        const axes = components(points.map(({ row }) => row));
        const side = (c) => mean(points.filter((point) => point.c === c).map(({ row }) => [dot(row, axes[0])]))[0];
        if (side(0) > side(1)) axes[0] = axes[0].map((x) => -x);  // the first class lies on the left
        const place = (row) => axes.map((axis) => dot(row, axis));
        this.planes.set(key, {
          points: points.map(({ part, c, row }) => ({ part, c, xy: place(row) })),
          place: (vector, part) => place(change[part](vector)),
        });
      }
      return this.planes.get(key);
    }
  }

  const [WIDE, HIGH, EDGE] = [260, 160, 12];

  // The precomputed cloud, and the reader's prompt on it: `query` {vector, word}, `keys` [{vector, weight, c}].
  function plane({ points, place }, { query, keys, told, colour }) {
    const scale = [0, 1].map((axis) => {
      const all = points.map(({ xy }) => xy[axis]), low = Math.min(...all), high = Math.max(...all);
      const room = (axis ? HIGH : WIDE) - 2 * EDGE;
      return (x) => EDGE + room * Math.min(1, Math.max(0, (x - low) / (high - low || 1)));
    });
    const at = (xy) => xy.map((x, axis) => scale[axis](x));
    const picture = make("svg:svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", class: "playground-plane", "aria-label": told });
    for (const { part, c, xy } of points) picture.append(mark(at(xy), 3, { class: `cloud class-${c}` }, part === "queries"));
    const here = at(place(query.vector, "queries")), ends = keys.map(({ vector }) => at(place(vector, "keys")));
    keys.forEach(({ weight }, i) => picture.append(make("svg:line", {
      x1: here[0], y1: here[1], x2: ends[i][0], y2: ends[i][1], class: `link head-${colour}`,
      "stroke-width": Math.max(0.3, 8 * weight).toFixed(2),
    })));
    keys.forEach(({ c }, i) => {
      const [x, y] = ends[i];
      picture.append(mark([x, y], 8, { class: `mine class-${c}` }),
        make("svg:text", { x, y: y + 4, class: "number" }, String(i + 1)));
    });
    const left = here[0] > WIDE / 2;
    picture.append(mark(here, 7, { class: "mine" }, true),
      make("svg:text", { x: here[0], y: here[1] + (here[1] < HIGH / 2 ? 20 : -11), class: `word ${left ? "left" : ""}` }, query.word));  // above or below its lines
    return picture;
  }

  // Logit difference against the dose, and where the reader's dose stands: `rows` [[dose, nats]].
  function curve(rows, dose, told) {
    const high = 64, foot = 12, most = Math.max(1, ...rows.map(([, nats]) => Math.abs(nats))), range = rows.at(-1)[0];
    const x = (d) => EDGE + ((WIDE - 2 * EDGE) * (d + range)) / (2 * range);
    const y = (nats) => high / 2 - (nats / most) * (high / 2 - 6);
    const now = rows.reduce((best, row) => (Math.abs(row[0] - dose) < Math.abs(best[0] - dose) ? row : best));
    const marks = [-range, -1, 0, 1, range].map((d) => make("svg:text", { x: x(d), y: high + foot - 2, "text-anchor": "middle" },
      `${d}`.replace("-", "−")));
    const ends = [most, -most].map((value) => make("svg:text", { x: 1, y: y(value) + 4 }, nats(value)));
    return make("svg:svg", { viewBox: `0 0 ${WIDE} ${high + foot}`, role: "img", class: "playground-curve", "aria-label": told },
      ...marks, ...ends,
      make("svg:line", { x1: EDGE, x2: WIDE - EDGE, y1: high / 2, y2: high / 2, class: "axis" }),
      make("svg:polyline", { points: rows.map(([d, value]) => `${x(d).toFixed(1)},${y(value).toFixed(1)}`).join(" ") }),
      make("svg:circle", { cx: x(now[0]), cy: y(now[1]), r: 5 }));
  }

  window.twotowers.Towers = Towers;
  Object.assign(window.twotowers.draw, { plane, curve });
})();
