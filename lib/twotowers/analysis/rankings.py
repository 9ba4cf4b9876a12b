"""Rankings of heads: which write the label because of what stands at the label positions? Which known heads are they?

Every function gives one number a head, (layer, head), most of them for each prompt; larger is more.
`stats.agreement` compares rankings.

- `label_margin` (ours, in place of the paper's mean increase): what a head adds to the true label's lead from label
  positions;
- `attention_by_class` (v1 section 4.4): attention on labels of the query's class less that on the others;
- `induction_scores`: prefix matching on repeated random tokens (Olsson et al. 2022, In-context Learning and Induction
  Heads);
- `function_vector_scores`: indirect effect of a head's mean output (Todd et al. 2024, Function Vectors in Large
  Language Models; Yin and Steinhardt, ICML 2025, compare these heads with induction heads).

Attribution patching and ablation are in `attribution` and `ablate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from twotowers.analysis import project
from twotowers.analysis.ablate import ablate_heads
from twotowers.analysis.at_labels import read_labels
from twotowers.analysis.attention import check_labels_left
from twotowers.analysis.edit_heads import all_heads, mean_fed
from twotowers.analysis.logit_changes import logit_change, margin_rows
from twotowers.errors import TwoTowersError
from twotowers.model import unembed
from twotowers.model.attention_hooks import _masked, reading_attention, scores
from twotowers.model.capture import Capture, read_all, said
from twotowers.model.memory import halved
from twotowers.model.model import Model
from twotowers.prompts.prompt import Encoded, Prompt

LEAST = 0.25  # of the prompts in which a place, or a label word, must carry the true label to count as counterbalanced


def label_position_margins(
    capture: Capture, model: Model, norm: str = "frozen"
) -> Float[Tensor, "batch layer head label"]:
    """What `alpha * vo` of every head at every label position adds to the true label's logit less the other's (nats).

    This is I_true - I_other of the paper's increase, exactly: the log-sum-exp cancels. Needs "weights" and "values".
    """
    capture.require("weights", "values")
    e, rows, at, found = model.unembedding, margin_rows(capture, model, norm), capture.label_positions, []
    scale = unembed.norm_scale(capture.resid_final, e)
    for layer in range(model.n_layers):
        x, alpha = capture.resid_pre[layer], capture.weights[layer]
        alpha = alpha.gather(2, at[:, None].expand(-1, model.n_heads, -1))
        if norm == "recomputed":
            vo = project.value_outputs(capture, model, layer, range(model.n_heads), at)
            v = alpha[..., None].to(vo.dtype) * vo
            found.append(logit_change(x, v, rows, e, norm, scale))
        else:  # linear in the vector, so the rows go through W_O once for all positions
            values = project.values_at(capture, model, layer, range(model.n_heads), at).to(rows)
            through = torch.einsum("bd,hkd->bhk", rows, model.output_weight(layer).to(rows))
            margins = alpha.to(rows) * torch.einsum("bhpk,bhk->bhp", values, through)
            found.append(margins / unembed.divisor(x[:, None, None].to(rows), e, norm, scale.reshape(-1, 1, 1)))
    return torch.stack(found, 1)


def label_margin(
    model: Model,
    encoded: Sequence[Encoded],
    norm: str = "frozen",
    max_tokens: int = 2048,
    progress: str | None = None,
) -> Float[np.ndarray, "prompt layer head"]:
    """The part of a head's increase that comes from label positions and speaks for the true label (nats).

    Summed over label positions p: I_true(alpha vo at p) - I_other(alpha vo at p). One forward pass and no walk over the
    vocabulary. Raises TwoTowersError for prompts without true or false
    demonstrations, and for unequal numbers of them.
    """
    return margins_and_answers(model, encoded, norm, max_tokens, progress)[0]


def margins_and_answers(
    model: Model,
    encoded: Sequence[Encoded],
    norm: str = "frozen",
    max_tokens: int = 2048,
    progress: str | None = None,
) -> tuple[Float[np.ndarray, "prompt layer head"], Int[np.ndarray, "prompt"], Float[np.ndarray, "prompt label"]]:
    """`label_margin`, and of the same forward pass what `capture.predict` gives."""
    check_labels_left(encoded)
    out = np.empty((len(encoded), model.n_layers, model.n_heads))
    top, log_prob = np.empty(len(encoded), dtype=int), np.empty((len(encoded), len(encoded[0].label_ids)))

    def read(seen: Capture) -> None:
        out[seen.index] = label_position_margins(seen, model, norm).sum(-1).cpu().numpy()
        top[seen.index], log_prob[seen.index] = (found.numpy() for found in said(seen.logits, seen.prompts))

    read_all(model, encoded, {"weights", "values"}, read, max_tokens, progress)
    return out, top, log_prob


def attention_by_class(
    model: Model, encoded: Sequence[Encoded], max_tokens: int = 4096, progress: str | None = None
) -> Float[np.ndarray, "prompt layer head"]:
    """Attention of the last position on all labels of the query's class less that on all others, in [-1, 1].

    Raises TwoTowersError as `label_margin`, and for prompts that are not counterbalanced: there a head that likes near
    labels, or one label word, would look as if it knew the class.
    """
    check_labels_left(encoded)
    check_counterbalanced([e.prompt for e in encoded])
    return read_labels(model, encoded, max_tokens, progress).difference()


def check_counterbalanced(prompts: Sequence[Prompt]) -> None:
    """Raise TwoTowersError where a place, or a label word, is true in too few or too many prompts (see `LEAST`)."""
    places = np.mean([p.is_true for p in prompts], 0)
    shares = {f"demonstration {i + 1} carries the query's label": share for i, share in enumerate(places)}
    for label in prompts[0].labels:
        shares[f"the label '{label}' is true"] = np.mean([p.true_label == label for p in prompts])
    for what, share in shares.items():
        if not LEAST <= share <= 1 - LEAST:
            raise TwoTowersError(f"{what} in {share:.0%} of the prompts: give counterbalanced ones, in whole rounds")


@torch.inference_mode()
def induction_scores(
    model: Model,
    length: int = 25,
    n: int = 40,
    seed: int = 0,
    repeated: bool = True,
    tokens: Sequence[int] | None = None,
) -> Float[np.ndarray, "layer head"]:
    """Mean attention from a token to the one after its previous occurrence, on `length` random tokens said twice.

    The tokens of a sequence are all different, none special; `tokens` are those to draw from. Olsson et al. 2022, who
    call it the prefix matching score. With repeated=False the second half is new tokens: what a head gives to that
    place for its distance alone, which is the control. Raises TwoTowersError for a length that the model or the pool of
    tokens does not have.
    """
    if tokens is None:
        added = {*model.tokenizer.all_special_ids, *model.tokenizer.added_tokens_decoder}
        size = min(len(model.tokenizer), model.unembedding.vocabulary)
        tokens = [i for i in range(size) if i not in added]
    begin = [] if model.tokenizer is None else model.tokenizer("")["input_ids"]
    most = min((model.context - len(begin)) // 2, len(tokens) // (1 if repeated else 2))
    if not 2 <= length <= most:
        raise TwoTowersError(f"length={length}: {model.name} takes 2 to {most} random tokens twice")
    rng, times = np.random.default_rng([seed, 22]), 2 if repeated else 1
    ids = [[*begin, *rng.choice(tokens, 2 * length // times, replace=False).tolist() * times] for _ in range(n)]
    total, sums = np.zeros((2, model.n_layers, model.n_heads))
    later = torch.arange(len(begin) + length, len(begin) + 2 * length)

    def reader(layer: int):
        def read(query, key, value, mask, scaling, softcap):
            found = _masked(scores(query, key, scaling, softcap), mask)
            future = torch.ones(found.shape[-2:], dtype=torch.bool, device=found.device).triu(1)
            weights = found.masked_fill(future, float("-inf")).softmax(-1)
            sums[layer] = weights[:, :, later, later - length + 1].mean(-1).sum(0).double().cpu().numpy()

        return read

    device = model.hf.get_input_embeddings().weight.device
    with ExitStack() as stack:
        for layer in range(model.n_layers):
            stack.enter_context(reading_attention(model, layer, reader(layer)))
        run = lambda some: model.hf(input_ids=torch.tensor(some).to(device), use_cache=False, logits_to_keep=1)  # noqa: E731
        size = max(1, 2048 // len(ids[0]))
        # Added only when a batch is done: one that does not fit in memory ends halfway up.
        for _ in halved(run, [ids[first : first + size] for first in range(0, n, size)]):
            total += sums
    return total / n


def function_vector_scores(
    model: Model,
    clean: Sequence[Encoded],
    uninformative: Sequence[Encoded],
    max_tokens: int = 1024,
    progress: str | None = None,
) -> Float[np.ndarray, "prompt layer head"]:
    """How much a head's mean output over clean prompts raises the true label's probability in uninformative prompts.

    Causal indirect effect (Todd et al. 2024), a change of probability: the head's output at the last position is
    replaced by its mean over the `clean` prompts of the same task. A task is which class has which label, so means are
    over prompts that agree in it and ask either class: over both assignments they would hold no task, over one answer
    only that answer. In the `uninformative` prompts (`prompts.uninformative`) labels do not tell the classes; the
    result is for these, and their true label is that of the task. Raises TwoTowersError for prompts without two named
    classes, and a task whose clean prompts do not make both labels true.
    """
    out = np.empty((len(uninformative), model.n_layers, model.n_heads))
    tasks: dict[frozenset, list[int]] = {}
    for i, one in enumerate(uninformative):
        tasks.setdefault(_task(one.prompt), []).append(i)
    for task, index in tasks.items():
        of_task = [e for e in clean if _task(e.prompt) == task]
        named = ", ".join(f"{cls} is {label}" for cls, label in sorted(task))
        if len({e.prompt.true_label for e in of_task}) < 2:
            raise TwoTowersError(f"the task '{named}' needs clean prompts that ask each class: see `factorial`")
        mean = mean_fed(model, of_task)
        done = ablate_heads(
            model, [uninformative[i] for i in index], all_heads(model), "last", mean, max_tokens, progress
        )
        true = done.true
        before = done.plain_log_prob.gather(1, true[:, None])[:, 0].exp()
        after = done.log_prob.gather(2, true.expand(len(done.sets), -1)[..., None])[..., 0].exp()
        out[index] = (after - before).T.reshape(len(index), model.n_layers, model.n_heads).numpy()
    return out


def _task(prompt: Prompt) -> frozenset[tuple[str, str]]:
    """Which class has which label: {(class, label), (class, label)}, told by the query and what it is not."""
    classes = {prompt.cls, *(d.cls for d in prompt.demonstrations)}
    if len(classes) != 2 or "" in classes or len(prompt.labels) != 2:
        raise TwoTowersError("a task gives each of two named classes one of two labels: give prompts of such a set")
    (other_class,) = classes - {prompt.cls}
    (other_label,) = set(prompt.labels) - {prompt.true_label}
    return frozenset({(prompt.cls, prompt.true_label), (other_class, other_label)})
