"""A chat model: its own template, greedy and bounded answers, and what is refused; a tiny random one stands in."""

import pytest
import torch
import transformers
from conftest import CHAT_TEMPLATE, chat_model
from twotowers.errors import TwoTowersError
from twotowers.model import chat
from twotowers.prompts.prompt import Demonstration, Encoded, Prompt


def refused(match):
    return pytest.raises(TwoTowersError, match=match)


def test_the_question_goes_through_the_models_own_template(chat_folder):
    helper = chat.Chat.load(chat_folder)
    asked = chat.question("the team won", ["goal", "cup"])
    assert "Text: the team won\n" in asked and "Words: goal, cup\n" in asked
    assert helper.prompt(asked) == f"<user> {asked} <assistant>"


def test_answers_are_greedy_bounded_and_without_the_question(chat_folder):
    helper = chat.Chat.load(chat_folder)
    ids = helper.tokenizer(helper.prompt("goal yes no"), return_tensors="pt")["input_ids"]
    length, expected = ids.shape[1], []
    for _ in range(7):  # the naive way: one word at a time, the best each time
        word = int(helper.hf(ids).logits[0, -1].argmax())
        if word == helper.tokenizer.eos_token_id:
            break
        expected.append(word)
        ids = torch.cat([ids, torch.tensor([[word]])], 1)
    answer = helper.ask("goal yes no", 7)
    assert answer == helper.tokenizer.decode(expected, skip_special_tokens=True).strip() and len(expected) > 1
    assert helper.ask("goal yes no", 7) == answer and ids.shape[1] - length <= 7


def test_a_question_over_the_context_is_refused(chat_folder):
    with refused("over the 256 that"):
        chat.Chat.load(chat_folder).ask("goal " * 100, 200)


def test_a_model_without_a_chat_template_is_refused_before_its_weights_are_read(tmp_path):
    chat_model(tmp_path, None)
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    for load in (chat.check, chat.Chat.load):
        with refused("has no chat template, so it is no chat model") as error:
            load(tmp_path)
        assert "\n" not in str(error.value)


def test_a_template_that_refuses_is_one_line(tmp_path):
    chat_model(tmp_path, "{{ raise_exception('a system message\nmust come first') }}")
    with refused("refuses a plain question .a system message.: choose another chat model"):
        chat.Chat.load(tmp_path).ask("goal")


def test_pickled_weights_and_missing_weights_are_refused(chat_folder, tmp_path):
    chat_model(tmp_path, CHAT_TEMPLATE)
    tensors = transformers.LlamaForCausalLM.from_pretrained(chat_folder).state_dict()
    (tmp_path / "model.safetensors").unlink()
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    with refused("pickled weights only"):
        chat.Chat.load(tmp_path)
    with refused("there is no folder"):
        chat.check("/no/such/folder")


@pytest.mark.parametrize(
    "answer, expected",
    [("They share a topic.\nRelated: yes", "yes"), ("related: No.", "no"), ('**Related:** "yes"', "yes"),
     ("Related: yes\nOn reflection,\nRelated: no", "no"), ("They are related.", "unclear"), ("", "unclear"),
     ("Unrelated: yes", "unclear"), ("Related: yesterday", "unclear")],
)  # fmt: skip
def test_a_verdict_is_the_last_line_of_its_form(answer, expected):
    assert chat.verdict(answer) == expected


def case(*demonstrations, query="q"):
    prompt = Prompt(tuple(Demonstration(*d) for d in demonstrations), query, "foo", ("foo", "bar"))
    return Encoded(prompt, (), (), (), (0, 0), 0, {})


def test_a_stranger_has_another_class_the_same_label_and_no_text_of_the_case():
    mine = case(("a", "foo", "sport"), ("b", "bar", "news"), query="c")
    others = [
        case(("x", "foo", "sport"), ("y", "bar", "news")),  # the same class
        case(("z", "bar", "news"), ("w", "foo", "sport")),
        case(("b", "foo", "news"), ("c", "foo", "news")),  # texts of the case
        case(("v", "bar", "news"), ("u", "foo", "news")),
    ]
    found, place = chat.control_example(mine, 0, others)
    assert found is others[3] and place == 1
    with refused("no other prompt has 'foo' beside a text of another class"):
        chat.control_example(mine, 0, others[:3])


@pytest.mark.parametrize("answer, kept", [
    ("A dark and stormy night, indeed.", "A dark and stormy night, indeed."),
    ("It says: 'There are FEW things, more frustrating' to me.", "It says: '[words of the text]' to me."),
    ("few things more", "few things more"),
    ("things more frustrating than that", "[words of the text] that"),
    ("", ""),
])  # fmt: skip
def test_an_answer_is_kept_without_what_it_quotes_of_the_text(answer, kept):
    assert chat.without_quotes(answer, "There are few things more frustrating than a dark film") == kept
