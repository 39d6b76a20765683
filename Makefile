# Every target sets up all that it needs, on a machine that has Python 3.11 or newer, make and git.
# Another interpreter: make PYTHON=python3.13 test

PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
PEER := .venv-tensorwatch
PEER_READY := $(PEER)/.ready
TRACKERS := .venv-trackers
TRACKERS_READY := $(TRACKERS)/.ready

# Exact, and before everything else: the examples and tests need no GPU, and with torch already there no other
# package can pull a newer build with gigabytes of CUDA libraries. An index whose 2.13.0 is a CUDA build serves it
# under the same number, and all works with that too; a local CPU build (2.13.0+cpu) is preferred where pip sees one.
TORCH := torch==2.13.0

# What the environment has, but for torch and the CUDA packages that it brings: their builds differ between indexes.
# For the newest versions that an index has: make LOCK= setup
LOCK := requirements.lock

PIP = $(VENV)/bin/python -m pip install -qq --disable-pip-version-check
TRACKERS_PIP = $(TRACKERS)/bin/python -m pip install -qq --disable-pip-version-check
PEER_PIP = $(PEER)/bin/python -m pip install -qq --disable-pip-version-check

# Empty, also where the environment forbids it: without bytecode each of hundreds of processes compiles looptap again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup lock browsers test test-all soak mutants lint types check docs recording demo bench bench-charts bench-progress bench-echo bench-assistant bench-prioritized gallery architecture notebooks clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' Makefile

setup: $(READY) ## the virtual environment in .venv

lock: ## the newest versions of what `make setup` installs, with their hashes, into requirements.lock
	@$(PYTHON) -m venv --clear build/lock
	@build/lock/bin/python -m pip install -qq --disable-pip-version-check uv
	@echo "$(TORCH)" | build/lock/bin/uv pip compile pyproject.toml - --extra test --extra loaders --quiet --universal \
		--python-version 3.11 --generate-hashes --no-annotate --no-header --output-file build/lock/all.txt
	@awk 'BEGIN { print "# Made by `make lock`, for Python 3.11 to 3.14; pip checks the hashes." } \
		/^[a-z0-9]/ { keep = !/^(torch==|triton==|nvidia-|cuda-)/ } keep' build/lock/all.txt > requirements.lock
	@rm -r build/lock

# pytest as a program, not as `python -m pytest`: that would put this folder on sys.path, and `import agent`
# would load looptap.agent under a second name.
browsers: ## the programs that tests need (Chromium, Xvfb, tmux, sshd, gdb), where they may be installed
	@tests/support/programs.sh

test: $(READY) browsers ## the tests that protect users, in about five minutes
	@$(VENV)/bin/pytest -m tier1

test-all: $(READY) browsers ## all other tests: processes, browsers, windows, frameworks, notebooks, pure Python
	@$(VENV)/bin/pytest -m tier2
	@case "$$($(VENV)/bin/looptap --version)" in *compiled*) \
		LOOPTAP_PURE=1 $(VENV)/bin/pytest -m "pure and not soak";; esac

soak: $(READY) ## the long counts of docs/safety.md
	@LOOPTAP_COUNTS=full $(VENV)/bin/pytest -n 0 $(addprefix tests/,streams/test_language.py streams/test_reducers.py \
		streams/test_stream.py agent/loop/test_unharmed.py protocol/test_bounds_of_values.py \
		visualizers/charts/test_charts.py protocol/test_codec.py client/test_window_assembler.py \
		agent/loop/test_tap.py agent/loop/test_tap_rows.py)
	@$(VENV)/bin/pytest -n 0 -m soak

mutants: $(READY) ## small faults in the modules that guard data and access, each of which a test has to notice
	@nice $(VENV)/bin/python tests/mutants/mutate.py $(MUTANTS) $(MODULES)

lint: $(READY) ## ruff
	@$(VENV)/bin/ruff check .

types: $(READY) ## mypy, strict
	@$(VENV)/bin/mypy

check: lint types test ## ruff, mypy, `make test`

docs: $(READY) ## the documentation site, into build/site
	@$(VENV)/bin/python docs/commands.py
	@$(VENV)/bin/python docs/reference.py
	@$(VENV)/bin/python docs/figures.py
	@rm -rf build/site # an interrupted build leaves pages whose pictures a later one would not copy
	@$(VENV)/bin/sphinx-build -q -W --keep-going -c docs/site . build/site
	@echo "looptap: open build/site/index.html"

demo: $(READY) ## a small training run to attach to
	@$(VENV)/bin/looptap demo

