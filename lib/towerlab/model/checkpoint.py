"""Files of a model: where they are, and the fingerprint of their bytes.

    >>> fingerprint("smollm2-135m")  # precomputed: its files name the weights, which are not here
    'smollm2-135m@b179c9523d0e'
    >>> [file.name for file in files(find_folder("mini-gpt2")).values()][:2]
    ['config.json', 'model.safetensors']

A checkpoint is exactly the files that transformers reads: config, tokenizer, and
`model.safetensors` or the files that `model.safetensors.index.json` names. `twotowers.names` has
the meaning of a name.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from twotowers.errors import TwoTowersError
from twotowers.files import atomic_write, precomputed_fingerprint
from twotowers.identity import digits
from twotowers.names import CONFIG, HUB_ID, is_local, second_meaning
from twotowers.paths import build_folder, data_folder, included_models
from twotowers.tables import read_csv

from towerlab.model import hub

MADE_FROM = "made_from"
"""Field of the config of a converted model: SHA-256 and quantisation of its GGUF file, and the
digest of the folder that was written"""
ADAPTER = "adapter_config.json"
TOKENIZER = ("tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json",
             "spiece.model")  # fmt: skip
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
WHOLE = "give config, safetensors and tokenizer of one whole checkpoint"
LFS = b"version https://git-lfs"
"""Beginning of the file that git has in place of a large one"""
LARGE = 1_000_000
"""Size in bytes from which the digest of a file is remembered"""
SETTLED = 2
"""Age of a file in seconds from which the clocks of all file systems tell its changes apart"""


def find_folder(name: str, *, with_weights: bool = False) -> Path:
    """Return the folder of a model; files of a Hugging Face id are fetched.

    Args:
        name: Name of a model, as for `loading.load`.
        with_weights: Whether weights are also fetched.

    Returns:
        Folder with config and tokenizer.

    Raises:
        TwoTowersError: If there is no such model, or if its weights are missing.
    """
    if fault := second_meaning(name):
        raise TwoTowersError(f"cannot use model '{name}': {fault}")
    if folder := included_models().get(name):
        return folder
    if is_local(name):
        return Path(name)
    if os.path.isfile(name) and (os.path.splitext(name)[1] or not HUB_ID.fullmatch(name)):
        raise TwoTowersError(
            f"cannot load '{name}': expected a folder of safetensors, got a file; convert a GGUF "
            "file with training/gguf_to_folder.py"
        )
    model_id = _hub_id(name)
    folder = hub.fetch(model_id, (CONFIG, ADAPTER, *TOKENIZER))
    if with_weights:
        hub.fetch(model_id, _weights(folder))  # all, or the index of all
        if named := _weight_files(folder):
            hub.fetch(model_id, tuple(named))
    return folder


def _hub_id(name: str) -> str:
    """Return the Hugging Face id of a name; a precomputed model has the id that it was made from.

    Raises:
        TwoTowersError: If the model was made from a folder.
    """
    precomputed = precomputed_fingerprint(name)
    if precomputed is None:
        return name
    label = precomputed.partition("@")[0]
    missing = f"missing weights of '{name}': only its measurements are precomputed"
    if name in read_csv(data_folder() / "models" / "catalog.csv")["name"].values:
        raise TwoTowersError(
            f"{missing}; run `python training/gguf_to_folder.py {name} FOLDER/{name}` and give "
            "that folder"
        )
    if label.replace("/", "--") != name:  # the name of a folder has digits of its fingerprint
        raise TwoTowersError(f"{missing}; give its folder, which was called '{label}'")
    return label


def read_config(folder: Path) -> dict[str, Any]:
    """Return config.json of a folder.

    Args:
        folder: Folder of the model.

    Raises:
        TwoTowersError: If it cannot be read.
    """
    try:
        config = json.loads((folder / CONFIG).read_text("utf8"))
        return {**config}
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise TwoTowersError(
            f"cannot read {CONFIG} of '{folder}': {type(error).__name__}: {error}; {WHOLE}"
        ) from None


def _weights(folder: Path) -> tuple[str, ...]:
    """Return the names of the files where transformers looks for weights, or for their index."""
    named = read_config(folder).get("transformers_weights")
    return (str(named),) if named else (SINGLE, INDEX)


def _weight_files(folder: Path) -> list[str]:
    """Return the names of the files from which transformers reads weights, with their index."""
    found = next((name for name in _weights(folder) if os.path.lexists(folder / name)), None)
    if found is None or not found.endswith(".index.json"):
        return [found] if found else []
    try:
        index = json.loads(_readable(folder / found).read_text("utf8"))
        return [found, *sorted({os.fspath(name) for name in index["weight_map"].values()})]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TwoTowersError(
            f"cannot read '{folder / found}': {type(error).__name__}: {error}; {WHOLE}"
        ) from None


def weight_files(folder: Path) -> list[Path]:
    """Return the files of tensors that transformers reads.

    Args:
        folder: Folder of the model.

    Raises:
        TwoTowersError: If a file is missing or cannot be read.
    """
    names = [name for name in _weight_files(folder) if not name.endswith(".json")]
    return [_readable(folder / name) for name in names]


def files(folder: Path) -> dict[str, Path]:
    """Return all files that define a model, by name.

    Args:
        folder: Folder of the model.

    Raises:
        TwoTowersError: If a file is missing or cannot be read.
    """
    of_tokenizer = [path.name for pattern in TOKENIZER for path in folder.glob(pattern)]
    names = sorted({CONFIG, *of_tokenizer, *_weight_files(folder)})
    return {name: _readable(folder / name) for name in names}


def _readable(path: Path) -> Path:
    """Return the path of a file that has its content.

    Raises:
        TwoTowersError: If there is no such file, or if it cannot be read.
    """
    try:
        with path.open("rb") as content:
            start = content.read(len(LFS))
    except OSError as error:
        raise TwoTowersError(
            f"cannot read '{path}': {error.strerror}; {WHOLE}, or download it again"
        ) from None
    if start == LFS:
        raise TwoTowersError(
            f"cannot use '{path}': expected its content, got a pointer of git-lfs; run `git lfs "
            "pull` in its folder"
        )
    return path


def fingerprint(name: str) -> str:
    """Return `name@` and 12 hexadecimal digits of the hash of a model.

    The hash is the SHA-256 over config, weights and tokenizer. A converted model has the digits of
    its GGUF file, as long as the folder is unchanged. A precomputed model has the fingerprint of
    its measurement files.

    Args:
        name: Name of a model, as for `loading.load`.

    Returns:
        The fingerprint, such as "mini-gpt2@75fd623de35f".
    """
    if stored := stored_fingerprint(name):
        return stored
    folder = find_folder(name, with_weights=True)
    return fingerprint_of_folder(folder, name)


def stored_fingerprint(name: str) -> str | None:
    """Return the fingerprint of a precomputed model whose weights are not here, else None.

    Args:
        name: Name of a model, as for `loading.load`.
    """
    is_here = name in included_models() or is_local(name)
    return None if is_here else precomputed_fingerprint(name)


def fingerprint_of_folder(folder: Path, name: str) -> str:
    """Return the fingerprint of the files of a model: see `fingerprint`.

    Args:
        folder: Folder of the model.
        name: Name of the model, as for `loading.load`.
    """
    label = folder.resolve().name if is_local(name) else name
    digest = made_from(folder).get("sha256") or folder_digest(folder)
    return f"{label}@{digest[:12]}"


def made_from(folder: Path) -> dict[str, str]:
    """Return the origin of a converted model, or {} if the folder is no or another model.

    A model that is trained further keeps the field in its config.

    Args:
        folder: Folder of the model.

    Returns:
        SHA-256 and quantisation of the GGUF file, and digest of the folder.
    """
    origin = read_config(folder).get(MADE_FROM) or {}
    is_unchanged = bool(origin) and origin.get("folder") == folder_digest(folder)
    return origin if is_unchanged else {}


def folder_digest(folder: Path) -> str:
    """Return the SHA-256 over the config without `made_from`, the weights and the tokenizer.

    Args:
        folder: Folder of the model.

    Returns:
        Hexadecimal digits.
    """
    digests = {name: _digest(path) for name, path in files(folder).items()}
    config = read_config(folder)
    if config.pop(MADE_FROM, None):
        without_origin = json.dumps(config, sort_keys=True)
        digests[CONFIG] = _sha256(without_origin)
    lines = [f"{name} {digest}\n" for name, digest in sorted(digests.items())]
    return _sha256("".join(lines))


def _sha256(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def state(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return numbers that differ once a file of a model was changed or replaced.

    Args:
        folder: Folder of the model.

    Returns:
        Name of a file -> inode, size in bytes, times of change in nanoseconds.
    """
    return {name: _state(path) for name, path in files(folder).items()}


def _state(path: Path) -> tuple[int, ...]:
    """Return the state of a file. Programs can set the first time, but not the second."""
    about = path.stat()
    return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file, which is remembered for a large file in a given state."""
    before = _state(path)
    _, size, *times = before
    memory = build_folder() / "digests" / digits([str(path.resolve()), *before])
    if size >= LARGE and memory.is_file():
        return memory.read_text()
    with path.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    is_settled = time.time() - max(times) / 1e9 > SETTLED
    if size >= LARGE and is_settled:
        with suppress(TwoTowersError), atomic_write(memory) as scratch:
            scratch.write_text(digest)
    return digest
