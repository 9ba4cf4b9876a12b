"""The tokenizer of mini-gpt2: one token per known word, single bytes for everything else.

A unigram model over byte-level text. Its pieces are the 256 bytes, with a low score, and whole words with their
leading space, with a high score: the best split of " love" is one piece, that of " Zürich" its bytes.
No text is unknown and every text decodes back.
"""

import csv
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

DATA = Path(__file__).resolve().parents[1] / "data"
CONTEXT = 256
END = "<|endoftext|>"

# Nonsense words, none of them a word of any class: labels have a meaning only within an episode.
LABELS = """
foo bar baz qux quux corge grault garply waldo plugh xyzzy thud wibble wobble wubble flob zot blat frob quuz
""".split()  # noqa: SIM905

# Frequent English words, so that ordinary sentences do not fall apart into bytes. The model sees them only in the
# first stages, as arbitrary tokens.
COMMON = """
a about above after again against all also always am among an and another any are around as at away be
became because become been before began behind being below best better between big both but by came can come
could day did different do does down during each early even ever every everything far few find first follow
for found from full gave get give given go going gone got had has have having he held help her here high him
himself his how however i if important in into is it its itself just keep kept kind know known large last
later least left less let life light little live long look made make man many may me mean men might mind
more most much must my name near need never new next no not nothing now of off often old on once only open
or other our out over own part people perhaps place point put quite read right said same saw see seem seemed
seen set several shall she should show side since small so some something soon still such sure take taken
than that the their them themselves then there these they thing things think this those though thought
through thus to together told too took toward turn turned under until up upon us use used very want was
water way we well went were what when where which while who whole whose why will with within without woman
word work world would year years yet you young your
""".split()  # noqa: SIM905
MARKS = list(":.,;!?'\"()-0123456789")


def read_words() -> list[dict[str, str]]:
    """The rows of data/words/words.csv."""
    with (DATA / "words" / "words.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@cache
def common_words() -> list[str]:
    """Those of COMMON that are words of no class."""
    of_classes = {row["word"] for row in read_words()}
    return [word for word in COMMON if word not in of_classes]


def read_sentences() -> list[str]:
    """The sentences of data/sentences/own.csv."""
    with (DATA / "sentences" / "own.csv").open(encoding="utf-8", newline="") as file:
        return [row["sentence"] for row in csv.DictReader(file)]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A stock fast tokenizer; " word" (or a first "word") of the lists is exactly one token."""
    words = [*LABELS, *(row["word"] for row in read_words()), *COMMON, *MARKS]
    pieces = [(END, 0.0)]
    pieces += [(byte, -10.0) for byte in sorted(pre_tokenizers.ByteLevel.alphabet())]
    pieces += [("Ġ" + word, -1.0) for word in dict.fromkeys(words)]  # Ġ is how byte-level text writes a space
    return fast_tokenizer(byte_level(models.Unigram(pieces, unk_id=0, byte_fallback=False)), CONTEXT)


def byte_level(model: models.Model) -> Tokenizer:
    """A tokenizer of bytes; decoding drops the space that is put before the first word."""
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    return backend


def fast_tokenizer(backend: Tokenizer, context: int) -> PreTrainedTokenizerFast:
    """A stock fast tokenizer around it."""
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=END, eos_token=END, pad_token=END, model_max_length=context,
        clean_up_tokenization_spaces=False, model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip
