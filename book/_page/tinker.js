// The playground in the page: what the reader sets (the state), what follows from it, undo, and the address.
(() => {
  const { ACTIONS, EXAMPLE, MOST, Refusal, SEPARATORS, encode, exchanged, fromFragment, logSumExp, quoted, toFragment,
    top, draw: { make, table, bars, arcs, map, percent, short } } = window.twotowers;
  const home = document.getElementById("tinker"), data = window.twotowersData;
  if (!home || !data) return;

  const bytes = (name) => {
    const binary = atob(data.files[name]), out = new Uint8Array(binary.length);
    for (let i = 0; i < out.length; i++) out[i] = binary.charCodeAt(i);
    return out;
  };
  const json = (name) => JSON.parse(new TextDecoder().decode(bytes(name)));
  const model = window.twotowers.loadModel(json("config.json"), bytes("model.safetensors"));
  const tokenizer = new window.twotowers.Tokenizer(json("tokenizer.json"));

  let state = EXAMPLE, lastChange = "", guess = null, tally = [0, 0];
  const past = [], runs = {};

  // ---- what follows from a state ----
  // A run of some tokens; what an earlier one under the same edits has in common with it is not computed again.
  function run(kind, ids, edits = {}, key = "") {
    const before = runs[kind]?.key === key ? runs[kind].seen : null;
    runs[kind] = { key, seen: model.run(ids, edits, before) };
    return runs[kind].seen;
  }

  function results(prompt) {
    const before = run("before", prompt.ids), named = Object.entries(state.heads), edits = {};
    const source = named.some(([, action]) => action === "patch") ? run("source", exchanged(prompt)) : null;
    for (const [name, action] of named) {
      const [layer, head] = name.split("-").map(Number), at = head * model.dHead;
      if (action === "patch") edits[name] = { instead: source.z[layer].subarray(at, at + model.dHead) };
      else edits[name] = { scale: action === "zero" ? 0 : state.factor };
    }
    const after = named.length ? run("after", prompt.ids, edits, JSON.stringify(edits)) : before;
    const increases = model.increases(after, prompt.trueId);
    const cells = {};
    increases.forEach((increase, i) => {
      const name = `${Math.floor(i / model.heads)}-${i % model.heads}`;
      cells[name] = { increase, action: state.heads[name] };
    });
    const strongest = () => top(model.increases(before, prompt.trueId), 3).map((i) => Object.keys(cells)[i]);
    const located = data.located.length ? data.located : strongest();
    located.forEach((name) => { cells[name].located = true; });
    return { prompt, before, after, cells, located, edited: named.length > 0 };
  }

  const said = (seen) => {
    const [id] = top(seen.logits, 1);
    return { word: tokenizer.shown(id), p: Math.exp(seen.logits[id] - logSumExp(seen.logits)) };
  };
  const saying = (seen) => `${quoted(said(seen).word)} (${percent(said(seen).p)})`;

  // ---- the page: fields on the left, what follows on the right ----
  const button = (text, click, attributes = {}) => make("button", { type: "button", click, ...attributes }, text);
  const error = make("p", { class: "tinker-error", role: "alert" }), note = make("p", { class: "tinker-note" });
  const sentence = make("p", { class: "tinker-sentence", "aria-live": "polite" });
  const message = make("p", { role: "status" });
  const list = make("ol"), question = make("div", { class: "tinker-question" });
  const words = make("div"), shown = make("div", { class: "tinker-pair" });
  const input = (name, size, set) => make("input", {
    type: "text", "aria-label": name, size, maxlength: MOST.text, spellcheck: "false", autocomplete: "off", dir: "auto",
    autocapitalize: "off", input: (event) => set(event.target.value),
  });
  const query = input("query", 10, (value) => change({ query: value }, "query"));
  const trueLabel = input("true label", 6, (value) => change({ true_label: value }, "true label"));
  const separator = make("select", { change: (event) => change({ separator: event.target.value }) },
    ...Object.keys(SEPARATORS).map((name) => make("option", { value: name }, name)));
  const first = make("input", { type: "checkbox", change: () => change({ predict_first: first.checked }) });
  const undo = button("undo", () => { state = past.pop(); lastChange = ""; refresh(); });
  const factor = make("input", {
    type: "number", step: "0.1", min: "-100", max: "100", "data-keep": "factor",
    input: () => Math.abs(factor.valueAsNumber) <= 100 && change({ factor: factor.valueAsNumber }, "factor"),
  });

  // One change of the reader's; `kind` names a field in which letters follow each other, undone together.
  function change(fields, kind = "") {
    if (!kind || kind !== lastChange) past.push(state);
    lastChange = kind;
    state = { ...state, ...fields };
    guess = null;
    message.textContent = "";
    refresh();
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
    return make("li", { class: "tinker-row" },
      input(`text of demonstration ${n}`, 10, setPart(i, 0)), ":",
      input(`label of demonstration ${n}`, 6, setPart(i, 1)),
      button("↑", () => move(i, -1), { "aria-label": `move demonstration ${n} up` }),
      button("↓", () => move(i, 1), { "aria-label": `move demonstration ${n} down` }),
      button("×", () => {
        changeRows((rows) => rows.filter((_, at) => at !== i));
        (list.children[Math.min(i, list.children.length - 1)]?.querySelector("input") || add).focus();
      }, { "aria-label": `take away demonstration ${n}` }));
  }

  const add = button("add a demonstration", () => {
    changeRows((rows) => [...rows, ["", state.true_label]]);
    list.lastChild.querySelector("input").focus();
  });
  const reset = button("reset", () => { change(EXAMPLE); tally = [0, 0]; });
  const share = button("share", async () => {
    history.replaceState(null, "", toFragment(state));
    message.textContent = "The address of this page now holds your prompt and your heads: copy it.";
    try {
      await navigator.clipboard.writeText(location.href);
      message.textContent = "Copied: the address of this page, which now holds your prompt and your heads.";
    } catch { /* the browser does not let a page copy; the first sentence stands */ }
  });

  function setAction(names, action) {
    const heads = Object.fromEntries(Object.entries(state.heads).filter(([name]) => !names.includes(name)));
    for (const name of action ? names : []) heads[name] = action;
    change({ heads });
  }

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
    set(query, state.query); set(trueLabel, state.true_label); set(separator, state.separator);
    if (factor.valueAsNumber !== state.factor) factor.value = state.factor;
    first.checked = state.predict_first;
    undo.disabled = !past.length;
    add.disabled = state.demonstrations.length >= MOST.demonstrations;
  }

  function refresh() {
    fill();
    let prompt;
    try {
      prompt = encode(state, model, tokenizer);
    } catch (problem) {
      if (!(problem instanceof Refusal)) throw problem;
      const kept = shown.childElementCount ? " What is shown is of the last prompt that could be read." : "";
      error.textContent = problem.message + kept;
      return;
    }
    error.textContent = "";
    const line = state.separator === "space" ? "" : " After a line break it has none for any word.";
    const unknown = prompt.unknown.map(quoted).join(", ");
    note.textContent = unknown && `The miniature has no token for ${unknown} and reads it letter by letter.${line}`;
    show(results(prompt));
  }

  function show(found) {
    const asks = state.predict_first && guess === null;
    shown.hidden = sentence.hidden = words.hidden = asks;
    question.replaceChildren(...(state.predict_first ? ask(found, asks) : []));
    const did = Object.entries(state.heads).map(([name, action]) => `${name} ${done(action)}`).join(", ");
    sentence.textContent =
      `The model says ${saying(found.before)}${did ? `; with ${did} it says ${saying(found.after)}` : ""}.`;
    if (asks) return;
    const selected = state.head || found.located[0], focused = document.activeElement?.dataset.keep;
    const from = data.located.length ? "that chapter 1 located on other prompts" : "with the largest increase here";
    words.replaceChildren(part("What it says next", bars(nextWords(found))));
    shown.replaceChildren(
      part("Attention on each label", lookingAt(found),
        `Attention weights of the last position, in the heads ${from}. A colour is a head; the wider the arc, the ` +
        "larger the weight. The true label is in bold."),
      part("Increase of the true label", mapOf(found, selected),
        "In nats, head by head. The framed heads are those of the arcs. A patched head writes, at the last position, " +
        "what it writes there with the labels exchanged."),
      part(`Head ${selected} in words`, wordsOf(found, selected),
        "At each label, the top words of what the head would write if it looked there only (value), and of what its " +
        "layer makes keys from (key)."));
    if (focused) shown.querySelector(`[data-keep="${focused}"]`)?.focus();
  }

  const done = (action) => ({ zero: "zeroed", scale: `scaled by ${state.factor}`, patch: "patched" })[action];
  const part = (title, body, text = "") => make("section", {}, make("h3", {}, title), body, make("p", {}, text));

  function ask(found, asks) {
    const answer = (word) => {
      guess = word;
      const truth = said(found.after).word;
      const right = word ? truth === word : !found.prompt.labels.some((label) => label.word === truth);
      tally = [tally[0] + right, tally[1] + 1];
      refresh();
    };
    if (!asks) {
      const yours = guess ? quoted(guess) : "another word";
      return [make("p", {}, `You said ${yours}; the model says ${saying(found.after)}. Right: ${tally[0]} of ` +
        `${tally[1]}. Change something for the next question.`)];
    }
    return [make("p", {}, "What will the model say next?"),
      ...found.prompt.labels.map(({ word }) => button(word, () => answer(word))),
      button("another word", () => answer(""))];
  }

  function nextWords({ prompt, before, after, edited }) {
    const [p, q] = [before, after].map((seen) => {
      const all = logSumExp(seen.logits);
      return (id) => Math.exp(seen.logits[id] - all);
    });
    const ids = new Set([...top(after.logits, 5), ...prompt.labels.map(({ id }) => id)]);
    return [...ids].map((id) => [tokenizer.shown(id), p(id), edited ? q(id) : null]);
  }

  const weightsOf = ({ prompt, after }, name) => {
    const [layer, head] = name.split("-").map(Number);
    return prompt.labelAt.map((at) => after.weights[layer][head * after.n + at]);
  };

  function lookingAt(found) {
    const heads = found.located.map((name) => ({ name, weights: weightsOf(found, name), edited: name in state.heads }));
    return arcs({ rows: found.prompt.rows, query: found.prompt.query, trueLabel: state.true_label.trim(), heads });
  }

  function mapOf(found, selected) {
    const select = (name, focus) => {
      state = { ...state, head: name };
      show(found);
      if (focus !== undefined || shown.contains(document.activeElement) || document.activeElement === document.body)
        shown.querySelector(`[data-head="${name}"]`).focus();
    };
    const choice = (action) => make("label", {}, make("input", {
      type: "radio", name: "tinker-action", "data-keep": `action ${action}`,
      checked: (state.heads[selected] || "") === action,
      change: () => setAction([selected], action),
    }), action || "leave");
    const all = (text, action) => button(text, () => setAction(found.located, action), { "data-keep": text });
    return make("div", {},
      map({ layers: model.layers.length, heads: model.heads, cells: found.cells, selected, select }),
      make("fieldset", { class: "tinker-actions" }, make("legend", {}, `Head ${selected}`),
        ...["", ...ACTIONS].map(choice), make("label", {}, "factor", factor)),
      buttons(make("span", {}, "All framed heads"), all("zero", "zero"), all("patch", "patch"),
        button("leave all", () => change({ heads: {} }), { "data-keep": "leave" })));
  }

  function wordsOf(found, selected) {
    const [layer, head] = selected.split("-").map(Number), weights = weightsOf(found, selected);
    const { labelAt, rows } = found.prompt, values = labelAt.map((at) => model.value(found.after, layer, head, at));
    const words = model.topWords([...values, ...labelAt.map((at) => model.key(found.after, layer, at))], 4)
      .map((ids) => make("bdi", {}, ids.map((id) => tokenizer.shown(id)).join(", ")));
    return table(["label", "weight", "value", "key"], labelAt.map((_, i) => [
      `${i + 1}. ${rows[i][1]}`, short(weights[i]), words[i], words[i + labelAt.length],
    ]), { class: "tinker-readings" });
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

  const buttons = (...children) => make("div", { class: "tinker-buttons" }, ...children);
  const fields = (title, ...children) => make("fieldset", {}, make("legend", {}, title), ...children);
  home.replaceChildren(
    make("div", { class: "tinker-pair" },
      make("div", { class: "tinker-prompt" },
        fields("Demonstrations: text and label", list, buttons(add)),
        fields("Query and true label", make("div", { class: "tinker-row" }, query, ":", trueLabel)),
        buttons(make("label", {}, "separator", separator), make("label", {}, first, "predict first")),
        buttons(undo, reset, share), message),
      make("div", {}, error, note, question, sentence, words)),
    shown);
  home.classList.add("ready");
  refresh();
  fromAddress();
  window.addEventListener("hashchange", fromAddress);
})();
