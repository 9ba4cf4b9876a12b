"""How much of what some heads do goes through the queries of others (path patching, Wang et al. 2022). Chapter 6.

    data = path_patching(model, encoded, comparers, {"writers": writers, "matched": others})
    data.log_prob_true.sel(heads="writers", way="direct")                 # (prompt,)
    data.attention.sel(way="direct", listed_head="6-3")                   # (prompt, place)

Senders are ablated, receivers change their queries; both at the last position only. Over `heads`:

- "none": the plain run, in both ways;
- "senders ablated": all that comes after the senders responds, as in `ablations`, in both ways;
- "writers", way "total": the writers' queries are those of the run with senders ablated. They differ by what the senders
  write and by what all heads and FFN blocks in between make of it;
- "writers", way "direct": the writers' queries differ only by what the senders themselves write. To the input of each
  writer's layer comes the change of the senders' attention blocks; all heads and FFN blocks in between stay as they were.

With these queries and the keys and values of the plain run, the receivers' outputs are `softmax(q k) v`; they take the
place of their own, and all that comes after the receivers responds. Receivers in the senders' layer or below keep theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor
from twotowers.heads import Head, Heads, check_inside, listed
from twotowers.recording import Recording

from towerlab.measure.ablations import NONE
from towerlab.measure.chain import Run
from towerlab.measure.observations import Answers, observations
from towerlab.measure.registry import measurement
from towerlab.measure.sets import present, random_sets, with_comparers, with_control
from towerlab.model import query_key
from towerlab.model.ablated_runs import Ablation
from towerlab.model.label_positions import check_labels_left
from towerlab.model.last_position import Edit, LastPosition, LayerState, head_output
from towerlab.model.memory import run_batches
from towerlab.model.model import Model
from towerlab.model.routes import attention_block_output
from towerlab.prompts.prompt import Encoded

WAYS = ("total", "direct")
SENDERS_ABLATED = "senders ablated"

Queries = dict[int, Float[Tensor, "batch head 1 d_head"]]
"""Layer -> queries of the last position, as the layer's attention is given them"""


@torch.inference_mode()
def path_patching(
    model: Model,
    encoded: Sequence[Encoded],
    senders: Sequence[tuple[int, int]],
    receivers: Mapping[str, Sequence[tuple[int, int]]],
    replacement: Float[Tensor, "layer head d_head"] | None = None,
    answers_only: Sequence[str] = (),
    max_tokens: int = 2048,
) -> xr.Dataset:
    """log_prob_true, log_prob_other (nats) and says (heads, way, prompt): see the module.

    And `attention` (way, prompt, listed_head, place): the weight of each receiver on each label, with its queries of each
    of WAYS, `attention_plain` with those of the plain run; not for receivers named in `answers_only`. `replacement`: what
    senders feed to W_O when ablated, by default zero; their means are `mean_z(...)["last"]`. Cost: a plain run, and one of
    the last position for every set and way. Memory: keys and values of `max_tokens` tokens. Raises TwoTowersError on a head outside
    the model, and as `heads` on prompts.
    """
    check_labels_left(encoded)
    check_inside([*senders, *(head for heads in receivers.values() for head in heads)], model.n_layers, model.n_heads, model.name)
    ablation = Ablation(frozenset(Head(*head) for head in senders), replacement)
    each = list(dict.fromkeys(Head(*h) for name, heads in receivers.items() if name not in answers_only for h in heads))
    layers = sorted({layer for heads in receivers.values() for layer, _ in heads})
    answers = Answers(encoded, 2 + len(receivers), len(WAYS))
    attention = np.empty((1 + len(WAYS), len(encoded), len(each), len(encoded[0].label_positions)), dtype=np.float32)

    def run(index: list[int], batch: list[Encoded]) -> None:
        def put(row: int, top: Tensor, log_prob: Tensor) -> None:
            for way in range(len(WAYS)):
                answers.put((row, way), index, top, log_prob)

        last, places = LastPosition(model, batch), torch.tensor([e.label_positions for e in batch])
        put(0, *last.plain_answer())
        responding: Queries = {}
        top, log_prob = last.answers([reading_queries(ablation.edit(), layers, responding)])
        put(1, top[0], log_prob[0])
        queries = {
            NONE: {layer: last.plain[layer].query for layer in layers},
            "total": responding,
            "direct": direct_queries(model, last, ablation, layers),
        }
        z = {}
        for row, (way, of_layer) in enumerate(queries.items()):
            of_layers = {layer: attend(last.plain[layer], query) for layer, query in of_layer.items()}
            z[way] = {layer: output for layer, (_, output) in of_layers.items()}
            for i, (layer, head) in enumerate(each):
                weights = of_layers[layer][0][:, head].cpu()
                attention[row, index, i] = weights.gather(1, places).float().numpy()
        edits = {
            (row, w): replace_z(heads, z[way]) for row, heads in enumerate(receivers.values(), 2) for w, way in enumerate(WAYS)
        }
        answers.put_each(edits, index, *last.answers(list(edits.values())))

    run_batches("path patching", encoded, max_tokens, run)
    variables = answers.variables("heads", "way")
    variables["attention"] = ("way", "prompt", "listed_head", "place"), attention[1:], "share"
    variables["attention_plain"] = ("prompt", "listed_head", "place"), attention[0], "share"
    return observations(encoded, variables, heads=[NONE, SENDERS_ABLATED, *receivers], way=list(WAYS), **listed(each))


