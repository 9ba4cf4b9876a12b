// The playground in the page: what the reader sets (the state), what follows from it, undo, and the address.
(() => {
  const { EXAMPLE, LIMITS, Play, Refusal, encode, exchanged, fromFragment, labelByClass, logSumExp, opened, pairOf, quoted,
    toFragment, told, top, draw: { make, button, parsed, bars, arcs, percent } } = window.twotowers;
  const home = document.getElementById("playground-page"), data = window.twotowersData;
  if (!home || !data) return;

  const { model, tokenizer } = opened(data);
  // The heads whose arcs are drawn: those precomputed, or those that write most in the example. Those steered: as in chapter 11.
  const { trueId, labels, ids } = encode(EXAMPLE, model, tokenizer);
  const most = () => top(model.differences(model.run(ids), trueId, labels[1].id), 5)
    .map((i) => `${Math.floor(i / model.heads)}-${i % model.heads}`);
  const writers = data.writers.length ? data.writers : most(), steered = data.steered.length ? data.steered : writers;
  const [strongest] = most(), scenes = window.twotowers.scenes(writers);
  const towers = new window.twotowers.Towers(model, tokenizer, data.prompts, data.classes);

  const DONE = { zero: () => "switched off", scale: (factor) => `scaled by ${factor}`, patch: () => "patched" };
  const DOSES = Array.from({ length: 13 }, (_, i) => (i - 6) * (LIMITS.steering / 6));
  let state = EXAMPLE, lastChange = "", scene = null, guess = null, tally = [0, 0];
  let later = 0, current = null, prior = null;  // the answer that is shown; the one before the last change, or a scene's base
  const past = [], future = [], runs = {};

  // ---- what follows from a state ----
  // A run of some tokens; what an earlier one under the same scales has in common with it is not computed again.
  function run(kind, ids, edits = {}, key = "{}") {
    const before = runs[kind]?.key === key ? runs[kind].seen : null;
    runs[kind] = { key, seen: model.run(ids, edits, before) };
    return runs[kind].seen;
  }

  function results(prompt) {
    const before = run("before", prompt.ids), edits = {}, scales = {}, pair = pairOf(state, data.classes);
    const source = Object.values(state.heads).includes("patch") ? run("source", exchanged(prompt)) : null;
    for (const [name, action] of Object.entries(state.heads)) {
      const [layer, head] = parsed(name), at = head * model.dHead;
      if (action === "patch") edits[name] = { instead: source.z[layer].subarray(at, at + model.dHead) };
      else scales[name] = edits[name] = { scale: action === "zero" ? 0 : state.factor };
    }
    const steerable = pair?.every((cls) => towers.known.has(cls));
    const atDose = (dose) => {  // the heads that compare classes, their query moved so many times the way to the other one
      const all = { ...edits };
      for (const name of dose && steerable ? steered : [])
        all[name] = { ...all[name], steering: towers.direction(...pair, name).map((x) => dose * x) };
      return all;
    };
    const kind = Object.keys(scales).length ? "after" : "before";  // else only the last position is another
    const changed = Object.keys(edits).length || (state.steering && steerable);
    const after = changed ? run(kind, prompt.ids, atDose(state.steering), JSON.stringify(scales)) : before;
    const doses = () => DOSES.map((dose) => [dose, over(model.run(prompt.ids, atDose(dose), after), prompt)]);
    return { prompt, before, after, pair, steerable, doses, moved: Boolean(state.steering && steerable) };
  }

  const over = ({ logits }, { labels: [label, other] }) => logits[label.id] - logits[other.id];

  const said = (seen) => {
    const [id] = top(seen.logits, 1);
    return { word: tokenizer.shown(id), p: Math.exp(seen.logits[id] - logSumExp(seen.logits)) };
  };
  const saying = (seen) => `${quoted(said(seen).word)} (${percent(said(seen).p)})`;

  // ---- the page ----
  const buttons = (...children) => make("div", { class: "playground-buttons" }, ...children);
  const error = make("p", { class: "playground-error", role: "alert" }), note = make("p", { class: "playground-note" });
  const sentence = make("p", { class: "playground-sentence", "aria-live": "polite" });
  const message = make("p", { role: "status" });
  const list = make("ol"), question = make("div", { class: "playground-question" }), says = make("span", { class: "playground-says" });
  const answer = make("div", { class: "playground-answer" }), gutter = make("div", { class: "playground-gutter" });
  const heading = make("summary"), reading = make("div"), shown = make("details", {}, heading, reading);
  const mapped = make("div"), line = make("p", { class: "playground-told", "aria-live": "polite" });
  const towersAt = make("div"), doses = make("div");
  const input = (name, list, set) => make("input", {
    type: "text", "aria-label": name, size: 4, maxlength: LIMITS.text, spellcheck: "false", autocomplete: "off", dir: "auto",
    autocapitalize: "off", list, input: (event) => set(event.target.value),
  });
  const query = input("query", "playground-words", (value) => change({ query: value }, "query"));
  const trueLabel = input("right label", "playground-labels", (value) => change({ true_label: value }, "right label"));
  const games = make("input", { type: "checkbox", change: () => change({ guess_first: games.checked }) });
  const score = make("span", { class: "playground-score" });
  const sceneButtons = scenes.map((chosen) => button(chosen.name, () => enact(chosen), { "aria-pressed": "false" }));
  const player = new Play(() => refresh(), make("label", {}, games, "guess first"), score);
  const factor = make("input", {
    type: "number", step: "0.1", min: "-100", max: "100", "data-keep": "factor",
    input: () => Math.abs(factor.valueAsNumber) <= 100 && change({ factor: factor.valueAsNumber }, "factor"),
  });
  const panels = window.twotowers.panels(
    { model, tokenizer, data, towers, writers, steered, buttons, factor, change, state: () => state });
  const step = (from, to) => () => {
    to.push(state);
    remember("");
    state = from.pop();
    refresh();
  };
  const undo = button("undo", step(past, future)), redo = button("redo", step(future, past));
  const slider = make("input", {
    type: "range", min: -LIMITS.steering, max: LIMITS.steering, step: 0.25, "aria-label": "steer the query", "data-keep": "steering",
    input: () => change({ steering: slider.valueAsNumber }, "steering"),
  });

  // Before a change: what is shown becomes what was. Letters of one field follow each other, changed and undone together.
  function remember(kind) {
    if (!kind || kind !== lastChange) prior = current;
    lastChange = kind;
    [scene, guess, message.textContent] = [null, null, ""];
  }

  function change(fields, kind = "", next = null) {
    if (!kind || kind !== lastChange) past.push(state);
    future.length = 0;
    remember(kind);
    scene = next;
    state = { ...state, ...fields };
    if ("query" in fields !== "demonstrations" in fields)
      state.true_label = labelByClass(state, data.classes) || state.true_label;
    refresh();
  }

  function enact(chosen) {
    player.step = "";
    player.pause();
    const { guess_first, factor, head, measure } = state;
    change({ ...chosen.state, guess_first, factor, head, measure }, "", chosen);
    question.querySelector("button")?.focus({ preventScroll: true });
  }

  const changeRows = (to, kind) => change({ demonstrations: to(state.demonstrations.map((row) => [...row])) }, kind);
  const setPart = (i, part) => (value) =>
    changeRows((rows) => { rows[i][part] = value; return rows; }, `part ${part} of ${i}`);

  function move(i, by) {
    changeRows((rows) => { rows.splice(i + by, 0, ...rows.splice(i, 1)); return rows; });
    const [up, down] = list.children[i + by].querySelectorAll("button");
    (down.disabled || (by < 0 && !up.disabled) ? up : down).focus();
  }

  function row(i) {
    const n = i + 1;
    return make("li", { class: "playground-row" },
      input(`text of demonstration ${n}`, "playground-words", setPart(i, 0)), make("span", { class: "playground-colon" }, ":"),
      input(`label of demonstration ${n}`, "playground-labels", setPart(i, 1)), make("span", { class: "playground-tag" }),
      button("↑", () => move(i, -1), { "aria-label": `move demonstration ${n} up` }),
      button("↓", () => move(i, 1), { "aria-label": `move demonstration ${n} down` }),
      button("×", () => {
        changeRows((rows) => rows.filter((_, at) => at !== i));
        (list.children[Math.min(i, list.children.length - 1)]?.querySelector("input") || add).focus();
      }, { "aria-label": `take away demonstration ${n}` }));
  }

  const add = button("add a row", () => {
    changeRows((rows) => [...rows, ["", state.true_label]]);
    list.lastChild.querySelector("input").focus();
  });
  const reset = button("reset", () => { tally = [0, 0]; enact({ state: EXAMPLE }); scene = null; refresh(); });
  const share = button("share", async () => {
    history.replaceState(null, "", toFragment(state));
    message.textContent = "The address of this page now holds your prompt and your heads: copy it.";
    try {
      await navigator.clipboard.writeText(location.href);
      message.textContent = "Copied: the address of this page, which now holds your prompt and your heads.";
    } catch { /* the browser does not let a page copy; the first sentence stands */ }
  });

  // Fields show the state; one that shows it already is left alone, so that the cursor stays.
  function fill() {
    while (list.children.length > state.demonstrations.length) list.lastChild.remove();
    while (list.children.length < state.demonstrations.length) list.append(row(list.children.length));
    const set = (field, value) => { if (field.value !== value) field.value = value; };
    state.demonstrations.forEach((parts, i) => {
      list.children[i].querySelectorAll("input").forEach((field, part) => set(field, parts[part]));
      const [up, down] = list.children[i].querySelectorAll("button");
      [up.disabled, down.disabled] = [i === 0, i === state.demonstrations.length - 1];
    });
    set(query, state.query); set(trueLabel, state.true_label);
    if (factor.valueAsNumber !== state.factor) factor.value = state.factor;
    slider.value = state.steering;
    games.checked = state.guess_first;
    score.textContent = tally[1] ? `${tally[0]} of ${tally[1]} right` : "";
    [undo.disabled, redo.disabled] = [!past.length, !future.length];
    add.disabled = state.demonstrations.length >= LIMITS.demonstrations;
  }

  function refresh() {
    fill();
    let prompt;
    try {
      prompt = encode(state, model, tokenizer);
    } catch (problem) {
      if (!(problem instanceof Refusal)) throw problem;
      error.textContent = problem.message;
      return refused(true);  // no result of other words stands below these
    }
    error.textContent = "";
    refused(false);
    const unknown = prompt.unknown.map((word) => quoted(word.slice(0, 24))).join(", ");
    note.textContent = unknown && `The model has no token for ${unknown} and reads it letter by letter.`;
    show(results(prompt));
  }

  function refused(is) {
    home.classList.toggle("refused", is);
    for (const part of [answer, gutter, mapped, shown, sentence, aside, player.bar]) part.inert = is;
    if (is) says.textContent = "";
  }

  function show(found) {
    sceneButtons.forEach((one, i) => one.setAttribute("aria-pressed", String(scenes[i].name === scene?.name)));
    const { prompt, before, after, moved } = found, asks = scene !== null && state.guess_first && guess === null;
    home.classList.toggle("asks", asks);
    for (const part of [answer, gutter, mapped, shown, sentence, aside, player.bar]) part.inert = asks;  // nothing jumps
    question.replaceChildren(...(scene && state.guess_first ? ask(found, asks) : []));
    const named = (action) => Object.keys(state.heads).filter((name) => state.heads[name] === action).join(", ");
    const did = Object.keys(DONE).filter(named).map((action) => `${named(action)} ${DONE[action](state.factor)}`);
    if (moved) did.push("the query steered");
    says.textContent = asks ? "?" : said(after).word;
    sentence.textContent = asks ? "" : `The model says ${saying(did.length ? before : after)}` +
      `${did.length ? `; with ${did.join(", ")} it says ${saying(after)}` : ""}.`;
    current = answersOf(found);
    if (scene) prior = base;
    const was = new Map(prior || []), than = scene ? "in the paper’s prompt" : "before the last change";
    answer.replaceChildren(bars(current.map(([word, p]) => [word, p, prior ? was.get(word) ?? 0 : null]), than));
    const selected = state.head || strongest, focused = document.activeElement?.dataset.keep;
    const looking = (name) => ({ name, weights: panels.weights(found, name), edited: name in state.heads });
    const drawn = writers.map(looking);
    gutter.replaceChildren(arcs(prompt.rows.map(([, label]) => label), drawn, looking(selected)));
    tellStep(found, drawn);
    mapped.replaceChildren(panels.heads(found, selected, (name) => {
      state = { ...state, head: name };
      show(found);
      mapped.querySelector(`[data-head="${name}"]`).focus();
    }));
    const ready = !found.steerable || towers.planes.has([selected, ...[...found.pair].sort()].join());
    if (ready) towersAt.replaceChildren(panels.towers(found, selected));
    slider.disabled = !found.steerable;
    if (found.steerable) slider.setAttribute("aria-valuetext", `${state.steering} times the way from ${found.pair.join(" to ")}`);
    clearTimeout(later);  // the slowest parts: made when the reader pauses
    later = setTimeout(() => {
      if (!ready) towersAt.replaceChildren(panels.towers(found, selected));
      doses.replaceChildren(...panels.doses(found));
      heading.textContent = `Head ${selected} in words`;
      reading.replaceChildren(...panels.words(found, selected));
    }, 120);
    if (focused) home.querySelector(`[data-keep="${focused}"]`)?.focus();
  }

  // The step of play that is on, else a scene's sentences, else what to try.
  function tellStep(found, drawn) {
    const scales = { zero: 0, scale: state.factor };
    const heads = drawn.map((head) => ({ ...head, factor: scales[state.heads[head.name]] ?? 1 }));
    const { tags = [], text = "", more = [] } = player.step ? told(player.step, model, found, heads) : {};
    const asks = home.classList.contains("asks");
    home.dataset.step = player.step;
    [...list.children].forEach((row, i) => { row.querySelector(".playground-tag").textContent = tags[i] || ""; });
    player.words = text.split(" ").length;
    line.textContent = text || (scene ? [scene.before, ...(asks ? [] : [scene.after])].join(" ")
      : "Press play to see how the model gets from the demonstrations to its answer. Then try a scene, or change any word.");
    const link = (words, page) => [" ", make("a", { href: `${page}.html` }, words)];
    if (text && more.length) line.append(` ${more[0]}`, ...link(...more.slice(1)));
    if (text || !scene?.tested || asks) return;
    line.append(...link(...scene.tested));
    if (scene === scenes.at(-1))
      line.append(" That was the last scene: now write words of your own, or", ...link("open heads of larger models.", "heads"));
  }

  function ask(found, asks) {
    if (!asks) return [make("p", {}, `You said ${guess ? quoted(guess) : "another word"}; the model says ${saying(found.after)}.`)];
    const answer = (word) => {
      guess = word;
      const truth = said(found.after).word;
      const right = word ? truth === word : !found.prompt.labels.some((label) => label.word === truth);
      tally = [tally[0] + right, tally[1] + 1];
      refresh();
      sceneButtons[scenes.indexOf(scene)].focus({ preventScroll: true });
    };
    return [make("p", {}, "What will the model say next?"),
      ...found.prompt.labels.map(({ word }) => button(word, () => answer(word))),
      button("another word", () => answer(""))];
  }

  // Probability of every label and of all other words together: [word, probability].
  function answersOf({ prompt, after }) {
    const all = logSumExp(after.logits), rows = prompt.labels.map(({ word, id }) => [word, Math.exp(after.logits[id] - all)]);
    rows.sort(([a], [b]) => (a < b ? -1 : 1));  // a label keeps its place when the true one changes
    return [...rows, ["other words", Math.max(0, 1 - rows.reduce((sum, [, p]) => sum + p, 0))]];
  }

  // ---- the address ----
  function fromAddress() {
    try {
      const found = fromFragment(location.hash, model, tokenizer);
      if (found && JSON.stringify(found) !== JSON.stringify(state)) change(found);
    } catch (problem) {
      if (!(problem instanceof Refusal)) throw problem;
      error.textContent = problem.message;
    }
  }

  // Towers and the right label need words of classes, and a label is one word of the model: here they are.
  const classes = [...new Set(Object.values(data.classes))], few = 3;
  const ofClass = (cls) => Object.keys(data.classes).filter((word) => data.classes[word] === cls).join(", ");
  const labelsSaid = data.labels.slice(0, few).join(", ");
  const words = make("details", { class: "playground-words" },
    make("summary", {}, `Words to choose: ${classes.slice(0, few).map((cls) => ofClass(cls).split(", ")[1]).join(", ")} …; labels: ${labelsSaid} …`),
    ...classes.map((cls) => make("p", {}, make("b", {}, `${cls}: `), ofClass(cls))),
    make("p", {}, make("b", {}, "labels: "), data.labels.join(", "), ", or any other word that the model knows"));

  const options = (id, words) => make("datalist", { id }, ...words.map((value) => make("option", { value })));
  const aside = make("div", {}, towersAt, make("section", {}, make("h2", {}, "Steer the query"), slider, doses));
  home.replaceChildren(
    options("playground-words", Object.keys(data.classes).sort()), options("playground-labels", data.labels),
    player.row,
    make("div", { class: "playground-scenes", role: "group", "aria-label": "scenes" },
      ...sceneButtons),
    make("div", { class: "playground-lines" }, line, question),
    make("div", { class: "playground-pair" },
      make("div", {},
        make("div", { class: "playground-prompt", role: "group", "aria-label": "prompt: text and label of each demonstration, query" },
          list, make("div", { class: "playground-row query" }, query, make("span", {}, ":"), says, make("span"),
            make("label", { class: "playground-true" }, "right label", trueLabel)), gutter),
        buttons(add, undo, redo, reset, share), message, error, note, words,
        make("div", { class: "playground-result" }, sentence, answer)),
      mapped, aside),
    shown);
  home.classList.add("ready");
  refresh();
  const base = current;  // the answer to the example
  fromAddress();
  window.addEventListener("hashchange", fromAddress);
})();
