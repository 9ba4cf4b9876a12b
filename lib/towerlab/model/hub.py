r"""Files of a model on the Hugging Face Hub, from the network or from the cache.

The Hub is asked once in each process for the current commit of a model. If it does not answer, the
copy in the cache is used, and processes that this one starts do not ask again. Files of a commit
that are in the cache need no network.

    >>> _reason(TimeoutError("no answer in 10 seconds\n(Request ID: 1)"))
    'TimeoutError: no answer in 10 seconds'
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from twotowers.errors import TwoTowersError
from twotowers.files import atomic_write
from twotowers.names import CONFIG, precomputed_models
from twotowers.paths import included_models

from towerlab.progress import say

PATIENCE = 10
"""Maximum time without an answer, in seconds"""
SILENCE = 2
"""Time without an answer after which a line names the question that is open, in seconds"""
OFFLINE = "HF_HUB_OFFLINE"


@cache
def fetch(model_id: str, patterns: tuple[str, ...]) -> Path:
    """Return the folder of a model in the cache, with all its files that match a pattern.

    Args:
        model_id: Hugging Face id.
        patterns: Names of files, with wildcards.

    Returns:
        Folder of the current commit of the model, or of the commit in the cache.

    Raises:
        TwoTowersError: If there is no such model, or if files cannot be fetched.
    """
    from huggingface_hub import snapshot_download

    commit = _commit(model_id)
    is_offline = commit is None
    try:
        folder = snapshot_download(
            model_id,
            revision=commit,
            allow_patterns=[*patterns],
            etag_timeout=PATIENCE,
            local_files_only=is_offline,
        )
    except Exception as error:  # of the network, the disk, or a library of either
        raise _refusal(model_id, error) from None
    if not is_offline:
        _name_current(Path(folder))
    return Path(folder)


def _name_current(folder: Path) -> None:
    """Name the folder of a commit as the current one, which is used where the Hub does not answer.

    `snapshot_download` does not, if it is given a commit.
    """
    name = folder.parents[1] / "refs" / "main"
    is_named = name.is_file() and name.read_text() == folder.name
    with suppress(TwoTowersError):  # a cache that several people share may be read-only
        if not is_named:
            with atomic_write(name) as scratch:
                scratch.write_text(folder.name)


@cache
def _commit(model_id: str) -> str | None:
    """Return the current commit of a model, or None if only the cache can be used.

    A refusal is not remembered, so that a notebook can try again.

    Raises:
        TwoTowersError: If the Hub gives no commit, and the cache has none.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    try:
        return _answer(
            lambda: HfApi().model_info(model_id, timeout=PATIENCE).sha,
            f"{model_id}: waiting at most {PATIENCE} s for the Hugging Face Hub to say what is "
            f"current ({OFFLINE}=1 uses the cache only)",
        )
    except Exception as error:  # httpx, proxies and certificates raise many kinds
        fault = error
    if isinstance(fault, HFValidationError) or not try_to_load_from_cache(model_id, CONFIG):
        raise _refusal(model_id, fault) from None
    if not isinstance(fault, OfflineModeIsEnabled):
        say(f"{model_id}: the copy in the cache is used, as the Hub gives none: {_reason(fault)}")
    if not isinstance(fault, HfHubHTTPError):
        os.environ[OFFLINE] = "1"
    return None


def _answer(question: Callable[[], Any], text: str) -> Any:
    """Return the answer to a question, and print the question if it takes longer than SILENCE.

    The time limit of a connection holds for each address of a server. So a thread asks, which may
    end later.

    Raises:
        TimeoutError: If there is no answer within PATIENCE.
    """
    answer: Future = Future()

    def ask() -> None:
        try:
            answer.set_result(question())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    if not wait([answer], SILENCE).done:
        say(text)
    if not wait([answer], PATIENCE - SILENCE).done:
        raise TimeoutError(f"no answer in {PATIENCE} seconds")
    return answer.result()


def _reason(error: Exception) -> str:
    """Return the text of an error on one line, without the Hub's number of the request."""
    text = re.sub(r"\(Request ID: [^)]*\)|For more information check: \S+", "", str(error))
    return f"{type(error).__name__}: {' '.join(text.split())[:250].rstrip('. ')}"


def _refusal(model_id: str, error: Exception) -> TwoTowersError:
    """Return the error of a model that cannot be fetched, with the reason and the remedy."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        RepositoryNotFoundError,
    )

    known = ", ".join(sorted({*included_models(), *precomputed_models()}))
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else 0
    is_gated = isinstance(error, GatedRepoError) or status == 403
    is_unknown = isinstance(error, (HFValidationError, RepositoryNotFoundError)) and not is_gated
    if is_unknown:
        here = f"; the folder '{model_id}' here has no {CONFIG}" if os.path.isdir(model_id) else ""
        return TwoTowersError(
            f"unknown model '{model_id[:200]}': expected a folder of safetensors, a Hugging Face "
            f"id, or one of {known} ({_reason(error)}{here}); check the name, or run `hf auth "
            "login` if the model is private"
        )
    if is_gated or status == 401:
        remedy = "accept its conditions on its page, and run `hf auth login`"
    elif status:
        remedy = "try again later"
    elif constants.HF_HUB_OFFLINE:
        remedy = f"unset {OFFLINE} to fetch it, or give its folder"
    else:
        remedy = "check the name, the network, *_PROXY and SSL_CERT_FILE, or give its folder"
    return TwoTowersError(
        f"cannot fetch the model '{model_id[:200]}', which is none of {known}: the Hugging Face "
        f"Hub says {_reason(error)}; {remedy}"
    )
