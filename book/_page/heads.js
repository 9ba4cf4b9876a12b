// The explorer of heads: what the reader chose (the state), the prompt in the middle, scenes, keys, and the address.
(() => {
  const { make, button, small, percent, table } = window.twotowers.draw;
  const { AXES, Heads, Plane, SCENES, Words, card, counted, number, wordsPart } = window.twotowers.heads;
  const home = document.getElementById("heads"), data = window.twotowersHeads;
  if (!home || !data?.models.length) return;

  const EXCHANGE = 2, MIRROR = 1;  // bits of a prompt's place in its block
  const known = new Map(data.models.flatMap((model) => Object.keys(model.suites).map((texts) =>
    [`${model.name} ${texts}`, new Heads(model, texts, data.bounds)])));
  const on = (model, texts) => known.get(`${model} ${texts}`) ?? null;  // a model's heads on words or sentences, if measured
  const lists = new Map([...known].map(([name, { similarity }]) => [name, similarity.pairs ? new Words(similarity, data.characters) : null]));
  const texts = (model) => Object.keys(data.models.find(({ name }) => name === model).suites);
  const axesOf = (heads) => Object.keys(AXES).filter((axes) => heads.has(AXES[axes].x) && heads.has(AXES[axes].y));

  // A whole and possible state from some fields; what the fields leave open follows from the data: the prompt is the first in which
  // the head attends more to right labels than to others.
  function completed({ model, texts: asked, axes, head, beside, prompt, x, y, query, demonstration }) {
    const suite = on(model, asked) ? asked : texts(model)[0], heads = on(model, suite), possible = axesOf(heads);
    const shown = possible.includes(axes) ? axes : possible[0];
    const most = () => heads.ranked(heads.has("effect") ? "effect" : "attention difference")[0];
    const pinned = heads.at(head) >= 0 ? head : most(), line = (value, side) => value ?? heads.line(shown, side);
    const all = lists.get(`${model} ${suite}`)?.words ?? [], word = (given, i) => (all.includes(given) ? given : all[i] ?? "");
    const first = prompt ?? Math.max(0, heads.prompts.findIndex((_, i) => sums(pinned, i, heads).right > sums(pinned, i, heads).other));
    return { model, texts: suite, axes: shown, head: pinned, query: word(query, 0), demonstration: word(demonstration, 1), beside: heads.at(beside) >= 0 && beside !== pinned ? beside : "",
      prompt: Math.min(first, heads.prompts.length - 1), x: line(x, "x"), y: line(y, "y") };
  }

  let state = completed({ model: data.models[0].name, texts: "words" });
  let later = 0, before = null, scene = null, guess = null, tally = [0, 0];  // before: the prompt of this block that was shown
  const heads = () => on(state.model, state.texts);

  function change(fields) {
    const moved = "model" in fields || "texts" in fields || "axes" in fields, block = (at) => Math.floor(at / 4);
    before = "prompt" in fields && !moved && block(fields.prompt) === block(state.prompt) ? state.prompt : null;
    if (scene && ["model", "texts", "axes", "head"].some((field) => field in fields)) [scene, guess] = [null, null];
    put({ ...state, ...(moved ? { x: null, y: null } : {}), ...fields });
  }

  function put(next) {
    state = completed(next);
    show();
    clearTimeout(later);  // some browsers refuse an address that changes as fast as a line is dragged
    later = setTimeout(() => history.replaceState(null, "", address()), 200);
  }

  const pinned = () => [state.head, state.beside].filter(Boolean);

  // ---- the prompt ----
  // Attention of a head on the labels of a prompt, one a demonstration.
  function look(name, prompt = state.prompt, of = heads()) {
    const { attention, prompts } = of, width = prompts[0].rows.length - 1;
    const from = (prompt * of.total + of.at(name)) * width;
    return Array.from({ length: width }, (_, i) => (attention.charCodeAt(from + i) - data.first) / data.levels);
  }

  // Sums over right labels, other labels, and the rest.
  function sums(name, prompt = state.prompt, of = heads()) {
    const { rows, right } = of.prompts[prompt], out = { right: 0, other: 0, elsewhere: 1 };
    look(name, prompt, of).forEach((share, i) => { out[rows[i][1] === right ? "right" : "other"] += share; out.elsewhere -= share; });
    return { ...out, elsewhere: Math.max(0, out.elsewhere) };
  }

  const bar = (share, most, kind) => make("i", { class: `heads-bar ${kind}`, style: { width: `${(100 * share) / most}%` } });

  function promptOf() {
    const { prompts } = heads(), { rows, right } = prompts[state.prompt], names = pinned(), all = names.map((name) => look(name));
    const every = names.flatMap((name) => prompts.flatMap((_, i) => look(name, i))), most = Math.max(0.05, ...every);
    const shares = (i) => make("span", { class: "heads-bars" }, ...names.map((name, n) => make("span", {},
      bar(all[n][i], most, rows[i][1] === right ? "right" : "other"), make("small", {}, percent(all[n][i])),
      ...(before === null ? [] : [bar(look(names[n], before)[i], most, "before")]))));
    const line = ([text, label], i) => make("li", {}, make("bdi", {}, text), " : ",
      make(label === right ? "b" : "span", { class: "label" }, label), shares(i));
    return make("ol", { class: names.length > 1 ? "two" : "" }, ...rows.slice(0, -1).map(line),
      make("li", { class: "query" }, make("bdi", {}, rows.at(-1)[0]), " : ", make("b", { class: "label" }, `(${right})`),
        make("span", { class: "heads-bars" },
          ...names.map((name) => make("small", {}, `${name} elsewhere ${percent(sums(name).elsewhere)}`)))));
  }

  const said = ({ right, other, elsewhere }) =>
    `${percent(right)} on right labels, ${percent(other)} on other labels, ${percent(elsewhere)} elsewhere`;

  // Every prompt's attention difference of the pinned head: right labels up, others down.
  function strip() {
    const { prompts } = heads(), all = prompts.map((_, i) => sums(state.head, i)), wide = 240 / prompts.length;
    const most = Math.max(0.02, ...all.flatMap(({ right, other }) => [right, other]));
    const bars = all.flatMap(({ right, other }, i) => {
      const at = { x: i * wide + 1.5, width: wide - 3 };
      return [...(i === state.prompt ? [make("svg:rect", { x: i * wide, width: wide, y: 0, height: 60, class: "now" })] : []),
        make("svg:rect", { ...at, y: 30 - (28 * right) / most, height: (28 * right) / most, class: "right" }),
        make("svg:rect", { ...at, y: 30, height: (28 * other) / most, class: "other" }),
        ...(i % 4 === 0 && i ? [make("svg:line", { x1: i * wide, x2: i * wide, y1: 0, y2: 60 })] : [])];
    });
    return make("svg:svg", { viewBox: "0 0 240 60", preserveAspectRatio: "none", role: "img", class: "heads-strip",
      "aria-label": `Head ${state.head} in all ${prompts.length} prompts: right labels up, others down.`,
      click: (event) => {
        const box = event.currentTarget.getBoundingClientRect();
        change({ prompt: Math.floor(((event.clientX - box.left) / box.width) * prompts.length) });
      } }, ...bars);
  }

  // ---- the page ----
  const choice = (name, set) => make("select", { "aria-label": name, change: (event) => set(event.target.value) });
  const fields = {
    model: choice("model", (model) => change({ model, head: "", beside: "", prompt: undefined })),
    texts: choice("texts", (value) => change({ texts: value, prompt: undefined })),
    axes: choice("axes", (axes) => change({ axes })),
    head: choice("head", (head) => change({ head })),
    beside: choice("beside", (beside) => change({ beside })),
  };
  const named = (name) => make("label", {}, `${name} `, fields[name]);
  const plane = new Plane((name, shift) => change(shift ? { beside: name } : { head: name }),
    (side, value) => change({ [side]: value }));
  const sliders = Object.fromEntries(["x", "y"].map((side) => [side, make("input", {
    type: "range", "aria-label": side === "x" ? "vertical line" : "horizontal line",
    input: (event) => change({ [side]: Number(event.target.valueAsNumber.toPrecision(3)) }) })]));
  const outputs = Object.fromEntries(["x", "y"].map((side) => [side, make("output")]));
  const counts = make("div", { class: "heads-counts" });
  const told = make("p", { class: "playground-told", "aria-live": "polite" }), question = make("div", { class: "playground-question" });
  const score = make("span", { class: "playground-score" }), error = make("p", { class: "playground-error", role: "alert" });
  const shown = make("div", { class: "heads-rows" }), looks = make("p", { class: "heads-looks", "aria-live": "polite" });
  const place = make("span"), strips = make("div"), right = make("div", { class: "heads-card" });
  const more = make("div", { class: "heads-parts more" });
  const twoWords = wordsPart(change);
  const step = (by) => change({ prompt: (state.prompt + by + heads().prompts.length) % heads().prompts.length });
  const inBlock = (bit) => change({ prompt: state.prompt ^ bit });
  const middle = make("section", { class: "heads-prompt", tabindex: "0", "aria-label": "prompt; arrow keys change it" },
    make("h2", {}, "One prompt"),
    make("div", { class: "playground-buttons" }, button("← prompt", () => step(-1)), button("prompt →", () => step(1)),
      button("exchange labels", () => inBlock(EXCHANGE)), button("mirror", () => inBlock(MIRROR)), place),
    shown, looks, strips,
    small(make("i", { class: "heads-key right" }), "right label ",
      make("i", { class: "heads-key other" }), "other label ", make("i", { class: "heads-key before" }),
      "same row before the move. In the strip: all prompts, in blocks of four."));
  const scenes = SCENES.filter(({ model, texts }) => on(model, texts)?.has("effect"));

  const options = (field, all, value) => {
    const written = JSON.stringify(all);
    if (field.dataset.of !== written)
      field.replaceChildren(...all.map(([of, text, disabled = false]) => make("option", { value: of, disabled }, text)));
    field.dataset.of = written;
    field.value = value;
  };

  function show() {
    const now = heads(), other = on(state.model, state.texts === "words" ? "sentences" : "words");
    const both = (all) => all.map((of) => [of, of]);
    const asks = scene !== null && guess === null, names = pinned(), lines = { x: state.x, y: state.y };
    options(fields.model, data.models.map(({ name, shown: title }) => [name, title]), state.model);
    options(fields.texts, both(texts(state.model)), state.texts);
    options(fields.axes, Object.keys(AXES).map((axes) => [axes, AXES[axes].title, !axesOf(now).includes(axes)]), state.axes);
    options(fields.head, both(now.names), state.head);
    options(fields.beside, [["", "none"], ...both(now.names)], state.beside);
    plane.show(now, other, state.axes, lines, state.head, state.beside);
    for (const side of ["x", "y"]) {
      const [low, high] = plane.domain[side];
      Object.assign(sliders[side], { min: low, max: high, step: ((high - low) / 400).toPrecision(2) });
      sliders[side].value = state[side];
      outputs[side].textContent = number(state[side]);
    }
    counts.replaceChildren(...quadrants(now, lines));
    place.textContent = `prompt ${state.prompt + 1} of ${now.prompts.length}`;
    shown.replaceChildren(promptOf());
    looks.textContent = names.map((name) =>
      `Head ${name}: ${said(sums(name))}${before === null ? "" : ` (before: ${said(sums(name, before))})`}.`).join(" ");
    strips.replaceChildren(strip());
    const { numbers, more: rest } = card(now, names);
    right.replaceChildren(asks ? make("p", {}, "Guess first: then the head’s numbers are here.") : numbers);
    more.replaceChildren(...(asks ? [] : rest));
    twoWords.show(lists.get(`${state.model} ${state.texts}`), state.head, state, (head) => change({ head }));
    home.classList.toggle("asks", asks);
    [...chosen.children].forEach((one, i) => one.setAttribute("aria-pressed", String(scenes[i].name === scene?.name)));
    tell(asks);
  }

  function quadrants(now, lines) {
    const { counts: n, share, ofTop } = counted(now, state.axes, lines), [x, y] = [AXES[state.axes].x, AXES[state.axes].y];
    const as = (value) => (Number.isFinite(value) ? `${Math.round(100 * value)}%` : "no number");
    const said = state.axes === "ranking" ? "Heads above prefer the right labels " +
      `${as(share)} as much as heads to the right; the first ${now.bounds.top} of each, ${as(ofTop)}.`
      : `Right: ${x} at least ${number(lines.x)}; above: ${y} at least ${number(lines.y)}.`;
    const rows = [["above the line", n.above, n.both], ["below it", n.neither, n.right]].map((row) => row.map(String));
    return [table(["heads", "left of the line", "right of it"], rows, { class: "heads-numbers" }),
      small(said)];
  }

  // ---- scenes ----
  function enact(chosen) {
    const of = chosen.of(on(chosen.model, chosen.texts), (texts) => on(chosen.model, texts));
    [scene, guess, before] = [{ ...chosen, ...of }, null, null];
    put({ model: chosen.model, texts: chosen.texts, axes: chosen.axes, head: of.head });
    question.querySelector("button").focus({ preventScroll: true });
    if (matchMedia("(max-width: 45rem)").matches) told.parentElement.scrollIntoView();  // the plane would be below the window of a phone
  }

  function answer(right, text) {
    tally = [tally[0] + right, tally[1] + 1];
    const { then = {} } = scene;
    guess = text;
    put({ ...state, ...then, x: null, y: null });
    [...chosen.children][scenes.findIndex(({ name }) => name === scene.name)].focus({ preventScroll: true });
  }

  function tell(asks) {
    told.textContent = scene ? [scene.before, ...(asks ? [] : [scene.after])].join(" ")
      : "Click or tap a head. Then press “exchange labels” and “mirror”: does its attention follow the text, the position or the label?";
    score.textContent = tally[1] ? `${tally[0]} of ${tally[1]} right` : "";
    if (!scene) question.replaceChildren();
    else if (asks) question.replaceChildren(make("p", {}, scene.question),
      ...scene.options.map(([text, right]) => button(text, () => answer(right, text))));
    else {
      const [truth] = scene.options.find(([, right]) => right);
      question.replaceChildren(make("p", {}, `You said: ${guess}. ${guess === truth ? "So it is." : `It is: ${truth}.`}`));
    }
  }

  // ---- the address ----
  const address = () => `#${new URLSearchParams(Object.entries(state).filter(([, value]) => value !== ""))}`;

  // Only what this page could have written is taken.
  function fromAddress() {
    const given = Object.fromEntries(new URLSearchParams(location.hash.slice(1))), numbers = ["prompt", "x", "y"];
    if (!("model" in given)) return;
    given.model = data.models.find(({ shown }) => shown === given.model)?.name ?? given.model;  // as charts write it
    for (const field of numbers) if (field in given) given[field] = given[field].trim() ? Number(given[field]) : NaN;
    const wanted = data.models.some(({ name }) => name === given.model) ? completed(given) : null;
    const wrong = !wanted || Object.entries(given).some(([field, value]) => wanted[field] !== value) ||
      numbers.some((field) => field in given && !Number.isFinite(wanted[field])) || given.prompt < 0 || given.prompt % 1;
    error.textContent = wrong ? "The address holds a state that this page cannot read, so nothing was changed." : "";
    if (wrong || JSON.stringify(wanted) === JSON.stringify(state)) return;
    [scene, guess, before, state] = [null, null, null, wanted];
    show();
  }

  home.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || event.target.matches("input, select")) return;
    event.preventDefault();
    step(by);
  });
  const line = (side, text) => make("label", { class: "heads-line" }, text, sliders[side], outputs[side]);
  const chosen = make("div", { class: "playground-scenes", role: "group", "aria-label": "scenes" },
    ...scenes.map((of) => button(of.name, () => enact(of), { "aria-pressed": "false" })));
  home.replaceChildren(chosen, make("div", { class: "playground-lines" }, told, question, score), error,
    make("div", { class: "heads-fields" }, named("model"), named("texts"), named("axes")),
    make("div", { class: "heads-parts" },
      make("section", {}, make("h2", {}, "A point is a head"), plane.picture,
        make("div", { class: "heads-fields" }, named("head"), named("beside")),
        line("x", "vertical line"), line("y", "horizontal line"), counts,
        small("Area: total effect of its attention; purple: it lowers the right label. " + (matchMedia("(hover: none)").matches
          ? "Tap a head to pin it. Choose “beside” to compare another."
          : "Click a head to pin it. Shift-click another, or choose “beside”, to compare both."))),
      middle, right),
    more, twoWords.element);
  home.classList.add("ready");
  show();
  fromAddress();
  if (location.hash === "#two-words") twoWords.element.scrollIntoView();
  window.addEventListener("hashchange", fromAddress);
})();
