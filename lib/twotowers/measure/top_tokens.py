"""What heads read and look for, in words: values, keys and queries projected into the vocabulary. Chapter 2.

    found = top_tokens(model, encoded, heads)            # a few prompts: every reading of every place is kept
    found.sel(what="key", mean="taken out")["token"]     # (prompt, head, place, rank)
    class_directions(model, encoded, heads)              # along what separates two classes, a pair at a time

Readings at the label positions, `token`, `bs_value`, `relation` (prompt, head, what, mean, place, rank):

- "value": the value-output vector `W_O^h W_V^h norm(x)`, what the head would write from there (v1 table 1);
- "key": the layer's input, which the key matrix reads; the same for all heads of a layer;
- "key, attention only": the attention outputs gathered so far, that is the layer's input minus the embedding and minus
  all earlier FFN outputs (as in the authors' code). Empty in layer 0.

And at the last position the same three with query_ before their names (prompt, head, mean, rank): the query before
rotation, carried through W_K into the space that the key matrix reads.

`mean`: "kept", or "taken out": less the mean over the prompts at the same place, as most of an unchanged key or query is
the same in every prompt and says nothing of its text. bs-values have the final norm's scale frozen (nats). Stop words
and punctuation are passed over, unless they are labels. `relation` is an index of RELATIONS: how the token relates to the
demonstration of its place (to the query, for queries). A label of several tokens is known by its first, as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from twotowers.errors import TwoTowersError
from twotowers.heads import Head, check_inside
from twotowers.measure.heads import check_labels_left, label_values
from twotowers.measure.observations import observations
from twotowers.model import query_key, unembed
from twotowers.model.capture import Capture, read_all
from twotowers.model.model import Model
from twotowers.model.token_text import Lexicon, content_words
from twotowers.prompts.blocks import class_words
from twotowers.prompts.prompt import Encoded, Prompt

WHAT = ("value", "key", "key, attention only")
MEAN = ("kept", "taken out")
RELATIONS = ("none", "own label", "other label", "own text", "own class", "other class")
Classes = Mapping[str, Iterable[str]]
"""Class -> its words"""


def top_tokens(
    model: Model,
    encoded: Sequence[Encoded],
    heads: Sequence[Head],
    k: int = 20,
    lexicon: Lexicon | None = None,
    classes: Classes | None = None,
    max_tokens: int = 2048,
) -> xr.Dataset:
    """See the module. `lexicon` and `classes` default to the model's tokenizer and the word lists.

    Memory: d_model numbers for every prompt, head, place and reading. Raises TwoTowersError for a head outside the model
    and prompts as `measure.heads`.
    """
    heads = list(dict.fromkeys(Head(*head) for head in heads))
    check_inside(heads, model.n_layers, model.n_heads, model.name)
    check_labels_left(encoded)
    lexicon = lexicon or Lexicon.of(model.tokenizer, model.unembedding.vocabulary)
    n, places = len(encoded), len(encoded[0].label_positions)
    wide = torch.promote_types(model.dtype, torch.float32)
    vectors = torch.zeros(n, len(heads), len(WHAT), places, model.d_model, dtype=wide)
    queries, scale = torch.zeros(n, len(heads), model.d_model, dtype=wide), torch.ones(n, dtype=wide)

    def read(seen: Capture) -> None:
        scale[seen.index] = unembed.norm_scale(seen.resid_final, model.unembedding).to(scale)
        at = seen.label_positions[..., None].expand(-1, -1, model.d_model)
        for i, (layer, head) in enumerate(heads):
            value = label_values(seen, model, layer)[:, head] @ model.output_weight(layer)[head]
            gathered = seen.stream_attention[:layer].sum(0) if layer else torch.zeros_like(seen.stream_inputs[0])
            keys = [x.gather(1, at) for x in (seen.stream_inputs[layer], gathered)]
            vectors[seen.index, i] = torch.stack([value, *keys], 1).to(vectors)
            queries[seen.index, i] = carried_query(seen, model, layer, head).to(queries)

    read_all(model, encoded, {"values", "queries", "streams"}, read, max_tokens)
    known = _all_relations(encoded, class_words() if classes is None else classes, lexicon)
    labels = torch.tensor(sorted({token for e in encoded for token in e.label_ids.values()}))
    skipped = lexicon.stopword_ids[~torch.isin(lexicon.stopword_ids, labels)]

    def best(x: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Top bs-values and tokens of vectors with the mean over prompts kept and taken out: (prompt, ..., mean, rank)."""
        both = torch.stack([x, x - x.mean(0)], -2)
        scales = scale.reshape(-1, *[1] * (both.dim() - 2)).expand(both.shape[:-1])
        found = unembed.top_words(
            both.to(model.device), k, model.unembedding, "frozen", scales.to(model.device), skipped
        )
        return tuple(part.cpu().numpy() for part in found)

    bs, ids = (np.moveaxis(part, -2, 3) for part in best(vectors))  # (prompt, head, what, mean, place, rank)
    query_bs, query_ids = best(queries)
    shown = {"": (bs, ids, known[:, :-1]), "query_": (query_bs, query_ids, known[:, -1])}
    dims = {"": ("prompt", "head", "what", "mean", "place", "rank"), "query_": ("prompt", "head", "mean", "rank")}
    texts = np.array(lexicon.texts)
    variables: dict[str, tuple] = {}
    for name, (values, tokens, relations) in shown.items():
        variables |= {
            f"{name}token": (dims[name], texts[tokens], "token"),
            f"{name}bs_value": (dims[name], values, "nats"),
            f"{name}relation": (dims[name], _codes(tokens, relations, lexicon), f"index of {', '.join(RELATIONS)}"),
        }
    found = observations(
        encoded,
        variables,
        head=[str(h) for h in heads],
        what=list(WHAT),
        mean=list(MEAN),
        rank=np.arange(1, bs.shape[-1] + 1),
    )
    layer = xr.DataArray([head.layer for head in heads], dims="head")
    empty = (found["what"] == WHAT[2]) & (layer == 0)
    return found.assign(token=found["token"].where(~empty, ""), bs_value=found["bs_value"].where(~empty),
                        relation=found["relation"].where(~empty, 0))  # fmt: skip


