"""Rankings of all heads, ours and those of the literature: which known heads are the ones located?
Chapter 12.

    >>> from towerlab.model.loading import load
    >>> scores_of_heads = induction_scores(load("mini-gpt2"))
    >>> bool((scores_of_heads >= 0).all() and (scores_of_heads <= 1).all())
    True
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor
from twotowers import choose
from twotowers.errors import TwoTowersError

from towerlab.measure.chain import LOCATING, Run
from towerlab.measure.observations import observations, read_batches, read_prompts, with_dims
from towerlab.measure.recipe import Recipe
from towerlab.model.attention import Attention, reading_all
from towerlab.model.capture import Capture, plain_z
from towerlab.model.edits import UNCHANGED, feed
from towerlab.model.last_position import LastPosition
from towerlab.model.memory import halved
from towerlab.model.model import Model, widen
from towerlab.prompts.prompt import Encoded, Prompt
from towerlab.prompts.variants import shuffled_labels

EACH = ("function vector", "task recognition", "task learning")
LENGTH, REPEATS = 25, 40  # of random tokens, each sequence said twice; and sequences


def of_prompts(
    model: Model, at: Sequence[int], encoded: Sequence[Encoded], shuffled: Sequence[Encoded]
) -> xr.Dataset:
    """Scores of function vectors, task recognition and task learning, of each prompt.

    Args:
        at: which prompts get a score; the others are what function vectors are means of.
        encoded: whole blocks of few tasks.
        shuffled: prompt by prompt the same under `variants.shuffled_labels`.

    Returns:
        `score` (ranking of EACH, prompt, layer, head).

    Raises:
        TwoTowersError: as `function_vector_scores`.
    """
    some = [encoded[i] for i in at]
    each = [
        function_vector_scores(model, encoded, shuffled, at),
        *task_subspace_scores(model, some).values(),
    ]
    score = ("ranking", "prompt", "layer", "head"), np.stack(each)
    return observations("rankings", some, {"score": score}, ranking=list(EACH))


def scores(model: Model, heads: xr.Dataset, data: xr.Dataset) -> xr.Dataset:
    """The scores of every ranking, means over prompts; larger is more.

    Args:
        heads: a measurement `heads` with increases, of these prompts or others.
        data: of `of_prompts`.

    Returns:
        `score` (ranking, layer, head): those of `choose.rankings`, "induction", and those of EACH.
            `induction_control` (layer, head): attention over the same distance where nothing is
            repeated.
    """
    induction, control = (induction_scores(model, repeat) for repeat in (True, False))
    of = {
        name: values.transpose("layer", "head").values
        for name, values in choose.rankings(heads).items()
    }
    of |= {"induction": induction} | dict(
        zip(EACH, data["score"].mean("prompt").values, strict=True)
    )
    variables = with_dims(
        "rankings", {"score": np.stack(list(of.values())), "induction_control": control}
    )
    return xr.Dataset(
        variables,
        {"ranking": list(of), "layer": range(model.n_layers), "head": range(model.n_heads)},
    )


@torch.inference_mode()
def induction_scores(model: Model, repeat: bool = True) -> Float[np.ndarray, "layer head"]:
    """Prefix matching: mean attention from a token to the one after its previous occurrence (Olsson
    et al. 2022).

    It is measured on LENGTH random tokens, all different, said twice.

    Args:
        repeat: False makes the second half new tokens, so that only the distance is left.

    Raises:
        TwoTowersError: where the model's context or vocabulary is too small.
    """
    tokens, begin = ordinary_tokens(model)
    times = 2 if repeat else 1
    if (most := min((model.context - len(begin)) // 2, len(tokens) * times // 2)) < LENGTH:
        raise TwoTowersError(
            f"{model.name} takes {most} random tokens twice, and {LENGTH} are asked for"
        )
    rng = np.random.default_rng([0, 22])
    ids = [
        [*begin, *rng.choice(tokens, 2 * LENGTH // times, replace=False).tolist() * times]
        for _ in range(REPEATS)
    ]
    second = torch.arange(len(begin) + LENGTH, len(begin) + 2 * LENGTH)
    total, sums = np.zeros((2, model.n_layers, model.n_heads))

    def read(layer: int, attention: Attention) -> None:
        weights = attention.weights()[:, :, second, second - LENGTH + 1]
        sums[layer] = weights.mean(-1).sum(0).double().cpu().numpy()

    def run(sequences: list[list[int]]) -> None:
        device = model.hf.get_input_embeddings().weight.device
        model.hf(
            input_ids=torch.tensor(sequences, device=device), use_cache=False, logits_to_keep=1
        )

    with reading_all(model, read):
        size = max(1, 2048 // len(ids[0]))
        for _ in halved(run, [ids[first : first + size] for first in range(0, REPEATS, size)]):
            # Sums are added when a batch is done: one that does not fit in memory ends halfway.
            total += sums
    return total / REPEATS


def ordinary_tokens(model: Model) -> tuple[list[int], list[int]]:
    """All tokens but special ones, and those that a prompt begins with."""
    special = {*model.tokenizer.all_special_ids, *model.tokenizer.added_tokens_decoder}
    size = min(len(model.tokenizer), model.unembedding.vocabulary)
    return [token for token in range(size) if token not in special], model.tokenizer("")[
        "input_ids"
    ]


def task_subspace_scores(
    model: Model, encoded: Sequence[Encoded]
) -> dict[str, Float[np.ndarray, "prompt layer head"]]:
    """Scores of task recognition and task learning, from one forward pass.

    Subspace logit attribution (Yang, Cho and Inoue 2025, arXiv 2509.24164, as summarised). With a
    the head's output at the last position and W the unembedding rows of the two labels, they are
    the norm of the projection of a on the span of W, and `a . (W_true - W_other)` divided by that
    norm. No final norm is applied.
    """

    def read(capture: Capture) -> dict[str, Tensor]:
        weight, recognition, learning = model.unembedding.weight, [], []
        rows = widen(
            weight[torch.tensor([e.label_pair for e in capture.prompts], device=weight.device)]
        )
        inverse = torch.linalg.inv(rows @ rows.mT)
        for layer in range(model.n_layers):
            outputs = torch.einsum(
                "bhk,hkd->bhd", capture.z[layer].to(rows), model.output_weight(layer).to(rows)
            )
            logits = torch.einsum("bhd,bld->bhl", outputs, rows)
            recognition.append(torch.einsum("bhl,blm,bhm->bh", logits, inverse, logits).sqrt())
            learning.append((logits[..., 0] - logits[..., 1]) / recognition[-1])
        return {
            "task_recognition": torch.stack(recognition, 1),
            "task_learning": torch.stack(learning, 1),
        }

    return read_prompts("task subspace", model, encoded, (), read)


def function_vector_scores(
    model: Model, encoded: Sequence[Encoded], shuffled: Sequence[Encoded], at: Sequence[int]
) -> Float[np.ndarray, "prompt layer head"]:
    """What each head's mean output over its task adds to the true label's probability where labels
    are shuffled.

    This is the causal indirect effect of Todd et al. 2024; Yin and Steinhardt 2025 compare these
    heads with induction heads. The mean is put in the head's place at the last position. A task
    says which class has which label. The mean is over prompts of the other blocks, each query class
    with the same weight: over one class only, it would hold the answer and not the task. Cost: one
    forward pass of both kinds of prompts, and one of the last position of `shuffled` for each head.

    Args:
        shuffled: prompt by prompt the same as `encoded` with shuffled labels.
        at: which prompts get a score.

    Raises:
        TwoTowersError: for a task whose other blocks do not ask either class.
    """
    z = widen(plain_z(model, encoded))
    means = torch.stack([_task_mean(z, encoded, i) for i in at])
    every = model.n_layers, model.n_heads

    @torch.inference_mode()
    def run(index: list[int], batch: list[Encoded]) -> dict[str, Tensor]:
        last = LastPosition(model, batch)
        z = dict(enumerate(means[index].transpose(0, 1)))
        _, log_prob = last.answers([UNCHANGED, *(feed([head], z) for head in np.ndindex(every))])
        p = log_prob[..., 0].exp()
        return {"score": (p[1:] - p[0]).T.unflatten(1, every)}

    return read_batches("function vectors", [shuffled[i] for i in at], 4096, run)["score"]


def _task_mean(
    z: Float[Tensor, "prompt layer head d_head"], encoded: Sequence[Encoded], i: int
) -> Tensor:
    """Mean output (layer, head, d_head) over the task of prompt i, without its own block; both
    query classes alike."""
    prompt, task = encoded[i].prompt, _task(encoded[i].prompt)
    of_task = [
        j
        for j, e in enumerate(encoded)
        if e.prompt.block != prompt.block and _task(e.prompt) == task
    ]
    by_class = [[j for j in of_task if encoded[j].prompt.cls == cls] for cls, _ in task]
    if not all(by_class):
        names = ", ".join(f"{cls} is {label}" for cls, label in task)
        raise TwoTowersError(
            f"the task '{names}' lacks other blocks that ask each class: draw fewer pairs, more "
            "blocks"
        )
    return torch.stack([z[rows].mean(0) for rows in by_class]).mean(0)


def _task(prompt: Prompt) -> tuple[tuple[str, str], ...]:
    """Which class has which label, ((class, label), (class, label)) in the order of the class
    names."""
    return tuple(
        sorted(
            {(prompt.cls, prompt.true_label), *((d.cls, d.label) for d in prompt.demonstrations)}
        )
    )


def _rankings(run: Run) -> xr.Dataset:
    """Known rankings of heads on blocks of four tasks: a function vector is a mean over blocks of
    one task."""
    few = run.blocks(20, LOCATING, pairs=run.pairs[:4], labels=run.labels[:1])
    located = choose.with_increase(run.measured("locating"), run.measured("norms"))
    encoded, shuffled = run.encode(few), run.encode(shuffled_labels(few))
    data = run.make("rankings", Recipe(of_prompts, range(len(few)), (encoded, shuffled))).data
    return scores(run.model, located, data)
