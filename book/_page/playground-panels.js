// What stands beside the prompt: the map of heads, the towers of one, the steering of the query, and words.
(() => {
  const { ACTIONS, MEASURES, classOf, quoted } = window.twotowers;
  const { make, button, small, part, parsed, legend, table, map, plane, curve, short } = window.twotowers.draw;

  window.twotowers.panels = (page) => {
    const { model, tokenizer, data, towers: known, writers, steered, buttons, factor, change, state } = page;
    function weights({ prompt, after }, name) {
      const [layer, head] = parsed(name);
      return prompt.labelAt.map((at) => after.weights[layer][head * after.n + at]);
    }

    function act(names, action) {
      const heads = Object.fromEntries(Object.entries(state().heads).filter(([name]) => !names.includes(name)));
      for (const name of action ? names : []) heads[name] = action;
      change({ heads });
    }

    function heads({ prompt, after }, selected, select) {
      const { measure, heads: acted } = state(), [label, other] = prompt.labels;
      const nats = measure === "increase" ? model.increases(after, label.id) : model.differences(after, label.id, other.id);
      const cells = {};
      nats.forEach((value, i) => {
        const name = `${Math.floor(i / model.heads)}-${i % model.heads}`;
        cells[name] = { nats: value, action: acted[name], arc: writers.indexOf(name) };
      });
      const radio = (name, value, text, checked, change) => make("label", {}, make("input", {
        type: "radio", name: `playground-${name}`, "data-keep": `${name} ${value}`, checked, change }), text);
      const over = { difference: `over ${quoted(other.word)}`, increase: "over all words" };
      const measures = MEASURES.map((value) =>
        radio("measure", value, over[value], measure === value, () => change({ measure: value }, "measure")));
      const actions = ["", ...ACTIONS].map((action) =>
        radio("action", action, action || "leave", (acted[selected] || "") === action, () => act([selected], action)));
      const all = (text, action) => button(text, () => act(writers, action), { "data-keep": text });
      return part(`What each head adds to ${quoted(label.word)}`,
        make("fieldset", { class: "playground-actions" }, make("legend", { class: "playground-hidden" }, "measure"), ...measures),
        map({ layers: model.layers.length, heads: model.heads, cells, selected, select }),
        make("fieldset", { class: "playground-actions" }, make("legend", {}, `Head ${selected}`), ...actions,
          make("label", {}, "factor", factor)),
        small("Zero: it writes nothing. Scale: what it writes, times the factor. Patch: it writes what it writes in the same " +
          "prompt with the labels exchanged."),
        buttons(make("span", {}, "All in colour"), all("zero", "zero"), all("patch", "patch"),
          button("leave all", () => change({ heads: {} }), { "data-keep": "leave" })));
    }

    function towers(found, name) {
      const { prompt: { rows, query, labelAt }, after, pair, steerable } = found, title = `The towers of head ${name}`;
      if (!steerable) return part(title, small("Give demonstrations of two classes from “Words to choose”, such as love and two."));
      const at = parsed(name), looks = weights(found, name), order = new Set(Object.values(data.classes));
      const sides = [...order].filter((cls) => pair.includes(cls));  // as in the pairs of classes, whichever is asked
      const side = (words) => sides.indexOf(classOf(words, data.classes));
      const vector = model.tower(after, ...at, "query", after.n - 1);
      const steering = steered.includes(name) ? known.direction(...pair, name) : [];
      const picture = plane(known.plane(sides, name), {
        query: { vector: vector.map((x, i) => x + state().steering * (steering[i] || 0)), word: query },
        keys: labelAt.map((p, i) => ({ vector: model.tower(after, ...at, "key", p), weight: looks[i], c: side(rows[i][0]) })),
        colour: writers.indexOf(name),
        told: `Query and keys on a plane. Lines from the query ${quoted(query)}, as wide as the attention: ` +
          `${looks.map((weight, i) => `${i + 1}. ${rows[i][0]} ${short(weight)}`).join(", ")}.`,
      });
      return part(title, picture, small("Keys: ", ...legend(sides), ". Crosses: queries. Yours are large."));
    }

    function doses({ prompt, pair, steerable, doses: values }) {
      if (!steerable) return [];
      const [label, other] = prompt.labels.map(({ word }) => quoted(word)), rows = values();
      return [make("div", { class: "playground-ends" }, make("span", {}, `← ${pair[0]}`), make("span", {}, `${pair[1]} →`)),
        curve(rows, state().steering, `${label} over ${other}, in nats, by coefficient: ` +
          `${rows.map(([dose, nats]) => `${dose}: ${nats.toFixed(1)}`).join(", ")}.`),
        small(`Curve: ${label} over ${other}. Coefficient ${state().steering}: 1 is the distance between the classes.`)];
    }

    function words(found, selected) {
      const at = parsed(selected), looks = weights(found, selected), { labelAt, rows } = found.prompt;
      const values = labelAt.map((p) => model.value(found.after, ...at, p));
      const read = model.topWords([...values, ...labelAt.map((p) => model.input(found.after, at[0], p))], 4)
        .map((ids) => make("bdi", {}, ids.map((id) => tokenizer.shown(id)).join(", ")));
      return [table(["label", "attention", "value", "key"], labelAt.map((_, i) => [
        `${i + 1}. ${rows[i][1]}`, short(looks[i]), read[i], read[i + labelAt.length],
      ]), { class: "playground-readings" }), small("At each label, the top words of what the head would write if it looked there " +
        "only (value), and of what its layer makes keys from (key).")];
    }

    return { weights, heads, towers, doses, words };
  };
})();
