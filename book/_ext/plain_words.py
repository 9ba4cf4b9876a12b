"""Statements and verdicts in words that need no chapter, for the opening page and the story.

claim_strip(rows, "exchange-query")
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

import pandas as pd
from twotowers import claims, evidence, strips
from twotowers.paths import chapter_names
from twotowers.tables import shown_name

STATEMENTS = {
    "exchange-query": "Give five heads the query of a prompt about the other class. The answer "
    "moves towards the other label, and more than with random heads.",
    "product": "Move the query and the keys of five heads at the same time. By algebra, scores "
    "follow the product of the two moves. So does the answer, more closely than their sum, and "
    "than either move alone.",
    "same-word": "Within its class, a word is most similar to itself more often than by chance. In "
    "pretrained models, the inputs of these heads do this more often.",
    "symmetric": "Two words that are similar in one direction are similar in the other.",
    "graded": "Within a class, words of similar meaning are more similar.",
    "beyond-inputs": "These heads tell the classes apart better than their inputs do.",
}
"""Statements by id"""
MEASURES = {
    "exchange-query": "How far the answer moves: logarithm of the odds of the two labels. 1 makes "
    "the other label 2.7 times as likely, compared with the first (nats)",
    "product": "How much more of the differences between answers the product explains than the "
    "best of sum, query and keys",
}
MAX_NAMES = 2  # maximum number of models that a sentence names; more are counted


def plain(statement: claims.Statement) -> str:
    """Return a statement in words that need no chapter, or its own words if it has no others.

    Args:
        statement: Claim, or result of the paper.
    """
    return STATEMENTS.get(statement.id, statement.statement)


def result_in_words(rows: pd.DataFrame, claim: str) -> str:
    """Return the verdicts on a claim in words, with the models that differ from most.

    Args:
        rows: Rows of evidence of all models.
        claim: Id of the claim.
    """
    own = rows[(rows["claim"] == claim) & (rows["verdict"] != claims.NOT_TESTABLE)]
    models_of = own.groupby("verdict", sort=False)["model"].agg(list)
    models_of = sorted(models_of.items(), key=lambda item: -len(item[1]))
    untested = [model for model in rows["model"].unique() if model not in [*own["model"]]]
    if not models_of:
        return ""
    (verdict, models), *others = models_of
    extent = f"{len(models)} of {len(own)} models" if others else f"all {len(own)} models"
    if len(own) == 1:
        extent = shown_name(models[0])
    tested = " tested" if untested and len(own) > 1 else ""
    parts = [f"{verdict} in {extent}{tested}"]
    parts += [f"{verdict} in {_names(models)}" for verdict, models in others]
    parts += [f"not tested in {_names(untested)}"] if untested else []
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def _names(models: list[str]) -> str:
    """Return one or two models by name, or the number of more."""
    if len(models) > MAX_NAMES:
        return f"{len(models)}"
    return " and ".join(map(shown_name, models))


def verdicts_in_words(rows: pd.DataFrame, names: Iterable[str]) -> str:
    """Return claims with their verdicts as a list, each with a link to its chapter.

    Args:
        rows: Rows of evidence.
        names: Ids of the claims. A claim without verdicts is left out.
    """
    lines = ""
    for name in names:
        claim = claims.claims()[name]
        if result := result_in_words(rows, name):
            words = f"{escape(plain(claim))} <b>{escape(result)}</b>"
            page = f"{chapter_names()[claim.chapter]}.html"
            lines += f'<li><a href="{page}#claim-{claim.anchor}">{words}</a></li>'
    return f"<ul>{lines}</ul>"


def corrected(rows: pd.DataFrame, claim: str) -> str:
    """Return in how many models a claim has a small p-value after correction, "" if in all.

    Args:
        rows: Rows of evidence of all models that `evidence.read` returned.
        claim: Id of the claim.
    """
    p = rows[(rows["claim"] == claim) & (rows["verdict"] == claims.HOLDS)]["p_holm"]
    n_small = (p < evidence.SMALL_P).sum()
    if n_small == len(p):
        return ""
    return (
        f"After correction for the number of claims, p is below {evidence.SMALL_P:g} in {n_small} "
        f"of {len(p)}."
    )


def claim_strip(rows: pd.DataFrame, claim: str) -> str:
    """Return a claim, its result in words, and its strip.

    Args:
        rows: Rows of evidence.
        claim: Id of the claim.
    """
    statement, own = claims.claims()[claim], [*rows[rows["claim"] == claim].itertuples()]
    measure = MEASURES.get(claim, statement.measure)
    page = f"{chapter_names()[statement.chapter]}.html"
    link = f'<a href="{page}#claim-{statement.anchor}">chapter&nbsp;{statement.chapter}</a>'
    result = f"<b>{escape(result_in_words(rows, claim))}</b> {corrected(rows, claim)} ({link})"
    drawn_strip = strips.strip(statement.model_copy(update={"measure": measure}), own)
    return f"<p>{escape(plain(statement))} {result}</p>{drawn_strip}"
