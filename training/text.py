"""Batches of training text, drawn anew at every update.

Every method that draws a batch returns ids and mask, both (batch, length). mask[b, t] is 1 if
token t has to be predicted from the tokens before it. The loss is taken only there.
"""

import random
from functools import cache
from itertools import accumulate

import numpy as np
from towerlab.prompts import blocks

from training.tokenizer import LABELS

Batch = tuple[np.ndarray, np.ndarray]

# Pairs of classes that are never together in an episode. The paper's word sets ask about the first
# two. The step is chosen on the other pairs, so that the paper's word sets choose nothing.
BOOK_PAIRS = (("sentiment", "number"), ("animal", "country"))
VALIDATION_PAIRS = (
    ("fruit", "tool"),
    ("vehicle", "family"),
    ("sport", "building"),
    ("profession", "weather"),
)
APART = frozenset(frozenset(pair) for pair in BOOK_PAIRS + VALIDATION_PAIRS)

# The episodes are uneven like text. The model's biases come from these numbers.
ZIPF = 2.0  # the r-th word of a class is drawn with weight 1 / (r + 2) ** ZIPF
# Parameter of the Dirichlet distribution from which an episode draws its class frequencies
CONCENTRATION = 0.5
# Range of the probability, drawn per episode, that the class of the last demonstration stays
STAY = (0.0, 0.6)
WRONG_LABEL = 0.15  # probability that a demonstration has a random label of the episode
WRONG_WORD = 0.15  # probability that a word is of a class without a label in the episode


class Text:
    """A seeded source of training text over the token ids of `words`.

    At first there are drills of arbitrary tokens, which build the circuits that looking up a label
    needs. Episodes and plain lists follow.
    """

    def __init__(self, words: dict[str, int], seed: int):
        """Sort the words into classes, and draw the tokens of the drills.

        Args:
            words: Token id by word.
            seed: Seed of all draws.
        """
        self.words = words
        self.random = random.Random(seed)
        self.numpy = np.random.default_rng(seed)
        self.colon, self.labels = words[":"], [words[label] for label in LABELS]
        self.class_words: dict[str, list[int]] = {}  # all words of a class, for the plain lists
        self.episode_words: dict[str, list[int]] = {}  # words that may be in an episode
        for row in blocks.words().itertuples():
            self.class_words.setdefault(row.cls, []).append(words[row.word])
            if not row.heldout:
                self.episode_words.setdefault(row.cls, []).append(words[row.word])
        self.classes = list(self.class_words)
        # The drills bind arbitrary tokens. A fixed set of 800 is enough and is learned sooner.
        self.pool = (
            self.random.sample(sorted({i for word, i in words.items() if word != ":"}), 800)
            + self.labels
        )

    def repeats(self, batch: int, pool: int | None = None) -> Batch:
        """Return arbitrary tokens in two copies.

        All tokens of the second copy except its first one are asked.

        Other tokens come first, and every row repeats at a distance of its own. With learned
        positions a model could otherwise copy from a fixed distance and never attend to a token.

        Args:
            batch: Size of the batch.
            pool: Number of tokens to draw from; None for all. Copying few tokens is learned sooner.
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
        """Return words with an arbitrary word as label, then the same pairs in another order.

        Args:
            batch: Size of the batch.
            first: Whether a colon is between word and label in the first copy.
            second: Whether a colon is between word and label in the second copy.
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
        """Return repetitions of "word : label word", in which the second `word` is asked.

        Labels learn from them to attend two positions back.

        Args:
            batch: Size of the batch.
        """
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
        """Return pairs of different tokens of the pool."""
        tokens = self.random.sample(self.pool, 2 * count)
        return list(zip(tokens[::2], tokens[1::2], strict=True))

    def lists(self, batch: int, length: int = 8) -> Batch:
        """Return plain text: words of one class, held-out words included.

        Every word except the first is asked.

        Args:
            batch: Number of rows.
            length: Number of words in a row.
        """
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
        """Draw words of a class, frequent words more often."""
        return self.random.choices(pool, cum_weights=_zipf(len(pool)), k=count)

    def _classes(self, count: int) -> list[str]:
        """Draw classes of which no two are kept apart."""
        while True:
            names = self.random.sample(self.classes, count)
            if not any(pair <= set(names) for pair in APART):
                return names

    def episodes(self, batch: int, repeat: float) -> Batch:
        """Return episodes, which are "word : label" 4 to 17 times.

        Labels that occurred before in the episode are asked. Labels are drawn anew for each
        episode.

        Args:
            batch: Number of episodes.
            repeat: Probability that a word is an exact repeat of an earlier word of its class.
                Wrong words and wrong labels become more frequent as this probability falls.
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
                for _ in range(5):  # the same word is rare, as in the book's prompts
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
    """Return the cumulative weights of the words of a class, in the order of the list."""
    return list(accumulate((rank + 2) ** -ZIPF for rank in range(count)))
