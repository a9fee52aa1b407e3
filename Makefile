# Every target sets up what it needs. Virtual environments live in $(VENV) (and .venvs/ for the
# matrix); a stamp file in each remembers what is installed, so that a second run starts at once.

PYTHON ?= python3
VENV ?= .venv
# A Django series such as 6.1; empty means the newest that the interpreter can run.
DJANGO ?=
# Further arguments for pytest or for the demo: make test ARGS="-k retry".
ARGS ?=
# Tests mostly wait, for a broker or for time to pass; `make test PARALLEL=` runs them one by one.
PARALLEL ?= -n 4 --dist worksteal
# What `make matrix` runs; `tox` has every combination.
MATRIX ?= py311-django52 py313-django61
# What `make test-rabbitmq` runs on; "here" is the broker that `make test` takes.
RABBITMQ ?= here 4.0 4.3
QUEUE_TYPE ?= classic quorum
# Where `make test-databases` runs.
DATABASES ?= sqlite postgresql mariadb

BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install -qq
DJANGO_REQUIREMENT := $(if $(DJANGO),'Django~=$(DJANGO).0')
BROKER_TESTS := tests/backends/rabbitmq $(wildcard tests/backends/test_rabbitmq*.py)
APT_LINE := sudo apt-get install -y make git python3-venv

export PIP_DISABLE_PIP_VERSION_CHECK := 1
ifdef JOBQ_URL
export JOBQ_URL
endif

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-fast test-rabbitmq test-databases bench lint types docs packaging matrix lane format clean

help: ## List the targets
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
	  while IFS='|' read -r target text; do printf '  %-18s %s\n' "$${target#  }" "$$text"; done

demo: $(VENV)/$(if $(filter amqp%,$(JOBQ_URL)),.stamp-rabbitmq,.stamp-project) ## Run the example project (ONCE=1 stops by itself, JOBQ_URL=... picks the backend)
	@$(BIN)/python example_project/manage.py demo $(if $(filter-out 0,$(ONCE)),--once) $(ARGS)

test: $(VENV)/.stamp-test ## Run the tests and the contract map (ARGS="-k name": only these tests)
ifeq ($(strip $(ARGS)),)
	$(BIN)/python -m pytest $(PARALLEL)
	$(BIN)/python -m tests.databases postgresql mariadb -- $(PARALLEL:4=3) -m "not slow"
	$(BIN)/python tests/contract_map.py
	cd example_project && $(abspath $(BIN))/python -m pytest
else
	$(BIN)/python -m pytest $(ARGS)
endif

test-fast: $(VENV)/.stamp-test ## Run the tests that need no broker
	$(BIN)/python -m pytest $(PARALLEL) $(addprefix --ignore=,$(BROKER_TESTS)) $(ARGS)

test-rabbitmq: $(foreach version,$(RABBITMQ),$(addprefix rabbitmq-$(version)-,$(QUEUE_TYPE))) ## Run the tests that need a broker on each RabbitMQ and queue type (RABBITMQ=4.3 QUEUE_TYPE=quorum: only on these)

test-databases: $(VENV)/.stamp-test ## Run the tests of stored jobs on each database (DATABASES=postgresql: only on this)
	$(BIN)/python -m tests.databases $(DATABASES) -- $(PARALLEL) $(ARGS)

bench: $(VENV)/.stamp-bench ## Measure against Celery and Dramatiq on the broker at AMQP_URL (ARGS="--rounds 5")
	$(BIN)/python -m benchmarks $(ARGS)

lint: $(VENV)/.stamp-lint ## Check style, format and the import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

format: $(VENV)/.stamp-lint ## Format the code and apply the safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.stamp-types ## Check the types with mypy --strict
	$(BIN)/mypy
	cd example_project && $(abspath $(BIN))/mypy

docs: $(VENV)/.stamp-docs ## Build the documentation into build/docs/html; a warning is an error
	$(BIN)/sphinx-build -q -E -W --keep-going -d build/docs/doctrees docs build/docs/html

packaging: $(VENV)/.stamp-packaging ## Build the sdist and the wheel, check them, install the wheel
	$(BIN)/python scripts/check_packages.py

matrix: $(addprefix test-,$(MATRIX)) ## Run the tests on every Python and Django that CI requires

clean: ## Remove the virtual environments and everything that was built
	rm -rf .venv .venvs build dist htmlcov .coverage .coverage.* .tox
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find django_jobq tests example_project docs scripts -name __pycache__ -prune -exec rm -rf {} +

# One RabbitMQ and queue type: make rabbitmq-4.3-quorum. Root and debootstrap are needed, but not for "here".
rabbitmq-%: version = $(filter-out here,$(firstword $(subst -, ,$*)))
rabbitmq-%: $(VENV)/.stamp-test
	@$(if $(version),scripts/rabbitmq4 install $(version))
	@echo "RabbitMQ $(or $(version),that is here), $(lastword $(subst -, ,$*)) queues:"
	@JOBQ_TEST_RABBITMQ=$(version) JOBQ_TEST_QUEUE_TYPE=$(lastword $(subst -, ,$*)) \
	  $(BIN)/python -m pytest $(PARALLEL) $(BROKER_TESTS) $(ARGS)

# One combination: make test-py312-django60.
test-py%:
	@python=$$(scripts/find-python $(patsubst 3%,3.%,$(firstword $(subst -django, ,$*)))) && \
	  django=$$(echo $(lastword $(subst -django, ,$*)) | sed 's/./&./') && \
	  $(MAKE) lane VENV=.venvs/py$* PYTHON="$$python" DJANGO="$$django"

# COVERAGE=1 needs Python 3.12: tracing 3.11 hangs while a thread is blocked with an exception on its
# way, which is what the tests of jobs that do not return are about.
lane: $(VENV)/.stamp-test
	@$(BIN)/python -c 'import sys, django; print("Python", sys.version.split()[0], "and Django", django.__version__)'
	$(BIN)/python -m pytest $(PARALLEL) $(if $(COVERAGE),--cov --cov-report=term-missing:skip-covered) $(ARGS)
	cd example_project && $(abspath $(BIN))/python -m pytest $(ARGS)

$(VENV)/.stamp-base:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "$(PYTHON) is missing or older than Python 3.11: install one with '$(APT_LINE)' (Debian 12, Ubuntu 24.04 or newer) or name one with 'make PYTHON=/path/to/python3.11'." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make a virtual environment: run '$(APT_LINE)' and try again." >&2; exit 1; }
	@echo "Setting up $(VENV) (first run takes about a minute) …"
	@$(PYTHON) -m venv --clear $(VENV)
	@# Dependency groups need pip 25.1; Debian 12 brings 23.0.
	@$(PIP_INSTALL) 'pip>=25.1'
	@touch $@

$(VENV)/.stamp-project: pyproject.toml $(VENV)/.stamp-base
	@echo "Installing django-jobq into $(VENV) …"
	@$(PIP_INSTALL) -e '.[environ]' $(DJANGO_REQUIREMENT)
	@touch $@

$(VENV)/.stamp-rabbitmq: $(VENV)/.stamp-project
	@$(PIP_INSTALL) -e '.[environ,rabbitmq]' $(DJANGO_REQUIREMENT)
	@touch $@

$(VENV)/.stamp-%: $(VENV)/.stamp-project
	@echo "Installing the tools for '$*' into $(VENV) …"
	@$(PIP_INSTALL) --group $* $(DJANGO_REQUIREMENT)
	@touch $@
