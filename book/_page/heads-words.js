// Two words of a class pair in the towers of a head: their score, and the words that are nearest to one of them.
(() => {
  const { make, button, small, table } = window.twotowers.draw;
  const { number } = window.twotowers.heads;
  const NEAREST = 5;

  // Scores of the words of each class pair in some heads, and cosines of the words of each class in the sentence embedding.
  class Words {
    constructor({ pairs, heads, cosines }, characters) {
      Object.assign(this, { heads, cosines, characters, places: new Map() });
      let scores = 0, ofClass = 0;
      for (const classes of pairs) {
        const n = classes.reduce((sum, [, words]) => sum + words.length, 0);
        let row = 0;
        for (const [cls, words] of classes) {
          words.forEach((word, i) => this.places.set(word, { classes, cls, words, scores, n, row: row + i, cosines: ofClass, i }));
          row += words.length;
          ofClass += (words.length * (words.length - 1)) / 2;
        }
        scores += n * n;
      }
      this.words = [...this.places.keys()];
    }

    // -1 to 1, or null for a character that stands for none.
    #read(text, at) {
      const step = this.characters.indexOf(text[at]), half = (this.characters.length - 1) / 2;
      return step < 0 ? null : step / half - 1;
    }

    comparable(a, b) {
      return this.places.get(a).classes === this.places.get(b).classes;
    }

    sameClass(a, b) {
      return this.places.get(a).words === this.places.get(b).words;
    }

    score(head, query, demonstration) {
      const { scores, n, row } = this.places.get(query), { scores: text, largest } = this.heads[head];
      return largest * this.#read(text, scores + row * n + this.places.get(demonstration).row);
    }

    cosine(a, b) {
      const [{ i, words, cosines }, { i: j }] = [a, b].map((word) => this.places.get(word)).sort((p, q) => p.i - q.i);
      return this.#read(this.cosines, cosines + (i * (2 * words.length - i - 1)) / 2 + j - i - 1);  // row by row, above the diagonal
    }

    // Other words of its class with their values, the largest first.
    nearest(word, value) {
      return this.places.get(word).words.filter((other) => other !== word)
        .map((other) => [other, value(other)]).filter(([, of]) => of !== null).sort(([, a], [, b]) => b - a).slice(0, NEAREST);
    }
  }

  // The part of the page: two fields, and what they show. `set` takes the words that the reader chose.
  function wordsPart(set) {
    const list = make("datalist", { id: "heads-words" }), shown = make("div", { "aria-live": "polite" });
    const fault = make("p", { class: "playground-error", role: "alert" });
    let of = null, asked = {};  // the words of the model; the two that are shown

    const examples = ({ places }) => [...new Set([...places.values()].map(({ words }) => words))].map((words) => words[1]).join(", ") + " …";

    // A word of another class pair comes with a word to compare it with: the other field keeps its word only if both are of one pair.
    function choose(name, word) {
      const isKnown = of.places.has(word);
      fault.textContent = isKnown ? "" : `“${word}” is not one of the words, so “${asked[name]}” stays. Words are: ${examples(of)}.`;
      if (!isKnown) return Object.assign(fields[name], { value: asked[name] });  // no word stands over the numbers of another
      const other = name === "query" ? "demonstration" : "query", place = of.places.get(word);
      const beside = of.comparable(word, fields[other].value) ? fields[other].value : place.words.find((next) => next !== word);
      set({ [name]: word, [other]: beside });
    }

    const field = (name) => make("input", { type: "text", list: "heads-words", autocomplete: "off", "aria-label": name,
      change: ({ target }) => choose(name, target.value.trim().toLowerCase()) });
    const fields = { query: field("query"), demonstration: field("demonstration") };
    const labels = Object.entries(fields).map(([name, input]) => make("label", {}, `${name} `, input));
    const exchange = button("exchange", () => set({ query: fields.demonstration.value, demonstration: fields.query.value }));
    const element = make("section", { class: "heads-two-words", id: "two-words" }, make("h2", {}, "Two words"),
      make("div", { class: "heads-fields" }, ...labels, exchange), list, fault, shown);

    function show(words, head, { query, demonstration }, pin) {
      element.hidden = words === null;
      if (words && of && words !== of && asked.query !== undefined) {  // another model, or other texts
        const gone = Object.values(asked).filter((word) => !words.places.has(word));
        fault.textContent = gone.length ? `${gone.map((word) => `“${word}”`).join(" and ")} cannot be shown in this model: its words are other ones.` : "";
      }
      of = words;
      if (!words) return;
      asked = { query, demonstration };
      if (list.dataset.of !== words.words.join()) list.replaceChildren(...words.words.map((value) => make("option", { value })));
      list.dataset.of = words.words.join();
      Object.assign(fields.query, { value: query });
      Object.assign(fields.demonstration, { value: demonstration });
      if (!words.heads[head]) {
        const others = Object.keys(words.heads).map((name) => button(name, () => pin(name)));
        shown.replaceChildren(make("p", { class: "heads-others" }, `Scores of words are not precomputed for head ${head}. They are for: `, ...others));
        return;
      }
      const said = (a, b) => `S[${a}, ${b}] = ${number(words.score(head, a, b))}`;
      const both = words.comparable(query, demonstration)
        ? `${said(query, demonstration)} and ${said(demonstration, query)} nats in head ${head}.`
        : `${query} and ${demonstration} are of two class pairs, which are never in one prompt.`;
      const meaning = query !== demonstration && words.sameClass(query, demonstration) ? words.cosine(query, demonstration) : null;
      const byHead = words.nearest(query, (word) => words.score(head, query, word));
      const byMeaning = words.nearest(query, (word) => words.cosine(query, word));
      const common = byHead.map(([word]) => word).filter((word) => byMeaning.some(([other]) => other === word));
      const cell = (row) => (row ? make("span", {}, make(common.includes(row[0]) ? "b" : "span", {}, row[0]), ` ${number(row[1])}`) : "");
      const { cls, words: ofClass } = words.places.get(query);
      shown.replaceChildren(make("p", {}, both, meaning === null ? "" : ` Sentence embedding: ${number(meaning)}.`),
        table([`nearest to ${query}`, `head ${head}, nats`, "sentence embedding"],
          byHead.map((row, i) => [String(i + 1), cell(row), cell(byMeaning[i])]), { class: "heads-numbers" }),
        small(byMeaning.length ? `${common.length} of ${byHead.length} are the same (bold); ` +
          `${number((byHead.length * byMeaning.length) / (ofClass.length - 1))} would be by chance. ` : "This word has no sentence embedding here. ",
        `Words of one class (${cls}). S is centred: in each class pair, the mean of each row and of each column is zero.`));
    }

    return { element, show };
  }

  Object.assign(window.twotowers.heads, { Words, wordsPart });
})();
