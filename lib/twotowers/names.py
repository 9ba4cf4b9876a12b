"""Names of models: what a name means, and the name of a model among files.

A name means, in this order,

1. an included model (a folder of data/models) or a precomputed model (one of data/measurements),
2. a folder with a config.json,
3. a Hugging Face id, such as `gpt2` or `owner/name`.

A folder with a name of (1) is written as a path, such as `./mini-gpt2`: without the `./`, Settings
refuse the name. A path, such as `./x`, `/x` or `x/y/z`, never means a Hugging Face id.

    >>> is_local("mini-gpt2"), slug("owner/name")
    (False, 'owner--name')
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from twotowers.paths import data_folder, included_models

CONFIG = "config.json"
HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)


def precomputed_models() -> dict[str, Path]:
    """Return the folder of every model with precomputed measurements."""
    files = sorted((data_folder() / "measurements").glob("[!.]*/*/[!.]*.nc"))
    return {file.parents[1].name: file.parents[1] for file in files}


def is_known(model: str) -> bool:
    """Return whether a name is that of an included or precomputed model.

    Args:
        model: Name of a model.
    """
    return model in included_models() or model in precomputed_models()


def second_meaning(model: str) -> str:
    """Return the fault of a name that both a model of the book and a folder here have, or "".

    Args:
        model: Name, folder or Hugging Face id of a model.
    """
    folder = included_models().get(model)
    is_that_folder = folder is not None and folder.resolve() == Path(model).resolve()
    if is_that_folder or not is_known(model) or not os.path.isfile(os.path.join(model, CONFIG)):
        return ""
    return (
        "expected the name of one model, but a model of the book and a folder here have it; write "
        f"./{model} for the folder, or work in another folder"
    )


def is_local(model: str) -> bool:
    """Return whether a model is a folder on this machine.

    The name of such a folder does not identify the model.

    Args:
        model: Name, folder or Hugging Face id of a model.
    """
    if is_known(model) or not os.path.isdir(model):
        return False
    return os.path.isfile(os.path.join(model, CONFIG)) or not HUB_ID.fullmatch(model)


def slug(model: str) -> str:
    """Return a model as a folder name.

    This is a known name, the last part of a folder's path, or a Hugging Face id with "--" in place
    of "/".

    Args:
        model: Name, folder or Hugging Face id of a model.
    """
    if is_local(model):
        model = Path(model).resolve().name
    return re.sub(r"[^\w.-]+", "--", model.strip("/"))
