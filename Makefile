# Everything happens in .venv, made from constraints.txt; nothing else on the machine is used but python3.11.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
QDAX := .venv-qdax
QDAX_PIP := $(QDAX)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps

.PHONY: setup train test test-resilience test-qdax clean

train: setup  ## the main job: a repertoire for HalfCheetah with the default preset; ARGS="--task ant" adds options
	$(BIN)/qdhuac train $(ARGS)

test: $(VENV)/.dev  ## linter, type check, tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

test-resilience: $(VENV)/.dev  ## kills, damage, fuzzing, full disks, a long run: about an hour, results in results/reliability
	for name in resume corrupt fuzz kill save soak; do $(BIN)/python tests/resilience/$$name.py || exit 1; done

test-qdax: $(QDAX)/.made  ## our parts against the real QDax, in an environment of its own
	$(QDAX)/bin/python -m pytest -c tests/qdax/pytest.ini tests/qdax

setup: $(VENV)/.runtime

$(VENV)/.runtime: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(PIP) --editable ".[view]"
	touch $@

$(VENV)/.dev: $(VENV)/.runtime
	PIP_CONSTRAINT=constraints.txt $(PIP) --editable ".[dev,view]"
	touch $@

$(QDAX)/.made: benchmarks/peers/qdax.txt
	$(PYTHON) -m venv $(QDAX)
	$(QDAX_PIP) --requirement benchmarks/peers/qdax.txt
	$(QDAX_PIP) --editable .
	touch $@

clean:
	rm -rf $(VENV) $(QDAX)
