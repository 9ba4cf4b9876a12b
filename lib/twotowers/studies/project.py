"""Chapter 2: what values, keys and queries of the located heads say in words (v1 section 3.2, tables 1 and 3)."""

from __future__ import annotations

import pandas as pd

from twotowers.errors import TwoTowersError
from twotowers.heads import named, repeat_per_head
from twotowers.prompts.datasets import both_assignments, counterbalanced, is_word_set, paper_example
from twotowers.prompts.prompt import Demonstration, Encoded, Prompt
from twotowers.stats.intervals import bootstrap, bootstrap_difference
from twotowers.studies.context import chapter_studies
from twotowers.studies.decides import sets_of
from twotowers.studies.parts import in_parts
from twotowers.studies.run import Run

study = chapter_studies("02-project")
IN, RANDOM, DIRECTION = "in-context heads", "random heads", "random direction"
OVER = "in-context less random"
RAW, CENTRED = "as the paper", "mean taken out"
MOST = 100  # prompts a set that are counted
NEURONS = 20  # that add most to the true label's lead
CONTROLS = 5  # sets of random heads
CLASS = ["own class", "other class"]
CLAIMS = {  # kind of vector -> what should be said, and what must be said less often for it to count
    "value": ("own label", "other label"),
    "key": ("own class", "other class"),
    "query": ("own class", "other class"),
}


def related(run: Run, encoded: list, heads: list, drawn: int | None, progress: str, means=None) -> pd.DataFrame:
    """`project.related_words`; random directions, if they are `drawn`, in one go: they follow the order of all prompts."""
    from twotowers.analysis.project import related_words

    given = heads, run.lexicon, run.parameters.n_words, run.parameters.norm
    if drawn is None:
        return in_parts(run, related_words, encoded, *given, batched=True, means=means, progress=progress)
    return related_words(run.lm, encoded, *given, drawn, means=means, progress=progress)


def _counts(run: Run) -> pd.DataFrame:
    """Related words among the top words of every vector: one row per (reading, source, dataset, prompt, vector)."""
    from twotowers.analysis import label_reading

    def make() -> pd.DataFrame:
        p, parts = run.parameters, []
        located, partners = run.heads(), list(dict.fromkeys(run.controls()))
        both = [*located, *partners]
        of_located = [*named(located), *(f"layer {layer}" for layer, _ in located)]
        for dataset in p.datasets:
            encoded = run.either_class(dataset, MOST)  # in all orders: a mean over these prompts holds no class
            means = {RAW: None}
            try:
                means[CENTRED] = label_reading.mean_readings(run.lm, encoded, both, progress=f"{dataset}, means")
            except TwoTowersError as error:
                run.notes.append(f"{dataset}: no mean is taken out, {error}")
            found = related(run, encoded, both, None, f"{dataset}, values, keys, queries", means)
            drawn = related(run, encoded, located, p.seed, f"{dataset}, random directions", means)
            # A key belongs to its layer, so a random head of the same layer has the same one: no control.
            tables = {
                IN: found[found["of"].isin(of_located)], RANDOM: found[found["of"].isin(named(partners))], DIRECTION: drawn,
            }  # fmt: skip
            for reading in means:
                for source, table in tables.items():
                    table = table[table["reading"] == reading]
                    queries = [encoded[i].prompt.query for i in table["prompt"]]
                    parts.append(table.assign(dataset=dataset, source=source, query=queries))
        return pd.concat(parts, ignore_index=True)

    return run.keep("related words", make)


