"""What heads read and look for, in words: values, keys and queries projected into the vocabulary (v1 3.2, 4.3, app. C).

    for reading in readings(capture, model, [(22, 0)]):       # captured with want=WANT
        reading.kind, reading.vectors                         # "value", (batch, place, d_model)

Five kinds of vectors, each at places of the prompt:

- "value": `vo = W_O^h W_V^h norm(x)` at the label positions; what the head would write if it looked there only.
- "key": the layer's input at the label positions, before the norm and the key matrix; shared by all heads of a layer.
- "key, attention only": the same less the embedding and less all earlier FFN outputs, which is the attention outputs
  gathered so far (as in the authors' code). None in the first layer.
- "query": the last position's query carried through W_K of the head's key-value group, into the space in which the key
  matrix takes its input. In rotary models the query is taken before it is turned to its position, so the relative
  position is left out.
- "query, turned" (layers that rotate only): the query as the key at a label position meets it, turned to its own
  position and back by the key's. Its product with the normed input there is the model's own score, but for a bias of
  W_K.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from twotowers.errors import TwoTowersError
from twotowers.heads import Heads
from twotowers.model import query_key, unembed
from twotowers.model.capture import Capture, read_all
from twotowers.model.model import Model
from twotowers.model.token_text import Lexicon, content_words
from twotowers.prompts import datasets
from twotowers.prompts.prompt import Encoded

KINDS = ("value", "key", "key, attention only", "query", "query, turned")
WANT = frozenset({"values", "queries", "streams"})
RELATIONS = ("own label", "other label", "own text", "other text", "own class", "other class")


@dataclass(frozen=True)
class Reading:
    """Vectors of one kind in one layer, of one head or (keys) of all its heads; `places` are their positions."""

    kind: str
    layer: int
    head: int | None
    places: Int[Tensor, "batch place"]
    vectors: Float[Tensor, "batch place d_model"]

    @property
    def of(self) -> str:
        """ "22-0", or "layer 22" for what all its heads share."""
        return f"layer {self.layer}" if self.head is None else f"{self.layer}-{self.head}"


def value_outputs(
    capture: Capture, model: Model, layer: int, heads: Sequence[int], places: Int[Tensor, "batch place"]
) -> Float[Tensor, "batch head place d_model"]:
    """Value-output vectors `vo` of some heads of a layer at some positions, unweighted. Needs want={"values"}."""
    values = values_at(capture, model, layer, heads, places)
    weight = model.output_weight(layer)[list(heads)].to(values.device)
    return torch.einsum("bhpk,hkd->bhpd", values, weight)


def values_at(
    capture: Capture, model: Model, layer: int, heads: Sequence[int], places: Int[Tensor, "batch place"]
) -> Float[Tensor, "batch head place d_head"]:
    """Value vectors of some heads of a layer at some positions. Needs want={"values"}."""
    capture.require("values")
    shared = [model.value_head(head) for head in heads]  # grouped-query attention: heads share values
    values = capture.values[layer][:, shared]
    return values.gather(2, places[:, None, :, None].expand(-1, len(shared), -1, values.shape[-1]))


def key_inputs(
    capture: Capture, layer: int, places: Int[Tensor, "batch place"], attention_only: bool = False
) -> Float[Tensor, "batch place d_model"]:
    """Residual stream entering a layer at some positions, or only what attention put there. Needs want={"streams"}.

    Attention only: the sum of the earlier attention blocks' outputs, that is the layer's input less the embedding and
    less the earlier FFN outputs; a zero vector in layer 0.
    """
    capture.require("stream_inputs", "stream_attention")
    whole = capture.stream_attention[:layer].sum(0) if attention_only else capture.stream_inputs[layer]
    return at_places(whole, places)


def carried_query(
    capture: Capture, model: Model, layer: int, head: int, places: Int[Tensor, "batch place"] | None = None
) -> Float[Tensor, "batch place d_model"]:
    """The last query carried through W_K, without rotation (one place) or as seen from `places`.

    Needs want={"queries", "streams"}. Raises TwoTowersError for `places` in a layer that does not rotate: there all
    places see the same.
    """
    capture.require("queries", "stream_inputs")
    query, last = capture.queries[layer][:, head] * capture.scaling[layer], _last(capture)
    if places is None:
        query = query_key.rotated(model, layer, query, last[:, 0], back=True)
        return query_key.query_in_input_space(
            model,
            layer,
            head,
            query,
            None,
            query_key.normed(model, layer, at_places(capture.stream_inputs[layer], last)),
        )[0]
    if not model.rotates(layer):
        raise TwoTowersError(
            f"layer {layer} of {model.name} does not rotate its queries: leave out the places, all see the same"
        )
    seen = query_key.normed(model, layer, at_places(capture.stream_inputs[layer], places))
    return query_key.query_in_input_space(model, layer, head, query, places, seen)[0]


def at_places(
    x: Float[Tensor, "batch position d"], places: Int[Tensor, "batch place"]
) -> Float[Tensor, "batch place d"]:
    return x.gather(1, places[:, :, None].expand(-1, -1, x.shape[-1]))


def _last(capture: Capture) -> Int[Tensor, "batch one"]:
    return torch.tensor([[e.last] for e in capture.prompts], device=capture.resid_final.device)


def readings(capture: Capture, model: Model, heads: Heads) -> Iterator[Reading]:
    """Every kind of vector for every head; those of keys once a layer. Needs want=WANT."""
    labels, last = capture.label_positions, _last(capture)
    for layer in dict.fromkeys(layer for layer, _ in heads):
        yield Reading("key", layer, None, labels, key_inputs(capture, layer, labels))
        if layer:
            gathered = key_inputs(capture, layer, labels, attention_only=True)
            yield Reading("key, attention only", layer, None, labels, gathered)
    for layer, head in heads:
        values = value_outputs(capture, model, layer, [head], labels)[:, 0]
        yield Reading("value", layer, head, labels, values)
        yield Reading("query", layer, head, last, carried_query(capture, model, layer, head))
        if model.rotates(layer):
            yield Reading("query, turned", layer, head, labels, carried_query(capture, model, layer, head, labels))


def random_directions(
    vectors: Float[Tensor, "*rows d_model"], generator: torch.Generator
) -> Float[Tensor, "*rows d_model"]:
    """Vectors of random direction and of the same norms: what the vocabulary alone would answer."""
    drawn = torch.randn(vectors.shape, generator=generator, dtype=torch.float64).to(vectors)
    return drawn / drawn.norm(dim=-1, keepdim=True) * vectors.norm(dim=-1, keepdim=True)


def relations(encoded: Encoded, demonstration: int | None, classes: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Word (lower case) -> how it stands to one demonstration, or to the query when None; one of RELATIONS.

    Content words of its text are "own text", of all other texts "other text". "own class" and "other class" are words
    of the classes (`classes`: name -> words) that do not stand in the prompt. Many words have no relation.
    """
    prompt = encoded.prompt
    parts = [(d.text, d.label, d.cls) for d in prompt.demonstrations] + [(prompt.query, prompt.true_label, prompt.cls)]
    at = len(parts) - 1 if demonstration is None else demonstration
    own_text, own_label, own_class = parts[at]
    found: dict[str, str] = {}
    # Later entries win: what stands in the prompt is no news of its class.
    for cls in {cls for _, _, cls in parts} - {own_class}:
        found |= dict.fromkeys(classes.get(cls, ()), "other class")
    found |= dict.fromkeys(classes.get(own_class, ()), "own class")
    for text, _, _ in parts:
        found |= dict.fromkeys(content_words(text), "other text")
    found |= dict.fromkeys(content_words(own_text), "own text")
    found |= {label.casefold(): "own label" if label == own_label else "other label" for label in prompt.labels}
    return found


