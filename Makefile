# make book   everything, from nothing to HTML          make test   the tests          make help   the rest
# Only Python 3.11 or newer and make are needed.

PYTHON  ?= python3
# Not from the environment: a VENV there belongs to another project. make VENV=... chooses another folder.
VENV    := .venv
JOBS    ?= 2
THREADS ?= 1
# settings of the measurements, for example  SET="evaluation_blocks=20 seed=1"; MODEL=path/or/name in place of the included one
SET     ?=
MODEL   ?=
# TORCH=cuda takes the registry's own build of PyTorch; anything else tries the small CPU build first
TORCH   ?= cpu
TORCH_VERSION := $(shell sed -n 's/^torch==\([0-9.]*\).*/\1/p' requirements.lock)
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu

BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Nothing is installed whose hash is not in a lock, nor is anything built with what is in none.
LOCKED := $(BIN)/python -m pip install --quiet --no-compile --use-pep517 --no-deps --no-build-isolation --require-hashes
# The same in a tenth of the time. It reads no settings of pip but this one, so pip is asked where it finds no packages.
FAST   := UV_DEFAULT_INDEX="$${PIP_INDEX_URL:-https://pypi.org/simple}" UV_HTTP_RETRIES=0 UV_HTTP_TIMEOUT=10 \
          $(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --require-hashes
# These reach a command as variables of its environment, so nothing in them is ever run.
export PIP_DISABLE_PIP_VERSION_CHECK = 1
export SET JOBS THREADS MODEL
# What is installed is compiled when it is first used, and kept.
unexport PYTHONDONTWRITEBYTECODE
# A user's own choices of where packages go, which contradict an environment.
export PIP_USER = 0
unexport PIP_TARGET PIP_PREFIX PIP_ROOT
# These name another checkout, or packages of another Python.
unexport TWOTOWERS_HOME TWOTOWERS_EVIDENCE PYTHONPATH
# Another program may have set these.
FROM_OUTSIDE := $(strip $(foreach name,MODEL SET,$(if $(findstring environment,$(origin $(name))),$(if $($(name)),$(name)))))

# A copied or moved checkout would build and test the one that its installation was made for.
ifeq ($(shell [ -s "$(STAMP)" ] && [ "$$(cd "$$(cat "$(STAMP)")" 2>/dev/null && pwd -P)" != "$$(pwd -P)" ] && echo other),other)
ifneq ($(filter-out help clean,$(or $(MAKECMDGOALS),help)),)
$(error The installation in $(VENV) was made in another folder ($(shell cat "$(STAMP)")): remove $(VENV), then make again)
endif
endif

.DEFAULT_GOAL := help
# Two goals would install, or build, at the same time.
.NOTPARALLEL:
.PHONY: help book test check pages bundle sentences verify mini-gpt2 lab peers lock clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile
	@echo "  variables: MODEL=path/or/name JOBS=$(JOBS) THREADS=$(THREADS) SET='evaluation_blocks=20' TORCH=cpu|cuda"

book: $(STAMP)  ## measure what is missing, run the chapters that changed, build the HTML
	@$(if $(FROM_OUTSIDE),echo "Taken from the environment: $(FROM_OUTSIDE). If another program set it: unset $(FROM_OUTSIDE)" >&2)
	@$(BIN)/python -m towerlab.cli book --model "$$MODEL" --set "$$SET" --jobs "$$JOBS" --threads "$$THREADS"
	@echo "The book is ready: $(CURDIR)/_build/html/index.html"

# Whatever MODEL and SET are: golden tests are of the default book.
test: $(STAMP)  ## build the default book, run all tests, and look at every page in a headless browser
	@$(BIN)/python -m towerlab.cli book --jobs "$$JOBS" --threads "$$THREADS"
	@$(BIN)/python -m pytest -n 2 --dist worksteal

check: $(STAMP)  ## check names and types, and run the quick tests: three architectures, no book, no browser
	@$(BIN)/python -m ruff check --quiet .
	@$(BIN)/python -m mypy
	@TWOTOWERS_CHECK_TYPES=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

pages: book  ## look at every page of the built book in a headless browser
	@$(BIN)/python -m pytest -n 2 tests/test_pages.py tests/test_page_actions.py

bundle: book  ## archive pages, evidence and measurements in dist/, with a list of the files and the dates of what was measured
	@$(BIN)/python .ci/bundle

sentences: $(STAMP)  ## every sentence that has a number, beside the evidence of its page: after make book; PAGE=05 for some
	@$(BIN)/python .ci/sentences

verify: $(STAMP)  ## compare with the numbers the authors print: MODEL=gpt2-large or llama-7b (fetches it)
	@exec $(BIN)/python -m benchmarks.published "$${MODEL:-gpt2-large}"

mini-gpt2: $(STAMP)  ## train the included model again
	$(BIN)/python -m training.train mini-gpt2

lab: $(STAMP)  ## open the chapters in JupyterLab
	$(BIN)/python -m jupyter lab --notebook-dir=. book

peers: $(STAMP)  ## install what benchmarks/ compares with
	@$(LOCKED) --requirement locks/peers.lock

# Systems for which requirements.lock has built packages: PyTorch and netCDF4 need the newest (tests/test_environment.py).
define SYSTEMS
import platform, shutil, sys
system, machine, (libc, version) = platform.system(), platform.machine(), platform.libc_ver()
number = lambda text: tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
if system == "Darwin":
    fits = machine == "arm64" and number(platform.mac_ver()[0]) >= (15,)
else:
    fits = system == "Linux" and machine in ("x86_64", "aarch64") and libc == "glibc" and number(version) >= (2, 28)
if not fits:
    sys.exit(f"This book cannot be installed here ({platform.platform()}): "
             "it needs macOS 15 or newer on Apple silicon, or Linux with glibc 2.28 or newer on x86-64 or 64-bit ARM")
if sys.version_info >= (3, 14) and not shutil.which("cc"):
    sys.exit("Python 3.14 needs a C compiler for one package: install one, or make book PYTHON=python3.13")
endef
export SYSTEMS

# The stamp is written last, so an interrupted installation is taken up again by the next make.
# PyTorch goes first: on Linux the registry's own build brings gigabytes of CUDA libraries.
$(STAMP): requirements.lock locks/build.lock locks/cpu.lock locks/cuda.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "This book needs Python 3.11 or newer ($(PYTHON) is older or missing): make book PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "$(PYTHON) has no venv module: install it first (Debian and Ubuntu: apt install python3-venv)"; exit 1; }
	@$(PYTHON) -c "$$SYSTEMS"
	@rm -f $@
	@echo "Installing into $(VENV), once: 1 of 2, PyTorch (some 200 MB) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import torch, sys; sys.exit(torch.__version__.split("+")[0] != "$(TORCH_VERSION)")' 2>/dev/null || \
	  { [ "$(TORCH)" != cuda ] && \
	    $(LOCKED) --retries 0 --timeout 10 --index-url $(TORCH_CPU_INDEX) --requirement locks/cpu.lock 2>/dev/null; } || \
	  $(LOCKED) --requirement locks/cuda.lock
	@echo "Installing into $(VENV), once: 2 of 2, the other packages (a minute or two) ..."
	@$(LOCKED) --requirement locks/build.lock
	@$(FAST) --requirement requirements.lock 2>/dev/null || $(LOCKED) --requirement requirements.lock
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@pwd -P > $@

# uv.lock holds all, for every system and every Python from 3.11 on; the others are parts of it in pip's form. CUDA's
# libraries are in a part of their own, and PyTorch's CPU build, which only its own index has, in the last.
EXPORT  := $(BIN)/uv export --quiet --frozen --no-emit-project --no-header --no-annotate
NO_CUDA := $(addprefix --prune ,cuda-bindings cuda-toolkit nvidia-cublas nvidia-cudnn-cu13 nvidia-cusparselt-cu13 \
             nvidia-nccl-cu13 nvidia-nvshmem-cu13 triton)
lock: $(STAMP)  ## after a change of dependencies: lock exact versions and hashes again; UPGRADE=1 takes the newest
	$(BIN)/uv lock $(if $(UPGRADE),--upgrade)
	@$(EXPORT) --extra measure --extra convert --extra book --extra test $(NO_CUDA) --output-file requirements.lock > /dev/null
	@for group in build peers; do $(EXPORT) --only-group $$group $(NO_CUDA) --output-file locks/$$group.lock > /dev/null || exit; done
	@$(EXPORT) --only-group cuda --output-file locks/cuda.lock > /dev/null
	@version=$$(sed -n 's/^torch==\([0-9.]*\).*/\1/p' requirements.lock); grep -q "^torch==$$version+cpu" locks/cpu.lock || \
	  echo "torch==$$version+cpu ; sys_platform == 'linux'" | $(BIN)/uv pip compile --quiet --universal --no-deps --no-header \
	  --no-annotate --generate-hashes --index-url $(TORCH_CPU_INDEX) --output-file locks/cpu.lock -

clean:  ## remove what was built (the installation in .venv stays)
	rm -rf _build .snakemake
