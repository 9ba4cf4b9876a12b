"""One whole prompt through the heads: the paper's own case (v1 section 3.1, table 1, figures 2 and 7).

    data = case(model, encode(CASE, model.tokenizer), heads)

Every variable has a dimension `prompt` of length one. Of all blocks `block_increase`; of the named heads

- `token` (prompt, named_head, what, place, rank), `query_token` (prompt, named_head, rank): top words of values and keys at label
  positions and of the last query, as in `measure.top_tokens`, nothing taken out (v1 table 1);
- `attention`, `place_increase` (prompt, named_head, place): weight of the last position on each label, and the increase of the true
  label by this label's value with that weight: the paper's subhead (v1 appendix E), nats;
- `swept_increase` (prompt, named_head, place, weight): the same with any other weight from 0 to 1 (v1 figure 7), nats.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import xarray as xr
from twotowers.heads import Head

from towerlab.measure.chain import Run
from towerlab.measure.heads import at_labels
from towerlab.measure.increases import increases
from towerlab.measure.observations import observations, variables_of
from towerlab.measure.paper import encoded_case, heads_of_case
from towerlab.measure.top_tokens import top_tokens
from towerlab.model import unembed
from towerlab.model.capture import Capture, label_values, read_all
from towerlab.model.model import Model
from towerlab.model.token_text import Lexicon
from towerlab.prompts.prompt import Encoded

WEIGHTS = np.linspace(0, 1, 21)
TOP = 10


def case(model: Model, encoded: Encoded, heads: Sequence[Head], lexicon: Lexicon | None = None) -> xr.Dataset:
    """See the module."""
    one, names = [encoded], [str(head) for head in heads]
    words = top_tokens(model, one, heads, TOP, lexicon).sel(mean="kept", drop=True)
    words = words.drop_vars(["layer", "head", "relation", "query_relation"])
    shape = len(one), len(heads), len(encoded.label_positions)
    attention, by_place, swept = np.empty(shape), np.empty(shape), np.empty((*shape, len(WEIGHTS)))

    def read(capture: Capture) -> None:
        own = at_labels(capture, capture.weights)[0]
        for i, (layer, head) in enumerate(heads):
            values = label_values(capture, model, layer)[0, head] @ model.output_weight(layer)[head]
            attention[0, i] = own[layer, head].float().cpu()
            for place, value in enumerate(values):
                weights = torch.tensor([attention[0, i, place], *WEIGHTS]).to(value)
                by_place[0, i, place], *swept[0, i, place] = increases_with(
                    model, capture, layer, weights[:, None] * value
                ).tolist()

    read_all("case", model, one, {"weights", "values"}, read)
    variables = variables_of("case", attention=attention, place_increase=by_place, swept_increase=swept)
    data = observations(one, variables, weight=WEIGHTS)
    of_heads = words.rename(listed_head="named_head").assign_coords(named_head=("named_head", names))
    return xr.merge([increases(model, one), of_heads, data], compat="override", join="override")


def increases_with(model: Model, capture: Capture, layer: int, vectors: torch.Tensor) -> torch.Tensor:
    """Increase of the true label (nats) by each vector (vector, d_model), added to what enters the layer at the last position."""
    scale, word = unembed.norm_scale(capture.resid_final, model.unembedding), capture.true_ids[0]
    rows = capture.resid_pre[layer, 0] + torch.cat([torch.zeros_like(vectors[:1]), vectors])
    log_probs = unembed.bs_values(rows, model.unembedding, scale).log_softmax(-1)[:, word]
    return log_probs[1:] - log_probs[0]


def _case(run: Run) -> xr.Dataset:
    """The paper's own prompt: increases of blocks and heads, words of values, keys and query, attention against increase."""
    encoded = encoded_case(run)
    return case(run.model, encoded, heads_of_case(run, encoded))