def _per_prompt(counts: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    relations = ["own label", "other label", "own text", "other text", *CLASS]
    return counts.groupby([*by, "dataset", "prompt", "query"], sort=False, as_index=False)[relations].mean()


@study
def rates(run: Run) -> pd.DataFrame:
    """How many of the top words of a vector have each relation to its place.

    One row per (reading, kind, source, relation): words, low, high, n (query words). Classes are counted on word sets
    only: those of sentences have no lists of words.
    """
    counts, rows = _counts(run), []
    for (reading, kind, source), table in _per_prompt(counts, ["reading", "kind", "source"]).groupby(
        ["reading", "kind", "source"], sort=False
    ):
        listed = table[table["dataset"].map(is_word_set)]
        for relation in ("own label", "other label", "own text", "other text", *CLASS):
            used = listed if relation in CLASS else table
            if len(used):
                found = bootstrap(used[relation], clusters=used["query"], seed=run.parameters.seed)
                rows.append(
                    {"reading": reading, "kind": kind, "source": source, "relation": relation, **found.as_row("words")}
                )
    return pd.DataFrame(rows).assign(n_words=run.parameters.n_words, heads=", ".join(named(run.heads())))


@study(version=2)
def gains(run: Run) -> pd.DataFrame:
    """Paired differences that the claims are judged by: what belongs to the place less what does not, and less controls.
    On the sets that are learned; `learned` says whether any is.

    One row per (reading, kind, against): against is "other in the prompt", "random direction" or "random heads" (which
    keys have none of); wanted, words, low, high, n (query words).
    """
    counts, rows = _counts(run), []
    counts = counts[counts["dataset"].isin(run.judged)]
    for reading in dict.fromkeys(counts["reading"]):
        for kind, (wanted, other) in CLAIMS.items():
            table = counts[(counts["reading"] == reading) & (counts["kind"] == kind)]
            table = table[table["dataset"].map(is_word_set)] if wanted in CLASS else table
            means = _per_prompt(table, ["source"]).set_index(["dataset", "prompt", "query"])
            ours = means[means["source"] == IN]
            if ours.empty:
                continue
            queries = ours.index.get_level_values("query")
            pairs = {"other in the prompt": ours[other]}
            for source in (DIRECTION, RANDOM):
                theirs = means.loc[means["source"] == source, wanted]
                if len(theirs):
                    pairs[source] = theirs.loc[ours.index]
            rows += [
                {"reading": reading, "kind": kind, "against": against, "wanted": wanted,
                 **bootstrap_difference(ours[wanted], theirs, clusters=queries, seed=run.parameters.seed).as_row("words")}
                for against, theirs in pairs.items()
            ]  # fmt: skip
    about = {"n_words": run.parameters.n_words, "heads": ", ".join(named(run.heads()))}
    return pd.DataFrame(rows).assign(**about, learned=bool(run.passing))


@study
def values_by_head(run: Run) -> pd.DataFrame:
    """Label words among the top words of values, head by head: head, source, relation, words, low, high, n."""
    counts = _counts(run)
    values = counts[(counts["kind"] == "value") & (counts["reading"] == RAW)].copy()
    of_random = repeat_per_head(values[values["source"] == RANDOM], run.heads(), run.controls(), column="of")
    values = pd.concat(
        [
            values[values["source"] != RANDOM].rename(columns={"of": "head"}),
            of_random.drop(columns="head", errors="ignore").rename(columns={"of": "head"}),
        ]
    )
    rows = []
    for (head, source), table in _per_prompt(values, ["head", "source"]).groupby(["head", "source"], sort=False):
        for relation in ("own label", "other label"):
            found = bootstrap(table[relation], clusters=table["query"], seed=run.parameters.seed)
            rows.append({"head": head, "source": source, "relation": relation, **found.as_row("words")})
    return pd.DataFrame(rows).assign(n_words=run.parameters.n_words)


def _words(run: Run, case: Encoded) -> pd.DataFrame:
    """Top words of every vector of the located heads for one prompt, with where each stands in words."""
    from twotowers.analysis import project
    from twotowers.model.answers import answers

    words = project.top_word_table(run.lm, case, run.heads(), run.lexicon, run.parameters.n_words, run.parameters.norm)
    texts = dict(zip(case.label_positions, (d.text for d in case.prompt.demonstrations), strict=True))
    texts[case.last] = case.prompt.query
    short = {at: text if len(text) <= 24 else text[:22] + "…" for at, text in texts.items()}
    words["vector"] = [f"{r.position} “{r.token}” after “{short[r.position]}”: {r.kind}" for r in words.itertuples()]
    said = answers(run.lm, [case]).said[0]
    return words.assign(text=case.prompt.text, said=said, true_word=case.prompt.true_label)


@study
def word_prompt(run: Run) -> pd.DataFrame:
    """Table 1: top words of the paper's example: head, kind, position, token, silent, rank, word, value, relation,
    vector; the prompt's text, its true label and what the model said stand in every row."""
    return _words(run, run.encode([paper_example(run.parameters.labels)])[0])


@study
def sentence_prompt(run: Run) -> pd.DataFrame:
    """The same for a prompt of sentences. Raises TwoTowersError where the tokenizer breaks ordinary words to pieces."""
    true, other = run.parameters.labels
    sentences = Prompt(
        (
            Demonstration("she made bread and soup for all of us", other, "food"),
            Demonstration("rice and pasta are in the other kitchen", other, "food"),
            Demonstration("the team won at football and then at tennis", true, "sport"),
            Demonstration("he will not play hockey or golf again", true, "sport"),
        ),
        "young people like cricket and swimming in the water", true, (true, other), "sport",
    )  # fmt: skip
    case = run.encode([sentences])[0]
    spans = [*case.text_spans, case.query_span]
    written = sum(len(text.split()) for text in [*(d.text for d in sentences.demonstrations), sentences.query])
    pieces = sum(stop - start for start, stop in spans) / written
    if pieces > 1.5:
        raise TwoTowersError(
            f"this tokenizer takes {pieces:.2f} tokens a word for these sentences, so the model was not made to read "
            "them: run the chapter on a model of ordinary text"
        )
    return _words(run, case)


@study
def neurons(run: Run) -> pd.DataFrame:
    """What the FFN neurons that choose the label add to the true label's lead, and which parts of the model made their
    coefficients do so (v1 appendix E; `analysis.neurons`).

    Neurons are located on other prompts than those that judge them; either class is asked about, counterbalanced, each
    text with either assignment of the labels. One row per part: nats, low, high, n (query words); "all FFN blocks" is
    their lead, "these neurons" that of the chosen, which "embedding", IN, "other heads", "FFN blocks",
    "biases" and "scales" sum to; RANDOM is the mean of CONTROLS sets of random heads of the layers of IN, among the others.
    """
    from twotowers.analysis import neurons

    some, p = sets_of(run), run.parameters
    locating = [q for d in some for q in counterbalanced(run.locating(d)[: MOST // len(some)])]
    judged = [e.prompt for d in some for e in run.either_class(d, MOST // len(some))]
    chosen = neurons.top_neurons(run.lm, run.encode(both_assignments(locating)), NEURONS, "neurons, located")
    groups = [run.heads(), *run.control_sets()[:CONTROLS]]
    found, every = neurons.read_pairs(run.lm, run.encode(both_assignments(judged)), chosen, groups, "neurons, judged")
    embedding, heads, blocks, biases, ours, *random, scales = found.T
    parts = {
        "all FFN blocks": every, "these neurons": embedding + heads + blocks + biases + scales, IN: ours,
        RANDOM: sum(random) / len(random), OVER: ours - sum(random) / len(random),
        "other heads": heads - ours, "FFN blocks": blocks, "embedding": embedding, "biases": biases, "scales": scales,
    }  # fmt: skip
    queries = [f"{q.dataset} {q.query}" for q in judged]
    rows = [
        {"part": part, **bootstrap(one, clusters=queries, seed=p.seed).as_row("nats")} for part, one in parts.items()
    ]
    return pd.DataFrame(rows).assign(
        k=len(chosen), neurons=" ".join(named(chosen)), prompts=len(judged), learned=bool(run.passing)
    )
