# Everything from Python >= 3.11 and make: each target first makes .venv and installs what changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Test files that run at once; many of them wait for processes.
WORKERS ?= 3
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-integrations test-ray soak fuzz chaos wheels test-gpu bench-gpu bench-tuner check docs bench screenshots release clean

help:
	@echo "make demo         a real PPO run on this machine and the dashboard on it"
	@echo "make test         the test suite, in less than eight minutes on two cores"
	@echo "make test-slow    the tests that take long, such as a hundred simulated hours"
	@echo "make test-integrations  the adapters, with the oldest and the newest versions of the frameworks"
	@echo "make test-ray     the tests that start Ray, one after another"
	@echo "make soak HOURS=n the simulation of runs, daemon and viewers for n hours, in parallel"
	@echo "make fuzz MINUTES=n hostile messages, recordings, settings, command lines and ssh output for n minutes"
	@echo "make chaos        real processes under random faults: MINUTES=20, SEED=n for the same faults again"
	@echo "make wheels       build both wheels, and try them in an environment of their own"
	@echo "make test-gpu     on a GPU node: the tests and measurements that need the real driver"
	@echo "make bench-gpu    on a GPU node: how fast the trainer is, against its targets"
	@echo "make bench-tuner  on a GPU node: the diagnosis on labelled loads, the tuner against a grid and from the guides' settings"
	@echo "make check        format, lint, types, import contracts, length of sentences"
	@echo "make docs         the documentation as a website, in build/site"
	@echo "make bench        the benchmarks; JSON on stdout and in benchmarks/results/"
	@echo "make screenshots  screenshots/: every screen in PNG and a cast, from a real recording"
	@echo "make release      build, check, install and try a release, then tag it (TAG=no: without the tag)"
	@echo "make clean        remove .venv and caches"

setup: $(STAMP)

$(STAMP): pyproject.toml trainer/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "hoptui needs Python >= 3.11; this is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "could not make $(VENV) (on Debian: apt-get install python3-venv)" >&2; exit 1; }
	@echo "installing hoptui into $(VENV) (the first time: a few minutes, torch is large)"
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt \
	  -e '.[dev,docs,release]' -e './trainer[fp8,lm,vision]'
	@touch $(STAMP)

demo: setup
	@$(BIN)/hoptui demo

# Tests start hundreds of processes. None should compile a module again, also where Python may not write.
test: setup
	@$(BIN)/python -m compileall -q hoptui trainer tests benchmarks
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m 'not slow'

# Trainers that learn or compile, several ranks, old releases, and many hours of simulation.
test-slow: setup
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m slow

# One environment for each end of the supported versions, .venv-oldest and .venv-newest. Old frameworks warn of what
# came after them, so their warnings are no errors here. Both have the same torch: the newest one runs what uses it alone.
ENDS := oldest newest
test-integrations: $(ENDS:%=.venv-%/.installed)
	@for end in $(ENDS); do \
	  echo "with the $$end versions of the frameworks"; \
	  marks='not ray'; test $$end = newest || marks='not ray and not torch_alone'; \
	  .venv-$$end/bin/python -c 'import accelerate, lightning, ray, stable_baselines3, transformers' && \
	  { test $$end = oldest || .venv-$$end/bin/python -c 'import torchtitan'; } && \
	  .venv-$$end/bin/python -m pytest -W default -n $(WORKERS) --dist loadfile -m "$$marks" tests/integrations || exit 1; \
	done

# Ray starts about ten processes, and gives up on a busy machine.
test-ray: $(ENDS:%=.venv-%/.installed)
	@for end in $(ENDS); do .venv-$$end/bin/python -m pytest -W default -m ray tests/integrations || exit 1; done

.venv-%/.installed: tests/integrations/%.txt pyproject.toml constraints.txt
	@test -x .venv-$*/bin/python || $(PYTHON) -m venv .venv-$*
	@echo "installing the $* versions of the frameworks into .venv-$*"
	@.venv-$*/bin/python -m pip install --quiet --no-compile --disable-pip-version-check -r tests/integrations/$*.txt -e .
	@touch $@

HOURS ?= 1
soak: setup
	@$(BIN)/python -m tests.simulation.soak --hours $(HOURS)

# There is no wheel of atheris for every Python: without it the inputs are mutated blindly.
fuzz: MINUTES ?= 10
fuzz: setup
	@$(BIN)/python -c 'import atheris' 2>/dev/null || \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]' || true
	@$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

chaos: MINUTES ?= 20
chaos: setup
	@nice $(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

wheels: setup
	@$(BIN)/python -m tests.wheels

test-gpu: setup
	@$(BIN)/python -m pytest tests/telemetry/test_real_driver.py tests/sdk/test_cuda.py tests/trainer/gpu --ignore tests/trainer/gpu/test_graphs.py
	@$(BIN)/python -m pytest tests/trainer/gpu/test_graphs.py  # its failed captures leave torch's allocator unfit for other tests
	@$(BIN)/python -m benchmarks.gpu

bench-gpu: setup
	@$(BIN)/python -m benchmarks.trainer

bench-tuner: setup
	@$(BIN)/python -m benchmarks.diagnosis
	@$(BIN)/python -m benchmarks.tuner_grid
	@$(BIN)/python -m benchmarks.tuner_guides

check: setup
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python -m pytest -q tests/docs/test_prose.py

docs: setup
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "the documentation is in build/site/index.html"

bench: setup
	@$(BIN)/python -m benchmarks

screenshots: setup
	@$(BIN)/python -m screenshots

# What docs/releasing.md describes. Nothing is pushed or uploaded.
TAG ?= yes
release: setup
	@.ci/release $(abspath $(BIN)/python) $(TAG)

clean:
	rm -rf $(VENV) build trainer/build *.egg-info trainer/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
