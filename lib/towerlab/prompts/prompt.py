"""Prompts of demonstrations, and the positions of their parts among the tokens.

Source: v1 section 3, "Word datasets". Positions come from the tokenizer's own offsets. The
character span of every part is known because the text is built here, so nothing is searched for in
text or in decoded tokens.

    >>> from towerlab.model.loading import load
    >>> two = Demonstration("like", "bar"), Demonstration("two", "foo")
    >>> prompt = Prompt(two, "one", "foo", ("foo", "bar"))
    >>> prompt.text, prompt.order
    ('like : bar two : foo one :', 'FT')
    >>> (encoded,) = load("mini-gpt2").encode([prompt])
    >>> encoded.label_positions, encoded.last
    ((2, 5), 7)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from twotowers.errors import TwoTowersError

Span = tuple[int, int]
"""Interval [start, stop) of characters or of tokens"""


@dataclass(frozen=True)
class Demonstration:
    """One "text : label"; `cls` is the class of the text, or "" if it has none."""

    text: str
    label: str
    cls: str = ""


@dataclass(frozen=True)
class Prompt:
    """Demonstrations, followed by a query that the model must label.

    `labels` are all label words of the prompt, `true_label` is the query's label, `query_class` the
    query's class, `dataset` the origin of the prompt, `separator` the text between demonstrations
    (SEPARATORS), and `block` the number of its block (`prompts.blocks`).
    """

    demonstrations: Sequence[Demonstration]
    query: str
    true_label: str
    labels: Sequence[str]
    query_class: str = ""
    dataset: str = ""
    separator: str = " "
    block: int = 0

    def __post_init__(self) -> None:
        """Turn sequences into tuples, so that a prompt can be hashed."""
        object.__setattr__(self, "demonstrations", tuple(self.demonstrations))
        object.__setattr__(self, "labels", tuple(self.labels))

    @property
    def text(self) -> str:
        """Text such as 'love : bar eight : foo one :', without a space at the end."""
        return _lay_out(self).text

    @property
    def is_true(self) -> tuple[bool, ...]:
        """Whether each demonstration has the query's label."""
        return tuple(d.label == self.true_label for d in self.demonstrations)

    @property
    def order(self) -> str:
        """`is_true` as letters, such as "FFTT"."""
        return "".join("FT"[true] for true in self.is_true)


class _Layout(NamedTuple):
    """The text of a prompt with the character spans of its parts."""

    text: str
    texts: list[Span]
    labels: list[Span]
    query: Span


def _lay_out(prompt: Prompt) -> _Layout:
    """Return the text of a prompt with the character spans of its parts."""
    text, texts, labels = "", [], []
    for d in prompt.demonstrations:
        texts.append((len(text), len(text) + len(d.text)))
        text += f"{d.text} : {d.label}"
        labels.append((len(text) - len(d.label), len(text)))
        text += prompt.separator
    query = len(text), len(text) + len(prompt.query)
    return _Layout(f"{text}{prompt.query} :", texts, labels, query)


@dataclass(frozen=True)
class Encoded:
    """A prompt as token ids, with the positions of its parts.

    Positions count from 0 and include a token for the beginning of the text.
    """

    prompt: Prompt
    ids: tuple[int, ...]
    label_positions: tuple[int, ...]
    """Position of the label's token, for each demonstration (of several tokens, the first)"""
    text_spans: tuple[Span, ...]
    """Interval of the tokens with characters of the text, for each demonstration"""
    query_span: Span
    last: int
    """Position of the final ':'"""
    label_ids: dict[str, int]
    """Label word -> id of the followed token, with which the model would begin that label"""

    @property
    def true_id(self) -> int:
        """Id of the followed token of the true label."""
        return self.label_ids[self.prompt.true_label]

    @property
    def places(self) -> tuple[tuple[int, ...], int]:
        """Positions of the labels and of the final ':'."""
        return self.label_positions, self.last

    @property
    def label_pair_ids(self) -> tuple[int, int]:
        """Ids of the followed tokens of both labels, the true label first."""
        return self.true_id, next(
            token for token in self.label_ids.values() if token != self.true_id
        )


Prompts = Sequence[Encoded]


