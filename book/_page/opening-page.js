// The first screen: the numbers of the build stand until a button is pressed. The playground's engine is loaded, once, when
// the page is idle, and everything that is shown is its own. A second press on a button takes the change back.
(() => {
  const home = document.querySelector(".opening-live"), from = document.currentScript.src;
  if (!home) return;
  const scripts = home.dataset.scripts.split(" "), heads = home.dataset.heads.split(" ");
  const rows = [...home.querySelectorAll("tbody:first-of-type tr")], asked = [...home.querySelectorAll(".opening-query")], buttons = [...home.querySelectorAll("button")];
  const says = home.querySelector(".opening-says span"), told = home.querySelector(".opening-told"), start = told.textContent;
  let engine = null;

  const script = (name) => new Promise((done, fail) => {
    const element = document.createElement("script");
    element.src = new URL(name, from);
    element.onload = done;
    element.onerror = () => fail(new Error(name));
    document.head.append(element);
  });

  async function load() {
    for (const name of scripts) await script(name);
    return window.twotowers.opened(window.twotowersData);
  }

  // Attention on every label, mean over the heads; probability of every label; the likeliest word.
  function run({ model, tokenizer }, state) {
    const { encode, logSumExp, top, draw: { parsed } } = window.twotowers, prompt = encode(state, model, tokenizer);
    const off = Object.fromEntries(Object.keys(state.heads).map((name) => [name, { scale: 0 }]));
    const seen = model.run(prompt.ids, off), all = logSumExp(seen.logits), p = (id) => Math.exp(seen.logits[id] - all);
    const look = (at) => heads.reduce((sum, name) => {
      const [layer, head] = parsed(name);
      return sum + seen.weights[layer][head * seen.n + at] / heads.length;
    }, 0);
    const answers = prompt.labels.map(({ word, id }) => [word, p(id)]).sort(([a], [b]) => (a < b ? 1 : -1));
    const [first] = top(seen.logits, 1);
    return { looks: prompt.labelAt.map(look), answers, word: tokenizer.shown(first) };
  }

  // A row's label, its bar and what stands beside it.
  function fill(row, label, share, words, { true_label: truth }) {
    const b = row.querySelector("b"), rect = row.querySelector("rect"), kind = label === truth ? "right-label" : "other-label";
    b.textContent = label;
    b.className = kind;
    rect.setAttribute("class", kind);
    rect.setAttribute("width", share);
    row.querySelector("span").textContent = words;
  }

  function show({ looks, answers, word }, state, words) {
    const { percent } = window.twotowers.draw, isOff = Object.keys(state.heads).length > 0;
    rows.forEach((row, i) => {
      const [text, label] = state.demonstrations[i], share = isOff ? 0 : looks[i];  // a head that is off copies nothing
      row.querySelector("th").textContent = text;
      fill(row, label, share, isOff ? "off" : percent(share), state);
    });
    answers.forEach(([label, share], i) => fill(asked[i], label, share, percent(share), state));
    const b = document.createElement("b");
    b.textContent = word;
    says.replaceChildren("It says ", b, answers.some(([label]) => label === word) ? "." : ", neither label.");
    told.textContent = isOff ? home.dataset.off : words;
  }

  async function press(button) {
    const on = button.getAttribute("aria-pressed") !== "true";
    for (const other of buttons) other.setAttribute("aria-pressed", String(on && other === button));
    home.scrollIntoView({ block: "nearest" });
    home.setAttribute("aria-busy", "true");
    if (!engine) told.textContent = "Loading the model …";
    try {
      const opened = await (engine ??= load());
      if (on !== (button.getAttribute("aria-pressed") === "true")) return;  // another was pressed meanwhile
      const { EXAMPLE, scenes } = window.twotowers, scene = on && scenes(heads).find(({ name }) => name === button.dataset.scene);
      const state = on ? scene.state : EXAMPLE;
      show(run(opened, state), state, on ? scene.after : start);
    } catch (problem) {
      engine = null;
      button.setAttribute("aria-pressed", "false");
      told.textContent = "The model could not be loaded. The numbers are those of the prompt as it was.";
      console.warn(problem);
    }
    home.removeAttribute("aria-busy");
  }

  // The first press should not wait for the model: it is loaded while the page is idle, unless the reader saves data.
  const idle = window.requestIdleCallback ?? ((task) => setTimeout(task, 1000));
  const fetchAhead = () => { engine ??= load(); engine.catch(() => { engine = null; }); };
  if (!navigator.connection?.saveData) addEventListener("load", () => idle(fetchAhead));

  for (const button of buttons) button.addEventListener("click", () => press(button));
})();
