"""What can be said of a model and its parameters before a kernel starts and before weights are read. No torch here."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from twotowers.errors import TwoTowersError
from twotowers.heads import check_inside
from twotowers.model import fast_tokenizer, files
from twotowers.parameters import Parameters
from twotowers.paths import shipped_models
from twotowers.prompts import datasets


def check_model(name: str) -> None:
    """Raise TwoTowersError for what is no model, or a damaged one; what must be fetched first is not looked at."""
    if not name.strip():
        raise TwoTowersError(
            f"model={name!r} names nothing: give a folder, a GGUF file, a hub id, or one of {files.names()}"
        )
    if name not in shipped_models():
        files.check(name)


def check_fit(name: str, p: Parameters, declared: Iterable[str]) -> None:
    """Raise TwoTowersError for heads outside a model, and for labels that its tokenizer does not keep apart.

    Only for a model on this machine, and of what is `declared`. Nothing is fetched.
    """
    declared, path = set(declared), files.here(name) if name.strip() else None
    if path is None:
        return
    if p.heads and "heads" in declared:
        told = files.describe(name)
        check_inside(p.heads, told["n_layers"], told["n_heads"], name)
    if "labels" in declared and path.is_dir():
        fast_tokenizer.fits(path, p.labels)


def check_draw(p: Parameters, names: Iterable[str], n: int) -> None:
    """Raise TwoTowersError when `n` prompts of each of these sets cannot be drawn with these labels and this k."""
    k = {} if p.k == "auto" else {"k": p.k}
    for name in names:
        datasets.draw(name, n, seed=p.seed, labels=tuple(p.labels), **k)


def check_least(n: int, chapter: str, least: int) -> None:
    """Raise TwoTowersError when a chapter needs more prompts a set."""
    if n < least:
        raise TwoTowersError(f"n_prompts={n}: chapter {chapter} needs at least {least} prompts a set")


def check_profile(name: str) -> None:
    """Raise TwoTowersError unless Snakemake would find this profile: a folder, or a name among the user's."""
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    if not any((folder / name).is_dir() for folder in (Path(), config / "snakemake")) or not name.strip():
        raise TwoTowersError(f"profile={name!r}: give the folder of a profile of Snakemake, with a config.yaml in it")
