"""The authors' printed numbers on the published weights. `make verify MODEL=gpt2-large` fetches them and runs this.

Without that, only weights that lie in the local cache are used: a test must not fetch gigabytes unasked.
"""

import os

import pytest
from huggingface_hub import try_to_load_from_cache
from towerlab.model import loading
from towerlab.paper import verify
from towerlab.paper.verify import paper_model
from twotowers.errors import TwoTowersError

ASKED = os.environ.get("TWOTOWERS_VERIFY", "")
MEMORY = {"gpt2-large": 6, "llama-7b": 34}  # GB
pytestmark = pytest.mark.weights


@pytest.fixture(scope="module", params=verify.HUB)
def numbers(request):
    source, gigabytes = verify.HUB[request.param], MEMORY[request.param]
    if ASKED and paper_model(ASKED) != request.param:
        pytest.skip(f"another model than {ASKED}")
    source = ASKED if "/" in ASKED else source
    cached = any(isinstance(try_to_load_from_cache(source, f), str) for f in ("model.safetensors", "model.safetensors.index.json"))
    if not ASKED and not cached:
        pytest.skip(f"{source}: make verify MODEL={request.param}")
    if os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < gigabytes << 30:
        pytest.skip(f"{gigabytes} GB of memory for {source}")
    try:
        return verify.authors_numbers(loading.load(source)).set_index("quantity")
    except TwoTowersError as error:
        if "cannot load" in str(error) or "permission" in str(error):
            pytest.skip(str(error))
        raise


def test_the_model_predicts_the_word_that_the_authors_follow(numbers):
    assert set(numbers["predicted"]) == {"basketball"}


def test_every_printed_number_is_found(numbers):
    off = numbers[~numbers["agrees"]]
    assert off.empty, off[["published", "measured"]].to_string()
