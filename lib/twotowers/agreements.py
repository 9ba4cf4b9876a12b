"""Agreements with the paper that say most: beyond random heads, and not without a comparison.

Each function returns sentences for pages, from rows of evidence (`evidence.read`).

    >>> rows = pd.DataFrame({"model": ["mini-gpt2", "smollm2-135m"], "mark": ["", "by position"]})
    >>> rows = rows.assign(claim="figure 3", verdict="agrees", n_random_sets=20)
    >>> "In 1 of these the model solves the task" in beyond_random_heads(rows)
    True
    >>> "without any comparison of texts: figure 3 (2)." in without_comparison(rows)
    True
"""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from twotowers import claims
from twotowers.evidence import MAX_EXCEEDANCE, MIN_RANDOM_SETS
from twotowers.tables import shown_name


def beyond_random_heads(rows: pd.DataFrame) -> str:
    """Return where a model solves the task, and random heads do not agree, as one sentence.

    Args:
        rows: Rows of evidence of results of the paper, in the paper's protocol.
    """
    agrees = _agreeing(rows)
    is_compared = agrees["n_random_sets"] >= MIN_RANDOM_SETS
    is_specific = is_compared & (agrees["verdict"] == claims.AGREES)
    best = agrees[is_specific & (agrees["mark"] == "")]
    models = best.groupby("claim", sort=False)["model"]
    names = {claim: ", ".join(map(shown_name, of_claim)) for claim, of_claim in models}
    where = _joined(f"{claim} ({of_claim})" for claim, of_claim in names.items())
    return (
        f"In the paper's protocol, {len(agrees)} tests agree. In {len(best) or 'none'} of these "
        f"the model solves the task of the prompts, and at most {MAX_EXCEEDANCE:.0%} of the random "
        f"lists of heads do as well{where and ': '}{where}."
    )


def without_comparison(rows: pd.DataFrame) -> str:
    """Return which agreements on counterbalanced prompts need no comparison of texts.

    data/solved.csv says so of each result, and tests/test_planted_verdicts.py shows it.

    Args:
        rows: Rows of evidence of results of the paper, on counterbalanced prompts.
    """
    rules = claims.solved_rules().values()
    needed = [rule.id for rule in rules if rule.comparison == claims.NEEDED]
    needed = [name for name in needed if name not in claims.UNCOUNTED]
    agrees = _agreeing(rows)
    tested = rows[rows["claim"].isin(needed) & ~rows["verdict"].isin(claims.WITHOUT_VERDICT)]
    is_free = ~agrees["claim"].isin(needed)
    free, compared = agrees[is_free], agrees[~is_free]
    n_random = (compared["verdict"] == claims.AGREES_UNSPECIFIC).sum()
    random = f" ({n_random} as random heads do)" if n_random else ""
    counts = free["claim"].value_counts(sort=False)
    which = _joined(f"{claim} ({n})" for claim, n in counts.items())
    return (
        f"On counterbalanced prompts, {len(agrees)} tests agree. {len(free)} of these could agree "
        f"without any comparison of texts{which and ': '}{which}. Agreement needs a comparison in "
        f"{_joined(needed)}: there, {len(compared) or 'none'} of {len(tested)} tests agree{random}."
    )


def _agreeing(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the counted rows that agree, whatever random heads do."""
    is_counted = ~rows["claim"].isin(claims.UNCOUNTED)
    agrees = rows["verdict"].map(claims.answer) == claims.AGREES
    return rows[is_counted & agrees]


def _joined(names: Iterable[str]) -> str:
    """Return names as a list in words, "" for none."""
    *most, last = [*names] or [""]
    return f"{', '.join(most)} and {last}" if most else last
