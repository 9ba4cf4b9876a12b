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
    tied: bool = True
    """whether words are read and written by the same vectors"""
    drills: bool = True
    """whether a colon is learned in drills (echoes, half, colon); else in the episodes themselves"""
    other_text: bool = False
    """whether every second update is on lists and sentences in which label words are words like others"""
    text_tokens: tuple[int, int] = (1, 1)
    """fewest and most tokens of an episode's text: a word of a class and others around it"""
    label_words: int = 20
    hidden_in_recall: str = "nothing"
    """edges along which nothing is attended to in the recall drill: see `text.recall_edges`"""
    seeds: tuple[int, ...] = (0, 1, 2, 3)
    """in the ladder"""

    @property
    def test_tokens(self) -> int:
        """of a text of the prompts that test the model"""
        return sum(self.text_tokens) // 2


SHIPPED = Configuration("mini-gpt2", layers=4, heads=8, width=96)
SEEDS = {3: tuple(range(8)), 4: (0, 1, 2, 3), 5: tuple(range(8)), 6: (0, 1, 2, 3), 8: (0, 1, 2, 3)}
"""Layers -> seeds: where models of one depth differ in their way there are twice as many"""
DEPTHS = {layers: replace(SHIPPED, name=f"depth-{layers}", layers=layers, seeds=seeds) for layers, seeds in SEEDS.items()}
"""Layers -> a model of the ladder; all else is as in the shipped one"""
FACTORS = [
    replace(DEPTHS[6], name="depth-6-no-drills", drills=False, updates=6000),
    replace(DEPTHS[6], name="depth-6-untied", tied=False),
    replace(DEPTHS[6], name="depth-6-other-text", other_text=True),
    replace(DEPTHS[6], name="depth-6-long-texts", text_tokens=(2, 4)),
    replace(DEPTHS[6], name="depth-6-200-labels", label_words=200),
]
HIDDEN = [
    replace(DEPTHS[3], name="depth-3-label-hidden", hidden_in_recall="asked word to its label", seeds=(5,)),
    replace(DEPTHS[5], name="depth-5-next-hidden", hidden_in_recall="asked word to what follows", seeds=(4,)),
    replace(DEPTHS[3], name="depth-3-no-previous-token", hidden_in_recall="labels to the word before", seeds=(5, 6, 7)),
    replace(DEPTHS[5], name="depth-5-labels-only", hidden_in_recall="asked word to words of the first copy", seeds=(4, 5, 6)),
]
"""Whether it is decided by how recall is learned: one way is closed while that is drilled"""
STOPPING = replace(DEPTHS[8], name="depth-8-untied-other-text", tied=False, other_text=True, seeds=(0, 1))
"""The ladder ends if neither this model nor that of 8 layers relays"""
LADDER = [*DEPTHS.values(), *FACTORS, *HIDDEN, STOPPING]
CONFIGURATIONS = {one.name: one for one in [SHIPPED, *LADDER]}
