"""First heads of known rankings of heads (chapter 12): ours, and rankings of the literature.

    python -m benchmarks.known_heads smollm2-135m      # writes data/known_heads.csv

The lines of other models stay unchanged. Measurements for our rankings are saved in
_build/measurements.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor
from towerlab import cli
from towerlab.measure.design import SELECTION
from towerlab.measure.observations import plain_z, read_batches, read_prompts
from towerlab.measure.pipeline import Pipeline
from towerlab.model.attention import Attention, reading_attention
from towerlab.model.capture import Capture
from towerlab.model.edits import UNCHANGED, patch_z
from towerlab.model.last_position import LastPosition
from towerlab.model.model import Model, widen
from towerlab.prompts.prompt import Encoded, Prompt
from twotowers import head_selection
from twotowers.errors import TwoTowersError
from twotowers.paths import data_folder
from twotowers.settings import Settings
from twotowers.tables import read_csv

LENGTH, REPEATS = 25, 40
"""Number of random tokens in a sequence that occurs twice, and number of sequences"""
HEADS_PER_RANKING = 5


def main(name: str) -> int:
    """Write the first heads of each ranking of a model.

    Function vectors are means over blocks of one task, so there are few tasks with many blocks.

    Args:
        name: Name of the model.
    """
    pipeline = Pipeline(Settings(model=name))
    model, design = pipeline.model, pipeline.design
    pairs, label_pairs = design.class_pairs[:4], design.label_pairs[:1]
    prompts = design.blocks(20, SELECTION, pairs=pairs, label_pairs=label_pairs)
    encoded, shuffled = design.encode(prompts), design.encode(_shuffled_labels(prompts))
    increases = pipeline.measured("selection_increases")
    heads = pipeline.measured("selection").assign(increase=increases["increase"])
    recognition, learning = task_subspace_scores(model, encoded).values()
    scores = {
        of: x.transpose("layer", "head").values for of, x in head_selection.rankings(heads).items()
    }
    scores |= {
        "induction": induction_scores(pipeline.model)
        - induction_scores(pipeline.model, repeat=False),
        "function vector": function_vector_scores(model, encoded, shuffled).mean(0),
        "task recognition": recognition.mean(0),
        "task learning": learning.mean(0),
    }
    path = data_folder() / "known_heads.csv"
    table = read_csv(path)
    table = pd.concat([table[table["model"] != pipeline.name], _first_heads(pipeline.name, scores)])
    table.to_csv(path, index=False)
    return 0


def _first_heads(model: str, scores: dict[str, Float[np.ndarray, "layer head"]]) -> pd.DataFrame:
    """Return the heads with the largest scores, a row for each ranking and head.

    Args:
        model: Name of the model.
        scores: Scores of the heads by ranking, over (layer, head).
    """
    rows = []
    for name, values in scores.items():
        ranking = xr.DataArray(values, dims=("layer", "head"))
        for head in head_selection.top_heads(ranking, HEADS_PER_RANKING, -np.inf):
            rows.append((model, name, str(head), float(f"{values[head]:.4g}")))
    return pd.DataFrame(rows, columns=["model", "ranking", "head", "score"])


@torch.inference_mode()
def induction_scores(model: Model, repeat: bool = True) -> Float[np.ndarray, "layer head"]:
    """Return the prefix matching scores of Olsson et al. (2022).

    They are the mean attention from a token to the token after its previous occurrence, on LENGTH
    different random tokens that occur twice.

    Args:
        model: A model with a tokenizer.
        repeat: Whether the second half repeats the first. Otherwise it has new tokens, so that the
            score depends only on the distance.

    Returns:
        Over (layer, head), in [0, 1].
    """
    tokens, begin = ordinary_tokens(model)
    times = 2 if repeat else 1
    rng = np.random.default_rng([0, 22])
    ids = [
        [*begin, *rng.choice(tokens, 2 * LENGTH // times, replace=False).tolist() * times]
        for _ in range(REPEATS)
    ]
    second = torch.arange(len(begin) + LENGTH, len(begin) + 2 * LENGTH)
    total = np.zeros((model.n_layers, model.n_heads))

    def read(layer: int, attention: Attention, _) -> None:
        weights = attention.weights()[:, :, second, second - LENGTH + 1]
        total[layer] += weights.mean(-1).sum(0).double().cpu().numpy()

    device = model.hf.get_input_embeddings().weight.device
    with reading_attention(model, range(model.n_layers), read):
        model.hf(input_ids=torch.tensor(ids, device=device), use_cache=False, logits_to_keep=1)
    return total / REPEATS


def ordinary_tokens(model: Model) -> tuple[list[int], list[int]]:
    """Return all tokens except special ones, and the tokens with which each prompt begins.

    Args:
        model: A model with a tokenizer.
    """
    special = {*model.tokenizer.all_special_ids, *model.tokenizer.added_tokens_decoder}
    size = min(len(model.tokenizer), model.unembedding.vocabulary)
    ordinary = [token for token in range(size) if token not in special]
    return ordinary, model.tokenizer("")["input_ids"]


def task_subspace_scores(
    model: Model, encoded: Sequence[Encoded]
) -> dict[str, Float[np.ndarray, "prompt layer head"]]:
    """Return the scores of task recognition and task learning, from one forward pass.

    Subspace logit attribution (Yang, Cho and Inoue 2025, arXiv 2509.24164, as summarised). With a
    the head's output at the last position and W the unembedding rows of the two labels, they are
    the norm of the projection of a on the span of W, and `a . (W_true - W_other)` divided by that
    norm. No final norm is applied.

    Args:
        model: Any model.
        encoded: Prompts.

    Returns:
        "recognition" and "learning", both over (prompt, layer, head).
    """

    def read(capture: Capture) -> dict[str, Tensor]:
        weight, recognition, learning = model.unembedding.weight, [], []
        pairs = torch.tensor([e.label_pair_ids for e in capture.prompts], device=weight.device)
        rows = widen(weight[pairs])
        inverse = torch.linalg.inv(rows @ rows.mT)
        for layer in range(model.n_layers):
            W = model.output_weight(layer).to(rows)
            outputs = torch.einsum("bhk,hkd->bhd", capture.z[layer].to(rows), W)
            logits = torch.einsum("bhd,bld->bhl", outputs, rows)
            recognition.append(torch.einsum("bhl,blm,bhm->bh", logits, inverse, logits).sqrt())
            learning.append((logits[..., 0] - logits[..., 1]) / recognition[-1])
        return {"recognition": torch.stack(recognition, 1), "learning": torch.stack(learning, 1)}

    return read_prompts("task subspace", model, encoded, (), read)


def function_vector_scores(
    model: Model, encoded: Sequence[Encoded], shuffled: Sequence[Encoded]
) -> Float[np.ndarray, "prompt layer head"]:
    """Return the causal indirect effects of Todd et al. (2024).

    A head's mean output over its task replaces its output at the last position of a prompt with
    shuffled labels. The score is the resulting increase of the probability of the true label. A
    task is an assignment of labels to classes. The mean is over prompts of the other blocks, and
    each query class has the same weight: over only one class, it would hold the answer and not the
    task.

    Args:
        model: Any model.
        encoded: Whole blocks of few tasks.
        shuffled: The same prompts with shuffled labels.

    Returns:
        Over (prompt, layer, head).

    Raises:
        TwoTowersError: If the other blocks of a task do not ask each class.
    """
    z = widen(plain_z(model, encoded))
    means = torch.stack([_task_mean(z, encoded, i) for i in range(len(encoded))])
    shape = model.n_layers, model.n_heads

    @torch.inference_mode()
    def run(index: list[int], batch: list[Encoded]) -> dict[str, Tensor]:
        last = LastPosition(model, batch)
        z = dict(enumerate(means[index].transpose(0, 1)))
        _, log_prob = last.answers([UNCHANGED, *(patch_z([head], z) for head in np.ndindex(shape))])
        p = log_prob[..., 0].exp()
        return {"score": (p[1:] - p[0]).T.unflatten(1, shape)}

    return read_batches("function vectors", shuffled, 4096, run)["score"]


def _task_mean(
    z: Float[Tensor, "prompt layer head d_head"], encoded: Sequence[Encoded], i: int
) -> Float[Tensor, "layer head d_head"]:
    """Return the mean output over the task of prompt i, without prompts of its own block."""
    prompt, task = encoded[i].prompt, _task(encoded[i].prompt)
    by_class: dict[str, list[int]] = {cls: [] for cls, _ in task}
    for j, e in enumerate(encoded):
        if e.prompt.block != prompt.block and _task(e.prompt) == task:
            by_class[e.prompt.query_class].append(j)
    if not all(by_class.values()):
        raise TwoTowersError(
            f"too few blocks of the task {task}: expected a query of each class; measure more "
            "blocks"
        )
    return torch.stack([z[rows].mean(0) for rows in by_class.values()]).mean(0)


def _task(prompt: Prompt) -> tuple[tuple[str, str], ...]:
    """Return each class with its label, in the order of the class names."""
    demonstrations = {(d.cls, d.label) for d in prompt.demonstrations}
    return tuple(sorted({(prompt.query_class, prompt.true_label), *demonstrations}))


def _shuffled_labels(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Return the prompts with labels that do not depend on classes.

    Each class has each label equally often, at random. Todd et al. (2024) shuffle labels freely,
    which at 2 + 2 keeps the task in every sixth prompt and reverses it in another.

    Args:
        prompts: Prompts with an even number of demonstrations of each class.

    Raises:
        TwoTowersError: If a class has an odd number of demonstrations.
    """
    rng, shuffled = np.random.default_rng([0, 24]), []
    for prompt in prompts:
        demonstrations = list(prompt.demonstrations)
        for cls in dict.fromkeys(d.cls for d in demonstrations):
            places = [i for i, d in enumerate(demonstrations) if d.cls == cls]
            if len(places) % 2:
                raise TwoTowersError(
                    f"cannot shuffle {len(places)} demonstrations of '{cls}': expected an even "
                    "number; choose an even k"
                )
            for turn, place in enumerate(rng.permutation(places)):
                label = prompt.labels[turn % 2]
                demonstrations[place] = replace(demonstrations[place], label=label)
        shuffled.append(replace(prompt, demonstrations=tuple(demonstrations)))
    return shuffled


if __name__ == "__main__":
    sys.exit(cli.guarded(lambda: main(*sys.argv[1:])))
