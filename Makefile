# The entry point for people and CI. Every path here is relative: make splits words at spaces, and so a
# checkout under "My Projects" works only as long as no absolute path appears.

.DEFAULT_GOAL := help
.PHONY: help demo test check soak coverage lint fmt docs clean dev

SHELL := /bin/sh
BIN := .venv/bin
# Scripts without a suffix have to be named to be linted.
SOURCES := . tools/changelog
PYTEST := $(BIN)/pytest -q -n auto --dist worksteal
DURATIONS := --durations=15 --durations-min=2
ARGS ?=
TESTS ?= tests/unit
SECONDS ?= 600
PYTHON ?=
export PYTHON

# $(call phase,label,command): one line with the time; the output only when it fails.
phase = @began=$$(date +%s); \
	if output=$$($(2) 2>&1); then echo "$(1): good, $$(($$(date +%s) - began))s"; \
	else printf '%s\n' "$$output"; echo "$(1): failed"; exit 1; fi

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 14

demo: ## a race of three attempts at one task, from nothing
	@sh tools/setup demo
	@$(BIN)/atoll demo

test: lint ## lint, then every test; ARGS="-k name -x" goes to pytest
	@$(PYTEST) $(DURATIONS) $(ARGS)

check: lint ## lint, then the quick tests
	@$(PYTEST) -m "(quick or not slow) and not soak" $(ARGS)

soak: dev ## the long attacks, then fuzz the host side for SECONDS=600; ARGS="E1 17" repeats cases
	@$(PYTEST) -m soak --timeout=1800
	@$(BIN)/python tests/boundary/fuzz.py --known --seconds $(SECONDS) $(ARGS)

coverage: dev ## line and branch coverage of the unit tests; TESTS=tests for all of them
	@$(PYTEST) --cov --cov-report=term:skip-covered $(TESTS) $(ARGS)

lint: dev ## format, lint rules, types, layers
	$(call phase,format,$(BIN)/ruff format --check $(SOURCES))
	$(call phase,rules,$(BIN)/ruff check $(SOURCES))
	$(call phase,types,$(BIN)/mypy)
	$(call phase,types of tests,$(BIN)/mypy --config-file tests/mypy.ini)
	$(call phase,layers,$(BIN)/lint-imports --no-logo)

fmt: dev ## format the code and fix what the linter can fix
	@$(BIN)/ruff check --fix --quiet $(SOURCES) || true
	@$(BIN)/ruff format $(SOURCES)

docs: dev ## write the generated reference pages anew
	@$(BIN)/python tools/reference.py

clean: ## remove .venv, caches and builds
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	@find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

dev:
	@sh tools/setup dev
