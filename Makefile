# `make demo` is the place to begin; `make help` lists the rest.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Which lock to install: cuda where an NVIDIA driver is, else cpu.
LOCK ?= $(if $(shell command -v nvidia-smi 2>/dev/null),cuda,cpu)

PREFECT_PORT ?= 4200
MLFLOW_PORT ?= 5000
RUNS ?= $(CURDIR)/runs
export GRPO_RUNS ?= $(RUNS)

.PHONY: help install lock demo test test-slow faults benchmarks gpu-check lint format up down prune clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(VENV)/.installed-$(LOCK)  ## Set up .venv with everything (LOCK=cpu or LOCK=cuda)

$(VENV)/.installed-$(LOCK): deployments/requirements-$(LOCK).lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; say which: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing some 250 packages into $(VENV); that takes minutes"
	$(BIN)/python -m pip install --quiet --no-deps -r deployments/requirements-$(LOCK).lock
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	@$(BIN)/python -c 'import torch' || { echo "This torch does not load without CUDA libraries: PyPI carries only its CUDA \
	build. Install the CPU build of the same version into $(VENV) as pytorch.org says, then run make again." >&2; exit 1; }
	@rm -f $(VENV)/.installed-*; touch $@

lock:  ## Resolve both lock files anew
	for lock in cpu cuda; do \
		$(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --extra $$lock --extra dev --no-header \
			--override deployments/overrides.txt $$(test $$lock = cpu && echo --override deployments/overrides-cpu.txt) \
			--quiet -o deployments/requirements-$$lock.lock || exit 1; \
	done

# A vLLM for GPUs would take one, and the demo leaves them alone.
DEMO := $(if $(filter cuda,$(LOCK)),training.use_vllm=false)

demo: install  ## The whole pipeline in minutes on two CPU cores: no GPU, no hub, no server
	$(BIN)/python -m flows.grpo deployments/demo.yaml $(DEMO) $(SET)

# Files of tests that run side by side; most of a test is one process that imports, or waits for another one.
JOBS ?= 2
PYTEST := $(BIN)/python -m pytest
SIDE_BY_SIDE := $(PYTEST) -n $(JOBS) --dist loadfile

test: install  ## The tests to have at hand: everything but the slow ones
	$(SIDE_BY_SIDE) -m "not slow" tests

test-slow: install  ## End-to-end and convergence tests, with real servers
	@failed=0; $(SIDE_BY_SIDE) -m "slow and not alone" tests || failed=1; \
	$(PYTEST) -m "slow and alone" tests || failed=1; exit $$failed

faults: install  ## The whole fault suite: runs that are killed at twenty moments
	FAULT_MOMENTS=20 $(PYTEST) -m slow tests/end_to_end/test_faults.py

benchmarks: install  ## Speed and memory, as ratios against a baseline in the same run
	for file in tests/benchmarks/bench_*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

gpu-check: install  ## Ten minutes on one GPU: does the pipeline work, and does it cost no time over bare TRL?
	$(BIN)/python tests/benchmarks/gpu_check.py

lint: install  ## Style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

up: install  ## Start the local stack: Prefect server, MLflow server, a worker, all deployments registered
	@PREFECT_PORT=$(PREFECT_PORT) MLFLOW_PORT=$(MLFLOW_PORT) BIN=$(abspath $(BIN)) deployments/stack up

down:  ## End what `make up` started
	@BIN=$(abspath $(BIN)) deployments/stack down

DAYS ?= 30
prune:  ## Give back the disk of what no run has used for DAYS=30 days (data, baselines, converted models)
	$(BIN)/python -m tasks.prune $(DAYS)

clean:  ## Remove caches (runs/ and .venv stay)
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
