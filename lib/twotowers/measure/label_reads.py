"""What some heads read off each label position, closely: ranks in the vocabulary, attention, score. Chapters 2, 3, 4, 6.

    found = label_reads(model, encoded, [Head(18, 6), Head(23, 4)])
    (1 / found["rank"]).mean(("prompt", "place"))         # the paper's MRR of each head (v1 section 4.3)

`vo = W_O^h W_V^h norm(x)` is the value-output vector of a head at a label position. Variables, (prompt, head, place):

- `rank`, `other_rank`: rank in vo, over the whole vocabulary, of the token of the label that stands there, and of the
  other label (1 = highest; equal logits share the best rank). A head that writes one word wherever it looks ranks both
  alike, averaged over places;
- `attention`: weight of the last position on the label position; `score` before the softmax (nats);
- `reading`: logit of the label's own token minus that of the other label in vo, read with the final norm's scale frozen
  (nats). Times `attention` it is what the position adds to the lead of its label (EMNLP: "logit minus", as summarised).

Which label stands at a place follows from the coordinates `true` (does it carry the query's label?), `true_label` and
`labels`. And the model's answers (prompt,).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from twotowers.heads import Head, check_inside
from twotowers.measure.heads import check_labels_left, label_values, logit_difference_rows, own_label_sign
from twotowers.measure.observations import Answers, observations
from twotowers.model import unembed
from twotowers.model.capture import Capture, captures
from twotowers.model.model import Model
from twotowers.progress import progress
from twotowers.prompts.prompt import Encoded


def label_reads(model: Model, encoded: Sequence[Encoded], heads: Sequence[Head], max_tokens: int = 2048) -> xr.Dataset:
    """See the module. One forward pass, then one walk over the vocabulary for each head.

    Memory: d_head numbers for every prompt, head and place. Raises TwoTowersError for a head outside the model, no
    prompts, prompts without a true and a false demonstration, and unequal numbers of demonstrations.
    """
    heads = list(dict.fromkeys(Head(*head) for head in heads))
    check_inside(heads, model.n_layers, model.n_heads, model.name)
    check_labels_left(encoded)
    shape = len(encoded), len(heads), len(encoded[0].label_positions)
    attention, score, reading = (np.empty(shape) for _ in range(3))
    values = torch.empty(*shape, model.d_head, dtype=torch.promote_types(model.dtype, torch.float32))
    answers = Answers(encoded)

    def read(seen: Capture) -> int:
        at, rows = seen.label_positions, logit_difference_rows(seen, model)
        sign = own_label_sign(seen, rows)
        for layer in {layer for layer, _ in heads}:
            of_layer = label_values(seen, model, layer)
            for i, (_, head) in ((i, head) for i, head in enumerate(heads) if head[0] == layer):
                values[seen.index, i] = of_layer[:, head].to(values)
                direction = torch.einsum("bd,kd->bk", rows, model.output_weight(layer)[head].to(rows))
                found = torch.einsum("bpk,bk->bp", of_layer[:, head].to(rows), direction) * sign
                reading[seen.index, i] = found.cpu().numpy()
                attention[seen.index, i] = seen.weights[layer][:, head].gather(1, at).cpu().numpy()
                score[seen.index, i] = seen.scores[layer][:, head].gather(1, at).cpu().numpy()
        answers.read(seen)
        return len(seen.index)

    with progress("label reads", len(encoded)) as bar:
        for n in captures(model, encoded, {"weights", "scores", "values"}, max_tokens, read=read):
            bar.update(n)
    ranks = np.stack([_ranks(model, encoded, values[:, i], head) for i, head in enumerate(heads)], 1)
    dims = ("prompt", "head", "place")
    return observations(
        encoded,
        {
            "rank": (dims, ranks[..., 0], "1 = highest logit"),
            "other_rank": (dims, ranks[..., 1], "1 = highest logit"),
            "attention": (dims, attention, "share"),
            "score": (dims, score, "nats"),
            "reading": (dims, reading, "nats"),
            **answers.variables(),
        },
        head=[str(head) for head in heads],
        vocabulary=model.unembedding.vocabulary,
    )


def _ranks(model: Model, encoded: Sequence[Encoded], values: Tensor, head: Head) -> np.ndarray:
    """Ranks (prompt, place, 2) of each place's own label and of the other, in `values` (prompt, place, d_head) of a head."""
    tokens = torch.tensor(
        [
            [
                sorted(e.label_ids.values(), key=lambda token: token != e.label_ids[d.label])
                for d in e.prompt.demonstrations
            ]
            for e in encoded
        ]
    )
    weight = model.output_weight(head.layer)[head.head]
    rows = values.flatten(0, 1).to(model.device), tokens.flatten(0, 1).to(model.device)
    found = unembed.rank(*rows, model.unembedding, through=weight)
    return found.reshape(tokens.shape).int().cpu().numpy()
