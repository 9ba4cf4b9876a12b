"""The paper's measure of every head and block: by how much it raises log p(true label). One walk over the vocabulary. Chapter 1.

    data = increases(model, encoded)                    # the final norm frozen

- `increase` (prompt, layer, head): log-probability increase of the true label (v1 section 3.1, appendix E), in nats;
- `block_increase` (prompt, layer, kind = attention or FFN): that of a whole block (v1 fig 2), in nats.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from towerlab.measure.chain import Run
from towerlab.measure.heads import KINDS, tokens_at_once
from towerlab.measure.observations import observations
from towerlab.measure.recipe import Recipe
from towerlab.model import unembed
from towerlab.model.capture import Capture, captures
from towerlab.model.increase import increases_along
from towerlab.model.memory import halved
from towerlab.model.model import Model
from towerlab.progress import progress
from towerlab.prompts.prompt import Encoded

GROUP_BYTES = 320 << 20  # captures held for one walk over the vocabulary, or a sixteenth of the model if that is more


def increases(model: Model, encoded: Sequence[Encoded], norm: str = "frozen") -> xr.Dataset:
    """See the module. `norm`: how the final norm is read (`model.unembed`). Raises TwoTowersError for another `norm`."""
    unembed.check_norm(norm)
    n, layers = len(encoded), model.n_layers
    increase, block_increase = np.empty((n, layers, model.n_heads)), np.empty((n, layers, 2))

    def walk(group: list[Capture]) -> tuple[Tensor, Tensor, Tensor]:
        return increases_along(
            model,
            torch.cat([capture.resid_pre for capture in group], 1),
            torch.cat([capture.z for capture in group], 1),
            torch.cat([capture.ffn_output for capture in group], 1),
            unembed.norm_scale(torch.cat([capture.resid_final for capture in group]), model.unembedding),
            torch.cat([capture.true_ids for capture in group]),
            norm,
        )

    stream = captures(model, encoded, max_tokens=tokens_at_once(model))
    with progress("increases", n) as bar:
        for group, (of_attention, of_ffn, of_heads) in halved(walk, groups(stream, max(GROUP_BYTES, model.bytes // 16))):
            index = [i for capture in group for i in capture.index]
            increase[index] = of_heads.cpu().numpy()
            block_increase[index] = torch.stack([of_attention, of_ffn], -1).cpu().numpy()
            bar.update(len(index))
    return observations("paper", encoded, {"increase": increase, "block_increase": block_increase}, kind=list(KINDS))


def groups(stream: Iterable[Capture], limit: int) -> Iterator[list[Capture]]:
    """Captures of several batches together, so that one walk over the vocabulary serves many prompts."""
    group: list[Capture] = []
    group_bytes = 0
    for capture in stream:
        size = sum(t.numel() * t.element_size() for t in (capture.resid_pre, capture.z, capture.ffn_output))
        if group and group_bytes + size > limit:
            yield group
            group, group_bytes = [], 0
        group.append(capture)
        group_bytes += size
    if group:
        yield group


def _increases(run: Run) -> Recipe:
    """The paper's increase of every head and block on the blocks that judge."""
    return Recipe(increases, run.judging())


def of_norms(model: Model, encoded: Sequence[Encoded]) -> xr.Dataset:
    """`increase` (norm, prompt, layer, head)."""
    each = [increases(model, encoded, norm)[["increase"]] for norm in unembed.NORMS]
    return xr.concat(each, xr.Variable("norm", list(unembed.NORMS)), coords="minimal", compat="override")


def _norms(run: Run) -> Recipe:
    """The paper's increase of every head on the locating blocks, with the final norm frozen and recomputed for each vector."""
    return Recipe(of_norms, run.locating())
