"""The text that a model is trained on: batches drawn anew at every update.

Every method that draws a batch returns ids and mask, both (batch, length). mask[b, t] is 1 where
token t has to be predicted from those before it; the loss is taken nowhere else.
"""

import random
from functools import cache
from itertools import accumulate

import numpy as np
from towerlab.prompts import blocks

from training.tokenizer import LABELS

Batch = tuple[np.ndarray, np.ndarray]

# Pairs of classes that never meet in an episode. The paper's word sets ask about the first two; on
# the others the shipped step is chosen, so that the paper's word sets choose nothing.
BOOK_PAIRS = (("sentiment", "number"), ("animal", "country"))
VALIDATION_PAIRS = (
    ("fruit", "tool"),
    ("vehicle", "family"),
    ("sport", "building"),
    ("profession", "weather"),
)
APART = frozenset(frozenset(pair) for pair in BOOK_PAIRS + VALIDATION_PAIRS)

# How uneven the episodes are, as text is; the model's biases come from here.
ZIPF = 2.0  # the r-th word of a class is drawn with weight 1 / (r + 2) ** ZIPF
# of the Dirichlet distribution from which the class frequencies of an episode are drawn
CONCENTRATION = 0.5
# range of the probability, drawn per episode, that the class of the last demonstration stays
STAY = (0.0, 0.6)
WRONG_LABEL = 0.15  # probability that a demonstration has a random label of the episode
WRONG_WORD = 0.15  # probability that a word is of a class without a label in the episode


class Text:
    """A seeded source of training text over the token ids of `words` (word -> id).

    First drills of arbitrary tokens, which build the circuits that looking up a label needs; then
    episodes and plain lists.
    """

    def __init__(self, words: dict[str, int], seed: int):
        self.words = words
        self.random = random.Random(seed)
        self.numpy = np.random.default_rng(seed)
        self.colon, self.labels = words[":"], [words[label] for label in LABELS]
        self.class_words: dict[str, list[int]] = {}  # all words of a class, for the plain lists
        self.episode_words: dict[str, list[int]] = {}  # those that may stand in an episode
        for row in blocks.words().itertuples():
            self.class_words.setdefault(row.cls, []).append(words[row.word])
            if not row.heldout:
                self.episode_words.setdefault(row.cls, []).append(words[row.word])
        self.classes = list(self.class_words)
        # The drills bind arbitrary tokens; a fixed 800 of them are enough and are learned sooner.
        self.pool = (
            self.random.sample(sorted({i for word, i in words.items() if word != ":"}), 800)
            + self.labels
        )

    def repeats(self, batch: int, pool: int | None = None) -> Batch:
        """Arbitrary tokens, then the same again; every token of the second copy but its first is
        asked for.

        Other tokens stand in front and every row repeats at a distance of its own: with learned
        positions a model could otherwise copy from a fixed distance and never look at a token.
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

        first, second: whether a colon stands between word and label in the first and in the second
        copy.
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
        """ "word : label word"; the second `word` is asked for, so labels learn to look two
        positions back."""
        count = self.random.choice((2, 4, 8, 12))
        rows = [
            [
                token
                for word, label in self._pairs(count)
                for token in (word, self.colon, label, word)
            ]
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
        """Plain text: words of one class, held-out words too; every word but the first is asked
        for."""
        ids = np.array(
            [
                self._words(self.class_words[self.random.choice(self.classes)], length)
                for _ in range(batch)
            ]
        )
        mask = np.ones_like(ids)
        mask[:, 0] = 0
        return ids, mask

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
        """ "word : label" 4 to 17 times, labels drawn anew per episode; labels already seen are
        asked for.

        repeat: probability that a word is an exact repeat of an earlier one of its class; wrong
        words and wrong labels come in as it falls.
        """
        ids = np.empty((batch, 3 * self.random.randint(4, 17)), dtype=np.int64)
        mask = np.zeros_like(ids)
        ids[:, 1::3] = self.colon
        for row in range(batch):
            self._fill_episode(ids[row], mask[row], repeat)
        return ids, mask

    def _fill_episode(self, ids: np.ndarray, mask: np.ndarray, repeat: float) -> None:
        """Write one episode into ids and mask, both (token,)."""
        draw = self.random.random
        count = self.random.choice((2, 2, 3, 4, 6))
        *names, without_label = self._classes(count + 1)
        labels = self.random.sample(self.labels, count)
        often = np.cumsum(self.numpy.dirichlet([CONCENTRATION] * count))
        stay = self.random.uniform(*STAY)
        earlier: list[list[int]] = [[] for _ in names]
        past_labels, current = set(), -1
        for at in range(0, len(ids), 3):
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
            label = (
                self.random.choice(labels)
                if draw() < (1 - repeat) * WRONG_LABEL
                else labels[current]
            )
            ids[at], ids[at + 2], mask[at + 2] = word, label, label in past_labels
            past_labels.add(label)


@cache
def _zipf(count: int) -> list[float]:
    """Cumulative weights of the words of a class, in the order of the list."""
    return list(accumulate((rank + 2) ** -ZIPF for rank in range(count)))
