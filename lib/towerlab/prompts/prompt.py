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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from twotowers.errors import TwoTowersError

MAX_TOKENS = 4096
"""Maximum number of tokens that are run at once"""
T = TypeVar("T")
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
        return _text_and_spans(self)[0]

    @property
    def is_true(self) -> tuple[bool, ...]:
        """Whether each demonstration has the query's label."""
        return tuple(d.label == self.true_label for d in self.demonstrations)

    @property
    def other_class(self) -> str:
        """Class of the demonstrations that is not the query's, of two classes."""
        (cls,) = {d.cls for d in self.demonstrations} - {self.query_class}
        return cls

    @property
    def order(self) -> str:
        """`is_true` as letters, such as "FFTT"."""
        return "".join("FT"[true] for true in self.is_true)


def demonstrations_in_order(
    classes: Sequence[str], texts: Mapping[str, Iterable[str]], label: Mapping[str, str]
) -> list[Demonstration]:
    """Return demonstrations of some classes, each with the next text of its class.

    Args:
        classes: Class of each demonstration.
        texts: Class -> texts.
        label: Class -> label.
    """
    unused = {cls: iter(of_class) for cls, of_class in texts.items()}
    return [Demonstration(next(unused[cls]), label[cls], cls) for cls in classes]


def _text_and_spans(prompt: Prompt) -> tuple[str, list[Span]]:
    """Return the text of a prompt, and the character spans of its parts.

    The parts are the text and the label of each demonstration in turn, and the query.
    """
    text, spans = "", []
    parts = [
        part
        for d in prompt.demonstrations
        for part in ((d.text, " : "), (d.label, prompt.separator))
    ]
    for part, end in (*parts, (prompt.query, " :")):
        spans.append((len(text), len(text) + len(part)))
        text += part + end
    return text, spans


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
    encodings = iter(tokenizer(texts, verbose=False).encodings)
    return [
        _encode(prompt, [next(encodings) for _ in ("", *prompt.labels)], tokenizer, max_length)
        for prompt in prompts
    ]


def _encode(
    prompt: Prompt, encodings: list[Any], tokenizer: Any, max_length: int | None
) -> Encoded:
    """Return a prompt with positions, from the tokens of its text, and of it with each label."""
    (own, *with_labels), (text, parts) = encodings, _text_and_spans(prompt)
    ids, n, size = own.ids, len(own.ids), len(text)
    starts, ends = [start for start, _ in own.offsets], [end for _, end in own.offsets]

    def check(valid: bool, problem: str, remedy: str = "choose another label") -> None:
        if not valid:
            raise TwoTowersError(f"cannot use the prompt {text[:60]!r}: {problem}; {remedy}")

    every_text = "\n".join((text, *prompt.labels))
    for token in tokenizer.all_special_tokens:
        check(
            token not in every_text,
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
        n > 0 and starts[-1] < size == ends[-1],
        "the tokenizer adds a token after the final ':'",
        "load it with add_eos_token=False",
    )
    check(
        starts[-1] >= size - 2,
        "the tokenizer merges the final ':' with the text before it",
        "change the end of the query",
    )
    check(
        starts == sorted(starts) and ends == sorted(ends),
        "the tokenizer's offsets do not increase along the text",
        "use another tokenizer",
    )
    label_ids = {}
    for label, appended in zip(prompt.labels, with_labels, strict=True):
        check(
            appended.ids[:n] == ids and len(appended.ids) > n,
            f"the label '{label}' changes the tokens before it",
        )
        check(
            appended.offsets[n][1] > size + 1,
            f"the label '{label}' begins with a token that is only a space",
            "choose a label that is in the vocabulary with its space",
        )
        label_ids[label] = appended.ids[n]
        check(
            label_ids[label] != tokenizer.unk_token_id,
            f"the label '{label}' is not in the vocabulary",
        )
    check(
        len(set(label_ids.values())) == len(label_ids),
        f"the labels {', '.join(prompt.labels)} begin with the same token",
        "choose labels with different first tokens",
    )
    positions, spans = [], []
    for d, (start, stop) in zip(prompt.demonstrations, parts[1::2], strict=True):
        position = bisect_right(ends, start)
        check(
            starts[position] >= start - 1 and ends[position] <= stop,
            f"the label '{d.label}' merges with its neighbours",
        )
        check(
            ids[position] == label_ids[d.label], f"the label '{d.label}' has several tokenisations"
        )
        positions.append(position)
    for start, stop in parts[::2]:
        span = bisect_right(ends, start), bisect_left(starts, stop)
        check(
            span[0] < span[1],
            f"the tokenizer has no token for the text {text[start:stop]!r}",
            "remove this text",
        )
        spans.append(span)
    return Encoded(
        prompt, tuple(ids), tuple(positions), tuple(spans[:-1]), spans[-1], n - 1, label_ids
    )


def batches(encoded: Prompts, max_tokens: int) -> Iterator[tuple[list[int], Prompts]]:
    """Yield batches of prompts of equal token length, so that no padding is needed.

    A batch has at most `max_tokens` tokens, and at least one prompt. Lengths are in the order of
    their first appearance, and prompts of a length in their own order.

    Args:
        encoded: Prompts of any length.
        max_tokens: Maximum number of tokens of a batch.

    Yields:
        Indices into `encoded`, and the prompts of these indices.
    """
    numbers = range(len(encoded))
    for some in of_one_length(numbers, max_tokens, lambda i: len(encoded[i].ids)):
        yield some, [encoded[i] for i in some]


def of_one_length(
    items: Sequence[T], max_tokens: int, length: Callable[[Any], int] = len
) -> Iterator[list[T]]:
    """Yield items of equal length, at least one, with at most `max_tokens` tokens together.

    Args:
        items: Items of any length.
        max_tokens: Maximum number of tokens.
        length: Function of an item that returns its number of tokens.
    """
    by_length: dict[int, list[T]] = {}
    for item in items:
        by_length.setdefault(length(item), []).append(item)
    for n_tokens, group in by_length.items():
        size = max(1, max_tokens // n_tokens)
        for first in range(0, len(group), size):
            yield group[first : first + size]
