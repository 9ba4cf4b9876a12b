r"""Files of a model on the Hugging Face Hub, from the network or from the cache.

The Hub is asked once in each process for the current commit of a model. If it does not answer, the
copy in the cache is used. Files of a commit that are in the cache need no network.

    >>> _reason(TimeoutError("no answer in 10 seconds\n(Request ID: 1)"))
    'TimeoutError: no answer in 10 seconds'
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from twotowers.errors import TwoTowersError
from twotowers.names import CONFIG, precomputed_models
from twotowers.paths import included_models

from towerlab.progress import say

PATIENCE = 10
"""Maximum time without an answer, in seconds"""


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

    try:
        source = _source(model_id)
        return Path(snapshot_download(model_id, allow_patterns=[*patterns], **source))
    except Exception as error:  # of the network, the disk, or a library of either
        known = ", ".join(sorted({*included_models(), *precomputed_models()}))
        raise TwoTowersError(
            f"cannot fetch the model '{model_id[:200]}': expected a folder with {CONFIG}, a "
            f"Hugging Face id, or one of {known}, got {_reason(error)}; check the name, the "
            "network, *_PROXY and SSL_CERT_FILE, and if the model is private or gated, accept its "
            "conditions on its page and run `hf auth login`"
        ) from None


@cache
def _source(model_id: str) -> dict[str, Any]:
    """Return where to get a model: its current commit, or only the cache, as arguments.

    Raises:
        Exception: If the Hub gives no commit, and the cache has none.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache

    hub = HfApi()
    try:
        hub.model_info(model_id, timeout=PATIENCE)  # `resolve_revision` would wait for ever
        return {"revision": hub.resolve_revision(model_id)}
    except Exception as error:  # httpx, proxies and certificates raise many kinds
        if not try_to_load_from_cache(model_id, CONFIG):
            raise
        say(f"{model_id}: the copy in the cache is used, as the Hub gives none: {_reason(error)}")
        return {"local_files_only": True}


def _reason(error: Exception) -> str:
    """Return the text of an error on one line, without the Hub's number of the request."""
    text = re.sub(r"\(Request ID: [^)]*\)|For more information check: \S+", "", str(error))
    one_line = " ".join(text.split())
    return f"{type(error).__name__}: {one_line[:250].rstrip('. ')}"
