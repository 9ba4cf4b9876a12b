"""One forward pass on a stock transformers model, recording at the last position what the method needs.

    for capture in captures(model, encoded, {"weights"}):
        capture.weights          # (layer, batch, head, position)
        capture.index            # which of `encoded` these are
    read_all("heads", model, encoded, {"weights"}, read)    # the same with a bar; `read(capture)` too in what memory there is

Nothing in transformers is edited: hooks read the residual stream, and `reading` sees attention where the model makes
it. Hooks always come off again, also after an error.

Prompts of equal token length form a batch, so there is no padding. Memory is bounded: one batch holds at most
`max_tokens` tokens (fewer where they do not fit, see `memory`), and only last-position vectors of it are kept unless
more is asked for with `record`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from twotowers.errors import TwoTowersError

from towerlab.model.attention_hooks import last_scores, reading_attention
from towerlab.model.hooks import split_call
from towerlab.model.memory import in_memory, run_batches
from towerlab.model.model import Model, norm_eps, rms, widen
from towerlab.prompts.prompt import Encoded, batches

T = TypeVar("T")
RECORDABLE = frozenset({"weights", "scores", "values", "queries", "keys", "neurons", "streams"})
OPTIONAL = (
    "weights", "scores", "values", "queries", "keys", "neurons", "stream_inputs", "stream_attention",
    "attention_scale", "ffn_scale",
)  # fmt: skip


@dataclass
class Capture:
    """What one batch (prompts of one length) left behind; all at the last position unless a shape says `position`.

    `resid_pre[l]` is the paper's Lin_l, `resid_final` the residual stream before the final norm; `z[l, b, h]` is the head's
    attention-weighted sum of value vectors, so `z @ W_O^h` is the head vector (paper, Definitions).
    `scaling[l] * queries . keys` is the score before a soft cap and a mask (`scores` has both); `scaling` comes with
    `queries`.

    Where a norm follows W_O (Gemma 2), `z` and `values` are divided by its scale at the last position of the same
    pass (`attention_scale`), and where one follows fc2 so are `neurons` (`ffn_scale`). That scale frozen, everything here
    is linear, and with `Model.output_weight` / `ffn_weight` (which hold the norm's weight) adds up to what the block writes.
    """

    prompts: list[Encoded]
    index: list[int]
    resid_pre: Float[Tensor, "layer batch d_model"]
    attention_output: Float[Tensor, "layer batch d_model"]
    ffn_output: Float[Tensor, "layer batch d_model"]
    z: Float[Tensor, "layer batch head d_head"]
    resid_final: Float[Tensor, "batch d_model"]
    logits: Float[Tensor, "batch vocabulary"]
    weights: Float[Tensor, "layer batch head position"] | None = None
    scores: Float[Tensor, "layer batch head position"] | None = None
    values: Float[Tensor, "layer batch kv_head position d_head"] | None = None
    queries: Float[Tensor, "layer batch head d_head"] | None = None
    scaling: tuple[float, ...] | None = None
    keys: Float[Tensor, "layer batch kv_head position d_head"] | None = None
    neurons: Float[Tensor, "layer batch neuron"] | None = None
    stream_inputs: Float[Tensor, "layer batch position d_model"] | None = None
    stream_attention: Float[Tensor, "layer batch position d_model"] | None = None
    attention_scale: Float[Tensor, "layer batch"] | None = None
    ffn_scale: Float[Tensor, "layer batch"] | None = None

    @property
    def attention_out_input(self) -> Float[Tensor, "layer batch head d_head"]:
        """`z` as the model feeds it to W_O: differs where a norm follows W_O."""
        return self.z if self.attention_scale is None else _times(self.z, self.attention_scale)

    @property
    def true_ids(self) -> Int[Tensor, "batch"]:
        return torch.tensor([e.true_id for e in self.prompts], device=self.resid_final.device)

    @property
    def label_positions(self) -> Int[Tensor, "batch label"]:
        """Needs the same number of demonstrations in every prompt of the batch."""
        return torch.tensor([e.label_positions for e in self.prompts], device=self.resid_final.device)

    def require(self, *names: str) -> None:
        """Raise when something was not recorded, saying how to ask for it."""
        for name in names:
            if getattr(self, name) is None:
                record = "streams" if name.startswith("stream") else name
                raise TwoTowersError(f"this capture holds no {name}: ask for it with captures(..., record={{'{record}'}})")


@dataclass
class _Recorder:
    """Hooks for one forward pass. `entries[name][layer]` is filled as the pass goes up."""

    model: Model
    record: frozenset[str]
    entries: dict[str, dict[int, Tensor | float]] = field(default_factory=dict)

    def put(self, name: str, layer: int, tensor: Tensor | float) -> None:
        self.entries.setdefault(name, {})[layer] = tensor

    def stack(self, name: str) -> Tensor:
        layers = self.entries[name]
        # Layers may live on several devices (device_map); what is analysed together is brought together.
        return torch.stack([torch.as_tensor(layers[i]).to(self.model.device) for i in range(len(layers))])

    def _attention(self, layer: int) -> Callable:
        def read(query, key, value, mask, scaling, softcap):
            if self.record & {"weights", "scores"}:
                last = last_scores(query, key, mask, scaling, softcap)
                if "scores" in self.record:
                    self.put("scores", layer, last)
                if "weights" in self.record:
                    self.put("weights", layer, last.softmax(-1))
            if "values" in self.record:
                self.put("values", layer, value.clone())
            if "queries" in self.record:
                self.put("queries", layer, query[:, :, -1].clone())
                self.put("scaling", layer, scaling)
            if "keys" in self.record:
                self.put("keys", layer, key.clone())

        return read

    @contextmanager
    def hooks(self, batch: int) -> Iterator[None]:
        model, record = self.model, self.record

        def rows(tensor: Tensor) -> Tensor:
            """(batch, position, width); some models flatten batch and position before their FFN."""
            return tensor.reshape(batch, -1, tensor.shape[-1])

        def last(tensor: Tensor) -> Tensor:
            return rows(tensor)[:, -1].clone()

        with ExitStack() as stack:

            def before(module: nn.Module, name: str, layer: int, read: Callable) -> None:
                def hook(_, args, kwargs):
                    self.put(name, layer, read(split_call(args, kwargs)[0]))

                stack.enter_context(module.register_forward_pre_hook(hook, with_kwargs=True))

            def after(module: nn.Module, name: str, layer: int, read: Callable) -> None:
                def hook(_, args, output):
                    self.put(name, layer, read(output))

                stack.enter_context(module.register_forward_hook(hook))

            for layer, block in enumerate(model.blocks):
                before(block, "resid_pre", layer, last)
                before(model.part(layer, "attention_out"), "z", layer, last)
                after(model.part(layer, "attention_block"), "attention_output", layer, last)
                after(model.part(layer, "ffn_block"), "ffn_output", layer, last)
                if "neurons" in record:
                    before(model.part(layer, "ffn_out"), "neurons", layer, last)
                if "streams" in record:
                    before(block, "stream_inputs", layer, lambda x: rows(x).clone())
                    after(model.part(layer, "attention_block"), "stream_attention", layer, lambda x: rows(x).clone())
                for kind in ("attention", "ffn"):
                    norm = model.norm_after(layer, kind)
                    if norm is not None:
                        eps = norm_eps(norm)
                        read = lambda x, eps=eps: rms(last(x), eps)  # noqa: E731
                        after(model.part(layer, f"{kind}_out"), f"{kind}_scale", layer, read)
                if record & {"weights", "scores", "values", "queries", "keys"}:
                    stack.enter_context(reading_attention(model, layer, self._attention(layer)))
            before(model.final_norm, "final", 0, last)
            yield


def _times(x: Float[Tensor, "layer batch ..."], scale: Float[Tensor, "layer batch"]) -> Tensor:
    return (x * scale.reshape(*scale.shape, *[1] * (x.dim() - 2))).to(x.dtype)


@torch.inference_mode()
def capture(model: Model, encoded: Sequence[Encoded], record: Collection[str] = (), index: Sequence[int] | None = None) -> Capture:
    """One forward pass over prompts of equal length. `record` is a subset of `RECORDABLE`. TwoTowersError on others."""
    record = frozenset(record)
    if record - RECORDABLE:
        raise TwoTowersError(f"cannot record {sorted(record - RECORDABLE)}: choose from {sorted(RECORDABLE)}")
    if len({len(e.ids) for e in encoded}) != 1:
        raise TwoTowersError("a batch needs prompts of one token length: use captures(), which groups them")
    recorder = _Recorder(model, record)
    with recorder.hooks(len(encoded)):
        logits = model.logits(encoded)
    optional = {name: recorder.stack(name) for name in OPTIONAL if name in recorder.entries}
    if "scaling" in recorder.entries:
        optional["scaling"] = tuple(float(s) for _, s in sorted(recorder.entries["scaling"].items()))
    z = recorder.stack("z")
    z = z.reshape(*z.shape[:2], model.n_heads, model.d_head)
    if "attention_scale" in optional:
        z = _times(z, 1 / optional["attention_scale"])
        if "values" in optional:
            optional["values"] = _times(optional["values"], 1 / optional["attention_scale"])
    if "ffn_scale" in optional and "neurons" in optional:
        optional["neurons"] = _times(optional["neurons"], 1 / optional["ffn_scale"])
    return Capture(
        prompts=list(encoded),
        index=list(range(len(encoded))) if index is None else list(index),
        resid_pre=recorder.stack("resid_pre"),
        attention_output=recorder.stack("attention_output"),
        ffn_output=recorder.stack("ffn_output"),
        z=z,
        resid_final=recorder.stack("final")[0],
        logits=logits.to(model.device),
        **optional,
    )


@torch.inference_mode()
def answer(model: Model, batch: Sequence[Encoded]) -> tuple[Int[Tensor, "batch"], Float[Tensor, "batch label"]]:
    """The top token, and log-probabilities (nats) of the true label and the other, of one batch of equal length."""
    return label_log_probs(model.logits(batch), batch)


def label_log_probs(
    logits: Float[Tensor, "batch vocabulary"], batch: Sequence[Encoded]
) -> tuple[Int[Tensor, "batch"], Float[Tensor, "batch label"]]:
    """The top token, and log-probabilities (nats) of the true label's token and the other's, from a batch's logits."""
    logits = widen(logits).log_softmax(-1)
    words = torch.tensor([e.label_pair for e in batch], device=logits.device)
    return logits.argmax(-1).cpu(), logits.gather(-1, words).cpu().double()


def captures(model: Model, encoded: Sequence[Encoded], record: Collection[str] = (), max_tokens: int = 4096) -> Iterator[Capture]:
    """A stream of captures over batches of equal length; `Capture.index` says which prompts each holds."""
    for _, contents in in_memory(lambda index, batch: capture(model, batch, record, index), batches(encoded, max_tokens)):
        yield contents
        del contents  # or two batches would be held at once


def read_all(
    what: str,
    model: Model,
    encoded: Sequence[Encoded],
    record: Collection[str],
    read: Callable[[Capture], T],
    max_tokens: int = 4096,
) -> list[T]:
    """What `read` gives of every batch's capture, in the order of `prompts.batches`, with a bar.

    Where memory is short for what `read` takes out, the batch is run in smaller ones and read again. So it gives something, or
    writes at `Capture.index`; it adds nothing up, and draws nothing at random whose order matters.
    """
    out: list[T] = []
    run_batches(what, encoded, max_tokens, lambda index, batch: out.append(read(capture(model, batch, record, index))))
    return out


def plain_z(model: Model, encoded: Sequence[Encoded], max_tokens: int) -> Float[Tensor, "prompt layer head d_head"]:
    """z of the last position."""
    z: list[Tensor] = [torch.empty(0)] * len(encoded)

    def run(index: list[int], batch: list[Encoded]) -> None:
        for i, of_prompt in zip(index, capture(model, batch).attention_out_input.transpose(0, 1), strict=True):
            z[i] = of_prompt.cpu()

    run_batches("plain runs", encoded, max_tokens, run)
    return torch.stack(z)
