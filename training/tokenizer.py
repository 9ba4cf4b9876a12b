"""The tokenizer of mini-gpt2: one token for each known word, single bytes for other text.

A unigram model over byte-level text. Its pieces are the 256 bytes, with a low score, and whole
words with their leading space, with a high score. So the best split of " love" is one piece, and
the best split of " Zürich" is its bytes. No text is unknown, and every text decodes back.
"""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from towerlab.prompts.blocks import words
from transformers import PreTrainedTokenizerFast

DATA = Path(__file__).resolve().parents[1] / "data"
CONTEXT = 256
END = "<|endoftext|>"

# Nonsense words that are in no class, so that labels have a meaning only within an episode.
LABELS = """
foo bar baz qux quux corge grault garply waldo plugh xyzzy thud
wibble wobble wubble flob zot blat frob quuz
""".split()  # noqa: SIM905

MARKS = list(":.,;!?'\"()-0123456789")


def _common_words() -> list[str]:
    """Return the words of data/words/common.txt, which are frequent English words.

    With them, ordinary sentences are not split into bytes. The model sees them only in the first
    stages, as arbitrary tokens.
    """
    return (DATA / "words" / "common.txt").read_text(encoding="utf-8").split()


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return a stock fast tokenizer, for which each " word" of the lists is exactly one token.

    A "word" at the beginning of a text is also one token.
    """
    known = [*LABELS, *words()["word"], *_common_words(), *MARKS]
    pieces = [(END, 0.0)]
    pieces += [(byte, -10.0) for byte in sorted(pre_tokenizers.ByteLevel.alphabet())]
    # Ġ is how byte-level text writes a space
    pieces += [("Ġ" + word, -1.0) for word in dict.fromkeys(known)]
    return _fast_tokenizer(
        _byte_level(models.Unigram(pieces, unk_id=0, byte_fallback=False)), CONTEXT
    )


def word_ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    """Return the token of each word after a space.

    Args:
        tokenizer: Tokenizer of `build_tokenizer`.
    """
    return {
        piece[1:]: i
        for piece, i in tokenizer.get_vocab().items()
        if piece.startswith("Ġ") and len(piece) > 1
    }


def _byte_level(model: models.Model) -> Tokenizer:
    """Return a tokenizer of bytes. Decoding drops the space that is put before the first word.

    Args:
        model: Model that splits the text.
    """
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    return backend


def _fast_tokenizer(backend: Tokenizer, context: int) -> PreTrainedTokenizerFast:
    """Return a stock fast tokenizer with the given backend.

    Args:
        backend: Tokenizer of the `tokenizers` library.
        context: Maximum number of tokens.
    """
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=END,
        eos_token=END,
        pad_token=END,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )
