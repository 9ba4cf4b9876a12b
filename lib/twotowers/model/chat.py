"""A chat model on this machine, asked whether some words go with a text (v1 appendix C).

    chat = Chat.load("path/to/a-chat-model")              # a folder or a hub id; any causal model of transformers
    asked = question("the team won at football", ["goal", "cup", "league"])
    verdict(chat.ask(asked))                              # "yes", "no" or "unclear"

The wording is this book's; the paper asks its chat model to find out how a sentence and some words are related. Weights
are safetensors only, no code of a model's own is run, and answers are greedy, so they come out the same each time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from twotowers.errors import TwoTowersError
from twotowers.model import files, loading
from twotowers.prompts.prompt import Encoded

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

QUESTION = """Here are a text and a list of words that a program found. The list may have nothing to do with the text.

Text: {text}

Words: {words}

How, if at all, do the words relate to what the text is about? Explain it in at most three sentences. Then write one \
last line: "Related: yes" when several of the words go with the text, otherwise "Related: no"."""


def question(text: str, words: Sequence[str]) -> str:
    """What the chat model is asked about a demonstration's text and the top words of its key."""
    return QUESTION.format(text=text, words=", ".join(words))


def verdict(answer: str) -> str:
    """ "yes" or "no" from the last such line of an answer; "unclear" when it has none."""
    found = re.findall(r"\brelated\W{1,6}(yes|no)\b", answer, flags=re.IGNORECASE)
    return found[-1].lower() if found else "unclear"


QUOTED = "[words of the text]"
LONGEST_QUOTE = 3  # words of a data set in a row that a saved table may hold


def without_quotes(answer: str, text: str) -> str:
    """The answer with QUOTED for every run of more than LONGEST_QUOTE words that stands in `text` too.

    Saved tables hold no sentence of a data set; case and signs between words do not hide one.
    """
    words = [w.lower() for w in re.findall(r"\w+", text)]
    width = LONGEST_QUOTE + 1
    runs = {tuple(words[i : i + width]) for i in range(len(words) - width + 1)}
    found = list(re.finditer(r"\w+", answer))
    said = [m.group().lower() for m in found]
    quoted = {
        j for i in range(len(said) - width + 1) if tuple(said[i : i + width]) in runs for j in range(i, i + width)
    }
    out, at = [], 0
    for i in sorted(quoted):
        if i - 1 not in quoted:
            out += [answer[at : found[i].start()], QUOTED]
        at = found[i].end()
    return "".join([*out, answer[at:]])


def control_example(case: Encoded, place: int, others: Sequence[Encoded]) -> tuple[Encoded, int]:
    """A prompt of `others` and a place in it, whose demonstration has another class and the same label: a control.

    None of the case's texts stands there. The first one found; raises TwoTowersError when there is none.
    """
    own = case.prompt.demonstrations[place]
    texts = {case.prompt.query, *(d.text for d in case.prompt.demonstrations)}
    for other in others:
        for at, d in enumerate(other.prompt.demonstrations):
            if d.cls != own.cls and d.label == own.label and d.text not in texts:
                return other, at
    raise TwoTowersError(f"no other prompt has '{own.label}' beside a text of another class: draw more prompts")


def check(name: str | os.PathLike) -> None:
    """Raise TwoTowersError unless there is such a model and its tokenizer has a chat template; reads no weights."""
    if not files.describe(str(name))["chat"]:
        raise TwoTowersError(
            f"the tokenizer of '{name}' has no chat template, so it is no chat model: name one that was tuned for chat"
        )


@dataclass(frozen=True)
class Chat:
    """A chat model with its tokenizer. Made with `load`."""

    name: str
    hf: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @classmethod
    def load(cls, name: str | os.PathLike, *, dtype: str = "float32", device: str = "cpu") -> Chat:
        """A folder or hub id. Raises TwoTowersError, in one line, as `models.load` and `check` do."""
        check(name)
        found = loading.Files.of(str(name))
        tokenizer = found.tokenizer()
        return cls(str(name), found.weights(dtype, device).eval().requires_grad_(False), tokenizer)

    def prompt(self, asked: str) -> str:
        """The question as the model sees it, in its own chat template."""
        return self._template(asked, tokenize=False)

    def ask(self, asked: str, max_new_tokens: int = 200) -> str:
        """Its greedy answer to one question. Raises TwoTowersError when both together are longer than it reads."""
        inputs = self._template(asked, tokenize=True, return_dict=True, return_tensors="pt").to(self.hf.device)
        length = inputs["input_ids"].shape[1]
        context = getattr(self.hf.config, "max_position_embeddings", None)
        if context is not None and length + max_new_tokens > context:
            raise TwoTowersError(
                f"the question has {length} tokens, and with {max_new_tokens} more for the answer it is over the "
                f"{context} that '{self.name}' reads: choose a chat model with a longer context"
            )
        tokenizer = self.tokenizer
        padding = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        with torch.inference_mode():
            # A model's own settings may ask for sampling; these leave none of it.
            out = self.hf.generate(
                input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=max_new_tokens,
                do_sample=False, num_beams=1, temperature=None, top_p=None, top_k=None, pad_token_id=padding,
            )  # fmt: skip
        return tokenizer.decode(out[0, length:], skip_special_tokens=True).strip()

    def _template(self, asked: str, **how):
        message = [{"role": "user", "content": asked}]
        try:
            return self.tokenizer.apply_chat_template(message, add_generation_prompt=True, **how)
        except Exception as error:  # templates are programs of strangers, and fail in their own ways
            said = str(error).strip().splitlines()[0][:120]
            raise TwoTowersError(
                f"the chat template of '{self.name}' refuses a plain question ({said}): choose another chat model"
            ) from None
