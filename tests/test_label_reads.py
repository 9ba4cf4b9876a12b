"""Label reads: what is refused. The numbers are in test_independent."""

from dataclasses import replace

from conftest import random_prompts, refused, shared_tiny
from towerlab.measure.label_reads import label_reads
from twotowers.heads import Head


def test_what_cannot_be_read_is_refused():
    model, encoded = shared_tiny("gpt2"), random_prompts(2)
    refused("head 9-0 is not in gpt2", label_reads, model, encoded[:1], [Head(9, 0)])
    refused("different numbers of demonstrations", label_reads, model, encoded, [Head(0, 0)])
    e = encoded[0]
    same = replace(
        e.prompt,
        demonstrations=tuple(
            replace(d, label=e.prompt.true_label) for d in e.prompt.demonstrations
        ),
    )
    refused("lacks a true or a false", label_reads, model, [replace(e, prompt=same)], [Head(0, 0)])
