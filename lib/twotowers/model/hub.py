"""Models of the Hugging Face hub: fetched into its own cache, no code among them. No torch here."""

from __future__ import annotations

import re
import socket
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from huggingface_hub import constants, errors, snapshot_download

from twotowers.errors import TwoTowersError


def is_id(name: str) -> bool:
    """Whether the hub could have a model of that name: "gpt2" or "owner/name"."""
    return len(name) <= 96 and re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", name) is not None


def fetch(name: str, revision: str | None, files: tuple[str, ...]) -> Path:
    """The folder of a model in the hub's cache, with those of `files` (patterns) that the model has.

    Raises TwoTowersError, in one line, when it cannot be had.
    """
    # Without a network the hub's library retries for half a minute; what is in the cache is found at once.
    offline = not answers()
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(files), local_files_only=offline))
    except errors.GatedRepoError:
        why = "needs your permission on the hub: accept its terms there, then run `hf auth login`"
    except errors.RevisionNotFoundError:
        why = f"has no revision '{revision}' on the hub: choose one of its branches or tags"
    except errors.RepositoryNotFoundError:
        why = "is no model on the hub, or not for you: check the name, or run `hf auth login` if it is private"
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        why = (
            "cannot be loaded, it is not in the local cache and the hub cannot be reached from here: go online, or "
            "give a folder, a GGUF file, or a name that `twotowers models` lists"
        )
    except (errors.HfHubHTTPError, OSError, ValueError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        why = f"cannot be fetched from the hub ({first}): try again, or give a folder"
    raise TwoTowersError(f"'{name}' {why}")


def answers(seconds: float = 3.0) -> bool:
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
