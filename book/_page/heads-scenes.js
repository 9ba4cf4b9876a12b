// Five scenes of the explorer, each with a guess first. Every number in a sentence is read from the precomputed heads.
(() => {
  const { number, ordinal } = window.twotowers.heads;
  const share = (value) => `${Math.round(100 * value)}%`;
  const HIGH = 5;  // ranks 1 to HIGH are high
  const FOLLOWS = "Press “exchange labels” and “mirror”: ";

  // of(heads): the state, what is asked, the answers (text, is it right?), and what is said before and after. `then`: what
  // changes with the guess.
  const SCENES = [
    { name: "One head compares", model: "smollm2-135m", texts: "words", axes: "parts", of: (heads) => {
      const [head] = heads.ranked("effect"), part = heads.mean("effect", head) / (2 * heads.logit_difference);
      return {
        head, before: `At the last position head ${head} prefers labels of the query’s class by ` +
          `${number(heads.mean("attention difference", head))}, ${ordinal(heads.rank("attention difference", head))} of ${heads.total} heads.`,
        question: "Swap its attention between the classes, and nothing else. How far does the answer go towards the other label?",
        options: [["less than a tenth of the way", part < 0.1], ["a tenth to nine tenths", part >= 0.1 && part <= 0.9],
          ["nearly the whole way", part > 0.9]],
        then: { axes: "effect" },
        after: `It goes ${number(heads.mean("effect", head))} nats, ${share(part)} of the way, and ` +
          `${number(heads.mean("direct effect", head))} of it directly. The head attends by the query’s text (` +
          `${number(heads.mean("by text", head))}), hardly by the predicted label (${number(heads.mean("by predicted label", head))}). ` +
          `${FOLLOWS}its attention follows the texts.`,
      };
    } },
    { name: "One lowers the right answer", model: "smollm2-135m", texts: "words", axes: "parts", of: (heads) => {
      const head = heads.ranked("effect").at(-1), effect = heads.mean("effect", head), least = 0.05 * heads.logit_difference;
      return {
        head, before: `Head ${head} also attends more to labels of the query’s class, by ${number(heads.mean("attention difference", head))}.`,
        question: "Swap its attention between the classes. What happens to the right label?",
        options: [["less likely", effect > least], ["as likely", Math.abs(effect) <= least], ["more likely", effect < -least]],
        after: `Its effect is ${number(effect)} nats: swapped, the right label gains. It attends by the label that the model will predict ` +
          `(${number(heads.mean("by predicted label", head))}) rather than by the text (${number(heads.mean("by text", head))}), and ` +
          `lowers the labels that it attends to (${number(heads.mean("written logit difference", head))} nats).`,
      };
    } },
    { name: "One does both", model: "qwen2.5-coder-1.5b", texts: "words", axes: "parts", of: (heads) => {
      const [head] = heads.ranked("attribution"), [looks, writes] = ["attention difference", "written logit difference"].map((of) => heads.rank(of, head));
      return {
        head, before: `No head adds more to the right label than ${head}.`,
        question: `Among ${heads.total} heads, is it one of the first ${HIGH} in attention difference, in written logit difference, or in both?`,
        options: [["in attention difference", looks <= HIGH && writes > HIGH], ["in written logit difference", looks > HIGH && writes <= HIGH],
          ["in both", looks <= HIGH && writes <= HIGH]],
        then: { axes: "ranking" },
        after: `It is ${ordinal(looks)} in attention difference and ${ordinal(writes)} in written logit difference, as the paper says of its heads. ` +
          `Its attention has a total effect of ${number(heads.mean("effect", head))} nats.`,
      };
    } },
    { name: "A large output that is not needed", model: "smollm2-135m", texts: "words", axes: "ranking", of: (heads) => {
      const [head] = heads.ranked("written logit difference"), lost = heads.mean("lost", head), { low, high, prompts } = heads.columns.lost;
      const i = heads.at(head), part = lost / heads.logit_difference;
      return {
        head, before: `No head has a larger written logit difference than ${head}: ` +
          `${number(heads.mean("written logit difference", head))} nats.`,
        question: "Zero its output. How much of the logit difference is lost?",
        options: [["more than half", part > 0.5], ["a tenth to half", part >= 0.1 && part <= 0.5],
          ["less than a tenth", part < 0.1]],
        after: `${number(lost)} [${number(low[i])}, ${number(high[i])}] nats of ${number(heads.logit_difference)}, on ${prompts} prompts. ` +
          `It writes whichever label it attends to, and its attention to the right label is larger by ${number(heads.mean("attention difference", head))} only.`,
      };
    } },
    { name: "Sentences instead of words", model: "qwen2.5-coder-1.5b", texts: "words", axes: "ranking", of: (heads, on) => {
      const [head] = heads.ranked("attention difference"), sentences = on("sentences"), [first] = sentences.ranked("attention difference");
      return {
        head, before: `On single words, head ${head} prefers the right labels most.`,
        question: "Does it also prefer them most on sentences?",
        options: [["yes", first === head], ["no, another head does", first !== head]],
        then: { texts: "sentences", beside: first === head ? "" : first },
        after: `On sentences ${first} does, with ${number(sentences.mean("attention difference", first))}; on words it is ` +
          `${ordinal(heads.rank("attention difference", first))}. Its written logit difference is ${number(sentences.mean("written logit difference", first))} nats, ` +
          `${ordinal(sentences.rank("written logit difference", first))} of all heads. Which heads come first depends on the texts.`,
      };
    } },
  ];

  Object.assign(window.twotowers.heads, { SCENES });
})();