def carried_query(seen: Capture, model: Model, layer: int, head: int) -> Float[Tensor, "batch d_model"]:
    """The last query, before rotation and with its scaling, carried through W_K (needs "queries" and "streams")."""
    last = torch.full((len(seen.prompts),), seen.prompts[0].last, device=seen.queries.device)
    query = query_key.rotated(model, layer, seen.queries[layer][:, head] * seen.scaling[layer], last, back=True)
    normed = query_key.normed(model, layer, seen.stream_inputs[layer][:, -1:])
    return query_key.query_in_input_space(model, layer, head, query, None, normed)[0][:, 0]


def class_directions(
    model: Model,
    encoded: Sequence[Encoded],
    heads: Sequence[Head],
    k: int = 20,
    lexicon: Lexicon | None = None,
    classes: Classes | None = None,
    max_tokens: int = 2048,
) -> xr.Dataset:
    """Top tokens along the class direction of queries and keys: `token`, `bs_value`, `relation` (pair, head, tower, end, rank).

    The direction of a class pair is the mean over prompts whose query is of its first class minus that of its second
    (tower "query"), or the mean over label positions of either class (tower "key"): the directions that steering adds,
    before rotation. Each is carried back into the space that the key matrix reads, the query's by W_K transposed, the
    key's by W_K's pseudo-inverse. `end` "first" has the highest tokens, "second" the lowest, with the sign turned.
    `relation`: "own class" is the class of the end, "own label" does not occur. Raises TwoTowersError for a pair whose
    classes are not both asked.
    """
    heads = list(dict.fromkeys(Head(*head) for head in heads))
    check_inside(heads, model.n_layers, model.n_heads, model.name)
    lexicon = lexicon or Lexicon.of(model.tokenizer, model.unembedding.vocabulary)
    pairs = list(dict.fromkeys(e.prompt.dataset for e in encoded))
    sums = torch.zeros(len(pairs), len(heads), 2, 2, model.d_head, dtype=torch.float64)  # pair, head, tower, class
    counts, scales = torch.zeros(len(pairs), 2, 2, dtype=torch.float64), []

    def read(seen: Capture) -> tuple[list[int], Tensor, Tensor, Tensor]:
        """Of a batch: queries (prompt, head, d_head), keys at label positions (prompt, head, place, d_head), scales."""
        last, found = torch.full((len(seen.prompts),), seen.prompts[0].last, device=seen.queries.device), []
        for layer, head in heads:
            query = query_key.rotated(model, layer, seen.queries[layer][:, head], last, back=True) * seen.scaling[layer]
            at = seen.label_positions[..., None].expand(-1, -1, model.d_model)
            normed = query_key.normed(model, layer, seen.stream_inputs[layer].gather(1, at))
            found.append((query, query_key.keys(model, layer, normed)[:, :, model.value_head(head)]))
        queries, keys = (torch.stack(some, 1).double().cpu() for some in zip(*found, strict=True))
        return seen.index, queries, keys, unembed.norm_scale(seen.resid_final, model.unembedding).double().cpu()

    for index, queries, keys, scale in read_all(model, encoded, {"queries", "streams"}, read, max_tokens):
        scales.append(scale)
        for row, i in enumerate(index):
            prompt = encoded[i].prompt
            pair, order = pairs.index(prompt.dataset), prompt.dataset.split("/")
            parts = [(0, prompt.cls, queries[row])]
            parts += [(1, d.cls, keys[row, :, place]) for place, d in enumerate(prompt.demonstrations)]
            for tower, cls, vector in parts:
                sums[pair, :, tower, order.index(cls)] += vector
                counts[pair, tower, order.index(cls)] += 1
    if not counts.all():
        missing = pairs[int((counts == 0).any(2).any(1).nonzero()[0, 0])]
        raise TwoTowersError(f"the classes of '{missing}' are not both asked: draw more blocks of this pair")
    means = sums / counts[:, None, :, :, None]
    direction = means[..., 0, :] - means[..., 1, :]
    carried = torch.zeros(len(pairs), len(heads), 2, model.d_model, dtype=torch.float64)
    for i, (layer, head) in enumerate(heads):
        weight = model.key_weight(layer)[0][model.value_head(head)].double().cpu()  # (d_head, d_model)
        carried[:, i, 0] = direction[:, i, 0] @ weight
        carried[:, i, 1] = direction[:, i, 1] @ torch.linalg.pinv(weight).T
    both = torch.stack([carried, -carried], 3).to(model.device, torch.promote_types(model.dtype, torch.float32))
    scale = torch.cat(scales).mean().to(both).expand(both.shape[:-1])
    bs, ids = (
        part.cpu().numpy()
        for part in unembed.top_words(both, k, model.unembedding, "frozen", scale, lexicon.stopword_ids)
    )
    words = class_words() if classes is None else classes
    relations = np.empty(ids.shape, dtype=np.int8)
    for p, named in enumerate(pairs):
        ends = named.split("/")
        for end in (0, 1):
            known = _of_classes(ends[end], ends, words)
            relations[p, :, :, end] = _codes(ids[None, p, :, :, end], np.array([known], dtype=object), lexicon)[0]
    dims = ("pair", "head", "tower", "end", "rank")
    return xr.Dataset(
        {
            "token": (dims, np.array(lexicon.texts)[ids], {"units": "token"}),
            "bs_value": (dims, bs, {"units": "nats"}),
            "relation": (dims, relations, {"units": f"index of {', '.join(RELATIONS)}"}),
        },
        {"pair": pairs, "head": [str(h) for h in heads], "tower": ["query", "key"], "end": ["first", "second"],
         "rank": np.arange(1, ids.shape[-1] + 1)},
    )  # fmt: skip


