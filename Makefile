# Needs python3 >= 3.11, make and git; everything else is installed into .venv and .tools, from requirements/*.txt.
#
#   make setup PYTHON=/path/to/python3.13     build on another interpreter
#   make test TESTS=tests/unit                one level of the tests
#   make fuzz SEEDS=1..100000                100,000 seeds
#   make deploy ENV=dev                       an environment of samconfig.toml
#   make deploy ENV=dev SKIP=keys             without a check of `make preflight`
SHELL := /bin/sh
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?=
ENV ?= dev
TESTS ?=
SEEDS ?= 1..500
SKIP ?=
RUN ?=
TO ?=

SYSTEM_PYTHON := $(if $(PYTHON),$(PYTHON),python3)
BIN := .venv/bin
SAM := .tools/sam/bin/sam
# An exit of 2 means that a check could not read its facts. That does not stop a deployment; a failed check does.
PREFLIGHT = $(BIN)/evenkeel doctor --before $(ENV) $(if $(SKIP),--skip $(SKIP))

export PYTHON
# Tests start thousands of Python processes. Without byte code, each compiles all modules that it imports.
unexport PYTHONDONTWRITEBYTECODE
export SAM_CLI_TELEMETRY := 0

.PHONY: help setup torch demo dev test test-all fuzz mutants drill-mutants lint generate docs fmt build preflight package deploy rollback bench bench-check soak drills scenarios storm clean lock lock-check

help: ## show this list
	@$(SYSTEM_PYTHON) -c 'import re; [print(f"  make {name:13} {what}") for name, what in \
		re.findall(r"^([a-z-]+):.*?## (.*)", open("Makefile").read(), re.M)]'

setup: ## install everything into .venv and .tools (immediate if nothing changed)
	@$(SYSTEM_PYTHON) tools/environments.py setup

torch: setup ## install PyTorch (1 GB or more) into .tools/torch, for the tests of examples/pytorch
	@$(BIN)/python tools/environments.py torch

demo: setup ## run a training job, break its node, and watch the job resume
	@$(BIN)/python -m evenkeel_local.demo $(if $(VERBOSE),--verbose)

dev: setup ## keep the local data centre up until Ctrl-C
	@$(BIN)/evenkeel dev up --foreground

test: $(if $(TESTS),lint,setup) ## lint, types, the template, and tests of every level
	@$(BIN)/python $(if $(TESTS),-m pytest $(TESTS),-m tools.test_lanes)

test-all: setup torch ## every test, with the drills and the exhaustive tests, for a release
	@$(BIN)/python -m tools.test_lanes --all

lint: lock-check ## ruff, mypy strict, the prose, the template
	@$(MAKE) -j2 lint-code lint-template

.PHONY: lint-code lint-template
lint-code:
	@echo "lint: ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { echo "lint: not formatted, run \`make fmt\`:"; $(BIN)/ruff format --check .; exit 1; }
	@echo "lint: mypy"
	@$(BIN)/mypy
	@echo "lint: prose"
	@$(BIN)/python tools/prose.py

lint-template:
	@echo "lint: the translated template"
	@$(BIN)/python -m pytest -q -m "not exhaustive" tests/template/test_lint.py

generate: setup ## write openapi.json, schemas, tables and pictures again from the code
	@$(BIN)/python -m tools.generate

docs: setup ## build the documentation site in build/site
	@$(BIN)/python -m tools.site

fmt: setup ## format the code, and fix lint findings automatically
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

build: setup ## build the functions and their layer for an environment of samconfig.toml (ENV=dev or prod)
	@$(BIN)/python -m tools.build $(ENV)

package: setup ## package a release in dist/: template, code, chart, wheels, bills of materials, checksums (ENV=prod)
	@$(BIN)/python -m tools.package $(if $(filter file,$(origin ENV)),prod,$(ENV))

preflight: setup ## check what a deployment of an environment needs, before it (ENV=dev or prod)
	@$(PREFLIGHT)

deploy: setup ## check, build and deploy to your AWS account (ENV=dev or prod): read docs/deploy.md first
	@$(PREFLIGHT) || [ $$? -eq 2 ]
	@$(MAKE) build
	@$(BIN)/python -m tools.deploy $(ENV)

rollback: setup ## point the aliases at the deployment before, or at TO=…: docs/release.md (ENV=dev or prod)
	@$(BIN)/python -m tools.rollback $(ENV) $(if $(TO),--to $(TO))

bench: setup ## measure the time from event to cordon, and compare it with the baseline
	@$(BIN)/python -m bench

bench-check: setup ## short versions of all benchmarks against bench/baselines/check.json; part of a release (ONLY=verdicts)
	@$(BIN)/python -m bench.check $(if $(ONLY),--only $(ONLY))

fuzz: setup ## run seeds of the fault simulator, and report broken invariants (SEEDS=1..500; resumes; 7..7 prints the timeline)
	@$(BIN)/python -m tests.simulator.fuzz $(SEEDS)

mutants: setup ## apply each bug of tests/mutants, and check that the fault simulator finds it
	@$(BIN)/python -m tests.simulator.mutants

drill-mutants: setup ## remove the rule that each drill tests, and check that the drill fails (RUN=storm runs one)
	@$(BIN)/python -m tests.drill_mutants $(RUN)

soak: setup ## load test with 2,000 jobs on shared quotas, then twenty drills at random times
	@$(BIN)/python -m tests.load_test --jobs 2000
	@$(BIN)/python -m evenkeel_local.soak

drills: setup ## run every drill, the storm and the scenarios; more than 15 minutes
	@$(BIN)/python -m pytest tests/local -m drills -v

scenarios: setup ## list the scenarios of a shared fleet; RUN=preemption runs one, RUN=all runs all
	@$(BIN)/python -m evenkeel_local.scenarios $(RUN)

storm: setup ## send a thousand events about 200 nodes within ten seconds, and check the result
	@$(BIN)/evenkeel drill run storm --full

clean: ## remove environments, builds and caches
	@rm -rf .venv .tools .evenkeel .aws-sam dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@$(SYSTEM_PYTHON) -c 'import pathlib, shutil; [shutil.rmtree(p) for p in list(pathlib.Path().rglob("__pycache__"))]'

lock: setup ## resolve requirements/*.txt again
	@$(BIN)/python tools/environments.py lock

lock-check: setup ## check that the locks match pyproject.toml and requirements/*.in (offline)
	@$(BIN)/python tools/environments.py lock-check
