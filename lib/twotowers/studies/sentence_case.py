"""Chapter 9: one prompt of sentences through the best head, and a chat model that is asked about it (v1 appendix C).

Tables hold no sentence of a data set: only classes, labels, weights, top words and answers.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from twotowers.errors import TwoTowersError
from twotowers.prompts.datasets import alternated
from twotowers.stats.intervals import bootstrap, bootstrap_difference
from twotowers.studies.best_head import available, best
from twotowers.studies.context import chapter_studies
from twotowers.studies.parts import in_parts
from twotowers.studies.project import related
from twotowers.studies.run import Run

study = chapter_studies("09-sentence-case")
MOST, COUNTED = 300, 100  # prompts to compare the case with; prompts whose top words are counted
OWN, ANOTHER = "its own key", "another text's key"


def _case(run: Run):
    """The first prompt of the first set at hand that is answered right, with what the head pays there.

    Returns (run on that set, head, others, encoded prompts, attention.Reading, index of the case).
    """
    from twotowers.analysis import attention

    def make():
        here = available(run)
        here = here if len(here.parameters.datasets) == 1 else run.on(here.parameters.datasets[:1])
        head, others = best(here)
        judged = here.encode(
            alternated(here.prompts(here.parameters.datasets[0], n=min(run.parameters.n_prompts, MOST)))
        )
        read = in_parts(here, attention.read, judged, [head, *others], outer="head", progress="attention")
        return here, head, others, judged, read, int(read.answers["correct"].idxmax())

    return run.keep("case", make)


def prompt_text(run: Run) -> str:
    """The case's own text, line by line; for the page only, in no table. Raises TwoTowersError as the studies do."""
    _, _, _, judged, _, at = _case(run)
    prompt = judged[at].prompt
    return "\n".join([f"{d.text} : {d.label}" for d in prompt.demonstrations] + [f"{prompt.query} :"])


@study
def looks(run: Run) -> pd.DataFrame:
    """What the head pays to each label of the case, beside random heads of its layer and all other prompts.

    One row a demonstration: number, class, label, kind, weight, random; in every row: head, dataset, query_class,
    correct, prompts, difference (true less false, of the case), usual, usual_low, usual_high, random_usual, below.
    """
    here, head, _, judged, read, at = _case(run)
    prompt, own = judged[at].prompt, read.labels[read.labels["prompt"] == at]
    mine = own[own["head"] == str(head)].sort_values("label")["weight"].to_numpy()
    theirs = own[own["head"] != str(head)].groupby("label")["weight"].mean().to_numpy()
    sums = read.sums()
    ours = sums[sums["head"] == str(head)].set_index("prompt")["difference"]
    random = sums[sums["head"] != str(head)].groupby("prompt")["difference"].mean()
    queries = [e.prompt.query for e in judged]
    usual = bootstrap(ours, clusters=queries, seed=run.parameters.seed)
    rows = [
        {"number": i + 1, "class": d.cls, "label": d.label, "kind": "true label" if true else "false label",
         "weight": mine[i], "random": theirs[i]}
        for i, (d, true) in enumerate(zip(prompt.demonstrations, prompt.is_true, strict=True))
    ]  # fmt: skip
    return pd.DataFrame(rows).assign(
        head=str(head), dataset=here.parameters.datasets[0], query_class=prompt.cls,
        correct="right" if read.answers["correct"][at] else "wrong", prompts=len(judged), difference=ours[at],
        usual=usual.estimate, usual_low=usual.low, usual_high=usual.high, random_usual=random.mean(),
        below=float((ours < ours[at]).mean()),
    )  # fmt: skip


@study
def words(run: Run) -> pd.DataFrame:
    """Top words of every vector of the head in the case: kind, number (of the text; 0 for the query), class, label, silent,
    rank, word, value, relation, vector."""
    from twotowers.analysis import project

    _, head, _, judged, _, at = _case(run)
    case, p = judged[at], run.parameters
    table = project.top_word_table(run.lm, case, [head], run.lexicon, p.n_words, p.norm)
    number = {position: i + 1 for i, position in enumerate(case.label_positions)}
    table["number"] = [number.get(position, 0) for position in table["position"]]
    of = [(d.cls, d.label) for d in case.prompt.demonstrations]
    table["class"] = [of[i - 1][0] if i else case.prompt.cls for i in table["number"]]
    table["label"] = [of[i - 1][1] if i else case.prompt.true_label for i in table["number"]]
    table["vector"] = [f"{r.kind}, text {r.number}" if r.number else r.kind for r in table.itertuples()]
    return table.drop(columns=["position", "token"])


@study
def counted(run: Run) -> pd.DataFrame:
    """Words of the own text among the top words, less those of another text, and less a random direction.

    One row per (kind, against): words, low, high, n; `own` is the mean count of own words.
    """
    _, head, _, judged, _, _ = _case(run)
    few, p, rows = judged[:COUNTED], run.parameters, []
    queries = np.array([e.prompt.query for e in few])
    found = {
        source: related(run, few, [head], seed, source)
        for source, seed in (("this head", None), ("random direction", p.seed))
    }
    for kind in dict.fromkeys(found["this head"]["kind"]):
        if kind == "value":
            continue
        ours, theirs = (
            found[s][found[s]["kind"] == kind].groupby("prompt")[["own text", "other text"]].mean() for s in found
        )
        for against, other in (("another text", ours["other text"]), ("random direction", theirs["own text"])):
            gap = bootstrap_difference(ours["own text"], other, clusters=queries[ours.index], seed=p.seed)
            rows.append({"kind": kind, "against": against, **gap.as_row("words"), "own": ours["own text"].mean()})
    return pd.DataFrame(rows).assign(head=str(head), n_words=p.n_words)


@study(version=2)
def chat(run: Run) -> pd.DataFrame:
    """A chat model asked whether the words of a key go with a text: own words, and as a control those of another text.

    One row per (number, words_of): class, words, answer (but for what it quotes of the text), verdict ("yes", "no",
    "unclear"), chat_model. Raises TwoTowersError when no chat model is named.
    """
    from twotowers.analysis import project
    from twotowers.model import chat as asking

    p = run.parameters
    if not p.chat_model:
        raise TwoTowersError("no chat model was named, so nothing was asked: give chat_model")
    asking.check(p.chat_model)
    _, head, _, judged, _, at = _case(run)
    case, lexicon = judged[at], run.lexicon

    def key_words(encoded, place: int) -> list[str]:
        table = project.top_word_table(run.lm, encoded, [head], lexicon, p.n_words, p.norm)
        mine = table[(table["kind"] == "key") & (table["silent"] == "left out")]
        return mine[mine["position"] == encoded.label_positions[place]]["word"].tolist()

    strangers, asked = [one for j, one in enumerate(judged) if j != at], []
    for i, d in enumerate(case.prompt.demonstrations):
        other, place = asking.control_example(case, i, [*strangers[i:], *strangers[:i]])
        for words_of, listed in ((OWN, key_words(case, i)), (ANOTHER, key_words(other, place))):
            asked.append((i + 1, d.cls, words_of, ", ".join(listed), d.text, asking.question(d.text, listed)))
    model = asking.Chat.load(p.chat_model, dtype=p.dtype, device=p.device)
    rows = []
    for number, cls, words_of, listed, text, question in asked:
        answer = model.ask(question, p.max_new_tokens)
        rows.append(
            {"number": number, "class": cls, "words_of": words_of, "words": listed,
             "answer": asking.without_quotes(answer, text),
             "verdict": asking.verdict(answer), "chat_model": p.chat_model}
        )  # fmt: skip
    return pd.DataFrame(rows)
