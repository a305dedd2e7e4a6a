# make run: train the digit cards. make test: the whole test suite. Both install what they need
# into .venv first; PYTHON chooses the interpreter.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test lint bench clean

run: .venv/installed
	$(BIN)/flowengine run graphs/digit_cards.py

test: .venv/installed
	$(BIN)/python -m pytest -q

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/installed
	$(BIN)/python bench/bench_flow.py
	$(BIN)/python bench/bench_packing.py

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv runs build dist
