"""Chapter 1: the paper's example prompt taken apart, for the drawings (v1 section 3.1, appendix E)."""

from __future__ import annotations

import math

import pandas as pd

from twotowers.heads import named
from twotowers.prompts.datasets import paper_example
from twotowers.prompts.prompt import roles
from twotowers.studies.context import chapter_studies
from twotowers.studies.run import Run

study = chapter_studies("01-locate")
WHOLE, ATTENTION = "last residual vector", "attention blocks"


@study
def apart(run: Run) -> pd.DataFrame:
    """The margin of the paper's example (nats) as a sum, over blocks, heads and positions.

    One row per (of, part, position): `of` is what the part belongs to (WHOLE, ATTENTION, or a head "22-0"), margin the
    part's share of it (the norm's scale frozen, its bias left out); for parts that are positions token, role (see `prompts.roles`)
    and weight (of the head's attention); position is -1 elsewhere. text, true_label, other_label, said (the top
    word), p_true and p_other (the model's own probabilities) stand in every row.
    """
    from twotowers.analysis import locate, logit_changes
    from twotowers.model.answers import answers
    from twotowers.model.capture import capture
    from twotowers.model.unembed import norm_scale

    lm, (one,) = run.lm, run.encode([paper_example(run.parameters.labels)])
    seen = capture(lm, [one], {"weights", "values"})
    margins = logit_changes.margin_rows(seen, lm)
    attention, ffn, heads = (part[0].cpu() for part in logit_changes.block_changes(seen, lm, margins))
    ours = list(dict.fromkeys(run.heads()))
    scale = norm_scale(seen.resid_final, lm.unembedding)
    embedding = logit_changes.logits(seen.resid_pre[0], margins, lm.unembedding, scale=scale)
    others = float(heads.sum()) - sum(float(heads[a, b]) for a, b in ours)
    parts = {"embedding": float(embedding[0]), ATTENTION: float(attention.sum()), "FFN blocks": float(ffn.sum())}
    of_heads = {name: float(heads[a, b]) for (a, b), name in zip(ours, named(ours), strict=True)}
    of_heads |= {"all other heads": others, "biases": float(attention.sum() - heads.sum())}
    rows = [{"of": of, "part": name, "margin": margin, "position": -1, "token": "", "role": "", "weight": float("nan")}
            for of, some in ((WHOLE, parts), (ATTENTION, of_heads)) for name, margin in some.items()]  # fmt: skip
    by_position = logit_changes.position_changes(seen, lm, margins, ours)[0].cpu()
    words = [lm.tokenizer.decode([token]).strip() for token in one.ids]
    for i, ((layer, head), name) in enumerate(zip(ours, named(ours), strict=True)):
        rows += [
            {"of": name, "part": word, "margin": float(by_position[i, at]), "position": at, "token": word,
             "role": role, "weight": float(seen.weights[layer][0, head, at])}
            for at, (word, role) in enumerate(zip(words, roles(one), strict=True))
        ]  # fmt: skip
    p = {label: math.exp(value) for label, value in locate.label_log_probs(seen)[0].items()}
    true, other = run.parameters.labels
    return pd.DataFrame(rows).assign(
        text=one.prompt.text, true_label=true, other_label=other, said=answers(lm, [one]).said[0], p_true=p[true],
        p_other=p[other],
    )  # fmt: skip
