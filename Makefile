# make demo: trains a language model on Python source, judges it, writes a report, samples text.
# make gpu-evidence: on a machine with a GPU, trains the 370M preset, probes the machine, attaches the evidence of both.
# make test: the whole suite; the folder of tinyshakespeare.txt is named by TRAINWRIGHT_TEST_DATA. Both make .venv first.
# make test-models: the ten checks that every trainable must pass, then exact resumes; M=dqn: those of one model.
PYTHON ?= python3
BIN := .venv/bin
DEMO_DATA := data/python-stdlib
PREPARE := --input stdlib --share 0.333 --vocab-size 4096

GPU_DEVICE ?= cuda
GPU_CONTRACT ?= src/trainwright/contracts/gpu-training-backend-v1.yaml
GPU_DATA ?= $(DEMO_DATA)
GPU_PREPARE ?= $(PREPARE)
GPU_RUNS ?= runs/gpu-evidence
GPU_TRAIN ?=

.PHONY: demo gpu-evidence test test-long test-models test-s3 lint bench

demo: .venv/installed
	$(BIN)/trainwright data prepare $(PREPARE) --out $(DEMO_DATA)
	$(BIN)/trainwright train examples/python-lm/run.yaml
	$(BIN)/trainwright models verify python-lm
	$(BIN)/trainwright sample latest --prompt "    def __init__(self" --max-tokens 70

# GPU_TRAIN: KEY=VALUE that win over the file's. The run is attached, then the record of probes: each while it is latest,
# and whatever gates of it do not hold; the worst exit code is that of the whole.
ATTACH = $(BIN)/trainwright evidence attach latest --runs-dir $(GPU_RUNS) --to $(GPU_CONTRACT)
gpu-evidence: .venv/installed
	$(BIN)/trainwright data prepare $(GPU_PREPARE) --out $(GPU_DATA)
	worst=0; note() { code=$$?; [ $$code -le $$worst ] || worst=$$code; }; \
	$(BIN)/trainwright train examples/gpu-evidence/run.yaml --device $(GPU_DEVICE) --runs-dir $(GPU_RUNS) \
	  contract=$(GPU_CONTRACT) data.path=$(GPU_DATA) $(GPU_TRAIN) || note; \
	case $$worst in 0|3|4) $(ATTACH) || note;; *) exit $$worst;; esac; \
	$(BIN)/trainwright probe --contract $(GPU_CONTRACT) --runs-dir $(GPU_RUNS) || note; \
	$(ATTACH) || note; \
	$(BIN)/trainwright contract status $(GPU_CONTRACT) || note; \
	exit $$worst

test: .venv/installed-test
	$(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

test-long: .venv/installed-test
	$(BIN)/python -m pytest -m long $(PYTEST_ARGS)

# M is the type of a model, in any case; without one it is every class
TRAINABLES := tests/models/test_trainables.py
OF_MODEL = $(shell sed -n 's/^class \(Test[[:alnum:]]*\).*/\1/p' $(TRAINABLES) | grep -ix 'Test$(subst _,,$(M))')
test-models: .venv/installed-test
	$(if $(M),$(if $(OF_MODEL),,$(error M=$(M): $(TRAINABLES) has no class of such a model)))
	$(BIN)/python -m pytest -v $(TRAINABLES)$(addprefix ::,$(OF_MODEL)) -k "not resume" $(PYTEST_ARGS)
	$(BIN)/python -m pytest -v $(TRAINABLES)$(addprefix ::,$(OF_MODEL)) -k resume $(PYTEST_ARGS)

# the tests of S3 against ENDPOINT, with the keys of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; without it SeaweedFS
ENDPOINT ?=
test-s3: .venv/installed-test
	TRAINWRIGHT_TEST_S3_ENDPOINT=$(ENDPOINT) $(BIN)/python -m pytest -v tests/checkpoints/test_s3.py $(PYTEST_ARGS)

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/installed-test
	$(BIN)/python benchmarks/loop_overhead.py
	$(BIN)/python benchmarks/lm_throughput.py
	$(BIN)/python benchmarks/mamba2_throughput.py
	$(BIN)/python benchmarks/judge.py
	$(BIN)/python benchmarks/save_overhead.py
	$(BIN)/python benchmarks/registry.py
	$(BIN)/python benchmarks/store_throughput.py
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	$(BIN)/python benchmarks/dqn_throughput.py
	$(BIN)/python benchmarks/ppo_throughput.py
	$(BIN)/python benchmarks/tft_throughput.py

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "trainwright needs Python 3.11 or newer; name one: make PYTHON=…")'
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

.venv/installed-test: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	touch $@ .venv/installed
