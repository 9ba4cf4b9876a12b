"""One prompt by the formulas of `independent`, as tensors: everything its last position is made of,
and every increase."""

import torch
from independent import Formulas
from towerlab.model.model import Model


def tensors(rows):
    return [torch.from_numpy(row) for row in rows]


class Reference:
    """Layer by layer, for the last position unless said."""

    def __init__(self, model: Model, ids):
        self.model, self.by_hand = model, Formulas(model.hf)
        if path := model.architecture.rotary:
            # the model's own, which is float32 whatever its dtype
            rotary, wide = model.hf.get_submodule(path), torch.empty(0, dtype=torch.float64)
            both = rotary(wide, torch.arange(len(ids))[None])
            self.by_hand.rotary = [x[0, :, : x.shape[-1] // 2].numpy() for x in both]
        self.run = run = self.by_hand.run(ids)
        # per layer (head, position)
        self.attentions = tensors(weights[:, -1] for weights in run.weights)
        self.resid_pre = tensors(stream[-1] for stream in run.resid)
        self.attention, self.ffn, self.coefficients = map(
            tensors, (run.attention, run.ffn, run.neurons)
        )
        self.resid_final = torch.from_numpy(run.final)
        self.scale = torch.from_numpy(self.by_hand.scale_of(run.final))[0]

    def value_output(self, layer, head, position):
        """vo: W_O^h (W_V^h norm(x) + b_V)."""
        return torch.from_numpy(
            self.by_hand.vector(self.run, layer, head, self.run.v[layer][head, position])
        )

    def position(self, layer, head, position):
        return self.attentions[layer][head, position] * self.value_output(layer, head, position)

    def head(self, layer, head):
        return sum(self.position(layer, head, p) for p in range(self.attentions[layer].shape[-1]))

    def neuron(self, layer, neuron):
        return self.coefficients[layer][neuron] * torch.from_numpy(
            self.by_hand.matrix(layer, "down")[neuron]
        )

    def increase(self, before, added, word):
        return self.by_hand.increase(self.run, before.numpy(), added.numpy(), word)
