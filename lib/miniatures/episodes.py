"""The text the miniatures are trained on: a stream of batches, drawn anew at every step.

Every function of `Drills` and `Text` returns ids and mask, both of shape (batch, length). mask[b, t] is 1 where the
model has to foretell token t from those before it, and the loss is taken nowhere else.
"""

import random
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from miniatures.tokenizer import LABELS, read_words

# Pairs of classes that never meet in an episode. The first two are the ones the book asks about; on the
# others the checkpoint is chosen, so that the book's own prompts choose nothing.
BOOK_PAIRS = (("sentiment", "number"), ("animal", "country"))
VALIDATION_PAIRS = (
    ("fruit", "tool"),
    ("vehicle", "family"),
    ("sport", "building"),
    ("profession", "weather"),
)
APART = frozenset(frozenset(pair) for pair in BOOK_PAIRS + VALIDATION_PAIRS)


@dataclass(frozen=True)
class Unevenness:
    """How the episodes differ from a tidy table; the biases of the miniatures come from here."""

    zipf: float = 2.0  # the r-th word of a class is drawn with weight 1 / (r + 2) ** zipf
    dirichlet: float = 0.5  # class frequencies differ between episodes: Dirichlet with this concentration
    stay: tuple[float, float] = (0.0, 0.6)  # chance that a class goes on, drawn per episode: runs of a class
    wrong_label: float = 0.15  # chance that a demonstration bears another label of the episode
    wrong_word: float = 0.15  # chance that a word is of some class without a label in the episode


