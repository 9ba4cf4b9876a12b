"""The list of exhibits: every figure and table of the paper, and the book's own that stands beside it. No torch here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from twotowers.exhibits.claim import plain

PAPER = {
    "v1 fig 2": "increase of every block, one case",
    "v1 table 1": "top words of values, keys and query",
    "v1 table 2": "accuracy on the word sets",
    "v1 fig 3, 4": "the top heads",
    "v1 fig 5": "rank of the label's word in values",
    "v1 fig 6": "attention on true and on false labels",
    "v1 fig 7": "attention and increase",
    "v1 fig 8, 10": "one true demonstration fewer",
    "v1 fig 9, 11": "true demonstrations first",
    "v1 fig 12-15": "top heads on sentences",
    "v1 appendix A": "heads of right answers",
    "v1 fig 16-27": "values and attention on sentences, GPT2-large and Llama models",
    "v1 table 3": "one case of sentences",
    "v1 appendix C": "a chat model reads a key's words",
    "v1 appendix E": "a toy vocabulary; the order of adding; what FFN neurons answer to",
    "EMNLP abstract": "accuracy without the in-context heads",
    "EMNLP table 3": "heads of one label zeroed",
    "EMNLP table 4": "what heads add at label positions",
    "EMNLP table 5, 6": "attention when the prediction flips",
    "EMNLP table 7": "majority-label bias, reduced",
    "EMNLP table 8": "recency bias, reduced",
}
"""what a caption's `beside` may be -> what the paper shows there"""


def listed(captions: Iterable[Mapping[str, str]]) -> str:
    """Markdown: one row for each exhibit of the paper, then the exhibits that have none. A caption's keys: number,
    title, beside, anchor."""
    found = [one for one in captions if one["number"]]

    def link(one: Mapping[str, str]) -> str:
        return f"{{ref}}`{one['number']} <{one['anchor']}>`"

    def row(where: str, shows: str, ours: list[Mapping[str, str]]) -> str:
        cell = "; ".join(f"{link(one)} {plain(one['title'])}" for one in ours)
        return f"| {where} | {shows} | {cell or 'not in this book'} |"

    rows = [row(where, shows, [one for one in found if one["beside"] == where]) for where, shows in PAPER.items()]
    own = [one for one in found if one["beside"] not in PAPER]
    links = ", ".join(link(one) for one in own)
    table = "\n".join(["| the paper | what it shows | here |", "|---|---|---|", *rows])
    return f"{table}\n\nWithout a counterpart in the paper: {links or 'none'}."
