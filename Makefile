# Every target does its own set-up: a virtual environment in .venv, with the versions in constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What `make up` needs, and what the tests and the checks need beside it.
NODE := $(VENV)/.installed-node
STAMP := $(VENV)/.installed
EXTRAS := test,dev,bench,fast,tensorboard,otel,wandb,hf,bnb,trl,lightning,notebook,torchft,onnx,privacy,shift
# Three processes share the test files: most of them compute, with a virtual clock or none; those marked `paired` are of
# real processes, and mostly wait. Tests of real processes that say something about time are marked `alone`: they run one
# after another, beside nothing.
# Sets of strings have the same order in every run, as all else that tests draw (tests/conftest.py).
# Compiled files are kept, whatever the surroundings say: else every process compiles all of this again as it starts.
PYTEST := PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
SHARED := $(PYTEST) -n 3 --dist loadfile --no-loadscope-reorder

# 5: pytest's exit code where a share has no such test.
PART := $(if $(SHARE),--share $(SHARE))

# What a change of the core is caught by in a minute: the packages' own tests, the contract suites, small simulated swarms.
FAST := $(wildcard tests/test_*.py) tests/p2ptrain tests/gossip tests/membership tests/node tests/contracts \
	tests/sim/test_swarm_learns.py tests/adversary/test_adversary_plans.py p2ptrain docs/api.md

# After `make prometheus`, for the tests; one that is installed comes first.
export PATH := $(PATH):$(CURDIR)/build/prometheus/usr/bin

LINTERS := lint-types lint-style lint-layers

.PHONY: help setup up test thorough lint check fast $(LINTERS) format reference bench soak interop uplot prometheus constraints clean

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv and install p2ptrain with its development tools

$(STAMP): pyproject.toml constraints.txt scripts/setup.sh
	@PYTHON=$(PYTHON) VENV=$(VENV) EXTRAS=$(EXTRAS) sh scripts/setup.sh
	@touch $(NODE) $(STAMP)

$(NODE): pyproject.toml constraints.txt scripts/setup.sh
	@PYTHON=$(PYTHON) VENV=$(VENV) EXTRAS= sh scripts/setup.sh
	@touch $(NODE)

up: $(NODE) ## a live swarm of four nodes on this machine, for about three minutes
	@$(BIN)/p2ptrain up --config configs/local.toml $(ARGS)

test: $(STAMP) ## the tests (or those that ARGS names, one after another)
ifdef ARGS
	@$(PYTEST) $(ARGS)
else
	@$(SHARED) -m 'not soak and not thorough and not alone'
	@$(PYTEST) -m 'alone and not soak and not thorough' tests/integration
endif

thorough: $(STAMP) ## longer tests than those of `make test`, each beside a short one; all of hypothesis' examples (SHARE=K/N: a part)
	@THOROUGH=1 $(SHARED) $(PART) -m '(thorough or hypothesis) and not soak and not alone' tests
	@THOROUGH=1 $(PYTEST) $(PART) -m 'thorough and alone and not soak' tests/integration || [ "$(PART)" -a $$? = 5 ]

lint: $(STAMP) ## format, lint, types, import contracts
	@$(MAKE) --no-print-directory -j 3 $(LINTERS)

check: $(STAMP) ## lint, and the fast tests, side by side
	@$(MAKE) --no-print-directory -j 2 fast $(LINTERS)

fast: $(STAMP)
	@$(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder -m 'not soak and not slow and not thorough' $(FAST) $(ARGS)

lint-style: $(STAMP)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

lint-types: $(STAMP)
	@$(BIN)/mypy

lint-layers: $(STAMP)
	@$(BIN)/lint-imports --no-cache

format: $(STAMP) ## rewrite the files as the formatter and the linter want them
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

reference: $(STAMP) ## write the reference tables of docs/ from the code
	@$(BIN)/python scripts/reference_tables.py

bench: $(STAMP) ## measure codecs, aggregators and learning rules at small sizes, in about two minutes
	@$(BIN)/p2ptrain bench $(ARGS)

soak: $(STAMP) ## the long tests
	@$(PYTEST) -m soak $(ARGS)

interop: ## what the tests with js-libp2p and axe-core need, where Node.js is (tests/interop/)
	@npm ci --prefix tests/interop --ignore-scripts --no-audit --no-fund

uplot: ## fetch the page's chart library again, of the pinned version (npm)
	@sh scripts/vendor_uplot.sh

prometheus: ## what the tests with a real Prometheus need, where Debian's packages are to be had and it is not installed
	@sh scripts/prometheus.sh build/prometheus

constraints: $(STAMP) ## pin what is installed now
	@sh scripts/pin.sh $(BIN) > constraints.new && mv constraints.new constraints.txt

clean: ## remove what was built, but no run
	@rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache \
		tests/interop/node_modules