def _of_classes(cls: str, all_classes: Iterable[str], words: Classes) -> dict[str, int]:
    """Word (lower case) -> code of "own class" or "other class"; a word of both is of its own."""
    found: dict[str, int] = {}
    for name in sorted(set(all_classes), key=lambda name: name == cls):
        code = RELATIONS.index("own class" if name == cls else "other class")
        found |= {word.casefold(): code for word in words.get(name, ())}
    return found


def relations_of(prompt: Prompt, place: int | None, words: Classes) -> dict[str, int]:
    """Word (lower case) -> its relation to the demonstration at `place`, or to the query (None), as a code.

    What stands in the prompt says nothing of its class: words of other texts have no relation.
    """
    parts = [(d.text, d.label, d.cls) for d in prompt.demonstrations] + [(prompt.query, prompt.true_label, prompt.cls)]
    text, label, cls = parts[-1 if place is None else place]
    found = _of_classes(cls, [of for _, _, of in parts], words)
    for other, _, _ in parts:
        found |= dict.fromkeys(content_words(other), RELATIONS.index("none"))
    found |= dict.fromkeys(content_words(text), RELATIONS.index("own text"))
    for word in prompt.labels:
        found[word.casefold()] = RELATIONS.index("own label" if word == label else "other label")
    return found


def _all_relations(encoded: Sequence[Encoded], words: Classes, lexicon: Lexicon) -> np.ndarray:
    """`relations_of` every place, and of the query: (prompt, place + 1), of dicts. A label's token may be a piece of it."""
    places = [*range(len(encoded[0].label_positions)), None]
    out = np.empty((len(encoded), len(places)), dtype=object)
    for i, e in enumerate(encoded):
        for j, place in enumerate(places):
            known = relations_of(e.prompt, place, words)
            out[i, j] = known | {lexicon.plain[token]: known[label.casefold()] for label, token in e.label_ids.items()}
    return out


def _codes(
    ids: Int[np.ndarray, "prompt *rest"], known: np.ndarray, lexicon: Lexicon
) -> Int[np.ndarray, "prompt *rest"]:
    """Codes of tokens, by the relations of their prompt (prompt,) or of prompt and place (prompt, place)."""
    out = np.empty(ids.shape, dtype=np.int8)
    for i, of_prompt in enumerate(known):
        for place, relations in enumerate(np.atleast_1d(of_prompt)):
            at = (i, ..., place, slice(None)) if known.ndim > 1 else (i,)
            out[at] = np.vectorize(lambda token, known=relations: known.get(lexicon.plain[token], 0), otypes=[np.int8])(
                ids[at]
            )
    return out