class Drills:
    """Batches of arbitrary tokens, which build the circuits that looking up needs.

    A subclass sets `random`, `colon` (an id) and `pool` (the ids drawn from).
    """

    random: random.Random
    colon: int
    pool: list[int]

    def repeats(self, batch: int, hide_distance: bool, pool: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Arbitrary tokens twice over; every token of the second copy but its first is asked.

        hide_distance -- put other tokens in front and let every row repeat at its own distance. Learned positions
        could otherwise copy from a fixed distance and never look at a token.
        pool -- of how many tokens to draw, all by default; with few of them copying is learned sooner.
        """
        if hide_distance:
            length = self.random.choice((16, 24))
            halves = [self.random.randint(4, length // 2) for _ in range(batch * 16 // length)]
        else:
            half = self.random.choice((4, 6, 8, 10, 12, 16))
            length, halves = 2 * half, [half] * (batch * 8 // half)
        ids = np.empty((len(halves), length), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, half in enumerate(halves):
            tokens = self.random.sample(self.pool[:pool], length - half)
            ids[row] = tokens + tokens[length - 2 * half :]
            mask[row, length - half + 1 :] = 1
        return ids, mask

    def recall(self, batch: int, first: bool, second: bool) -> tuple[np.ndarray, np.ndarray]:
        """Words, each with an arbitrary word for a label; the same pairs twice, in two orders.

        first, second -- whether a colon stands between word and label in the first and in the second copy.
        """
        count = self.random.choice((3, 4, 6, 8))
        batch = batch * 6 // count
        before, after = ([self.colon] if colon else [] for colon in (first, second))
        rows = []
        for _ in range(batch):
            tokens = self.random.sample(self.pool, 2 * count)
            pairs = list(zip(tokens[::2], tokens[1::2], strict=True))
            row = [token for w, x in pairs for token in (w, *before, x)]
            self.random.shuffle(pairs)
            rows.append(row + [token for w, x in pairs for token in (w, *after, x)])
        ids = np.array(rows)
        mask = np.zeros_like(ids)
        step = 2 + len(after)
        mask[:, count * (2 + len(before)) + step - 1 :: step] = 1
        return ids, mask

    def echoes(self, batch: int) -> tuple[np.ndarray, np.ndarray]:
        """ "word : label word"; the second `word` is asked, so labels learn to look two back."""
        count = self.random.choice((2, 4, 8, 12))
        batch = batch * 5 // count
        rows = []
        for _ in range(batch):
            tokens = self.random.sample(self.pool, 2 * count)
            pairs = zip(tokens[::2], tokens[1::2], strict=True)
            rows.append([token for w, x in pairs for token in (w, self.colon, x, w)])
        ids = np.array(rows)
        mask = np.zeros_like(ids)
        mask[:, 3::4] = 1
        return ids, mask


@dataclass
class Text(Drills):
    """A seeded source of training text over the token ids of `words` (word -> id)."""

    words: dict[str, int]
    seed: int
    uneven: Unevenness = field(default_factory=Unevenness)

    def __post_init__(self):
        self.random = random.Random(self.seed)
        self.numpy = np.random.default_rng(self.seed)
        self.colon = self.words[":"]
        self.labels = [self.words[label] for label in LABELS]
        self.listed: dict[str, list[int]] = {}  # all words of a class, for the plain lists
        self.shown: dict[str, list[int]] = {}  # those that may stand in an episode
        for row in read_words():
            self.listed.setdefault(row["class"], []).append(self.words[row["word"]])
            if row["heldout"] == "0":
                self.shown.setdefault(row["class"], []).append(self.words[row["word"]])
        self.classes = list(self.listed)
        self.weights = {
            name: list(accumulate((rank + 2) ** -self.uneven.zipf for rank in range(len(ids))))
            for name, ids in (*self.shown.items(), *((f"all {n}", i) for n, i in self.listed.items()))
        }
        # The first stages bind arbitrary tokens; a fixed 800 of them are enough and are learned sooner.
        pool = sorted({self.words[w] for w in self.words if w != ":"})
        self.pool = self.random.sample(pool, 800) + self.labels

    def lists(self, batch: int, length: int = 8) -> tuple[np.ndarray, np.ndarray]:
        """Plain text: words of one class, held-out words too; every word but the first is to be foretold."""
        rows = []
        for _ in range(batch):
            name = self.random.choice(self.classes)
            weights = self.weights[f"all {name}"]
            rows.append(self.random.choices(self.listed[name], cum_weights=weights, k=length))
        ids = np.array(rows)
        mask = np.ones_like(ids)
        mask[:, 0] = 0
        return ids, mask

    def classes_of_episode(self, count: int) -> list[str]:
        """`count` classes of which no two are kept apart."""
        while True:
            names = self.random.sample(self.classes, count)
            if not any(pair <= set(names) for pair in APART):
                return names

    def word_of(self, name: str) -> int:
        """A word of the class that may stand in an episode, frequent ones more often."""
        return self.random.choices(self.shown[name], cum_weights=self.weights[name])[0]

    def episodes(self, batch: int, repeat: float) -> tuple[np.ndarray, np.ndarray]:
        """ "word : label" 4 to 17 times, labels drawn anew per episode; mask on labels already seen.

        repeat -- chance that a word is an exact repeat of an earlier one of its class; wrong words and wrong
        labels come in as this chance sinks.
        """
        demonstrations = self.random.randint(4, 17)
        ids = np.empty((batch, 3 * demonstrations), dtype=np.int64)
        mask = np.zeros_like(ids)
        ids[:, 1::3] = self.colon
        for row in range(batch):
            self.fill_episode(ids[row], mask[row], repeat)
        return ids, mask

    def fill_episode(self, ids: np.ndarray, mask: np.ndarray, repeat: float) -> None:
        """Write one episode into ids and mask, both of shape (3 * demonstrations,)."""
        draw, uneven = self.random.random, self.uneven
        count = self.random.choice((2, 2, 3, 4, 6))
        *names, control_example = self.classes_of_episode(count + 1)
        labels = self.random.sample(self.labels, count)
        often = np.cumsum(self.numpy.dirichlet([uneven.dirichlet] * count))
        stay = self.random.uniform(*uneven.stay)
        spoilt = 1 - repeat
        used: list[list[int]] = [[] for _ in names]
        seen = set()
        current = -1
        for at in range(0, len(ids), 3):
            if current < 0 or draw() >= stay:
                current = min(int(np.searchsorted(often, draw())), count - 1)
            chance = draw()
            if used[current] and chance < repeat:
                word = self.random.choice(used[current])
            elif draw() < spoilt * uneven.wrong_word:
                word = self.word_of(control_example)
            else:
                word = self.word_of(names[current])
                for _ in range(5):  # seldom the same word twice, as in the book's prompts
                    if word not in used[current]:
                        break
                    word = self.word_of(names[current])
                used[current].append(word)
            label = labels[current]
            if draw() < spoilt * uneven.wrong_label:
                label = self.random.choice(labels)
            ids[at], ids[at + 2] = word, label
            mask[at + 2] = label in seen
            seen.add(label)
