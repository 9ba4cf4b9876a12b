"""How mini-sentences is trained; the command is `python -m miniatures.train mini-sentences`.

The drills of the other miniatures come first (trainer.py), then episodes of real sentences, whose texts grow from 4 to
64 tokens and rows from 160 to 512. Beside the loss on labels stands one on a **probe**: after the third of six layers,
a linear map must tell the class of each text at the colon that ends it. Without it such a model learns the classes only
in its last layers, too late for a head to match on them; the map itself is thrown away at the end.
"""

import platform
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from miniatures.sentence_card import write_card
from miniatures.sentence_text import CONTEXT, NAMES, SentenceText, build_tokenizer, corpus
from miniatures.trainer import RATE, Progress, Trainer

WIDTH, LAYERS, HEADS, PROBED = 128, 6, 4, 3
EPISODE_STEPS, EVERY, VALIDATION_COUNT = 4000, 250, 100
TOKENS = 5120  # of one batch
LENGTHS = ((0.5, 160), (0.9, 320), (1.0, 512))  # length of a row up to this part of the steps


class SentenceTrainer(Trainer):
    """As `Trainer`, on sentences; the last step is shipped, whatever validation says."""

    def prepare(self) -> None:
        # oneDNN's products are twice as fast here; where it would round, training does not mind.
        torch.set_float32_matmul_precision("medium")
        train, validation = corpus()
        self.sizes = {cls: len(texts) for cls, texts in train.items()}
        self.tokenizer = build_tokenizer(train)
        self.text = SentenceText(self.tokenizer, train, validation, self.seed)
        config = LlamaConfig(
            vocab_size=len(self.tokenizer), hidden_size=WIDTH, intermediate_size=8 * WIDTH // 3,
            num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=HEADS // 2,
            max_position_embeddings=CONTEXT, tie_word_embeddings=True, bos_token_id=0, eos_token_id=0, pad_token_id=0,
            attn_implementation="eager",  # for many small matrices its gradient takes a third of the time
        )  # fmt: skip
        self.model = LlamaForCausalLM(config)
        self.probe = nn.Sequential(nn.RMSNorm(WIDTH), nn.Linear(WIDTH, len(self.text.classes)))
        self.model.model.layers[PROBED - 1].register_forward_hook(self._probed)

    def _probed(self, _, args, output) -> None:
        self.states = output[0] if isinstance(output, tuple) else output

    def networks(self) -> nn.ModuleDict:
        return nn.ModuleDict({"model": self.model, "probe": self.probe})

    def new_optimiser(self) -> torch.optim.Optimizer:
        self.parameters = [*self.model.parameters(), *self.probe.parameters()]
        return torch.optim.AdamW(self.parameters, lr=RATE, betas=(0.9, 0.95), weight_decay=0.05)

    def train(self, batch, weight: float = 1.0) -> float:
        """One update on (ids, mask) or (ids, mask, classes); returns the loss on labels in nats."""
        ids, mask, *rest = (torch.from_numpy(array) for array in batch)
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate * min(1.0, (self.step + 1) / 100)
        states = self.model.base_model(ids, use_cache=False).last_hidden_state[:, :-1]
        asked = mask[:, 1:].bool()
        labels = loss = cross_entropy(self.model.lm_head(states[asked]), ids[:, 1:][asked])
        for classes in rest:
            known = classes >= 0
            loss = loss + weight * cross_entropy(self.probe(self.states[known]), classes[known])
        self.optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimiser.step()
        self.step += 1
        return labels.item()

    def keeps(self, count: int) -> bool:
        return self.at.stage == "episodes" and count % (EPISODE_STEPS // 4) == 0

    def begin_episodes(self) -> None:
        """A fresh optimiser; the text goes on."""
        self.optimiser = self.new_optimiser()

    def episodes(self) -> None:
        """The last stage: texts and rows grow longer, a little recall beside them."""
        if self.at.stage != "episodes":
            self.at = Progress("episodes", smooth=3.0)
            self.begin_episodes()
        at, said = self.at, {}
        with self.bar("episodes", EPISODE_STEPS) as bar:
            for count in range(at.count + 1, EPISODE_STEPS + 1):
                part = count / EPISODE_STEPS
                self.rate = RATE * (1 - 0.95 * part)
                length = next(length for end, length in LENGTHS if part <= end)
                cut = round(4 + 12 * 2 * part) if part <= 0.5 else round(16 + 48 * min(1, (part - 0.5) / 0.3))
                batch = self.text.episodes(TOKENS // length, length, cut)
                at.smooth = 0.97 * at.smooth + 0.03 * self.train(batch, 1.0 if part < 0.85 else 0.3)
                if count % 8 == 0:
                    self.train(self.text.recall(32, True, True))
                if count % EVERY == 0:
                    self.log.append({"step": self.step, **self.validated()})
                    said = {name: f"{self.log[-1][name]:.0f}" for name in NAMES}
                bar.set_postfix(loss=f"{at.smooth:.2f}", **said, refresh=False)
                self.advance(bar)
        self.stages.append(("episodes", self.step))

    @torch.no_grad()
    def validated(self) -> dict[str, float]:
        """Percent of validation prompts, whole sentences, whose top word is the true label."""
        self.model.eval()
        out = {}
        for name in NAMES:
            prompts = list(self.text.prompts(name, VALIDATION_COUNT, seed=1))
            logits = [self.model(torch.tensor([ids]), logits_to_keep=1).logits[0, -1] for ids, _ in prompts]
            right = [int(x.argmax()) == true for x, (_, true) in zip(logits, prompts, strict=True)]
            out[name] = 100 * sum(right) / len(right)
        self.model.train()
        return out

    def choose(self) -> None:
        """Nothing is chosen: the last step is shipped."""

    def write_card(self, folder: Path) -> None:
        write_card(folder, self)

    @property
    def made_with(self) -> str:
        return f"torch {torch.__version__}, Python {platform.python_version()}"
