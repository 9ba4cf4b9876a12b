"""Proof that a model's row of the table of architectures is right, on the loaded weights.

    >>> from towerlab.model import loading
    >>> errors = prove(loading.load("mini-gpt2"))  # TwoTowersError would name a failed identity
    >>> errors["our logits"] < 1e-3
    True

`loading.load` proves every model that it loads.
"""

from __future__ import annotations

import torch
from torch import Tensor
from twotowers.errors import TwoTowersError

from towerlab.model import query_key, unembed
from towerlab.model.capture import Capture, capture
from towerlab.model.model import Model, add_bias, softcapped, widen
from towerlab.prompts.prompt import Demonstration, Encoded, Prompt

# Maximum error of an identity, relative to the size of the numbers compared. RMSNorm computes in
# float32 even in a float64 model, so the limit of float64 is not stricter than that.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}

WIDER = "choose dtype=bfloat16 or float32, or float64 if these are too narrow"
"""Remedy if activations overflow"""
PROVEN = frozenset({"weights", "values", "neurons", "streams"})  # parts that a proof records


def prove(model: Model) -> dict[str, float]:
    """Check on one short input that the row of the table is right.

    The identities:

    - embeddings + blocks = final residual stream;
    - heads + output bias = attention block;
    - positions sum to heads;
    - neurons + bias = FFN block;
    - bs of the final residual stream + bs of the norm's bias = the model's logits;
    - attention scores rebuilt from layer inputs (`query_key`) = scores of the model;
    - neurons' coefficients from the input of their FFN = coefficients of the model.

    Args:
        model: Any model.

    Returns:
        Identity -> relative error.

    Raises:
        TwoTowersError: If an identity fails, or if answers are not finite.
    """
    probe = capture(model, [_probe(model)], PROVEN)
    if not probe.own_logits.isfinite().all():
        raise TwoTowersError(
            f"cannot use '{model.name}': its answers are not finite in {str(model.dtype)[6:]}; "
            f"{WIDER}"
        )
    errors = identity_errors(model, probe)
    tolerance = TOLERANCE[model.dtype]
    for identity, error in errors.items():
        if not error <= tolerance:
            raise TwoTowersError(
                f"cannot use '{model.name}': it does not fit the table of architectures "
                f"({identity} has a relative error of {error:.2g}); use a stock checkpoint of a "
                "supported architecture"
            )
    return errors


def _probe(model: Model) -> Encoded:
    """Return eight tokens spread over the vocabulary, as a prompt.

    The identities hold on any input, so no tokenizer is needed.
    """
    last_id = model.unembedding.vocabulary - 1
    ids = torch.linspace(0, last_id, 8).int().tolist()
    demonstration = Demonstration("one", "foo")
    prompt = Prompt((demonstration,), "two", "foo", ("foo", "bar"))
    return Encoded(
        prompt,
        ids=tuple(ids),
        label_positions=(1,),
        text_spans=((0, 1),),
        query_span=(2, 3),
        last=7,
        label_ids={"foo": 1, "bar": 2},
    )


def identity_errors(model: Model, capture: Capture) -> dict[str, float]:
    """Return the largest relative error of every identity over layers and prompts.

    Args:
        model: Any model.
        capture: Values of a batch, recorded with PROVEN.

    Returns:
        Identity -> relative error.
    """
    errors = {"the sum of embeddings and blocks": _error(_total(capture), capture.resid_final)}
    for layer in range(model.n_layers):
        for identity, (ours, theirs) in _of_layer(model, layer, capture).items():
            error = _error(ours, theirs)
            errors[identity] = max(error, errors.get(identity, error))
    errors["our logits"] = _error(_logits(model, capture), capture.own_logits)
    return errors


def _error(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest difference, relative to the largest of their numbers."""
    theirs = widen(theirs)
    difference = widen(ours) - theirs
    largest = difference.abs().max()
    size = theirs.abs().max().clamp_min(1e-12)
    return float(largest / size)


def _total(capture: Capture) -> Tensor:
    """Return the sum of embeddings and blocks.

    It is summed in float32 at least: of a narrow model only its own rounding is left.
    """
    embeddings = widen(capture.resid_pre[0])
    attention = widen(capture.attention_output).sum(0)
    ffn = widen(capture.ffn_output).sum(0)
    return embeddings + attention + ffn


def _of_layer(model: Model, layer: int, capture: Capture) -> dict[str, tuple[Tensor, Tensor]]:
    """Return both sides of each identity of a layer: our numbers, and the model's."""
    z = capture.z[layer]
    weight = model.output_weight(layer).to(z.device)
    heads = torch.einsum("bhk,hkd->bd", z, weight)
    heads = add_bias(heads, model.output_bias(layer, "attention"))
    values = model.for_query_heads(capture.values[layer])
    weights = capture.weights[layer].to(values.dtype)
    positions = torch.einsum("bhp,bhpk->bhk", weights, values)
    normed = model.normed(layer, "attention", capture.stream_inputs[layer])
    our_scores = query_key.last_scores(model, layer, normed)
    scores = capture.scores[layer]
    visible = scores.isfinite()
    neurons = capture.neurons[layer]
    ffn = neurons @ model.ffn_weight(layer).to(neurons.device)
    ffn = add_bias(ffn, model.output_bias(layer, "ffn"))
    coefficients = _coefficients(model, layer, capture)
    return {
        "the sum of heads": (heads, capture.attention_output[layer]),
        "the sum of positions": (positions, z),
        "a product of query and key": (our_scores[visible], scores[visible]),
        "the sum of neurons": (ffn, capture.ffn_output[layer]),
        "a product with a subkey": (coefficients, capture.ffn_out_input[layer]),
    }


def _logits(model: Model, capture: Capture) -> Tensor:
    """Return the logits, from the final residual stream."""
    unembedding = model.unembedding
    logits = unembed.bs_values(capture.resid_final, unembedding)
    bias = unembedding.norm.bias
    if bias is not None:
        bias_logits = bias.to(model.device) @ unembedding.weight.T
        logits = logits + bias_logits.to(logits.dtype)
    logits = add_bias(logits, unembedding.bias)
    return softcapped(logits, unembedding.softcap)


def _coefficients(model: Model, layer: int, capture: Capture) -> Tensor:
    """Return the coefficients of all neurons of a layer, from the stream before its FFN."""
    x = model.normed(layer, "ffn", capture.resid_mid[layer])
    subkeys, bias = model.subkeys(layer)
    products = torch.einsum("bd,mnd->bmn", x, subkeys.to(x))
    maps = add_bias(products, bias).unbind(1)
    activation = model.part(layer, "ffn_activation")
    coefficients = activation(maps[0])
    if len(maps) == 1:
        return coefficients
    return coefficients * maps[1]
