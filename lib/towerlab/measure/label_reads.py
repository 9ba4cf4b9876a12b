"""What some heads read off each label position, closely: ranks in the vocabulary, attention. Chapters 1 to 4, 8, 9.

    data = label_reads(model, encoded, [Head(18, 6), Head(23, 4)])
    (1 / data["own_rank"]).mean(("prompt", "place"))         # the paper's MRR of each head (v1 section 4.3)

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
from twotowers.heads import Head, check_inside, listed
from twotowers.recording import Recording
from twotowers.schema import LISTED

from towerlab.measure.chain import Run
from towerlab.measure.heads import at_labels, label_readings
from towerlab.measure.observations import Answers, Variables, observations, variables_of
from towerlab.measure.sets import present, random_sets
from towerlab.model import unembed
from towerlab.model.capture import Capture, check_labels_left, label_values, read_all
from towerlab.model.model import Model
from towerlab.prompts.prompt import Encoded


def label_reads(model: Model, encoded: Sequence[Encoded], heads: Sequence[Head], max_tokens: int = 2048) -> xr.Dataset:
    """See the module. One forward pass, then one walk over the vocabulary for each head.

    Memory: d_head numbers for every prompt, head and place. Raises TwoTowersError for a head outside the model, no
    prompts, prompts without a true and a false demonstration, and unequal numbers of demonstrations.
    """
    heads = list(dict.fromkeys(Head(*head) for head in heads))
    check_inside(heads, model.n_layers, model.n_heads, model.name)
    check_labels_left(encoded)
    layers, numbers = (list(of) for of in zip(*heads, strict=True))
    shape = len(encoded), len(heads), len(encoded[0].label_positions)
    attention, reading = np.empty((2, *shape))
    values = torch.empty(*shape, model.d_head, dtype=torch.promote_types(model.dtype, torch.float32))
    answers = Answers(encoded)

    def read(capture: Capture) -> None:
        values[capture.index] = torch.stack([label_values(capture, model, layer)[:, head] for layer, head in heads], 1).to(values)
        for out, of_all in ((reading, label_readings(capture, model)), (attention, at_labels(capture, capture.weights))):
            out[capture.index] = of_all[:, layers, numbers].cpu().numpy()
        answers.read(capture)

    read_all("label reads", model, encoded, {"weights", "values"}, read, max_tokens)
    ranks = np.stack([_ranks(model, encoded, values[:, i], head) for i, head in enumerate(heads)], 1)
    own, other = np.moveaxis(ranks, -1, 0)
    variables: Variables = {
        "attention": (LISTED, attention, "share"), "reading": (LISTED, reading, "nats"),
        **variables_of("label_reads", own_rank=own, other_rank=other), **answers.variables(),
    }  # fmt: skip
    return observations(encoded, variables, **listed(heads), vocabulary=model.unembedding.vocabulary)


def _ranks(model: Model, encoded: Sequence[Encoded], values: Tensor, head: Head) -> np.ndarray:
    """Ranks (prompt, place, 2) of each place's own label and of the other, in `values` (prompt, place, d_head) of a head."""
    tokens = torch.tensor([[e.label_pair if true else e.label_pair[::-1] for true in e.prompt.is_true] for e in encoded])
    weight = model.output_weight(head.layer)[head.head]
    rows = values.flatten(0, 1).to(model.device), tokens.flatten(0, 1).to(model.device)
    ranks = unembed.rank(*rows, model.unembedding, through=weight)
    return ranks.reshape(tokens.shape).int().cpu().numpy()


def _label_reads(run: Run) -> Recording:
    """What the heads of every set, and of random sets matched to the located ones, would write of labels."""
    sets = present(run.sets)
    every = [*sets.values(), *random_sets(run, run.sets["located"])]
    each = list(dict.fromkeys(head for heads in every for head in heads))
    return run.in_parts("label_reads", run.encode(run.few()), lambda some: label_reads(run.model, some, each))