def encode_all(
    prompts: Sequence[Prompt], tokenizer: Any, max_length: int | None = None
) -> list[Encoded]:
    """Return token ids and positions of prompts, in their order.

    The followed token of a label is the token that follows the prompt's own ids when " label" is
    appended.

    Args:
        prompts: Prompts of any length.
        tokenizer: Tokenizer of the model.
        max_length: Maximum number of tokens of a prompt, or None for no limit.

    Returns:
        Encoded prompts.

    Raises:
        TwoTowersError: If the tokenizer has no offsets; if the final ':' is not the last token; if
            a label merges with its neighbours, has another token in the prompt than at its end, is
            unknown to the vocabulary, or begins with the same token as another label; if a text or
            label contains a special token; or if the prompt has more than `max_length` tokens. The
            error names the prompt.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise TwoTowersError(
            "cannot use this tokenizer: it gives no offsets; load it with use_fast=True"
        )
    if not prompts:
        return []
    texts = [
        f"{p.text}{end}" for p in prompts for end in ("", *(f" {label}" for label in p.labels))
    ]
    tokens = _tokenise(texts, tokenizer)
    return [
        _encode(prompt, [next(tokens) for _ in ("", *prompt.labels)], tokenizer, max_length)
        for prompt in prompts
    ]


class _Tokens(NamedTuple):
    """Token ids of a text, with the character offsets of each token."""

    ids: list[int]
    starts: tuple[int, ...]
    ends: tuple[int, ...]


def _tokenise(texts: list[str], tokenizer: Any) -> Iterator[_Tokens]:
    """Yield the tokens of each text."""
    batch = tokenizer(
        texts,
        return_offsets_mapping=True,
        return_attention_mask=False,
        padding=False,
        truncation=False,
        verbose=False,
    )
    for ids, offsets in zip(batch["input_ids"], batch["offset_mapping"], strict=True):
        yield _Tokens(ids, *(zip(*offsets, strict=True) if offsets else ((), ())))


def _encode(
    prompt: Prompt, tokens: list[_Tokens], tokenizer: Any, max_length: int | None
) -> Encoded:
    """Encode one prompt from its tokens, and its tokens with each label appended."""
    (run, *ends), layout = tokens, _lay_out(prompt)
    text, n, size = layout.text, len(run.ids), len(layout.text)

    def check(valid: bool, problem: str, remedy: str = "choose another label") -> None:
        if not valid:
            excerpt = text if size <= 60 else f"{text[:30]} ... {text[-25:]}"
            raise TwoTowersError(f"cannot use the prompt {excerpt!r}: {problem}; {remedy}")

    for token in map(str, tokenizer.all_special_tokens):
        check(
            not any(token in part for part in (text, *prompt.labels)),
            f"it contains the special token '{token}'",
            "remove it from texts and labels",
        )
    check(
        max_length is None or n <= max_length,
        f"expected at most {max_length} tokens, got {n}",
        "use fewer or shorter demonstrations",
    )
    # The last token must be only the final ':', or no position could be trusted.
    check(
        n > 0 and run.starts[-1] < size == run.ends[-1],
        "the tokenizer adds a token after the final ':'",
        "load it with add_eos_token=False",
    )
    check(
        run.starts[-1] >= size - 2,
        "the tokenizer merges the final ':' with the text before it",
        "change the end of the query",
    )
    check(
        [*run.starts] == sorted(run.starts) and [*run.ends] == sorted(run.ends),
        "the tokenizer's offsets do not increase along the text",
        "use another tokenizer",
    )
    label_ids = {}
    for label, end in zip(prompt.labels, ends, strict=True):
        check(
            end.ids[:n] == run.ids and len(end.ids) > n,
            f"the label '{label}' changes the tokens before it",
        )
        check(
            end.ends[n] > size + 1,
            f"the label '{label}' begins with a token that is only a space",
            "choose a label that is in the vocabulary with its space",
        )
        check(end.ids[n] != tokenizer.unk_token_id, f"the label '{label}' is not in the vocabulary")
        label_ids[label] = end.ids[n]
    check(
        len(set(label_ids.values())) == len(label_ids),
        f"the labels {', '.join(prompt.labels)} begin with the same token",
        "choose labels with different first tokens",
    )
    positions, spans = [], []
    for d, (start, stop) in zip(prompt.demonstrations, layout.labels, strict=True):
        at = bisect_right(run.ends, start)
        check(
            run.starts[at] >= start - 1 and run.ends[at] <= stop,
            f"the label '{d.label}' merges with its neighbours",
        )
        check(run.ids[at] == label_ids[d.label], f"the label '{d.label}' has several tokenisations")
        positions.append(at)
    for start, stop in (*layout.texts, layout.query):
        span = bisect_right(run.ends, start), bisect_left(run.starts, stop)
        check(
            span[0] < span[1],
            f"the tokenizer has no token for the text {text[start:stop]!r}",
            "remove this text",
        )
        spans.append(span)
    return Encoded(
        prompt, tuple(run.ids), tuple(positions), tuple(spans[:-1]), spans[-1], n - 1, label_ids
    )


def batches(encoded: Prompts, max_tokens: int = 4096) -> Iterator[tuple[list[int], Prompts]]:
    """Yield batches of prompts of equal token length, so that no padding is needed.

    A batch has at most `max_tokens` tokens, and at least one prompt. Lengths are in the order of
    their first appearance, and prompts of a length in their own order.

    Args:
        encoded: Prompts of any length.
        max_tokens: Maximum number of tokens of a batch.

    Yields:
        Indices into `encoded`, and the prompts of these indices.
    """
    groups: dict[int, list[int]] = {}
    for index, e in enumerate(encoded):
        groups.setdefault(len(e.ids), []).append(index)
    for length, group in groups.items():
        size = max(1, max_tokens // length)
        for first in range(0, len(group), size):
            rows = group[first : first + size]
            yield rows, [encoded[i] for i in rows]
