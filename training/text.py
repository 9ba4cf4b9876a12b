"""The text that a model is trained on: batches drawn anew at every update.

Every method that draws a batch returns ids and mask, both (batch, length). mask[b, t] is 1 where token t has to be
predicted from those before it; the loss is taken nowhere else.
"""

import random
from functools import cache
from itertools import accumulate, pairwise

import numpy as np
import torch
from towerlab.prompts import blocks
from towerlab.prompts.sentences import Sentence
from twotowers.data_files import read_table

from training.configuration import SHIPPED, Configuration
from training.tokenizer import DATA, LABELS, common_words

Batch = tuple[np.ndarray, np.ndarray]

# Pairs of classes that never meet in an episode. The paper's word sets ask about the first two; on the others the
# shipped step is chosen, so that the paper's word sets choose nothing.
BOOK_PAIRS = (("sentiment", "number"), ("animal", "country"))
VALIDATION_PAIRS = (("fruit", "tool"), ("vehicle", "family"), ("sport", "building"), ("profession", "weather"))
APART = frozenset(frozenset(pair) for pair in BOOK_PAIRS + VALIDATION_PAIRS)

# How uneven the episodes are, as text is; the model's biases come from here.
ZIPF = 2.0  # the r-th word of a class is drawn with weight 1 / (r + 2) ** ZIPF
CONCENTRATION = 0.5  # of the Dirichlet distribution from which the class frequencies of an episode are drawn
STAY = (0.0, 0.6)  # range of the probability, drawn per episode, that the class of the last demonstration stays
WRONG_LABEL = 0.15  # probability that a demonstration has a random label of the episode
WRONG_WORD = 0.15  # probability that a word is of a class without a label in the episode