bench: $(READY) $(PEER_READY) $(TRACKERS_READY) ## the promises of docs/benchmarks.md, measured here
	@$(VENV)/bin/python benchmarks/run.py $(BENCH)

bench-charts: $(READY) browsers ## the promises of charts in docs/costs.md, measured in a browser
	@$(VENV)/bin/python benchmarks/charts.py

bench-progress: $(READY) ## how good the estimates of the remaining time are: docs/progress-benchmarks.md
	@$(VENV)/bin/python benchmarks/progress/run.py $(if $(PART),--part $(PART)) $(BENCH)

bench-echo: $(READY) ## what echoing saves where data is slow, and where it does not: docs/echoing-benchmarks.md
	@$(if $(PART),,$(VENV)/bin/python benchmarks/echoing/run.py)
	@$(VENV)/bin/python benchmarks/echoing/baselines.py $(if $(PART),--part $(PART))

bench-assistant: $(READY) ## what selecting instances saves, to equal accuracy: docs/selection-benchmarks.md
	@$(VENV)/bin/python benchmarks/selection/run.py $(if $(PART),--part $(PART)) $(BENCH)

bench-prioritized: $(READY) ## what prioritized gradient descent saves, and the paper's figures: docs/prioritized-benchmarks.md
	@$(VENV)/bin/python benchmarks/prioritized/run.py $(if $(PART),--part $(PART)) $(BENCH)

recording: $(READY) browsers ## the moving picture of the README, into docs
	@$(VENV)/bin/python docs/recording.py

gallery: $(READY) ## each kind of chart on each surface, into docs/gallery
	@$(VENV)/bin/python docs/gallery.py

architecture: $(READY) ## the drawing of docs/architecture.md, from the imports
	@$(VENV)/bin/python docs/architecture.py

notebooks: $(READY) ## runs the notebooks and saves them with their pictures
	@$(VENV)/bin/python tests/support/tutorials.py

clean: ## forget the environments and what was built
	rm -rf $(VENV) $(PEER) $(TRACKERS) build dist src/*.egg-info src/looptap/*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(READY): pyproject.toml setup.py $(LOCK) $(wildcard src/looptap/agent/loop/tap/*.[ch])
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "looptap needs Python 3.11 or newer, \
	and $(PYTHON) is " + sys.version.split()[0] + "; name another one: make PYTHON=python3.13")'
	@echo "looptap: making $(VENV)"
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@if test -n "$(LOCK)" && $(VENV)/bin/python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))'; then set -e; \
		echo "looptap: installing what its tests need, in the versions of $(LOCK)"; \
		$(PIP) --require-hashes --no-deps --requirement $(LOCK) || { echo "looptap: this index or machine lacks a \
	version of $(LOCK), or a file is not the one that it names; make LOCK= setup installs without it"; exit 1; }; \
		echo "looptap: installing $(TORCH) (the largest part, a few minutes at most)"; \
		$(PIP) "$(TORCH)"; \
		$(PIP) --no-deps --no-build-isolation --editable .; \
	else set -e; \
		echo "looptap: no lock for this Python; installing $(TORCH) and the newest of the rest, without hashes"; \
		$(PIP) "$(TORCH)"; \
		$(PIP) --editable '.[test]'; \
		$(PIP) --editable '.[loaders]' || echo "looptap: without the loaders of other packages; their tests skip"; \
	fi
	@touch $@
	@echo "looptap: ready; for the command looptap in this shell: source $(VENV)/bin/activate"

# TensorWatch is compared with, never imported by looptap: it has an environment of its own.
$(PEER_READY): benchmarks/tensorwatch-requirements.txt
	@echo "looptap: making $(PEER), to measure TensorWatch beside looptap"
	@test -x $(PEER)/bin/python || $(PYTHON) -m venv $(PEER)
	@$(PEER_PIP) "$(TORCH)"
	@$(PEER_PIP) --requirement benchmarks/tensorwatch-requirements.txt
	@$(PEER_PIP) --no-deps tensorwatch==0.9.1
	@touch $@

# Other trackers are compared with, never imported by looptap. One that an index does not have is left out of the table.
$(TRACKERS_READY): benchmarks/trackers-requirements.txt
	@echo "looptap: making $(TRACKERS), to measure other trackers beside looptap"
	@test -x $(TRACKERS)/bin/python || $(PYTHON) -m venv $(TRACKERS)
	@grep -v '^#' $< | while read package; do \
		$(TRACKERS_PIP) "$$package" || echo "looptap: without $$package; its row is missing"; done
	@touch $@
