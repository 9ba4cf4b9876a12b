// Play: the four steps of the answer, told with the numbers of the reader's own prompt.
(() => {
  const { quoted, draw: { make, button, parsed, nats, percent } } = window.twotowers;
  const STEPS = ["gather", "compare", "copy", "add up"], WORDS_A_SECOND = 3;
  const largest = (values) => values.indexOf(Math.max(...values));
  const sum = (values) => values.reduce((a, b) => a + b, 0);

  // What each step is of: for every row one number, and a sentence; `more`, a sentence and a link with its page.
  // `heads`: [{name, weights, factor}], those with arcs.
  function told(step, model, { prompt, after }, heads) {
    const { rows, labelAt, labels: [label, other] } = prompt;
    const writes = () => labelAt.map((at, i) => sum(heads.map(({ name, weights, factor }) => {
      const value = model.value(after, ...parsed(name), at);
      return factor * weights[i] * model.difference(after, value, label.id, other.id)[0];
    })));
    if (step === "gather") {
      const lower = model.layers.slice(0, -1).flatMap((_, l) => Array.from({ length: model.heads }, (_, h) => [l, h]));
      const shares = lower.map(([l, h]) => labelAt.map((at, i) =>
        sum([...model.look(after.qkv[l], h, at)].slice(i ? labelAt[i - 1] + 1 : 0, at - 1))));
      const best = largest(shares.map(sum)), row = rows.length - 1;
      return { tags: shares[best].map(percent), text: `Every label reads the word before it. In head ${lower[best].join("-")}, ` +
        `${quoted(rows[row][1])} gives ${percent(shares[best][row])} of its attention to ${quoted(rows[row][0])}: so the ` +
        "label now carries what kind of word it follows. That makes the first tower: a key for every demonstration." };
    }
    if (step === "compare") {
      const looks = labelAt.map((_, i) => sum(heads.map(({ weights }) => weights[i])) / heads.length), row = largest(looks);
      return { tags: looks.map(percent), text: `The second tower makes a query of ${quoted(prompt.query)}. The heads in ` +
        `colour compare it with the key of every demonstration. Row ${row + 1}, ${quoted(rows[row][0])}, gets the most attention: ` +
        `${percent(looks[row])}.` };
    }
    const over = `${quoted(label.word)} over ${quoted(other.word)}`;
    if (step === "copy") {
      const written = writes(), row = largest(written.map(Math.abs));
      return { tags: written.map(nats), text: "The same heads copy labels, each label as strongly as they attend to it. " +
        `Row ${row + 1} alone adds ${nats(written[row])} to ${over} (log-odds, in nats).` };
    }
    const all = after.logits[label.id] - after.logits[other.id];
    const theirs = sum(heads.map(({ name }) => {
      const [l, h] = parsed(name);
      return model.difference(after, model.written(l, model.fed(after, l).slice(h, h + 1)), label.id, other.id)[0];
    }));
    const more = ["In this model the same heads compare and write, at once. Some larger models pass part of it on.",
      "Open the heads of larger models.", "heads"];
    return { tags: [], more, text: "All that heads write is added up. " +
      `The heads in colour give ${nats(theirs)} to ${over}, all else ` +
      `${nats(all - theirs)}. Together ${nats(all)}: ${all > 0 ? quoted(label.word) : quoted(other.word)} wins.` };
  }

  // The buttons; `changed` is called when another step is shown.
  class Play {
    constructor(changed, ...more) {
      Object.assign(this, { step: "", timer: 0, words: 0, changed });  // words: of the sentence of the step
      this.start = button("", () => (this.timer ? this.pause() : this.run()));
      this.chips = STEPS.map((step, i) => button(`${i + 1} ${step}`, () => this.to(this.step === step ? "" : step)));
      this.next = button("next step", () => this.to(this.after));
      this.bar = make("div", { class: "playground-steps", role: "group", "aria-label": "the four steps" },
        this.start, this.next, ...this.chips);
      this.row = make("div", { class: "playground-play" }, this.bar, ...more);
      this.name();
    }

    name() {
      this.after = STEPS[STEPS.indexOf(this.step) + 1] || "";
      this.start.textContent = this.timer ? "❚❚ pause" : "▶ play";
      this.chips.forEach((chip, i) => chip.setAttribute("aria-pressed", String(STEPS[i] === this.step)));
    }

    // A reader who asks for less motion goes on by hand.
    run() {
      this.show(this.after || STEPS[0]);
      if (matchMedia("(max-width: 45rem)").matches) this.row.scrollIntoView();  // the arcs stand below a sentence on a phone
      if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
      this.wait();
    }

    // Each step stays as long as its sentence is read; “next step” goes on before.
    wait() {
      this.timer = setTimeout(() => {
        if (!this.after) return this.pause();
        this.show(this.after);
        this.wait();
      }, (1000 * this.words) / WORDS_A_SECOND);
      this.name();
    }

    pause() {
      clearTimeout(this.timer);
      this.timer = 0;
      this.name();
    }

    to(step) {
      this.pause();
      this.show(step);
    }

    show(step) {
      this.step = step;
      this.name();
      this.changed();
    }
  }

  Object.assign(window.twotowers, { Play, told });
})();
