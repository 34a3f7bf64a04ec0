# Needs python3 >= 3.11, make and git; everything else is installed into .venv and .tools.
SHELL := /bin/sh
.DEFAULT_GOAL := help

PYTHON ?=
SYSTEM_PYTHON := $(if $(PYTHON),$(PYTHON),python3)
BIN := .venv/bin
export PYTHON
export SAM_CLI_TELEMETRY := 0

.PHONY: help setup demo dev test lint fmt build deploy bench soak clean lock lock-check

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install everything into .venv and .tools (quick when nothing changed)
	@$(SYSTEM_PYTHON) tools/environments.py setup

demo: setup ## watch a job die with its node and come back (about two minutes)
	@$(BIN)/python -m evenkeel_local.demo

dev: setup ## keep the local data centre up until Ctrl-C
	@$(BIN)/evenkeel dev up --foreground

lock: setup ## resolve requirements/*.txt again
	@$(BIN)/python tools/environments.py lock

lock-check: setup ## the locks match pyproject.toml and requirements/*.in (offline)
	@$(BIN)/python tools/environments.py lock-check
