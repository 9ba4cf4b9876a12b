"""Proof that a model's row of the table of architectures is right, on the loaded weights.

    prove(model)                                 # raises TwoTowersError with the failed identity
    identity_errors(model, seen)                 # the relative error of each identity

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
    ids = tuple(int(i) for i in torch.linspace(0, model.unembedding.vocabulary - 1, 8))
    prompt = Prompt((Demonstration("one", "foo"),), "two", "foo", ("foo", "bar"))
    return Encoded(prompt, ids, (1,), ((0, 1),), (2, 3), len(ids) - 1, {"foo": 1, "bar": 2})


def identity_errors(model: Model, capture: Capture) -> dict[str, float]:
    """Return the largest relative error of every identity over layers and prompts.

    Args:
        model: Any model.
        capture: Values of a batch, recorded with PROVEN.

    Returns:
        Identity -> relative error.
    """
    unembedding, errors = model.unembedding, dict[str, float]()

    def compare(identity: str, ours: Tensor, theirs: Tensor) -> None:
        ours, theirs = widen(ours), widen(theirs)
        error = float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-12))
        errors[identity] = max(error, errors.get(identity, error))

    # Summed in float32 at least: of a narrow model only its own rounding is left.
    total = (
        widen(capture.resid_pre[0])
        + widen(capture.attention_output).sum(0)
        + widen(capture.ffn_output).sum(0)
    )
    compare("the sum of embeddings and blocks", total, capture.resid_final)
    for layer in range(model.n_layers):
        weight = model.output_weight(layer).to(capture.z.device)
        heads = torch.einsum("bhk,hkd->bd", capture.z[layer], weight)
        heads = add_bias(heads, model.output_bias(layer, "attention"))
        compare("the sum of heads", heads, capture.attention_output[layer])
        values = model.for_query_heads(capture.values[layer])
        z = torch.einsum("bhp,bhpk->bhk", capture.weights[layer].to(values.dtype), values)
        compare("the sum of positions", z, capture.z[layer])
        normed = model.normed(layer, "attention", capture.stream_inputs[layer])
        scores = query_key.last_scores(model, layer, normed)
        visible = capture.scores[layer].isfinite()
        compare("a product of query and key", scores[visible], capture.scores[layer][visible])
        neurons = capture.neurons[layer] @ model.ffn_weight(layer).to(capture.neurons.device)
        neurons = add_bias(neurons, model.output_bias(layer, "ffn"))
        compare("the sum of neurons", neurons, capture.ffn_output[layer])
        coefficients = _coefficients(model, layer, capture)
        compare("a product with a subkey", coefficients, capture.ffn_out_input[layer])
    logits = unembed.bs_values(capture.resid_final, unembedding)
    if (bias := unembedding.norm.bias) is not None:
        logits = logits + (bias.to(model.device) @ unembedding.weight.T).to(logits.dtype)
    logits = softcapped(add_bias(logits, unembedding.bias), unembedding.softcap)
    compare("our logits", logits, capture.own_logits)
    return errors


def _coefficients(model: Model, layer: int, capture: Capture) -> Tensor:
    """Return the coefficients of all neurons of a layer, from the stream before its FFN."""
    x, (subkeys, bias) = model.normed(layer, "ffn", capture.resid_mid[layer]), model.subkeys(layer)
    first, *second = add_bias(torch.einsum("bd,mnd->bmn", x, subkeys.to(x)), bias).unbind(1)
    return model.part(layer, "ffn_activation")(first) * (second[0] if second else 1)
