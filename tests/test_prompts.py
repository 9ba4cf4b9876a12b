"""Label positions on real tokenizers, against decoding (which the code under test never does)."""

from types import SimpleNamespace

import pytest
from conftest import refused, shared, word_tokenizer
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, normalizers, pre_tokenizers, processors
from towerlab.prompts.prompt import Demonstration, Encoded, Prompt, batches, encode_all
from transformers import AutoTokenizer


def encode(prompt, *how, **options):
    return encode_all([prompt], *how, **options)[0]


KINDS = ["gpt2", "gpt2 trimmed", "llama2", "llama2 as on the hub"]


def load(kind):
    """A real tokenizer; "trimmed" leaves the leading space out of offsets, "as on the hub" prepends
    in a normaliser."""
    tokenizer = AutoTokenizer.from_pretrained(shared(f"tokenizers/{kind.split()[0]}"))
    if kind == "gpt2 trimmed":
        tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    if kind == "llama2 as on the hub":
        steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        tokenizer.backend_tokenizer.normalizer = normalizers.Sequence(steps)
        tokenizer.backend_tokenizer.pre_tokenizer = None
    return tokenizer


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request):
    return load(request.param)


@pytest.fixture(scope="module")
def gpt2():
    return load("gpt2")


@pytest.fixture(scope="module")
def llama2():
    return load("llama2")


def make(*pairs, query="one", true_label="foo", labels=("foo", "bar")):
    return Prompt(tuple(Demonstration(*pair) for pair in pairs), query, true_label, labels)


PAPER = make(("love", "bar"), ("like", "bar"), ("eight", "foo"), ("two", "foo"))


def word_level(pattern, words="love like eight two one foo bar :"):
    """A tokenizer whose tokens are the matches of `pattern`, for the mischief that real ones seldom
    do."""
    return word_tokenizer(
        ["[UNK]", *words.split()],
        pre_tokenizers.Split(Regex(pattern), behavior="removed", invert=True),
    )


def check(prompt: Prompt, encoded: Encoded, tokenizer) -> None:
    """Every position against decoding: what stands before a label's token decodes to the text
    before the label."""

    def decoded(start, stop):
        ids = encoded.ids[start:stop]
        return plain(
            tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )

    def plain(text):  # sentencepiece cannot tell its own sign for a space from one in the text
        return text.replace("▁", " ")

    before = ""
    for d, at, span in zip(
        prompt.demonstrations, encoded.label_positions, encoded.text_spans, strict=True
    ):
        assert decoded(0, at) == plain(f"{before}{d.text} :")
        assert encoded.ids[at] == encoded.label_ids[d.label]
        assert decoded(0, span[1]) == plain(f"{before}{d.text}")
        assert decoded(0, span[0]).strip() == plain(before).strip()
        before += f"{d.text} : {d.label} "
    assert decoded(0, encoded.query_span[1]) == plain(before + prompt.query)
    assert decoded(0, encoded.query_span[0]).strip() == plain(before).strip()
    assert encoded.last == len(encoded.ids) - 1
    assert decoded(0, encoded.last) == plain(before + prompt.query)
    assert decoded(0, None) == plain(prompt.text)


def test_the_papers_example_on_gpt2(gpt2):
    assert PAPER.text == "love : bar like : bar eight : foo two : foo one :"
    assert PAPER.is_true == (False, False, True, True)
    encoded = encode(PAPER, gpt2)
    assert encoded.label_positions == (2, 5, 8, 11)
    assert encoded.text_spans == ((0, 1), (3, 4), (6, 7), (9, 10))
    assert encoded.query_span == (12, 13) and encoded.last == 13
    assert encoded.label_ids == {"foo": 22944, "bar": 2318} and encoded.true_id == 22944


CASES = {
    "sentences": make(
        ("The harbour was calm, and nobody spoke.", "bar"),
        ("Why did the price of tin fall twice in 1921?", "foo"),
        query="She answered: never again!",
    ),
    "labels inside texts": make(
        ("say foo : foo", "bar"),
        ("bar", "foo"),
        ("foo : bar", "bar"),
        query="foo :",
        true_label="bar",
    ),
    "scripts": make(("漢字𠀀", "bar"), ("ลิง", "foo"), ("قرد", "bar"), query="обезьяна"),
}


def test_positions_one_at_a_time_and_of_many(tokenizer):
    together = encode_all(list(CASES.values()), tokenizer)
    assert together == [encode(prompt, tokenizer) for prompt in CASES.values()]
    assert encode_all([], tokenizer) == []
    for prompt, encoded in zip(CASES.values(), together, strict=True):
        check(prompt, encoded, tokenizer)


# "<" and ">" stand apart so that no special token such as "<s>" can form.
FRAGMENTS = [*"ab Z9:.,!?'\"(\n\t-_#é\u0301ßİ🙂漢𠀀\u200b\u00a0\ufeff▁Ġ\x01\u3000"]
FRAGMENTS += ["foo", "bar", " : ", " foo ", ": ", "...", "e\u0301", "👩\u200d👧", "ลิ", "قرد"]
TEXTS = st.lists(
    st.sampled_from(FRAGMENTS) | st.characters(exclude_categories=["Cs"], exclude_characters="<>"),
    max_size=9,
)
# At an edge sentencepiece takes "▁" for the space that may not stand there.
TEXTS = TEXTS.map(lambda pieces: "".join(pieces).strip()).filter(lambda t: t and t.strip("▁") == t)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(TEXTS, st.sampled_from(["foo", "bar"])), max_size=4), TEXTS)
@example([("a▁b", "foo"), ("\u0301", "bar")], "::")
def test_any_text_keeps_its_labels(tokenizer, pairs, query):
    prompt = make(*pairs, query=query)
    encoded = encode(prompt, tokenizer)
    check(prompt, encoded, tokenizer)
    # A second witness, with the tokenizer's offsets: the label's token covers the label and its
    # space, no more.
    offsets = tokenizer(prompt.text, return_offsets_mapping=True)["offset_mapping"]
    at = 0
    for (text, label), position in zip(pairs, encoded.label_positions, strict=True):
        at += len(text) + 3
        assert prompt.text[at : at + 3] == label
        assert offsets[position] in ((at - 1, at + 3), (at, at + 3))
        at += 4


