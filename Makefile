# From a bare clone, with Python 3.11 or later, make and pip:  make demo   make test
PYTHON ?= python3
PORT ?= 8080
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet
# Two stages of one environment: the demo waits for little, the tests for everything.
DEMO := $(VENV)/.demo
READY := $(VENV)/.ready
DEMO_NEEDS := '.[service]'
TEST_NEEDS := '.[redis,fastapi,django,drf,ninja,flask,cli,mysql,mongo,grpc,service,client,otlp]' --group dev
WORKERS ?= auto

.PHONY: help demo dev test faults outages fuzz lint bench surge pictures site matrix release-check wheel clean

help:  ## Show what can be made.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(DEMO): pyproject.toml | $(VENV)/.made
	@echo "Installing what the demo needs into $(VENV): half a minute, once."
	$(PIP) --editable $(DEMO_NEEDS)
	@touch $@

$(READY): pyproject.toml | $(VENV)/.made
	@echo "Installing what the tests need into $(VENV): a minute or two, once."
	$(PIP) 'pip>=25.1'
	$(PIP) --editable $(TEST_NEEDS)
	@touch $@ $(DEMO)

demo: $(DEMO)  ## Run the check service with a tenant to try (PORT=8080).
	@$(BIN)/ratekit serve --demo --port $(PORT)

dev: $(READY)  ## Install all that the tests, the linters and the benchmarks need.

test: $(READY) lint  ## Run ruff, mypy and the whole suite.
	$(BIN)/python -m pytest -q -n $(WORKERS)

faults: $(READY)  ## Break things on purpose, and measure what comes of it (build/faults.json).
	$(BIN)/python -m pytest -q --show-capture=no tests/faults

outages: $(READY)  ## Put what make faults has measured into docs/outages.md.
	PYTHONPATH=tests $(BIN)/python -m faults.report build/faults.json

fuzz: $(READY)  ## Compare the script with its models, and fronts with applications, on many more random histories and requests.
	RATEKIT_FUZZ=$${RATEKIT_FUZZ:-20} $(BIN)/python -m pytest -q -n $(WORKERS) tests/lua tests/ratekit/core/test_calendars.py tests/ratekit/web/test_reading.py tests/ratekit/web/test_routing.py

lint: $(READY)  ## Run ruff and mypy.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)  ## Measure ratekit beside its peers (SHORT=1 for two minutes of it).
	$(BIN)/python -m benchmarks $(if $(SHORT),--short)

surge: $(READY)  ## Send a surge of riders to a small service, without and with limits (SHORT=1 for seconds of it).
	$(BIN)/python example_projects/ride_hailing/surge.py $(if $(SHORT),--short)

pictures: $(READY)  ## Take the picture of the service's page for the documentation (docs/images/service-page.png).
	-$(BIN)/python -m pytest -q tests/ratekit_service/test_page.py -k picture_in_the_documentation
	cp build/pictures/service-page.png docs/images/

site: $(READY)  ## Build the documentation and the API reference as a site (build/site/index.html).
	$(BIN)/python docs/build_site.py

matrix: $(VENV)/.made  ## Run the suite on each Python with the oldest and the newest dependencies (MATRIX=3.12-oldest for one cell).
	WORKERS=$(WORKERS) $(BIN)/python .ci/matrix.py $(MATRIX)

release-check: $(READY)  ## Build, and look at metadata, contents, README, changelog and licences.
	$(BIN)/python .ci/release_check.py

wheel: $(READY)  ## Build the wheel and the source distribution.
	$(BIN)/python -m build --no-isolation

clean:  ## Remove what was made.
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .hypothesis