def _relations_of(encoded: Encoded, kind: str, classes: Mapping[str, Iterable[str]]) -> list[dict[str, str]]:
    """By place of a reading: a label position stands for its demonstration; every query reads the query."""
    if kind.startswith("query"):
        return [relations(encoded, None, classes)] * (1 if kind == "query" else len(encoded.label_positions))
    return [relations(encoded, i, classes) for i in range(len(encoded.label_positions))]


def top_word_table(
    model: Model, encoded: Encoded, heads: Heads, lexicon: Lexicon, k: int = 10, norm: str = "frozen"
) -> pd.DataFrame:
    """The top words of every reading of one prompt, with stop words kept and left out (v1 tables 1 and 3).

    One row per word: head, kind, position, token (that stands there), silent ("kept" / "left out": stop words and the
    like), rank, word, value (bs-value), relation ("" for none). Keys stand once for every head.
    """
    classes = datasets.class_words()

    def read(seen: Capture) -> list[dict]:
        scale, rows = unembed.norm_scale(seen.resid_final, model.unembedding), []
        for reading in readings(seen, model, heads):
            named = [f"{a}-{b}" for a, b in heads if a == reading.layer and reading.head in (None, b)]
            for silent, without in (("left out", lexicon.stopword_ids), ("kept", None)):
                values, ids = unembed.top_words(reading.vectors[0], k, model.unembedding, norm, scale, without)
                for place, position in enumerate(reading.places[0].tolist()):
                    known = _relations_of(encoded, reading.kind, classes)[place]
                    words = zip(values[place].tolist(), ids[place].tolist(), strict=True)
                    rows += [
                        {
                            "head": name, "kind": reading.kind, "position": position,
                            "token": lexicon.texts[encoded.ids[position]], "silent": silent, "rank": rank,
                            "word": lexicon.texts[word], "value": value, "relation": known.get(lexicon.plain[word], ""),
                        }
                        for rank, (value, word) in enumerate(words, 1)
                        for name in named
                    ]  # fmt: skip
        return rows

    (rows,) = read_all(model, [encoded], WANT, read)
    order = {name: i for i, name in enumerate([*(f"{a}-{b}" for a, b in heads), *KINDS])}
    by = ["head", "kind"]
    return pd.DataFrame(rows).sort_values(by, key=lambda c: c.map(order), kind="stable", ignore_index=True)