def test_labels_of_several_tokens_are_followed_by_their_first(tokenizer):
    prompt = make(
        ("love", "zorblax"), ("two", "quinzel"), labels=("zorblax", "quinzel"), true_label="quinzel"
    )
    encoded = encode(prompt, tokenizer)
    check(prompt, encoded, tokenizer)
    for label, at in zip(("zorblax", "quinzel"), encoded.label_positions, strict=True):
        first = tokenizer.convert_ids_to_tokens(encoded.ids)[at].lstrip("Ġ▁")
        assert label.startswith(first) and first != label
    assert encoded.true_id == encoded.label_ids["quinzel"]


def not_encoded(words, prompt, tokenizer, **options):
    refused(words, encode, prompt, tokenizer, **options)


def test_prompts_whose_labels_cannot_be_told_or_that_are_too_long_are_refused(gpt2, llama2):
    alike = make(("a", "foobar"), labels=("foobar", "foobaz"), true_label="foobaz")
    not_encoded("same token.*choose labels", alike, gpt2)
    not_encoded("only a space", make(("a", "𠀀"), labels=("𠀀", "foo")), llama2)
    not_encoded("special token '<s>'", make(("a <s> b", "foo")), llama2)
    not_encoded("special token", make(("a", "foo"), query="<|endoftext|>"), gpt2)
    not_encoded("at most 13 tokens, got 14", PAPER, gpt2, max_length=13)
    assert encode(PAPER, gpt2, max_length=14).last == 13


def test_tokenizers_with_end_tokens_or_without_offsets_are_refused():
    ending = load("llama2")
    pieces = [("<s>", ending.bos_token_id), ("</s>", ending.eos_token_id)]
    ending.backend_tokenizer.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", special_tokens=pieces
    )
    not_encoded("add_eos_token=False", PAPER, ending)
    refused("use_fast=True", encode_all, [], SimpleNamespace(is_fast=False))


def test_spans_leave_out_a_lone_space(llama2):
    encoded = encode(make(("a", "bar"), ("漢", "foo"), query="漢字"), llama2)
    pieces = llama2.convert_ids_to_tokens(encoded.ids)
    assert pieces == ["<s>", "▁a", "▁:", "▁bar", "▁", "漢", "▁:", "▁foo", "▁", "漢", "字", "▁:"]
    assert encoded.text_spans == ((1, 2), (5, 6)) and encoded.query_span == (9, 11)
    assert encoded.label_positions == (3, 7)


class Crooked:
    """A tokenizer whose offsets of the first two tokens are exchanged."""

    is_fast, all_special_tokens, unk_token_id = True, (), None

    def __call__(self, texts, **how):
        encodings = word_level(r"\S+")(texts, **how).encodings
        crooked = [
            SimpleNamespace(ids=e.ids, offsets=[e.offsets[1], e.offsets[0], *e.offsets[2:]])
            for e in encodings
        ]
        return SimpleNamespace(encodings=crooked)


def test_offsets_that_do_not_increase_are_refused():
    not_encoded("offsets do not increase", PAPER, Crooked())
    plain = encode(PAPER, word_level(r"\S+"))
    assert plain.label_positions == (2, 5, 8, 11) and plain.last == 13


@pytest.mark.parametrize(
    "problem, how",
    [
        ("merges the final ':'", [r"one :|\S+"]),
        ("'foo' merges with its neighbours", [r"foo two|\S+", "love like eight one foo bar : foo"]),
        ("'foo' merges with its neighbours", [r": foo(?= )|\S+"]),
        ("'foo' changes the tokens before it", [r": foo$|\S+"]),
        ("'foo' changes the tokens before it", [r"o(?=ne : foo$)|\S+"]),
        ("several tokenisations", [r"fo(?=o$)|\S+", "love like eight two one foo bar : fo"]),
        ("'bar' is not in the vocabulary", [r"\S+", "love like eight two one foo :"]),
        ("no token for the text 'like'", [r"(?!like)\b\w+|:"]),
    ],
)
def test_mischief_of_tokenizers_is_refused(problem, how):
    not_encoded(problem, PAPER, word_level(*how))


def of_length(n: int) -> Encoded:
    return Encoded(PAPER, tuple(range(n)), (), (), (0, 1), n - 1, {})


@given(st.lists(st.integers(1, 9), max_size=40), st.integers(1, 30))
def test_batches_cover_every_prompt_once(lengths, max_tokens):
    encoded = [of_length(n) for n in lengths]
    plain = []
    for index, batch in batches(encoded, max_tokens):
        assert [encoded[i] for i in index] == batch
        assert len({len(e.ids) for e in batch}) == 1
        assert len(batch) == 1 or sum(len(e.ids) for e in batch) <= max_tokens
        plain += index
    assert sorted(plain) == list(range(len(lengths)))
