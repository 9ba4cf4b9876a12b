// From what the reader wrote to token ids: the tokenizer (data/models/*/tokenizer.json), the state of the playground,
// what is refused, and the state as a part of the page's address. No part of the page is touched here.
(() => {
  // ---- tokenizer: unigram pieces over byte-level text ----
  // GPT-2's own pattern.
  const SPACE = "\\p{White_Space}", WORDS = new RegExp(`'(?:s|t|re|ve|m|ll|d)| ?\\p{L}+| ?\\p{N}+` +
    `| ?[^${SPACE}\\p{L}\\p{N}]+|${SPACE}+(?!\\P{White_Space})|${SPACE}+`, "gu");
  const printed = (b) => (b > 32 && b < 127) || (b > 160 && b !== 173);
  const SIGNS = [];  // byte -> the letter it is written as
  for (let b = 0, next = 256; b < 256; b++) SIGNS.push(String.fromCharCode(printed(b) ? b : next++));

  class Tokenizer {
    constructor({ model, pre_tokenizer: pre, normalizer, added_tokens: added }) {
      if (model.type !== "Unigram" || pre.type !== "ByteLevel" || normalizer) throw new Error("unknown tokenizer");
      this.pieces = model.vocab.map(([piece]) => piece);
      this.scores = model.vocab.map(([, score]) => score);
      this.ids = new Map(this.pieces.map((piece, id) => [piece, id]));
      this.longest = Math.max(...this.pieces.map((piece) => piece.length));
      this.special = added.map((token) => token.content);
    }

    // Ids of a text as it stands: a word that begins with its space is another piece than one that does not.
    encode(text) {
      return (text.match(WORDS) || []).flatMap((word) =>
        this.cut(Array.from(new TextEncoder().encode(word), (b) => SIGNS[b]).join("")));
    }

    // The cut of highest total score.
    cut(word) {
      const best = [{ score: 0 }];
      for (let end = 1; end <= word.length; end++) {
        best.push({ score: -Infinity });
        for (let start = Math.max(0, end - this.longest); start < end; start++) {
          const id = this.ids.get(word.slice(start, end));
          if (id === undefined) continue;
          const score = best[start].score + this.scores[id];
          if (score > best[end].score) best[end] = { score, id, start };
        }
      }
      const ids = [];
      for (let at = word.length; at > 0; at = best[at].start) ids.unshift(best[at].id);
      return ids;
    }

    // A token as a reader sees it; bytes that are no letter by themselves by their number.
    shown(id) {
      const bytes = Uint8Array.from(this.pieces[id], (sign) => SIGNS.indexOf(sign));
      const text = new TextDecoder().decode(bytes).trim();
      return /[\p{C}\uFFFD]/u.test(text) ? `byte ${bytes.at(-1)}` : text || "␣";
    }
  }

  // The model and its tokenizer, from the files as the build wrote them.
  function opened({ files }) {
    const bytes = (name) => Uint8Array.from(atob(files[name]), (c) => c.charCodeAt(0));
    const json = (name) => JSON.parse(new TextDecoder().decode(bytes(name)));
    const model = window.twotowers.loadModel(json("config.json"), bytes("model.safetensors"));
    return { model, tokenizer: new Tokenizer(json("tokenizer.json")) };
  }

  // ---- the state ----
  const ACTIONS = ["zero", "scale", "patch"];
  const LIMITS = { demonstrations: 60, text: 200, fragment: 20000, steering: 3 };
  const MEASURES = ["difference", "increase"];
  const EXAMPLE = {
    demonstrations: [["love", "bar"], ["like", "bar"], ["eight", "foo"], ["two", "foo"]],
    query: "one", true_label: "foo", heads: {}, factor: 0.5, steering: 0, head: "", measure: "difference", guess_first: true,
  };

  class Refusal extends Error {}  // its message is for the reader
  const refuse = (message) => { throw new Refusal(message); };
  const quoted = (text) => `“\u2068${text}\u2069”`;  // isolated: a text from right to left turns nothing around it

  const text = (value) => typeof value === "string" && value.length <= LIMITS.text;
  const RIGHT = {  // field of the state -> may it be this?
    demonstrations: (rows) => Array.isArray(rows) && rows.length <= LIMITS.demonstrations &&
      rows.every((row) => Array.isArray(row) && row.length === 2 && row.every(text)),
    query: text, true_label: text,
    heads: (heads, model) => isPlain(heads) &&
      Object.entries(heads).every(([name, action]) => isHead(name, model) && ACTIONS.includes(action)),
    factor: (value) => Number.isFinite(value) && Math.abs(value) <= 100,
    steering: (value) => Number.isFinite(value) && Math.abs(value) <= LIMITS.steering,
    measure: (value) => MEASURES.includes(value),
    head: (name, model) => name === "" || isHead(name, model),
    guess_first: (value) => typeof value === "boolean",
  };
  const isPlain = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

  function isHead(name, { layers, heads }) {
    const found = /^(\d{1,3})-(\d{1,3})$/.exec(name);
    return Boolean(found) && name === `${+found[1]}-${+found[2]}` && +found[1] < layers.length && +found[2] < heads;
  }

  // ---- the state in the address ----
  const START = "#playground=";

  function toFragment(state) {
    const bytes = new TextEncoder().encode(JSON.stringify(state));
    const base64 = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
    return START + base64.replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
  }

  // The state of an address; null where it holds none. Only what this page could have written is taken.
  function fromFragment(fragment, model, tokenizer) {
    if (!fragment.startsWith(START)) return null;
    const broken = "The address holds a state that this page cannot read, so nothing was changed";
    const code = fragment.slice(START.length);
    const cut = () => refuse(`${broken}: it is cut or was changed. Ask for the link again.`);
    if (!/^[\w-]+$/.test(code) || code.length > LIMITS.fragment) cut();
    let state;
    try {
      const binary = atob(code.replace(/-/g, "+").replace(/_/g, "/"));
      const bytes = Uint8Array.from(binary, (c) => c.charCodeAt(0));
      state = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
    } catch {
      cut();
    }
    const fields = Object.keys(RIGHT), given = isPlain(state) ? Object.keys(state) : [];
    const wrong = fields.find((field) => !given.includes(field) || !RIGHT[field](state[field], model));
    if (wrong) refuse(`${broken}: its ${quoted(wrong)} is missing or wrong.`);
    if (given.length !== fields.length) refuse(`${broken}: it holds what this page does not have.`);
    try {
      encode(state, model, tokenizer);
    } catch (error) {
      refuse(`${broken}. ${error.message}`);
    }
    return state;
  }

  // ---- the prompt ----
  function check(part, name, tokenizer) {
    if (!part) refuse(`${name} is empty: write a word${name.startsWith("The text") ? ", or take the row away" : ""}.`);
    if (/[\p{Cc}\p{Cs}\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/u.test(part))
      refuse(`${name} holds a character that cannot be seen: write it again by hand.`);
    const special = tokenizer.special.find((token) => part.includes(token));
    if (special) refuse(`${name} holds the special token ${quoted(special)}: take it out.`);
  }

  // The model was trained on lower-case letters.
  const plain = (part) => part.trim().toLowerCase();

  const classOf = (words, classes) => (Object.hasOwn(classes, plain(words)) ? classes[plain(words)] : "");

  // The label of the demonstrations whose class is the query's; "" when a word has no class or they do not agree.
  function labelByClass({ demonstrations, query }, classes) {
    const cls = classOf(query, classes), labels = new Set();
    for (const [words, label] of demonstrations) if (cls && classOf(words, classes) === cls) labels.add(label);
    return labels.size === 1 ? [...labels][0] : "";
  }

  // Two classes of the demonstrations, the query's first where it is one of them; null where they show fewer.
  function pairOf({ demonstrations, query }, classes) {
    const shown = new Set(demonstrations.map(([words]) => classOf(words, classes)).filter(Boolean));
    const cls = classOf(query, classes), pair = [...(shown.has(cls) ? new Set([cls, ...shown]) : shown)];
    return pair.length > 1 ? pair.slice(0, 2) : null;
  }

  // Token ids of "text : label text : label query :", and where its parts are. Throws a Refusal.
  //   ids, labelAt (position of each label), labels (word, id), trueId, unknown (words without a token of their own)
  function encode(state, model, tokenizer) {
    const rows = state.demonstrations.map((row) => row.map(plain));
    const query = plain(state.query), trueLabel = plain(state.true_label);
    if (!rows.length) refuse("There is no demonstration: add a row.");
    rows.forEach(([words, label], i) => {
      check(words, `The text of demonstration ${i + 1}`, tokenizer);
      check(label, `The label of demonstration ${i + 1}`, tokenizer);
    });
    check(query, "The query", tokenizer);
    check(trueLabel, "The right label", tokenizer);
    const labels = [...new Set([trueLabel, ...rows.map(([, label]) => label)])].map((word) => {
      const found = tokenizer.encode(` ${word}`);
      if (found.length > 1)
        refuse(`This small model does not know the word ${quoted(word)}, and a label must be one word that it knows: ` +
          "take another, such as foo, bar or baz.");
      return { word, id: found[0] };
    });
    if (labels.length < 2) refuse(`All labels are ${quoted(trueLabel)}: give two different ones, such as foo and bar.`);
    const ids = [], labelAt = [], unknown = new Set();
    const put = (words) => {
      ids.push(...tokenizer.encode(` ${words}`));
      for (const word of words.split(/\s+/)) if (tokenizer.encode(` ${word}`).length > 1) unknown.add(word);
    };
    rows.forEach(([words, label]) => {
      put(words);
      ids.push(...tokenizer.encode(" :"));
      labelAt.push(ids.length);
      ids.push(labels.find(({ word }) => word === label).id);
    });
    put(query);
    ids.push(...tokenizer.encode(" :"));
    if (ids.length > model.context)
      refuse(`The prompt has ${ids.length} tokens and the model reads ${model.context}: shorten it.`);
    return { rows, query, ids, labelAt, labels, trueId: labels[0].id, unknown: [...unknown] };
  }

  // The same prompt with every label exchanged for the next: what a patched head reads.
  function exchanged({ ids, labelAt, labels }) {
    const next = new Map(labels.map(({ id }, i) => [id, labels[(i + 1) % labels.length].id]));
    return ids.map((id, at) => (labelAt.includes(at) ? next.get(id) : id));
  }

  Object.assign(window.twotowers, {
    ACTIONS, EXAMPLE, MEASURES, LIMITS, Refusal, Tokenizer, classOf, encode, exchanged, fromFragment, labelByClass, opened, pairOf,
    quoted, toFragment,
  });
})();
