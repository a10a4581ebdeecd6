# From a bare clone, with Python 3.11 or later, make and pip:  make demo   make test
PYTHON ?= python3
PORT ?= 8000
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= auto

.PHONY: help demo test faults outages fuzz lint bench wheel clean

help:  ## Show what can be made.
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[redis,fastapi,django,drf,ninja,cli]' --group dev
	@touch $@

demo: $(READY)  ## Run a small API with one limited route (PORT=8000).
	$(BIN)/python example_projects/fastapi_quickstart/main.py --port $(PORT)

test: $(READY) lint  ## Run ruff, mypy and the whole suite.
	$(BIN)/python -m pytest -q -n $(WORKERS)

faults: $(READY)  ## Break things on purpose, and measure what comes of it (build/faults.json).
	$(BIN)/python -m pytest -q --show-capture=no tests/faults

outages: $(READY)  ## Put what make faults has measured into docs/outages.md.
	cd tests && ../$(BIN)/python -m faults.report ../build/faults.json

fuzz: $(READY)  ## Compare the script with its models on many more random histories.
	RATEKIT_FUZZ=$${RATEKIT_FUZZ:-20} $(BIN)/python -m pytest -q -n $(WORKERS) tests/lua

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)  ## Measure ratekit beside its peers (SHORT=1 for two minutes of it).
	$(BIN)/python -m benchmarks $(if $(SHORT),--short)

wheel: $(READY)  ## Build the wheel and the source distribution.
	$(BIN)/python -m build --no-isolation

clean:  ## Remove what was made.
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .hypothesis
