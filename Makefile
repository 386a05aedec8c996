# Needs Python 3.11, 3.12 or 3.13 with venv, and the package index. `make help` lists what there is.

.DEFAULT_GOAL := help
SHELL := /bin/sh
MAKEFLAGS += --no-print-directory

# A Python that really runs: a name on the path may be a launcher without a Python behind it
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	>/dev/null 2>&1 && { echo "$$p"; break; }; done)
VENV := .venv
PY := $(VENV)/bin/python
FOLDERS := app ingest migrations projections router replay deploy bench tests

DYNAMO ?= 1.6.1
ONCE ?= 0
RUN_DIR ?= .run
REQUIRE_LIVE ?= 0
SEEDS ?= 2000
FUZZ_SECONDS ?= 60
SOAK_SECONDS ?= 3600
export REQUIRE_LIVE

.PHONY: help venv run fleet test check unit live deploy-check pythons sim fuzz soak bench clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 24
	@echo '  settings: DYNAMO=1.6.1|1.5.0|1.4.2 ONCE=1 (run), REQUIRE_LIVE=1 (test), SEEDS=N (sim), RUN_DIR=.run'

venv:
	@test -n '$(PYTHON)' || { echo 'make: no Python 3.11, 3.12 or 3.13 with venv here (Debian: apt-get install python3-venv)' >&2; exit 2; }
	@$(PYTHON) deploy/bootstrap.py

run: venv ## a real Dynamo mock fleet, Picklog before it, some chats; stays up (ONCE=1: ends by itself)
	@exec $(PY) -m deploy.demo.run --release '$(DYNAMO)' --run-dir '$(RUN_DIR)' $(if $(filter-out 0,$(ONCE)),--once)

fleet: venv ## only the mock fleet; prints its addresses as one JSON line
	@exec $(PY) -m deploy.demo.fleet --release '$(DYNAMO)' --run-dir '$(RUN_DIR)/fleet'

test: check ## lint, types, import contracts and all tests (REQUIRE_LIVE=1: a missing peer fails)
	@status=0; \
	$(MAKE) unit || status=1; \
	$(MAKE) live || status=1; \
	exit $$status

check: venv ## lint, format, types and import contracts
	$(VENV)/bin/ruff check --quiet $(FOLDERS)
	$(VENV)/bin/ruff format --quiet --check $(FOLDERS)
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo

unit: venv ## tests without peers, on two processes
	$(PY) -m pytest -q -n 2 --ignore=tests/live tests

live: venv ## tests with real etcd and Dynamo, one after another, in a namespace with loopback alone
	$(PY) -m deploy.demo.loopback $(PY) -m pytest -q tests/live

deploy-check: venv ## image, compose file, chart, dashboards and alarms, by the tools that check them
	$(PY) -m deploy.check.install_tools
	$(PY) -m pytest -q -n 2 --ignore=tests/deploy/demo tests/deploy

pythons: ## environments of the other supported Pythons that are installed, for the golden logs
	@for p in python3.11 python3.12 python3.13; do \
		"$$p" -c 'import ensurepip, venv' >/dev/null 2>&1 || continue; \
		"$$p" deploy/bootstrap.py --venv ".venvs/python-$${p#python}" || exit 1; \
	done

sim: venv ## seeded simulations; SEEDS=N
	$(PY) -m pytest -q tests/simulation --seeds '$(SEEDS)'

# each target in a process of its own, so that no benchmark feels the heap of the one before
FUZZERS := $(patsubst bench/%.py,bench.%,$(wildcard bench/fuzz_*.py))
PARTS := bench.index_adapter bench.index_plot bench.index_rivals bench.index_workload bench.kv_traffic bench.mock_upstream bench.replicas_plot bench.scaling_plot
BENCHMARKS := $(filter-out $(FUZZERS) bench.__init__ bench.floor $(PARTS) bench.soak,$(patsubst bench/%.py,bench.%,$(wildcard bench/*.py)))

fuzz: venv ## mutated bytes against every decoder; FUZZ_SECONDS=N for each
	@for name in $(FUZZERS); do echo "== $$name"; $(PY) -m $$name '$(FUZZ_SECONDS)' || exit 1; done

soak: venv ## an hour of churn: memory must stay flat; SOAK_SECONDS=N
	$(PY) -m bench.soak '$(SOAK_SECONDS)'

bench: venv ## all benchmarks, with ratios and the floor loop
	@$(PY) -m bench.floor; status=0; \
	for name in $(BENCHMARKS); do echo "== $$name"; $(PY) -m $$name || status=1; done; exit $$status

clean: ## everything that was built or written: environments, .run, caches
	rm -rf .venv .venvs .run .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
