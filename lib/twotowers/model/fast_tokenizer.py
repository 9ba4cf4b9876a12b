"""A model's tokenizer.json as it is, without torch: enough to lay out a prompt and to look at its labels.

fits(Path("data/models/mini-gpt2"), ["foo", "bar"])      # TwoTowersError when the labels cannot be told apart
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from twotowers.prompts.prompt import Demonstration, Prompt, encode


class FastTokenizer:
    """What `prompts.prompt.encode` asks of a tokenizer of transformers."""

    is_fast = True

    def __init__(self, folder: Path):
        from tokenizers import Tokenizer

        self._inner = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._inner.no_truncation()
        self._inner.no_padding()
        said = folder / "tokenizer_config.json"
        settings = json.loads(said.read_text("utf8")) if said.is_file() else {}
        given = [settings.get(f"{name}_token") for name in ("bos", "eos", "unk", "pad", "sep", "cls", "mask")]
        named = [one["content"] if isinstance(one, dict) else one for one in given]
        added = [token.content for token in self._inner.get_added_tokens_decoder().values() if token.special]
        self.all_special_tokens = [token for token in dict.fromkeys([*added, *named]) if token]
        self.unk_token_id = self._inner.token_to_id(named[2]) if named[2] else None

    def __call__(self, texts: Sequence[str], **_: Any) -> dict[str, list]:
        found = self._inner.encode_batch(list(texts))
        return {"input_ids": [one.ids for one in found], "offset_mapping": [one.offsets for one in found]}


def fits(folder: Path, labels: Sequence[str]) -> None:
    """Raise TwoTowersError, as `encode` does, for labels that this model's tokenizer does not keep apart.

    Says nothing where there is no tokenizer.json that can be read: loading says what is wrong with it.
    """
    try:
        tokenizer = FastTokenizer(folder)
    except Exception:  # tokenizers raises bare ones
        return
    shown = tuple(Demonstration(word, label) for word, label in zip(("one", "two"), labels, strict=True))
    encode(Prompt(shown, "six", labels[0], tuple(labels)), tokenizer)
