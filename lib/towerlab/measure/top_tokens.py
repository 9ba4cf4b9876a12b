"""What heads read and look for, in words: values, keys and queries projected into the vocabulary. Chapter 2.

    data = top_tokens(model, encoded, heads)            # a few prompts: every reading of every place is kept
    data.sel(what="key", mean="taken out")["token"]     # (prompt, head, place, rank)

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
from twotowers.heads import Head, check_inside, listed
from twotowers.recording import Recording
from twotowers.store import RELATIONS

from towerlab.measure.chain import JUDGING, Run
from towerlab.measure.observations import observations
from towerlab.model import query_key, unembed
from towerlab.model.capture import Capture, check_labels_left, label_values, read_all
from towerlab.model.model import Model
from towerlab.model.token_text import Lexicon, content_words
from towerlab.prompts.blocks import class_words
from towerlab.prompts.prompt import Encoded, Prompt

WHAT = ("value", "key", "key, attention only")
MEAN = ("kept", "taken out")
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

    def read(capture: Capture) -> None:
        scale[capture.index] = unembed.norm_scale(capture.resid_final, model.unembedding).to(scale)
        at = capture.label_positions[..., None].expand(-1, -1, model.d_model)
        for i, (layer, head) in enumerate(heads):
            value = label_values(capture, model, layer)[:, head] @ model.output_weight(layer)[head]
            attention_sum = capture.stream_attention[:layer].sum(0) if layer else torch.zeros_like(capture.stream_inputs[0])
            keys = [x.gather(1, at) for x in (capture.stream_inputs[layer], attention_sum)]
            vectors[capture.index, i] = torch.stack([value, *keys], 1).to(vectors)
            queries[capture.index, i] = carried_query(capture, model, layer, head).to(queries)

    read_all("top tokens", model, encoded, {"values", "streams"}, read, max_tokens)
    all_relations = _all_relations(encoded, class_words() if classes is None else classes, lexicon)
    labels = torch.tensor(sorted({token for e in encoded for token in e.label_ids.values()}))
    stopwords = lexicon.stopword_ids[~torch.isin(lexicon.stopword_ids, labels)]

    def best(x: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Top bs-values and tokens of vectors with the mean over prompts kept and taken out: (prompt, ..., mean, rank)."""
        both = torch.stack([x, x - x.mean(0)], -2)
        scales = scale.reshape(-1, *[1] * (both.dim() - 2)).expand(both.shape[:-1])
        top = unembed.top_words(both.to(model.device), k, model.unembedding, scales.to(model.device), stopwords)
        return tuple(part.cpu().numpy() for part in top)

    bs, ids = (np.moveaxis(part, -2, 3) for part in best(vectors))  # (prompt, head, what, mean, place, rank)
    query_bs, query_ids = best(queries)
    readings = {"": (bs, ids, all_relations[:, :-1]), "query_": (query_bs, query_ids, all_relations[:, -1])}
    dims = {"": ("prompt", "listed_head", "what", "mean", "place", "rank"), "query_": ("prompt", "listed_head", "mean", "rank")}
    texts = np.array(lexicon.texts)
    variables: dict[str, tuple] = {}
    for name, (values, tokens, relations) in readings.items():
        variables |= {
            f"{name}token": (dims[name], texts[tokens], "token"),
            f"{name}bs_value": (dims[name], values, "nats"),
            f"{name}relation": (dims[name], _codes(tokens, relations, lexicon), f"index of {', '.join(RELATIONS)}"),
        }
    data = observations(encoded, variables, **listed(heads), what=list(WHAT), mean=list(MEAN), rank=np.arange(1, bs.shape[-1] + 1))
    empty = (data["what"] == WHAT[2]) & (data["layer"] == 0)
    return data.assign(
        token=data["token"].where(~empty, ""), bs_value=data["bs_value"].where(~empty), relation=data["relation"].where(~empty, 0)
    )


def carried_query(capture: Capture, model: Model, layer: int, head: int) -> Float[Tensor, "batch d_model"]:
    """The last query, before rotation and with its scaling, carried through W_K (needs "streams")."""
    normed = query_key.normed(model, layer, capture.stream_inputs[layer][:, -1])
    query = query_key.queries(model, layer, normed)[:, head]
    return query_key.query_in_input_space(model, layer, head, query, normed)


def _of_classes(cls: str, all_classes: Iterable[str], words: Classes) -> dict[str, int]:
    """Word (lower case) -> code of "own class" or "other class"; a word of both is of its own."""
    codes: dict[str, int] = {}
    for name in sorted(set(all_classes), key=lambda name: name == cls):
        code = RELATIONS.index("own class" if name == cls else "other class")
        codes |= {word.casefold(): code for word in words.get(name, ())}
    return codes


def relations_of(prompt: Prompt, place: int | None, words: Classes) -> dict[str, int]:
    """Word (lower case) -> its relation to the demonstration at `place`, or to the query (None), as a code.

    What stands in the prompt says nothing of its class: words of other texts have no relation.
    """
    parts = [(d.text, d.label, d.cls) for d in prompt.demonstrations] + [(prompt.query, prompt.true_label, prompt.cls)]
    text, label, cls = parts[-1 if place is None else place]
    codes = _of_classes(cls, [of for _, _, of in parts], words)
    for other, _, _ in parts:
        codes |= dict.fromkeys(content_words(other), RELATIONS.index("none"))
    codes |= dict.fromkeys(content_words(text), RELATIONS.index("own text"))
    for word in prompt.labels:
        codes[word.casefold()] = RELATIONS.index("own label" if word == label else "other label")
    return codes


def _all_relations(encoded: Sequence[Encoded], words: Classes, lexicon: Lexicon) -> np.ndarray:
    """`relations_of` every place, and of the query: (prompt, place + 1), of dicts. A label's token may be a piece of it."""
    places = [*range(len(encoded[0].label_positions)), None]
    out = np.empty((len(encoded), len(places)), dtype=object)
    for i, e in enumerate(encoded):
        for j, place in enumerate(places):
            codes = relations_of(e.prompt, place, words)
            out[i, j] = codes | {lexicon.plain[token]: codes[label.casefold()] for label, token in e.label_ids.items()}
    return out


def _codes(ids: Int[np.ndarray, "prompt *rest"], relations: np.ndarray, lexicon: Lexicon) -> Int[np.ndarray, "prompt *rest"]:
    """Codes of tokens, by the relations of their prompt (prompt,) or of prompt and place (prompt, place)."""
    out = np.empty(ids.shape, dtype=np.int8)
    for i, of_prompt in enumerate(relations):
        for place, codes in enumerate(np.atleast_1d(of_prompt)):
            at = (i, ..., place, slice(None)) if relations.ndim > 1 else (i,)
            code_of = np.vectorize(lambda token, codes=codes: codes.get(lexicon.plain[token], 0), otypes=[np.int8])
            out[at] = code_of(ids[at])
    return out


def _top_tokens(run: Run) -> Recording:
    """Words read in three located heads and in the two best by attention, on a block of every class pair."""
    heads = dict.fromkeys([*run.sets["located"][:3], *run.sets["by attention"][:2]])
    encoded = run.encode(run.blocks(len(run.pairs_of_few), JUDGING))
    return run.in_parts("top_tokens", list(heads), lambda some: top_tokens(run.model, encoded, some, k=10), along="listed_head")
