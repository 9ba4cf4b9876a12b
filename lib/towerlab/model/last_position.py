"""Many edits of the last position at once, in one batch of rows.

    >>> from towerlab.model.loading import load
    >>> from towerlab.prompts.paper_sets import paper_prompts
    >>> from towerlab.prompts.prompt import encode_all
    >>> model = load("mini-gpt2")
    >>> batch = encode_all(paper_prompts("animal/country", 2), model.tokenizer)
    >>> from towerlab.model.edits import zero_ablate
    >>> last = LastPosition(model, batch)  # one plain run
    >>> top, log_prob = last.answers([zero_ablate([(3, 0)]), zero_ablate([(3, 1), (2, 4)])])
    >>> top.shape, log_prob.shape  # (edit, prompt), (edit, prompt, label)
    (torch.Size([2, 2]), torch.Size([2, 2, 2]))

An edit replaces the input of W_O of some heads at the last position. Attention is causal, so such
an edit does not change any other position. Under every edit a prompt is one row, which begins at
the layer of the edit's lowest head and attends to the keys and values of the plain run. The rows of
many edits run as one batch of stock blocks. The results equal those of `edits.edited_answers` up to
rounding (tests/test_edits.py).

`answers` calls `finals`, which calls `block` layer by layer. The stock block runs, and its
attention passes the rows' queries, keys and values to `attend`. This function joins the keys and
values of the plain run with each row's own, computes z, and applies every edit to its row
(`Edit.apply`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from accelerate.utils import recursively_apply
from jaxtyping import Float, Int
from torch import Tensor

from towerlab.model.attention import Attention, block_calls, reading_attention
from towerlab.model.capture import TopAndLogProbs, capture, label_log_probs
from towerlab.model.edits import UNCHANGED, Edit, LayerState
from towerlab.model.last_layer import at_last
from towerlab.model.model import Model
from towerlab.model.unembed import final_logits, logit_differences
from towerlab.prompts.prompt import Prompts

MAX_ROWS = 1024  # maximum number of prompts times edits at a time, which bounds the memory
LOGIT_ROWS = 128  # number of rows of logits at a time, unless one version has more prompts
EditNumbers = Int[Tensor, "edit"]
FinalStreams = Float[Tensor, "edit batch d_model"]
Rows = Float[Tensor, "batch edit d_model"]
Differences = Float[Tensor, "edit batch"]
Around = Callable[[int, Rows], AbstractContextManager]


class LastPosition:
    """Prompts of one token length, run once, to be edited at the last position.

    `plain[layer]` is the layer's state at the last position. `capture` contains the values of the
    plain run, with the parts that `include` names. Memory: keys and values of all positions of
    the prompts in all layers.
    """

    @torch.inference_mode()
    def __init__(self, model: Model, batch: Prompts, include: Collection[str] = ()):
        """Run the prompts once, without any edit.

        Args:
            model: Any model.
            batch: Prompts of one token length.
            include: Additional parts: see `capture`.
        """
        self.model = model
        self.batch = list(batch)
        self.plain: dict[int, LayerState] = {}
        self._arguments: dict[int, list] = {}  # of the blocks, without hidden states

        def keep(layer: int, attention: Attention, compute_z: Callable[[], Tensor]) -> Tensor:
            x, *self._arguments[layer] = calls.pop(layer)
            z = compute_z()
            state = LayerState(x, attention, z).last()
            last = state.attention
            # Copied: a part would hold the whole stream.
            x_of_last = state.x.to(z.device, copy=True)
            query = last.query.clone()
            z_of_last = state.z.clone()
            attention_of_last = last._replace(query=query)
            self.plain[layer] = LayerState(x_of_last, attention_of_last, z_of_last)
            return z

        layers = range(model.n_layers)
        reading = reading_attention(model, layers, keep)
        with block_calls(model, layers) as calls, reading:
            self.capture = capture(model, self.batch, include)

    def of_prompts(self, numbers: Sequence[int]) -> LastPosition:
        """Return some prompts without another run, in any order and also several times.

        Args:
            numbers: Numbers of the prompts.

        Returns:
            The prompts. Their `capture` is that of the whole batch.
        """

        def of_some(x: Tensor) -> Tensor:
            is_of_all_prompts = len(x) == 1
            return x if is_of_all_prompts else x[numbers]

        some = copy.copy(self)
        some.batch = [self.batch[i] for i in numbers]
        some.plain = {}
        for layer, state in self.plain.items():
            some.plain[layer] = state.of_prompts(numbers)
        some._arguments = recursively_apply(of_some, self._arguments)
        return some

    def plain_answer(self) -> TopAndLogProbs:
        """Compute the answer without any edit, as a row, so that rounding is equal.

        Returns:
            Top tokens (batch,), and log-probabilities (nats) of the true label and the other label
            (batch, label).
        """
        top, log_prob = self.answers([UNCHANGED])
        return top[0], log_prob[0]

    @torch.inference_mode()
    def answers(self, edits: Sequence[Edit]) -> TopAndLogProbs:
        """Compute the answers under each edit, equal to those of `edits.edited_answers`.

        Args:
            edits: Edits of the last position, one for each version of the batch.

        Returns:
            Top tokens (edit, prompt), and log-probabilities (nats) of the true label and the other
            label (edit, prompt, label).
        """
        n_edits = len(edits)
        n_prompts = len(self.batch)
        top = torch.empty(n_edits, n_prompts, dtype=torch.long)
        log_prob = torch.empty(n_edits, n_prompts, 2, dtype=torch.float64)
        for chunk, final in self.finals(edits):
            top_of_chunk, log_prob_of_chunk = self.final_answers(final)
            top[chunk] = top_of_chunk
            log_prob[chunk] = log_prob_of_chunk
        return top, log_prob

    @torch.inference_mode()
    def logit_differences(self, edits: Sequence[Edit]) -> Differences:
        """Compute the logit of the true label minus that of the other label under each edit.

        Only the labels are unembedded, which takes a fraction of the time of whole answers.

        Args:
            edits: Edits of the last position, one for each version of the batch.

        Returns:
            Logit differences (nats; edit, prompt), in float64 on the CPU.
        """
        n_edits = len(edits)
        n_prompts = len(self.batch)
        differences = torch.empty(n_edits, n_prompts, dtype=torch.float64)
        for chunk, final in self.finals(edits):
            of_chunk = logit_differences(self.model, final, self.batch)
            differences[chunk] = of_chunk
        return differences

    def final_answers(self, final: FinalStreams) -> TopAndLogProbs:
        """Compute the answers from final residual streams of versions of the batch.

        Args:
            final: Final residual streams (edit, batch, d_model).

        Returns:
            Top tokens (edit, prompt), and log-probabilities (nats) of the true label and the other
            label (edit, prompt, label).
        """
        n_prompts = len(self.batch)
        n_versions = max(1, LOGIT_ROWS // n_prompts)
        top_parts = []
        log_prob_parts = []
        for versions in final.split(n_versions):
            logits = final_logits(self.model, versions)
            top, log_prob = label_log_probs(logits, self.batch)
            top_parts.append(top)
            log_prob_parts.append(log_prob)
        return torch.cat(top_parts), torch.cat(log_prob_parts)

    def finals(self, edits: Sequence[Edit]) -> Iterator[tuple[EditNumbers, FinalStreams]]:
        """Yield the final residual streams under all edits, MAX_ROWS rows at a time.

        Args:
            edits: Edits of the last position.

        Yields:
            Indices of some edits, and final residual streams under them (edit, batch, d_model).
        """
        first_layers = [edit.first_layer for edit in edits]
        order = torch.tensor(first_layers).argsort(stable=True)
        n_prompts = len(self.batch)
        n_edits = max(1, MAX_ROWS // n_prompts)
        for chunk in order.split(n_edits):
            some_edits = [edits[i] for i in chunk]
            yield chunk, self.final(some_edits)

    def final(
        self, edits: Sequence[Edit], around: Around = lambda *_: nullcontext()
    ) -> FinalStreams:
        """Return the final residual stream under some edits.

        Args:
            edits: Edits of the last position, sorted by their first layer, so that the edits that
                have begun are always the first rows.
            around: Function of a layer and the rows at its input. It returns a context in which the
                layer runs.

        Returns:
            Final residual streams (edit, batch, d_model).
        """
        lowest, *_ = edits
        first_layer = lowest.first_layer
        rows = self.plain[first_layer].x[:, :0]  # none yet
        for layer in range(first_layer, self.model.n_layers):
            x = self.plain[layer].x
            begins = [edit.first_layer == layer for edit in edits]
            n_begin = sum(begins)
            new_rows = x.expand(-1, n_begin, -1)
            rows = rows.to(x.device)
            rows = torch.cat([rows, new_rows], 1)
            n_rows = rows.shape[1]
            begun = edits[:n_rows]
            with around(layer, rows):
                rows = self.block(layer, rows, begun)
        return rows.transpose(0, 1)

    def block(self, layer: int, rows: Rows, edits: Sequence[Edit]) -> Rows:
        """Run one block on the rows of all edits.

        Each row attends to the other positions of the plain run and to itself.

        Args:
            layer: Layer of the block.
            rows: Inputs of the block (batch, edit, d_model).
            edits: Edits of the rows.

        Returns:
            Outputs of the block (batch, edit, d_model).
        """
        plain = self.plain[layer].attention
        _, _, n_positions, _ = plain.key.shape
        _, n_rows, _ = rows.shape

        def attend(layer: int, own: Attention, _) -> Tensor:
            mask = _mask_of_rows(plain, n_rows)
            z = _after_plain(plain, own, mask).z()
            for i, edit in enumerate(edits):
                if not edit.heads_of(layer):
                    continue
                row = slice(i, i + 1)
                own_row = _row_of(own, row)
                x_of_row = rows[:, row]
                z_of_row = z[:, :, row]
                attention = _after_plain(plain, own_row, plain.mask)
                state = LayerState(x_of_row, attention, z_of_row)
                edit.apply(layer, state)
            return z

        arguments = self._arguments[layer]
        args, kwargs = at_last(arguments, n_positions, n_rows)
        block = self.model.layers[layer]
        with reading_attention(self.model, [layer], attend):
            output = block(rows, *args, **kwargs)
        if isinstance(output, tuple):
            output, *_ = output
        return output


def _row_of(attention: Attention, row: slice) -> Attention:
    """Return a row's query, key and value."""
    return attention._replace(
        query=attention.query[:, :, row],
        key=attention.key[:, :, row],
        value=attention.value[:, :, row],
    )


def _after_plain(plain: Attention, own: Attention, mask: Tensor) -> Attention:
    """Return the attention of rows, whose own position follows those of the plain run."""
    plain_key = plain.key[:, :, :-1]
    plain_value = plain.value[:, :, :-1]
    return own._replace(
        key=torch.cat([plain_key, own.key], 2),
        value=torch.cat([plain_value, own.value], 2),
        mask=mask,
    )


def _mask_of_rows(plain: Attention, n_rows: int) -> Tensor:
    """Return the positions that rows may attend to: those of the plain run, and each row itself."""
    mask = plain.mask[..., :-1]
    n_prompts = len(mask)
    device = mask.device
    others = mask.expand(-1, 1, n_rows, -1)
    itself = torch.eye(n_rows, dtype=torch.bool, device=device)
    itself = itself.expand(n_prompts, 1, -1, -1)
    return torch.cat([others, itself], -1)