def reading_queries(edit: Edit, layers: Sequence[int], queries: Queries) -> Edit:
    """The edit, which also puts the queries that it leads to in some layers into `queries`."""

    def output(layer: int, heads: list[int], state: LayerState) -> Float[Tensor, "batch head d_head"]:
        if layer in layers:
            queries[layer] = state.query
        z = state.z.clone()
        if own_heads := edit.heads_of(layer):
            z[:, own_heads] = edit.output(layer, own_heads, state).to(z)
        return z[:, heads]

    return Edit([*edit.heads, *(Head(layer, 0) for layer in layers)], output)


def attend(
    plain: LayerState, query: Float[Tensor, "batch head 1 d_head"]
) -> tuple[Float[Tensor, "batch head position"], Float[Tensor, "batch head d_head"]]:
    """Weights and outputs of all heads of a layer with other queries at the last position."""
    _, _, value = plain.of(list(range(query.shape[1])))
    scores = plain.scores(query, plain.key)
    return scores.softmax(-1), head_output(scores, value)


def direct_queries(model: Model, last: LastPosition, ablation: Ablation, layers: Sequence[int]) -> Queries:
    """Queries of the last position when the layer's input lacks only what the ablated heads themselves wrote."""
    change = {}
    for layer in {layer for layer, _ in ablation.heads}:
        before = last.plain[layer].z
        after = before.clone()
        ablation.apply(layer, after)
        change[layer] = attention_block_output(model, layer, after) - attention_block_output(model, layer, before)
    out, position = {}, torch.tensor(last.batch[0].last)
    for layer in layers:
        plain = last.plain[layer]
        x = plain.x + sum(output.to(plain.x) for at, output in change.items() if at < layer)
        query = query_key.queries(model, layer, query_key.normed(model, layer, x))
        out[layer] = query_key.rotated(model, layer, query, position)[:, :, None].to(plain.query) / plain.scaling
    return out


def replace_z(heads: Heads, z: Mapping[int, Float[Tensor, "batch head d_head"]]) -> Edit:
    """Heads that feed z[layer] to W_O."""
    return Edit(heads, lambda layer, in_layer, state: z[layer][:, in_layer])


@measurement("path_patching", needs=("locating",), version=3, on="few", passes=2)
def _path_patching(run: Run) -> Recording:
    """From comparers to the queries of writers, of random sets matched to the writers, and of all heads that come later."""
    sets = with_comparers(run)
    first = min(layer for layer, _ in sets["comparers"])
    later = [Head(layer, h) for layer in range(first + 1, run.model.n_layers) for h in range(run.model.n_heads)]
    receivers = present({"writers": sets["writers"]}) | {"all later heads": later}

    def measure(receivers: Mapping[str, Heads]) -> xr.Dataset:
        patch = partial(path_patching, run.model, senders=sets["comparers"], receivers=receivers, answers_only=["all later heads"])
        return run.in_parts("path_patching", run.encode(run.few()), patch).data

    return with_control(measure, receivers, {"writers": random_sets(run, sets["writers"])})
