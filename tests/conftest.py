"""Tiny random models of every architecture in float64, and the places of the shared test
material."""

# ruff: noqa: E402  (garbage first)

import fcntl
import functools
import gc
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

gc.disable()  # nothing that imports make is garbage; see `pytest_collection_finish`
# Workers share the cores: with threads of its own each waits for the other's. Before torch is
# imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
if os.environ.get("TWOTOWERS_CHECK_TYPES"):  # `make check` and nightly.yml; it takes a while
    import typechecker  # noqa: F401  before anything of twotowers

import hypothesis
import pytest
import torch
import transformers
from notebooks import ROOT, sources  # noqa: F401
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from towerlab.measure import observations
from towerlab.model.architectures import ARCHITECTURES
from towerlab.model.attention import implementation
from towerlab.model.model import Model
from towerlab.prompts.prompt import Demonstration, Encoded, Prompt, batches
from twotowers.errors import TwoTowersError

LONG = tuple(f"test_{name}.py" for name in
             ("engine", "jupyterlab", "pages", "page_actions", "explorer", "playground_page",
              "playground_engine", "designs", "chapters", "recipes", "training"))  # fmt: skip
"""These begin first, all in one worker, from whose end the others steal"""
BROWSER = LONG[:7]
"""A browser, and the engine with its kernels, are slow: `make check` runs none of these"""
KINDS = ("gpt2", "gptj", "llama")
"""The architectures that every numeric test runs on: learned and rotary positions, a parallel
block, grouped heads"""
NINE = (*KINDS, "gpt_neox", "gpt_neo", "gemma3_text", "olmo2", "phi3", "smollm3")
"""Architectures that between them use every field of `Architecture`"""
EVERY_KIND = ("test_identities.py", "test_query_key.py", "test_edits.py", "test_independent.py")
"""Tests of what differs between architectures: these run on NINE, and with --nightly on all"""


@pytest.fixture(autouse=True)
def precision():
    """Training lowers the precision of products, which processors with bfloat16 then use: no later
    test may meet it."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def pytest_addoption(parser):
    parser.addoption(
        "--pin",
        action="store_true",
        help="write tests/golden.csv anew: numbers are meant to change",
    )
    parser.addoption(
        "--nightly", action="store_true", help="all architectures, and tests marked `nightly`"
    )


def pytest_collection_modifyitems(config, items):
    """Numeric tests run on KINDS only; identities on NINE or all. What needs a browser, or another
    kind, is slow."""
    nightly, run, dropped = config.getoption("--nightly"), [], []
    for item in items:
        kind = getattr(item, "callspec", None) and item.callspec.params.get("tiny_model")
        of_kind = kind in (None, *KINDS) or (
            item.path.name in EVERY_KIND and (nightly or kind in NINE)
        )
        wanted = of_kind and (nightly or not item.get_closest_marker("nightly"))
        (run if wanted else dropped).append(item)
        if item.path.name in BROWSER or kind not in (None, *KINDS):
            item.add_marker(pytest.mark.slow)
    config.hook.pytest_deselected(items=dropped)
    items[:] = sorted(run, key=lambda item: (*LONG, item.path.name).index(item.path.name))


def pytest_collection_finish(session):
    """From here on there is garbage; what was imported is looked at no more."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure(config):
    """Python ends at once, instead of looking for garbage for seconds."""
    gc.freeze()


pytest.register_assert_rewrite("browser")
hypothesis.settings.register_profile("book", deadline=None)  # no test is timed
hypothesis.settings.load_profile("book")
SHARED = ROOT.parent / "shared"
VOCABULARY = 61

_SMALL = dict(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=16,
              intermediate_size=20, max_position_embeddings=64)  # fmt: skip
_NEOX = dict(num_hidden_layers=2, num_attention_heads=3, hidden_size=24, intermediate_size=20,
             max_position_embeddings=64,
             rope_parameters={"rope_type": "default", "rope_theta": 100.0,
                              "partial_rotary_factor": 0.5})  # fmt: skip

