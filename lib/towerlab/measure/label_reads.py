"""What some heads read off each label position, closely: ranks in the vocabulary, attention, vectors. Chapters 1 to 4, 8, 9.

    data = label_reads(model, encoded, [Head(18, 6), Head(23, 4)])
    (1 / data["own_rank"]).mean(("prompt", "place"))         # the paper's MRR of each head (v1 section 4.3)
    towers(model, encoded, [Head(18, 6)])                    # queries, and keys at label positions, as vectors

`vo = W_O^h W_V^h norm(x)` is the value-output vector of a head at a label position. Variables, (prompt, listed_head, place):

- `own_rank`, `other_rank`: rank in vo, over the whole vocabulary, of the token of the label that stands there, and of the
  other label (1 = highest; equal logits share the best rank). A head that writes one word wherever it looks ranks both
  alike, averaged over places;
- `attention`: weight of the last position on the label position;
- `reading`: logit of the label's own token minus that of the other label in vo, read with the final norm's scale frozen
  (nats). Times `attention` it is what the position adds to the lead of its label (EMNLP: "logit minus", as summarised).

Which label stands at a place follows from the coordinates `true` (does it carry the query's label?), `true_label` and
`labels`. And the model's answers (prompt,). The recipe `label_reads` keeps the ranks; `paper` all but `other_rank`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from twotowers.errors import NotTestable
from twotowers.heads import Head, listed
from twotowers.schema import LISTED

from towerlab.measure.chain import Run
from towerlab.measure.heads import at_labels, label_readings
from towerlab.measure.observations import ANSWERS, answers_in, observations, read_prompts
from towerlab.measure.recipe import Recipe
from towerlab.measure.sets import present, random_sets
from towerlab.model import query_key, unembed
from towerlab.model.capture import Capture, check_labels_left, label_values
from towerlab.model.model import Model
from towerlab.prompts.prompt import Encoded


def label_reads(model: Model, encoded: Sequence[Encoded], heads: Sequence[Head], ranks: bool = True) -> xr.Dataset:
    """See the module; `ranks`: whether both ranks are there. One forward pass, then one walk over the vocabulary for each head.

    Memory: d_head numbers for every prompt, head and place. Raises TwoTowersError for no
    prompts, prompts without a true and a false demonstration, and unequal numbers of demonstrations.
    """
    heads = list(dict.fromkeys(Head(*head) for head in heads))
    check_labels_left(encoded)
    layers, numbers = map(list, zip(*heads, strict=True))

    def read(capture: Capture) -> dict[str, Tensor]:
        return {
            **answers_in(capture),
            "values": torch.stack([label_values(capture, model, layer)[:, head] for layer, head in heads], 1),
            "attention": at_labels(capture, capture.weights)[:, layers, numbers],
            "reading": label_readings(capture, model)[:, layers, numbers],
        }

    each = read_prompts("label reads", model, encoded, {"weights", "values"}, read, 2048)
    values = torch.from_numpy(each.pop("values"))
    if ranks:
        both = np.stack([_ranks(model, encoded, values[:, i], head) for i, head in enumerate(heads)], 1)
        each["own_rank"], each["other_rank"] = np.moveaxis(both, -1, 0)
    arrays = {name: array if name in ANSWERS else (LISTED, array) for name, array in each.items()}
    return observations("label_reads", encoded, arrays, **listed(heads), vocabulary=model.unembedding.vocabulary)


def _ranks(model: Model, encoded: Sequence[Encoded], values: Tensor, head: Head) -> np.ndarray:
    """Ranks (prompt, place, 2) of each place's own label and of the other, in `values` (prompt, place, d_head) of a head."""
    tokens = torch.tensor([[e.label_pair if true else e.label_pair[::-1] for true in e.prompt.is_true] for e in encoded])
    weight = model.output_weight(head.layer)[head.head]
    rows = values.flatten(0, 1).to(model.device), tokens.flatten(0, 1).to(model.device)
    ranks = unembed.rank(*rows, model.unembedding, through=weight)
    return ranks.reshape(tokens.shape).int().cpu().numpy()


def towers(model: Model, encoded: Sequence[Encoded], heads: Sequence[Head]) -> xr.Dataset:
    """`query_vector` (prompt, listed_head, component) and `key_vector` (prompt, listed_head, place, component).

    Both before any rotation to positions. The scaling is part of the query, so their product is the score (nats) as if no
    position were rotated.
    """
    check_labels_left(encoded)

    def read(capture: Capture) -> dict[str, Tensor]:
        queries, keys = [], []
        for layer, head in heads:
            x = query_key.normed(model, layer, capture.stream_inputs[layer])
            at = capture.label_positions[:, :, None].expand(-1, -1, x.shape[-1])
            queries.append(query_key.queries(model, layer, x[:, -1])[:, head])
            keys.append(query_key.keys(model, layer, x.gather(1, at))[:, :, model.value_head(head)])
        return {"query_vector": torch.stack(queries, 1), "key_vector": torch.stack(keys, 1)}

    arrays = read_prompts("towers", model, encoded, {"streams"}, read)
    return observations("towers", encoded, arrays, **listed(heads))


def _label_reads(run: Run) -> Recipe:
    """What the heads of every set, and of random sets matched to the located ones, would write of labels."""
    sets = present(run.sets)
    every = [*sets.values(), *random_sets(run, {"located": run.sets["located"]})["located"]]
    each = list(dict.fromkeys(head for heads in every for head in heads))
    return Recipe(label_reads, run.few(), (each,))


def _towers(run: Run) -> Recipe:
    """Queries and keys of the head that prefers the query's class most, and of the one that writes most."""
    if not run.sets["by attention"]:
        raise NotTestable("no head attends more to labels of the query's class")
    best = [*run.sets["by attention"][:1], *run.sets["by writing"][:1]]
    return Recipe(towers, run.judging(0.5), (list(dict.fromkeys(best)),))
