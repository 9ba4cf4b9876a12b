// The card of a head, or of two side by side: its numbers and ranks, which way its label goes, what is lost without it.
(() => {
  const { make, small, part, mark, legend, percent, table } = window.twotowers.draw;
  const number = (value) => value.toFixed(2).replace("-", "−").replace(/^−(0\.00)$/, "$1");
  const MISSING = "not precomputed";
  const QUANTITIES = [
    ["attention difference", "attention difference"], ["… by text", "by text"],
    ["… by predicted label", "by predicted label"],
    ["writes labels, nats", "written logit difference"], ["adds to the right label, nats", "attribution"],
    ["the paper’s increase, nats", "increase"], ["total effect of its attention, nats", "effect"],
    ["… direct", "direct effect"], ["sends which label, nats", "label sent"], ["sends which place, nats", "place sent"],
    ["lost without it, nats", "lost"],
  ];
  const ordinal = (n) => `${n}${n % 100 > 10 && n % 100 < 14 ? "th" : ["th", "st", "nd", "rd"][n % 10] || "th"}`;

  // Value, interval and rank of a quantity: a cell.
  function cell(heads, quantity, name) {
    if (!heads.has(quantity)) return make("span", { class: "missing" }, MISSING);
    const { low, high } = heads.columns[quantity], i = heads.at(name);
    const bounds = low && low[i] !== null ? ` [${number(low[i])}, ${number(high[i])}]` : "";
    return make("span", {}, make("b", {}, number(heads.mean(quantity, name))), bounds,
      make("small", {}, ` ${ordinal(heads.rank(quantity, name))}`));
  }

  // What is lost without each head of a layer, with its interval: the pinned one stands out.
  function losses(heads, name) {
    const { mean, low, high } = heads.columns.lost, { heads: n } = heads.model, layer = Number(name.split("-")[0]);
    const rows = Array.from({ length: n }, (_, h) => layer * n + h), ends = rows.flatMap((i) => [low[i], high[i], mean[i], 0]);
    const [from, to] = [Math.min(...ends), Math.max(...ends)], x = (value) => 44 + (240 * (value - from)) / (to - from || 1);
    const picture = make("svg:svg", { viewBox: `0 0 290 ${12 * n + 16}`, role: "img", class: "heads-losses",
      "aria-label": `Lost without each head of layer ${layer}, nats: ` +
        `${rows.map((i) => `${heads.names[i]} ${number(mean[i])}`).join(", ")}.` },
    make("svg:line", { x1: x(0), x2: x(0), y1: 0, y2: 12 * n, class: "zero" }),
    make("svg:text", { x: x(0), y: 12 * n + 13, "text-anchor": "middle" }, "0"),
    make("svg:text", { x: 284, y: 12 * n + 13, "text-anchor": "end" }, number(to)));
    rows.forEach((i, row) => {
      const y = 12 * row + 7, own = heads.names[i] === name ? "own" : "";
      picture.append(make("svg:text", { x: 36, y: y + 4, "text-anchor": "end", class: own }, heads.names[i]),
        make("svg:line", { x1: x(low[i] ?? mean[i]), x2: x(high[i] ?? mean[i]), y1: y, y2: y, class: own }),
        make("svg:circle", { cx: x(mean[i]), cy: y, r: 3, class: own }));
    });
    return [picture];
  }

  function pathEffects(heads, names) {
    const known = names.filter((name) => heads.path_effects[name]);
    if (!known.length) return [small(`${MISSING} for this head: only for those with the largest effects.`)];
    const rows = Object.keys(heads.path_effects[known[0]]).map((path) => [path, ...known.map((name) => number(heads.path_effects[name][path]))]);
    return [table(["nats", ...known], rows, { class: "heads-numbers" }), small("Its output comes from the prompt with " +
      "exchanged labels, and only one kind of later part reads it. If they interact, the parts do not add up.")];
  }

  function words(heads, name) {
    const rows = heads.words[name], ranks = heads.ranks[name];
    const list = (title, of) => small(`${title}: `, make("bdi", {}, of.join(", ")));
    return [...(rows || []).flatMap(([at, value, key]) =>
      [make("b", {}, at), list("value", value), list("key, mean taken out", key)]),
      ...(rows ? [] : [small(`Top words: ${MISSING}.`)]),
      ...(ranks ? [small("Mean reciprocal rank of a label in the value-output vector at its position: " +
        `${number(ranks[0])}; of the other label: ${number(ranks[1])}.`)] : [])];
  }

  function towers(heads, name) {
    const found = heads.towers[name];
    if (!found) return [small(`${MISSING} for this head.`)];
    const sides = found.pair.split("/"), picture = make("svg:svg", { viewBox: "0 0 220 124", role: "img", class: "playground-plane",
      "aria-label": `Queries (crosses) and keys (circles) of ${sides.join(" and ")} on a plane.` });
    for (const [u, v, c, query] of found.points.toReversed())  // queries on top
      picture.append(mark([10 + 2 * u, 114 - 1.04 * v], query ? 4 : 3,
        { class: `cloud ${query ? "query " : ""}class-${c}` }, query));
    return [picture, small("Keys: ", ...legend(sides), ". Crosses: queries.")];
  }

  // The card of one head or two, `names`: its numbers, and what stands below.
  function card(heads, names) {
    const rows = QUANTITIES.map(([title, quantity]) => [title, ...names.map((name) => cell(heads, quantity, name))]);
    const title = (name) => (names.length > 1 ? [make("p", {}, make("b", {}, name))] : []);
    const each = (of) => names.flatMap((name) => [...title(name), ...of(name)]), { effect, lost } = heads.columns;
    const without = () => [...each((name) => losses(heads, name)), small("Nats, 95% intervals; removed at the last position, " +
      `on ${lost.prompts} of the prompts that locate, not of those that judge. Later parts can make up for a head, so this is ` +
      "at times less than what it does.")];
    const interventions = effect ? `parts and effects: ${effect.prompts} others, where the whole way to the other label is ` +
      `${number(2 * heads.logit_difference)} nats` : "no interventions";
    const numbers = part(names.length > 1 ? `Heads ${names.join(" and ")}` : `Head ${names[0]}`,
      table(["mean, and rank", ...names], rows, { class: "heads-numbers" }),
      small(`${heads.measured} prompts; ${interventions}. Ranks are among ${heads.total} heads in ${heads.model.layers} ` +
        "layers, counted from 0."));
    return { numbers, more: [
      part("Which way its label goes", ...pathEffects(heads, names)),
      part("Without it, and without others of its layer", ...(lost ? without() : [small(MISSING)])),
      part("Its words", ...each((name) => words(heads, name))),
      part("Its towers", ...each((name) => towers(heads, name))),
    ] };
  }

  Object.assign(window.twotowers.heads, { card, number, ordinal, percent });
})();