# Each kind has what could go wrong: windows shorter than the prompts, soft caps that bend, "wide
# heads" (more heads x d_head than d_model suggests, so W_O is not square), biases, scaled and
# partial rotations.
TINY = {
    "gpt2": dict(n_layer=3, n_head=4, n_embd=16, n_positions=64),
    "llama": dict(num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, hidden_size=16,
                  intermediate_size=24, max_position_embeddings=64),
    "llama wide heads": dict(num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=3,
                             hidden_size=18, head_dim=8, intermediate_size=24,
                             max_position_embeddings=64, attention_bias=True, mlp_bias=True,
                             rope_parameters={
                                 "rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0,
                                 "low_freq_factor": 1.0,
                                 "high_freq_factor": 4.0, "original_max_position_embeddings": 16}),
    "mistral": dict(**_SMALL, sliding_window=6),
    "seed_oss": dict(**_SMALL, head_dim=8),
    "helium": dict(**_SMALL, head_dim=4),
    "qwen2": dict(**_SMALL, use_sliding_window=True, sliding_window=6, max_window_layers=1),
    "qwen3": dict(**_SMALL, head_dim=8),
    "gpt_neox": dict(**_NEOX, use_parallel_residual=True),
    "gpt_neox sequential": dict(**_NEOX, use_parallel_residual=False),
    "gptj": dict(n_layer=2, n_head=2, n_embd=16, n_positions=64, rotary_dim=4),
    "opt": dict(num_hidden_layers=2, num_attention_heads=3, hidden_size=12, word_embed_proj_dim=12,
                ffn_dim=20, max_position_embeddings=64, pad_token_id=1),
    "gemma": dict(**_SMALL, head_dim=8),
    "gemma2": dict(**_SMALL, head_dim=8, sliding_window=6, query_pre_attn_scalar=5,
                   attn_logit_softcapping=1.5, final_logit_softcapping=4.0, pad_token_id=0),
    "gemma3_text": dict(**_SMALL, head_dim=8, sliding_window=6, query_pre_attn_scalar=5,
                        pad_token_id=0, layer_types=["sliding_attention", "full_attention"],
                        rope_parameters={
                            "sliding_attention": {"rope_type": "default", "rope_theta": 10.0},
                            "full_attention": {"rope_type": "linear", "rope_theta": 100.0,
                                               "factor": 4.0}}),
    "olmo2": dict(**_SMALL, pad_token_id=0),
    "phi3": dict(**_SMALL, sliding_window=6, pad_token_id=0),
    "phi3 longrope": dict(**_SMALL | {"hidden_size": 32}, original_max_position_embeddings=32,
                          pad_token_id=0,
                          rope_parameters={"rope_type": "longrope", "rope_theta": 100.0,
                                           "partial_rotary_factor": 0.5,
                                           "short_factor": [1.0, 1.5], "long_factor": [2.0, 7.0]}),
    "phi": dict(**_SMALL | {"hidden_size": 32}),
    "starcoder2": dict(**_SMALL, sliding_window=6),
    "stablelm": dict(**_SMALL | {"hidden_size": 32}, use_qkv_bias=True),
    "smollm3": dict(**_SMALL | {"num_hidden_layers": 3}, no_rope_layers=[1, 0, 1], pad_token_id=0,
                    use_sliding_window=True, sliding_window=6),
    "gpt_neo": dict(num_layers=2, num_heads=4, hidden_size=16, intermediate_size=20,
                    max_position_embeddings=64, attention_types=[[["global", "local"], 1]],
                    window_size=6),
}  # fmt: skip


def tiny(kind: str, dtype: torch.dtype = torch.float64) -> Model:
    """A random model whose every parameter, biases and norms too, is far from its tidy initial
    value."""
    model_type = kind.split()[0]
    config = transformers.AutoConfig.for_model(
        model_type, vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, **TINY[kind]
    )
    torch.manual_seed(0)
    row = ARCHITECTURES[model_type]
    hf = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation=implementation(row), dtype=dtype
    )
    with torch.no_grad():
        for name, parameter in hf.named_parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
            if "norm" in name or "ln_" in name:
                parameter.add_(torch.rand_like(parameter))
    return Model(kind, hf.eval().requires_grad_(False), None, row, f"{kind}@tiny")


def save_tiny(folder: Path, kind: str) -> None:
    """A tiny model as a folder, with a tokenizer of as many words."""
    tiny(kind, torch.float32).hf.save_pretrained(folder)
    word_tokenizer([f"w{i}" for i in range(VOCABULARY)]).save_pretrained(folder)


@pytest.fixture
def save(tmp_path):
    """Saves a tiny model as a folder, with other fields in its config, and gives its path."""

    def write(kind: str, **fields) -> Path:
        path = tmp_path / kind.replace(" ", "-") / "config.json"
        save_tiny(path.parent, kind)
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))
        return path.parent

    return write


