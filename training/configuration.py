"""What a model is made of and how it is trained: one configuration a model."""

from dataclasses import dataclass, replace


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


SHIPPED = Configuration("mini-gpt2", layers=4, heads=8, width=96)
DEPTHS = (3, 5, 6, 8)
"""Layers of the ladder's other models; all else is as in the shipped one, which is its model of 4 layers"""
LADDER = [replace(SHIPPED, name=f"depth-{layers}", layers=layers) for layers in DEPTHS]
CONFIGURATIONS = {one.name: one for one in [SHIPPED, *LADDER]}
