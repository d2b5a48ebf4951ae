# make demo: trains a language model on Python source, judges it, writes a report, samples text.
# make test: the whole suite; the folder of tinyshakespeare.txt is named by TRAINWRIGHT_TEST_DATA. Both make .venv first.
PYTHON ?= python3
BIN := .venv/bin
DEMO_DATA := data/python-stdlib

.PHONY: demo test test-long lint bench

demo: .venv/installed
	$(BIN)/trainwright data prepare --input stdlib --share 0.333 --vocab-size 4096 --out $(DEMO_DATA)
	$(BIN)/trainwright train examples/python-lm/run.yaml
	$(BIN)/trainwright sample latest --prompt "    def __init__(self" --max-tokens 70

test: .venv/installed-test
	$(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

test-long: .venv/installed-test
	$(BIN)/python -m pytest -m long $(PYTEST_ARGS)

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/installed-test
	$(BIN)/python benchmarks/loop_overhead.py
	$(BIN)/python benchmarks/lm_throughput.py
	$(BIN)/python benchmarks/judge.py

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "trainwright needs Python 3.11 or newer; name one: make PYTHON=…")'
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

.venv/installed-test: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	touch $@ .venv/installed