class _StaysWide(torch.overrides.TorchFunctionMode):
    """Many stock modules compute norms, scores or a softmax in float32 whatever the model's dtype;
    here float64 stays float64, so that identities can be held to 1e-12 through them."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if args and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.float64:
            if function is torch.Tensor.float or (
                function is torch.Tensor.to and torch.float32 in args
            ):
                return args[0]
            if kwargs.get("dtype") == torch.float32:
                kwargs = {**kwargs, "dtype": torch.float64}
        return function(*args, **kwargs)


@pytest.fixture
def float64():
    with _StaysWide():
        yield


shared_tiny = functools.cache(tiny)


@pytest.fixture
def words(monkeypatch):
    """The paper's sets have two classes of made-up words in place of the word lists; their
    tokenizer."""
    import tiny_blocks

    monkeypatch.setattr("towerlab.prompts.paper_sets.class_words", lambda: tiny_blocks.TEXTS)
    return tiny_blocks.tokenizer()


@pytest.fixture
def small_batches(monkeypatch):
    """Three prompts or so at a time, so that a measurement runs several batches."""
    monkeypatch.setattr(observations, "batches", lambda encoded, _: batches(encoded, 40))


@pytest.fixture(scope="session", params=sorted(TINY))
def tiny_model(request) -> Model:
    return shared_tiny(request.param)


@pytest.fixture
def model(tiny_model, float64) -> Model:
    """A tiny random model of every architecture in turn, whose stock modules stay in float64."""
    return tiny_model


def random_prompts(n: int, lengths=(14, 11), seed: int = 0) -> list[Encoded]:
    """Prompts of random tokens laid out as the paper's example: labels at 2, 5, ..., the last
    position a colon."""
    generator = torch.Generator().manual_seed(seed)
    out = []
    for i in range(n):
        length = lengths[i % len(lengths)]
        ids = torch.randint(2, VOCABULARY, (length,), generator=generator).tolist()
        places = range((length - 2) // 3)
        shown = tuple(Demonstration(f"word{j}", ("bar", "foo")[j % 2]) for j in places)
        prompt = Prompt(shown, f"query{i}", ("foo", "bar")[i % 3 == 0], ("foo", "bar"))
        labels, texts = tuple(3 * j + 2 for j in places), tuple((3 * j, 3 * j + 1) for j in places)
        query, tokens = (length - 2, length - 1), {"foo": 7, "bar": 9}
        out.append(Encoded(prompt, tuple(ids), labels, texts, query, length - 1, tokens))
    return out


def refused(words: str, call, *arguments, **options) -> str:
    """The one line with which a call is refused, in which `words`, a pattern, stand."""
    with pytest.raises(TwoTowersError, match=words) as error:
        call(*arguments, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def python(code: str, *words: str, **environment: str) -> subprocess.CompletedProcess:
    """A process of Python that has run some code."""
    command, how = [sys.executable, "-c", code, *words], dict(capture_output=True, text=True)
    return subprocess.run(command, env=os.environ | environment, **how)


def make_home(folder: Path, *changed: str) -> Path:
    """A home with the book and its data, without precomputed measurements; of `changed`, names of
    files or folders of data, it has copies."""
    (folder / "data/measurements").mkdir(parents=True)
    for name in ("book", "_toc.yml"):
        (folder / name).symlink_to(ROOT / name)
    for path in (ROOT / "data").iterdir():
        copy = folder / "data" / path.name
        if path.name in changed:
            shutil.copytree(path, copy) if path.is_dir() else shutil.copy(path, copy)
        elif path.name != "measurements":
            copy.symlink_to(path)
    return folder


def replace_in(path: Path, old: str, new: str) -> None:
    """Put a text in place of another, which a file has."""
    text = path.read_text("utf8")
    assert old in text
    path.write_text(text.replace(old, new), "utf8")


def shared(path: str) -> Path:
    """A folder of the shared material, or skip."""
    folder = SHARED / path
    if not folder.exists():
        pytest.skip(f"{path} in a folder named shared beside this repository")
    return folder


def of_two_classes(n: int, seed: int = 0) -> list[Encoded]:
    """The same tokens as prompts of numbers and animals, one a block, which ask either class in
    turn."""
    classes, out = {"foo": "number", "bar": "animal"}, []
    for i, e in enumerate(random_prompts(n, (14,), seed)):
        true = ("foo", "bar")[i % 2]
        demonstrations = tuple(replace(d, cls=classes[d.label]) for d in e.prompt.demonstrations)
        about = dict(query_class=classes[true], true_label=true, dataset="number/animal", block=i)
        out.append(replace(e, prompt=replace(e.prompt, demonstrations=demonstrations, **about)))
    return out


def word_tokenizer(words, split=None) -> transformers.PreTrainedTokenizerFast:
    """Each of some words is one token, the first stands for all others; `split` in place of a cut
    at spaces."""
    inner = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    inner.pre_tokenizer = split or pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, unk_token=words[0])


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """Makes a text that takes a while in one of the processes of a session, for all of them."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder

    def made_once(name, make):
        path = folder / name
        with (folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                path.write_text(make(), "utf8")
        return path.read_text("utf8")

    return made_once


@pytest.fixture(scope="session")
def home():
    """The address of the built book."""
    from browser import served

    with served() as address:
        yield address


@pytest.fixture(scope="session")
def address(tmp_path_factory) -> str:
    """The address of the playground in the page."""
    from browser import playground

    return playground(tmp_path_factory.mktemp("page"))
