# make        sets up .venv and the system packages that the lab needs
# make demo   three rehearsal hosts, CUDA on them, and what they are then
# make test   all tests, with a seeded sample of the random trials; make soak: all of these
# make lint   the checkers; make bench: what it costs, beside ansible-core (writes bench/latest.json)
SHELL := /bin/bash
.DEFAULT_GOAL := setup
VENV := .venv/bin

.PHONY: setup packages demo test soak bench lint

setup: packages .venv/stamp

packages:
	@./tools/packages

.venv/stamp: pyproject.toml
	@python3 -m venv .venv
	@$(VENV)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: setup
	@./tools/demo

test: setup
	@$(VENV)/pytest -n 2 --dist loadgroup

soak: setup
	@RACKWRIGHT_SOAK=1 $(VENV)/pytest -n 2 --dist loadgroup

bench: setup
	@$(VENV)/python tools/bench.py

lint: setup
	$(VENV)/ruff check . && $(VENV)/ruff format --check . && $(VENV)/mypy && $(VENV)/pyright
