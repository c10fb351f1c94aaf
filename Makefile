# Everything happens in .venv, made from lock.txt; nothing else on the machine is used but python3.11.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps
CHROMIUM := --no-install-recommends chromium libegl1 libgl1-mesa-dri
QDAX := .venv-qdax
QDAX_PIP := $(QDAX)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps

# What is locked for the extras $(1), with its hashes, and this package.
define install
	awk -F'#' '$$2 ~ / ($(1)|view)( |$$)/' lock.txt > $(VENV)/locked.txt
	$(PIP) --require-hashes --requirement $(VENV)/locked.txt
	$(PIP) --no-build-isolation --editable .
	$(BIN)/python -m pip check >/dev/null
endef

.PHONY: setup train view test test-resilience test-qdax test-playground test-browser three docs lock audit clean

train: setup  ## the main job: a repertoire for HalfCheetah with the default preset; ARGS="--task ant" adds options
	$(BIN)/qdhuac train $(ARGS)

view: setup  ## the newest run in the browser, also while it trains
	$(BIN)/qdhuac view $(ARGS)

test: $(VENV)/.dev  ## linter, type check, tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

test-resilience: $(VENV)/.dev  ## kills, damage, fuzzing, full disks, a long run: about an hour, results in results/reliability
	for name in resume corrupt fuzz hostile kill save soak; do $(BIN)/python tests/resilience/$$name.py || exit 1; done

test-qdax: $(QDAX)/.made  ## our parts against the real QDax, in an environment of its own
	$(QDAX)/bin/python -m pytest -c tests/qdax/pytest.ini tests/qdax

test-playground: $(VENV)/.playground  ## an environment of MuJoCo Playground as a task; 400 MB more in .venv
	$(BIN)/python -m pytest -o addopts="-q -p no:cacheprovider" tests/tasks/test_playground.py

test-browser: $(VENV)/.browser  ## explorer and report in headless Chromium: the system's, or else playwright's own
	$(BIN)/python -m pytest -o addopts="-q -p no:cacheprovider" tests/browser

three:  ## what the explorer takes of three.js, as one file in the package; needs Node.js, as nothing else does
	cd web && npm ci --silent && npx esbuild three.mjs --bundle --minify --format=esm --legal-comments=inline \
		--outfile=../src/qdhuac/view/three.js

docs: $(VENV)/.docs  ## the documentation as a site, in site/; any warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

setup: $(VENV)/.runtime

setup-%: $(VENV)/.runtime  ## an extra beside it, such as setup-adapt; setup-cuda is JAX for NVIDIA GPUs, 3 GB
	$(call install,$*)

lock: $(VENV)/.runtime  ## lock.txt anew from constraints.txt
	$(BIN)/python tools/lock.py

audit: $(VENV)/.runtime  ## the pins that are not the newest versions
	$(BIN)/python tools/lock.py audit

$(VENV)/.runtime: pyproject.toml lock.txt
	$(PYTHON) -m venv $(VENV)
	$(call install,view)
	touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(call install,dev)
	touch $@

$(VENV)/.browser: $(VENV)/.dev
	$(call install,browser|dev)
	command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get -qq update && apt-get -qq --yes install $(CHROMIUM); } \
		|| $(BIN)/playwright install chromium
	touch $@

$(VENV)/.playground: $(VENV)/.dev
	$(call install,dev|playground)
	touch $@

$(VENV)/.docs: $(VENV)/.runtime
	$(call install,docs)
	touch $@

$(QDAX)/.made: benchmarks/peers/qdax.txt
	$(PYTHON) -m venv $(QDAX)
	$(QDAX_PIP) --requirement benchmarks/peers/qdax.txt
	$(QDAX_PIP) --editable .
	touch $@

clean:
	rm -rf $(VENV) $(QDAX) site web/node_modules