def related_words(
    model: Model,
    encoded: Sequence[Encoded],
    heads: Heads,
    lexicon: Lexicon,
    k: int = 10,
    norm: str = "frozen",
    random_seed: int | None = None,
    max_tokens: int = 2048,
    progress: str | None = None,
    means: Mapping[str, Mapping[tuple[str, str], Tensor] | None] | None = None,
) -> pd.DataFrame:
    """How many of the top k words of every reading have each relation to its place; stop words are passed over.

    One row per (reading, prompt, kind, head or layer, position): the columns of RELATIONS count different words, "other
    text" as the mean over the other texts so that it compares with "own text". `means`: for each name of a reading what
    is first taken out of the vectors (`label_reading.mean_readings`), or None; by default they are read as they are.
    With `random_seed` each is then replaced by a random one of its norm, drawn in the order of batches.

    All vectors of a batch go through the unembedding together. Memory: `max_tokens` streams of all layers, and a vector
    for every reading at every place of its prompts.
    """
    means = means or {"as they are": None}
    generators = {name: None if random_seed is None else torch.Generator().manual_seed(random_seed) for name in means}
    classes = datasets.class_words()

    def taken(reading: Reading, name: str) -> Float[Tensor, "batch place d_model"]:
        vectors = reading.vectors
        if (mean := means[name]) is not None:
            vectors = vectors - mean[reading.kind, reading.of].to(vectors)
        return vectors if generators[name] is None else random_directions(vectors, generators[name])

    def read(seen: Capture) -> list[tuple]:
        scale = unembed.norm_scale(seen.resid_final, model.unembedding)[:, None]
        found = [(name, one, taken(one, name)) for one in readings(seen, model, heads) for name in means]
        vectors = torch.cat([v.flatten(0, 1) for _, _, v in found])
        scales = torch.cat([scale.expand(v.shape[:2]).flatten() for _, _, v in found])
        _, ids = unembed.top_words(vectors, k, model.unembedding, norm, scales, lexicon.stopword_ids)
        told = {
            (row, kind): _relations_of(one, kind, classes) for row, one in enumerate(seen.prompts) for kind in KINDS
        }
        rows = []
        for (name, reading, v), words_of in zip(
            found, ids.split([v[..., 0].numel() for _, _, v in found]), strict=True
        ):
            words_at = words_of.view(*v.shape[:2], -1).tolist()
            for row, (at, one) in enumerate(zip(seen.index, seen.prompts, strict=True)):
                for place, known in enumerate(told[row, reading.kind]):
                    counts = [known.get(word) for word in {lexicon.plain[i] for i in words_at[row][place]}]
                    where = (at, len(one.label_positions), reading.kind, reading.of, int(reading.places[row, place]))
                    rows.append((name, *where, *map(counts.count, RELATIONS)))
        return rows

    rows = [row for some in read_all(model, encoded, WANT, read, max_tokens, progress) for row in some]
    table = pd.DataFrame(rows, columns=["reading", "prompt", "others", "kind", "of", "position", *RELATIONS])
    table["other text"] /= table.pop("others")
    return table


def per_prompt(table: pd.DataFrame, by: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """Means of columns within each prompt and value of `by`: the rows that intervals over prompts are taken from.

    A prompt is told by prompt, and by dataset and true_label where the table has them.
    """
    unit = [c for c in ("dataset", "true_label", "prompt", "query") if c in table and c not in by]
    return table.groupby([*by, *unit], sort=False, as_index=False)[list(columns)].mean()
