// Seven scenes of the playground, each one click from the paper's example: what to expect, what was seen, and the page
// that tests it.
(() => {
  const { EXAMPLE } = window.twotowers;
  const [love, like, eight, two] = EXAMPLE.demonstrations;
  const swap = ([words, label]) => [words, label === "foo" ? "bar" : "foo"];
  const rows = (...demonstrations) => ({ ...EXAMPLE, demonstrations });

  const tests = (chapter, page) => [`Chapter ${chapter} tests this over whole sets.`, page];
  const COMPARES = tests(4, "04-attention-weights"), BIASES = tests(5, "05-imbalanced-and-reordered");
  const EVERY_HEAD = tests(12, "12-what-every-head-does"), TOWERS = tests(11, "11-two-towers-moved");

  window.twotowers.scenes = (writers) => [
    { name: "Swap the labels", state: { ...rows(...EXAMPLE.demonstrations.map(swap)), true_label: "bar" },
      before: "Numbers are now called bar, and feelings foo. The query is still a number.",
      after: "The answer follows: the heads still look mostly at the numbers, and copy the labels that they have now.",
      tested: TOWERS },
    { name: "Put the true demonstrations first", state: rows(eight, two, love, like),
      before: "The two numbers are now at the top, far from the query.",
      after: "The numbers still get more of the attention, so the answer stays. But it is less certain: nearness counts, too.",
      tested: BIASES },
    { name: "Remove one", state: rows(love, like, eight),
      before: "One of the two numbers is gone: foo appears once, bar twice.",
      after: "One true demonstration is enough here. The model loses a little of its certainty to the more frequent label.",
      tested: BIASES },
    { name: "Mix two classes", state: rows(swap(love), like, eight, swap(two)),
      before: "Each label now follows a number once and a feeling once.",
      after: "Both numbers still get the attention, so both labels are copied; the one nearer to the query wins.",
      tested: COMPARES },
    { name: "A query of neither class", state: { ...EXAMPLE, query: "river" },
      before: "A river is neither a feeling nor a number.",
      after: "The heads must look somewhere, so the model gives one of the two labels all the same, and is sure of it.",
      tested: ["No chapter tests this; chapter 4 asks about queries of the two classes.", COMPARES[1]] },
    { name: "Switch off the heads that add most",
      state: { ...EXAMPLE, heads: Object.fromEntries(writers.map((name) => [name, "zero"])) },
      before: "The heads in colour, which compare and write in one step, write nothing. All else is left as it is.",
      after: "The label of the numbers no longer reaches the answer: what is left is a guess. In larger models later heads " +
        "can make up for some of it.", tested: EVERY_HEAD },
    { name: "Steer the query towards the other class", state: { ...EXAMPLE, steering: 1.5 },
      before: "No word changes. Inside the heads, the query’s vector is moved 1.5 times the way from numbers to feelings.",
      after: "The answer turned, because the heads now look at the feelings. Move the slider: the answer follows it.",
      tested: TOWERS },
  ];
})();
