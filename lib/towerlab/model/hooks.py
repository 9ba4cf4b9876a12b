"""Changes of a stock model for as long as asked: what heads write, where a run starts, one attribute. Always undone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from towerlab.model.model import Model

Change = Callable[[Float[Tensor, "batch position head d_head"]], None]


@contextmanager
def changing_z(model: Model, changes: Mapping[int, Change]) -> Iterator[None]:
    """The model with what the heads of some layers feed to W_O changed, in place, by the function of the layer."""

    def hook_of(change: Change) -> Callable:
        def hook(_, args):
            z = args[0].clone()
            change(z.view(*z.shape[:-1], model.n_heads, model.d_head))
            return (z, *args[1:])

        return hook

    with ExitStack() as stack:
        for layer, change in changes.items():
            stack.enter_context(model.part(layer, "attention_out").register_forward_pre_hook(hook_of(change)))
        yield


@contextmanager
def block_outputs(model: Model, layers: Iterable[int]) -> Iterator[dict[int, Any]]:
    """Layer -> what its block returned in the run inside, filled as the run goes up: see `restarted`."""
    outputs: dict[int, Any] = {}

    def hook_of(layer: int) -> Callable:
        return lambda _module, _args, output: outputs.update({layer: output})

    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(model.blocks[layer].register_forward_hook(hook_of(layer)))
        yield outputs


@contextmanager
def restarted(model: Model, layer: int, output: Any) -> Iterator[None]:
    """Runs inside begin at block `layer`: what is below does nothing and hands on `output`, of block `layer` - 1.

    The same prompts in the same order as the run that `output` is from, and no cache of keys and values.
    """
    with ExitStack() as stack:
        for block in model.blocks[:layer]:
            stack.enter_context(attribute(block, "forward", lambda *_args, **_kwargs: output))
        yield


def split_call(args: tuple, kwargs: dict[str, Any]) -> tuple[Tensor, tuple, dict[str, Any]]:
    """What a block or module was called with, as (hidden states, other positional arguments, keywords)."""
    kwargs = dict(kwargs)
    return (args[0], args[1:], kwargs) if args else (kwargs.pop("hidden_states"), (), kwargs)


def hidden_states(output: Any) -> Tensor:
    """Hidden states from what a block returns."""
    return output[0] if isinstance(output, tuple) else output


@contextmanager
def attribute(module: nn.Module, name: str, value: Any) -> Iterator[None]:
    """The module with an attribute of its own, which hides the class's; what it had of its own before comes back."""
    before = module.__dict__.get(name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before) if before is not None else delattr(module, name)