class Text:
    """A seeded source of training text over the token ids of `words` (word -> id).

    First drills of arbitrary tokens, which build the circuits that looking up a label needs; then episodes and plain lists.
    """

    def __init__(self, words: dict[str, int], seed: int, configuration: Configuration = SHIPPED):
        self.words, self.random, self.numpy = words, random.Random(seed), np.random.default_rng(seed)
        self.configuration, self.colon = configuration, words[":"]
        self.common = [words[word] for word in common_words()]
        self.labels = [*(words[label] for label in LABELS), *self.common][: configuration.label_words]
        self.class_words: dict[str, list[int]] = {}  # all words of a class, for the plain lists
        self.episode_words: dict[str, list[int]] = {}  # those that may stand in an episode
        for row in blocks.words():
            self.class_words.setdefault(row.cls, []).append(words[row.word])
            if not row.heldout:
                self.episode_words.setdefault(row.cls, []).append(words[row.word])
        self.classes = list(self.class_words)
        # The drills bind arbitrary tokens; a fixed 800 of them are enough and are learned sooner.
        self.pool = self.random.sample(sorted({i for word, i in words.items() if word != ":"}), 800) + self.labels
        if configuration.other_text:  # a label word is also one of the frequent words of a class
            for pool, label in zip(self.class_words.values(), self.labels, strict=False):
                pool.insert(3, label)
            unknown: dict[str, int] = {}  # and stands for words of sentences that the model has no token for
            self.sentences = [
                [
                    words[word] if word in words else self.labels[unknown.setdefault(word, len(unknown)) % len(self.labels)]
                    for word in row.sentence.lower().split()
                ]
                for row in read_table(DATA / "sentences/own.csv", Sentence)
            ]

    def repeats(self, batch: int, pool: int | None = None) -> Batch:
        """Arbitrary tokens, then the same again; every token of the second copy but its first is asked for.

        Other tokens stand in front and every row repeats at a distance of its own: with learned positions a model could
        otherwise copy from a fixed distance and never look at a token.
        pool: draw from so many tokens only; with few of them copying is learned sooner.
        """
        length = self.random.choice((16, 24))
        halves = [self.random.randint(4, length // 2) for _ in range(batch * 16 // length)]
        ids = np.empty((len(halves), length), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, half in enumerate(halves):
            tokens = self.random.sample(self.pool[:pool], length - half)
            ids[row] = tokens + tokens[length - 2 * half :]
            mask[row, length - half + 1 :] = 1
        return ids, mask

    def recall(self, batch: int, first: bool, second: bool) -> Batch:
        """Words, each with an arbitrary word for a label; then the same pairs in another order.

        first, second: whether a colon stands between word and label in the first and in the second copy.
        """
        count = self.random.choice((3, 4, 6, 8))
        before, after = ([self.colon] if colon else [] for colon in (first, second))
        rows = []
        for _ in range(batch * 6 // count):
            pairs = self._pairs(count)
            row = [token for word, label in pairs for token in (word, *before, label)]
            self.random.shuffle(pairs)
            rows.append(row + [token for word, label in pairs for token in (word, *after, label)])
        ids = np.array(rows)
        mask = np.zeros_like(ids)
        step = 2 + len(after)
        mask[:, count * (2 + len(before)) + step - 1 :: step] = 1
        return ids, mask

    def echoes(self, batch: int) -> Batch:
        """ "word : label word"; the second `word` is asked for, so labels learn to look two positions back."""
        count = self.random.choice((2, 4, 8, 12))
        rows = [
            [token for word, label in self._pairs(count) for token in (word, self.colon, label, word)]
            for _ in range(batch * 5 // count)
        ]
        ids = np.array(rows)
        mask = np.zeros_like(ids)
        mask[:, 3::4] = 1
        return ids, mask

    def _pairs(self, count: int) -> list[tuple[int, int]]:
        tokens = self.random.sample(self.pool, 2 * count)
        return list(zip(tokens[::2], tokens[1::2], strict=True))

    def lists(self, batch: int, length: int = 8) -> Batch:
        """Plain text: words of one class, held-out words too; every word but the first is asked for."""
        return _continued([self._words(self.class_words[self.random.choice(self.classes)], length) for _ in range(batch)])

    def other(self, batch: int, length: int = 24) -> Batch:
        """Text that is no episode: lists, or sentences one after the other; every word but the first is asked for."""
        if self.random.random() < 0.5:
            return self.lists(batch, length)
        rows = [self.random.choices(self.sentences, k=length) for _ in range(batch)]
        return _continued([[word for sentence in row for word in sentence][:length] for row in rows])

    def _words(self, pool: list[int], count: int = 1) -> list[int]:
        """Words of a class, frequent ones more often."""
        return self.random.choices(pool, cum_weights=_zipf(len(pool)), k=count)

    def _classes(self, count: int) -> list[str]:
        """`count` classes, no two of which are kept apart."""
        while True:
            names = self.random.sample(self.classes, count)
            if not any(pair <= set(names) for pair in APART):
                return names

    def episodes(self, batch: int, repeat: float) -> Batch:
        """ "word : label" 4 to 17 times, labels drawn anew per episode; labels already seen are asked for.

        repeat: probability that a word is an exact repeat of an earlier one of its class; wrong words and wrong
        labels come in as it falls.
        """
        fewest, most = self.configuration.text_tokens
        demonstrations = self.random.randint(4, 17)
        sizes = [1 if most == 1 else self.random.randint(fewest, most) for _ in range(demonstrations)]
        starts = list(accumulate((size + 2 for size in sizes), initial=0))  # of the demonstrations, and the end
        ids = np.empty((batch, starts[-1]), dtype=np.int64)
        mask = np.zeros_like(ids)
        ids[:, [end - 2 for end in starts[1:]]] = self.colon
        for row in range(batch):
            self._fill_episode(ids[row], mask[row], repeat, starts)
        return ids, mask

    def _fill_episode(self, ids: np.ndarray, mask: np.ndarray, repeat: float, starts: list[int]) -> None:
        """Write one episode into ids and mask, both (token,)."""
        draw = self.random.random
        count = self.random.choice((2, 2, 3, 4, 6))
        *names, without_label = self._classes(count + 1)
        labels = self.random.sample(self.labels, count)
        often = np.cumsum(self.numpy.dirichlet([CONCENTRATION] * count))
        stay = self.random.uniform(*STAY)
        earlier: list[list[int]] = [[] for _ in names]
        past_labels, current = set(), -1
        for start, end in pairwise(starts):
            if current < 0 or draw() >= stay:
                current = min(int(np.searchsorted(often, draw())), count - 1)
            pool, chance = self.episode_words[names[current]], draw()
            if earlier[current] and chance < repeat:
                word = self.random.choice(earlier[current])
            elif draw() < (1 - repeat) * WRONG_WORD:
                (word,) = self._words(self.episode_words[without_label])
            else:
                (word,) = self._words(pool)
                for _ in range(5):  # seldom the same word twice, as in the book's prompts
                    if word not in earlier[current]:
                        break
                    (word,) = self._words(pool)
                earlier[current].append(word)
            label = self.random.choice(labels) if draw() < (1 - repeat) * WRONG_LABEL else labels[current]
            ids[start : end - 2] = in_company(word, self.common, end - 2 - start, self.random)
            ids[end - 1], mask[end - 1] = label, label in past_labels
            past_labels.add(label)


def _continued(rows: list[list[int]]) -> Batch:
    """Rows of plain text: every token but the first is asked for."""
    ids = np.array(rows)
    mask = np.ones_like(ids)
    mask[:, 0] = 0
    return ids, mask


def in_company(word, common: list, tokens: int, source: random.Random) -> list:
    """A text of so many tokens: the word, at any place among common ones."""
    if tokens == 1:
        return [word]
    text = source.choices(common, k=tokens - 1)
    text.insert(source.randrange(tokens), word)
    return text


BEHIND = {"asked word to its first copy": 0, "asked word to its label": 1, "asked word to what follows": 2}
"""Attention from a word that is asked for its label -> how far behind its first copy it goes"""
ASKED_TO_WORDS, LABELS_TO_WORDS = "asked word to words of the first copy", "labels to the word before"
RECALL_EDGES = ("nothing", *BEHIND, LABELS_TO_WORDS)


def recall_edges(ids: torch.Tensor, name: str) -> torch.Tensor:
    """Edges of attention in rows of recall without colons (batch, length): (batch, query, position)."""
    half = ids.shape[1] // 2
    edges = torch.zeros(*ids.shape, 2 * half, dtype=torch.bool)
    if name in BEHIND:
        same_word = ids[:, half::2, None] == ids[:, None, : half - BEHIND[name]]
        edges[:, half::2, BEHIND[name] : half] = same_word
    elif name == ASKED_TO_WORDS:
        edges[:, half::2, :half:2] = True
    elif name == LABELS_TO_WORDS:
        edges[:, range(1, half, 2), range(0, half, 2)] = True
    elif name != "nothing":
        raise ValueError(f"no edges '{name}' in recall: {', '.join((*RECALL_EDGES, ASKED_TO_WORDS))}")
    return edges


@cache
def _zipf(count: int) -> list[float]:
    """Cumulative weights of the words of a class, in the order of the list."""
    return list(accumulate((rank + 2) ** -ZIPF for rank in range(count)))
