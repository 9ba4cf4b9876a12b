"""Load a causal language model by shipped name, folder or hub id, and prove that its row of the table is right.

model = load("mini-gpt2")                       # shipped with the book
model = load("openai-community/gpt2-large")     # from the hub, or a folder of your own
"""

from __future__ import annotations

import hashlib
import os
import socket
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import torch
from huggingface_hub import constants
from jaxtyping import Float
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from twotowers.errors import TwoTowersError
from twotowers.model import query_key, unembed
from twotowers.model.architectures import ARCHITECTURES, REFUSED
from twotowers.model.attention_hooks import implementation
from twotowers.model.capture import Capture, capture
from twotowers.model.model import Model
from twotowers.paths import shipped_models
from twotowers.prompts.prompt import Demonstration, Encoded, Prompt

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
# Largest error of an identity, relative to the size of the numbers compared (RMSNorm computes in float32 even in a
# float64 model, so float64 is not held to more than that).
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}

PROVEN = frozenset({"weights", "values", "neurons", "scores", "streams"})  # what a proof records


def load(
    name: str | os.PathLike,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    device_map: str | dict | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Model:
    """Load a model and its tokenizer (safetensors only), read attention through `capture`, prove, fingerprint.

    `name` is a shipped miniature ("mini-gpt2"), a folder, or a hub id; `dtype` one of float32, bfloat16, float16,
    float64. `device_map` ("auto", or module -> device) spreads a model over several devices instead of `device`; it
    needs accelerate, and room for all weights: nothing may be offloaded, since weights are read outside the forward
    pass. Raises TwoTowersError, in one line that names the remedy, for an unknown model, a folder without weights,
    pickle-only or quantised weights, an architecture outside the table, a missing device, or a failed proof.
    """
    name = str(name)
    check(name, dtype, device)
    files = Files.of(name, revision=revision, trust_remote_code=trust_remote_code)
    config = files.config()
    row = ARCHITECTURES.get(config.model_type)
    if row is None:
        remedy = REFUSED.get(config.model_type) or f"choose one of {', '.join(sorted(ARCHITECTURES))}"
        raise TwoTowersError(f"'{name}' is a {config.model_type} model, which is not supported: {remedy}")
    refusal = row.refusal(config)
    if refusal is not None:
        raise TwoTowersError(f"'{name}' is a {config.model_type} model of a kind that is not supported: {refusal}")
    if getattr(config, "quantization_config", None) is not None:
        raise TwoTowersError(f"'{name}' is quantised, so its weights cannot be read as they are: take the full weights")
    tokenizer = files.tokenizer()
    hf = files.weights(dtype, device, device_map, config=config, attn_implementation=implementation(row))
    if any(parameter.is_meta for parameter in hf.parameters()):
        raise TwoTowersError(
            f"device_map offloads part of '{name}', whose weights must all be at hand: give it more or larger devices, "
            "or a narrower dtype"
        )
    hf = hf.eval().requires_grad_(False)
    model = Model(name, hf, tokenizer, row)
    model.fingerprint = f"{Path(name).resolve().name if Path(name).is_dir() else name}@{weights_hash(hf)}"
    prove(model)
    return model


@dataclass(frozen=True)
class Files:
    """Where the files of a model are, and how transformers is asked for them. Made with `of`."""

    name: str
    source: str
    asked: dict[str, Any]

    @classmethod
    def of(cls, name: str, *, revision: str | None = None, trust_remote_code: bool = False) -> Files:
        """Of a shipped name, a folder or a hub id. Raises TwoTowersError for a folder that holds no model."""
        source = _source(name)
        # Without a network transformers retries for half a minute; whatever is in the local cache is found at once.
        local = not os.path.isdir(source) and not _hub_answers()
        asked = {"revision": revision, "trust_remote_code": trust_remote_code, "local_files_only": local}
        return cls(name, source, asked)

    def config(self) -> PretrainedConfig:
        return self._had(lambda: AutoConfig.from_pretrained(self.source, **self.asked))

    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._had(lambda: AutoTokenizer.from_pretrained(self.source, **self.asked))

    def weights(self, dtype: str, device: str, device_map: str | dict | None = None, **how: Any) -> PreTrainedModel:
        """The model, from safetensors only; `how` goes to transformers. Raises TwoTowersError on missing weights."""
        torch_dtype, torch_device = _dtype(dtype), _device(device)
        hf, report = self._had(
            lambda: AutoModelForCausalLM.from_pretrained(
                self.source,
                dtype=torch_dtype,
                device_map=device_map,
                use_safetensors=True,
                output_loading_info=True,
                **how,
                **self.asked,
            )
        )
        if report["missing_keys"]:  # transformers fills them with random numbers
            some = ", ".join(sorted(report["missing_keys"])[:3])
            lacking = f"'{self.name}' lacks {len(report['missing_keys'])} weights ({some})"
            raise TwoTowersError(f"{lacking}: take a whole checkpoint")
        return hf.to(torch_device) if device_map is None else hf

    def _had(self, get: Callable[[], Any]) -> Any:
        """What `get` gives, without transformers' load report; whatever it says in many lines, in one."""
        previous = transformers_logging.get_verbosity()
        transformers_logging.set_verbosity_error()  # the report is not the reader's business; faults are raised
        try:
            return get()
        except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
            if isinstance(error, ImportError | ValueError) and "accelerate" in str(error):
                raise TwoTowersError("device_map needs accelerate: pip install accelerate") from None
            raise TwoTowersError(_unreachable(self.name, error, self.asked["local_files_only"])) from None
        finally:
            transformers_logging.set_verbosity(previous)


def check(name: str | os.PathLike, dtype: str = "float32", device: str = "cpu", device_map: str | None = None) -> None:
    """What `load` would refuse before it reads anything: unknown dtype, absent device, a folder without a model."""
    _dtype(dtype)
    _device(device)
    if device_map is not None:
        check_device_map(device_map)
    _source(str(name))


def check_device_map(word: str) -> str:
    """Raise TwoTowersError unless transformers knows the word and accelerate is installed."""
    if word not in DEVICE_MAPS:
        raise TwoTowersError(f"unknown device_map '{word}': choose one of {', '.join(DEVICE_MAPS)}")
    if find_spec("accelerate") is None:
        raise TwoTowersError("device_map needs accelerate: pip install accelerate")
    return word


def prove(model: Model) -> dict[str, float]:
    """Show on one short input that the row of the table is right; return the relative error of each identity.

    Checked: embeddings + blocks = final residual; heads + output bias = attention block; positions sum to heads;
    neurons + bias = FFN block; bs of the final residual + bs of the norm's bias = the model's logits; attention scores
    rebuilt from layer inputs (`query_key`) = those of the model. Raises TwoTowersError naming the identity that failed.
    """
    errors = identity_errors(model, capture(model, [_probe(model)], PROVEN))
    tolerance = TOLERANCE[model.dtype]
    for identity, error in errors.items():
        if not error <= tolerance:
            raise TwoTowersError(
                f"'{model.name}' does not fit the table of architectures ({identity} is off by {error:.2g}, relative): "
                "its scores would be wrong, so it is refused; use a stock checkpoint of a supported architecture"
            )
    return errors


def _probe(model: Model) -> Encoded:
    """Eight tokens spread over the vocabulary: the identities hold on any input, so no tokenizer is needed."""
    ids = tuple(int(i) for i in torch.linspace(0, model.unembedding.vocabulary - 1, 8))
    prompt = Prompt((Demonstration("one", "foo"),), "two", "foo", ("foo", "bar"))
    return Encoded(prompt, ids, (1,), ((0, 1),), (2, 3), len(ids) - 1, {"foo": 1, "bar": 2})


def identity_errors(model: Model, seen: Capture) -> dict[str, float]:
    """Largest relative error of every identity over layers and prompts. Needs want=PROVEN."""
    seen.require("weights", "values", "neurons", "scores", "stream_inputs")
    e = model.unembedding
    # Summed in float32 at least: of a narrow model only its own rounding is left.
    total = _wide(seen.resid_pre[0]) + _wide(seen.attention_output).sum(0) + _wide(seen.ffn_output).sum(0)
    heads, positions, neurons, scores = 0.0, 0.0, 0.0, 0.0
    places = torch.arange(len(seen.prompts[0].ids), device=seen.resid_final.device)
    for layer in range(model.n_layers):
        vectors = torch.einsum("bhk,hkd->bhd", seen.z[layer], model.output_weight(layer).to(seen.z.device))
        heads = max(heads, _error(_plus(vectors.sum(1), model.output_bias(layer)), seen.attention_output[layer]))
        values = seen.values[layer].repeat_interleave(model.n_heads // model.n_key_value_heads, dim=1)
        z = torch.einsum("bhp,bhpk->bhk", seen.weights[layer].to(values.dtype), values)
        positions = max(positions, _error(z, seen.z[layer]))
        normed = query_key.normed(model, layer, seen.stream_inputs[layer])
        own, inside = query_key.last_scores(model, layer, normed, places), seen.scores[layer] > -1e30  # not masked
        scores = max(scores, _error(own[inside], seen.scores[layer][inside]))
        ffn = seen.neurons[layer] @ model.ffn_weight(layer).to(seen.neurons.device)
        neurons = max(neurons, _error(_plus(ffn, model.ffn_bias(layer)), seen.ffn_output[layer]))
    logits = unembed.bs_values(seen.resid_final, e, "frozen", unembed.norm_scale(seen.resid_final, e))
    if e.norm_bias is not None:
        logits = logits + (e.norm_bias @ e.weight.T).to(logits.dtype)
    return {
        "the sum of embeddings and blocks": _error(total, seen.resid_final),
        "the sum of heads": heads,
        "the sum of positions": positions,
        "a product of query and key": scores,
        "the sum of neurons": neurons,
        "our logits": _error(capped(_plus(logits, e.bias), e.softcap), seen.logits),
    }


def capped(logits: torch.Tensor, softcap: float | None) -> torch.Tensor:
    """The model's own logits from ours: Gemma 2 bends them by `softcap * tanh(logits / softcap)`."""
    return logits if softcap is None else softcap * (logits / softcap).tanh()


def finished(model: Model, final: Float[torch.Tensor, "batch d_model"]) -> Float[torch.Tensor, "batch vocabulary"]:
    """The model's logits for a final residual vector: its own final norm (scale recomputed), unembedding, soft cap."""
    final = final.to(next(model.final_norm.parameters()).device)
    logits = model.hf.get_output_embeddings()(model.final_norm(final[:, None]).to(model.device))[:, 0]
    return capped(logits, model.unembedding.softcap)


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _plus(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x if bias is None else x + bias.to(x.device)


def _error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    ours, theirs = _wide(ours), _wide(theirs)
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-12))


def weights_hash(hf: torch.nn.Module, sample: int = 65_536) -> str:
    """12 hexadecimal digits over every parameter's name, shape and values (of a large one, `sample` spread evenly)."""
    digest = hashlib.sha256()
    for name, parameter in sorted(hf.state_dict().items()):
        flat = parameter.detach().reshape(-1)
        flat = flat[:: max(1, flat.numel() // sample)]
        digest.update(f"{name}{tuple(parameter.shape)}".encode())
        digest.update(flat.to("cpu", torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]


def _dtype(dtype: str) -> torch.dtype:
    if dtype not in DTYPES:
        raise TwoTowersError(f"unknown dtype '{dtype}': choose one of {', '.join(DTYPES)}")
    return DTYPES[dtype]


def _device(device: str) -> torch.device:
    try:
        found = torch.device(device)
        torch.empty(0, device=found).tolist()  # "meta" makes tensors without numbers
    except (RuntimeError, AssertionError, NotImplementedError):
        have = ["cpu"] + [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        have += ["mps"] if torch.backends.mps.is_available() else []
        raise TwoTowersError(f"device '{device}' is not here: choose one of {', '.join(have)}") from None
    return found


def _hub_answers(seconds: float = 3.0) -> bool:
    """Whether the hub can be asked. Behind a proxy, which may reach what this machine cannot, it is always asked."""
    if constants.HF_HUB_OFFLINE:
        return False
    if urllib.request.getproxies():
        return True
    url = urlsplit(constants.ENDPOINT)
    try:
        socket.create_connection((url.hostname, url.port or (80 if url.scheme == "http" else 443)), seconds).close()
    except OSError:
        return False
    return True


def _source(name: str) -> str:
    """What transformers is asked for: the folder of a shipped model, a folder as given, or a hub id."""
    shipped = shipped_models()
    if name in shipped:
        return str(shipped[name])
    folder = Path(name)
    if not folder.is_dir():
        if folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
            raise TwoTowersError(f"there is no folder '{name}': give a folder, a hub id, or one of {_names(shipped)}")
        return name
    if not (folder / "config.json").is_file():
        raise TwoTowersError(f"'{name}' holds no config.json: give a folder written by save_pretrained")
    if not [*folder.glob("tokenizer*"), *folder.glob("vocab*")]:
        raise TwoTowersError(f"'{name}' holds no tokenizer: put its files there (tokenizer.save_pretrained(folder))")
    if not list(folder.glob("*.safetensors")):
        if list(folder.glob("*.bin")) or list(folder.glob("*.pt")) or list(folder.glob("*.pth")):
            raise TwoTowersError(
                f"'{name}' holds pickled weights only, which can run code when loaded: save it as safetensors "
                "(model.save_pretrained(folder) with a recent transformers)"
            )
        raise TwoTowersError(f"'{name}' holds no weights: put model.safetensors there (model.save_pretrained(folder))")
    return name


def _names(shipped: dict) -> str:
    return ", ".join(sorted(shipped)) or "the shipped miniatures (none found)"


def _unreachable(name: str, error: Exception, local: bool) -> str:
    """One line for what transformers says in many."""
    text = str(error)
    if local and any(word in text for word in ("connect", "cache", "offline")):
        return (
            f"cannot load '{name}': it is not in the local cache and the hub cannot be reached from here, so give a "
            f"shipped name ({_names(shipped_models())}) or a folder, or go online"
        )
    if "gated" in text or "401" in text:
        return f"'{name}' needs your permission on the hub: accept its terms there, then run `hf auth login`"
    if "safetensors" in text and ("pickle" in text or ".bin" in text):
        return f"'{name}' has no safetensors weights: choose a revision that has them, or convert it"
    if "model type" in text or "model_type" in text:
        known = ", ".join(sorted(ARCHITECTURES))
        return f"'{name}' has an architecture that is not supported: choose one of {known}"
    first = text.strip().splitlines()[0][:160] if text.strip() else type(error).__name__
    return (
        f"cannot load model '{name}': give a shipped name ({_names(shipped_models())}), a folder, or a hub id that can "
        f"be reached or is in the local cache ({first})"
    )
