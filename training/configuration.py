"""What a model is made of and how it is trained: one configuration a model."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Configuration:
    """A GPT-2 of this shape, its batches and its updates. `python -m training.train NAME` trains it."""

    name: str
    layers: int
    heads: int
    width: int
    batch: int = 64
    """rows of a batch, about: drills with longer rows have fewer"""
    updates: int = 1500
    """batches of episodes in the last stage"""
    validate_every: int = 50
    """batches of episodes between two validations"""
    validation_prompts: int = 100
    """of each validation set and label"""
    save_every: int = 100
    """batches between two saved states"""
    rate: float = 2e-3
    weight_decay: float = 0.01


CONFIGURATIONS = {one.name: one for one in [Configuration("mini-gpt2", layers=4, heads=8, width=96)]}
