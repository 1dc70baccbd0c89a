# `make help` lists the targets.

SHELL := bash
PYTHON ?= python3
PREFIX ?= /usr/local
DESTDIR ?=
# More arguments for pytest: make test ARGS='-x tests/unit'
ARGS ?=
# Parallel test processes; more than processors, because tests wait for disks and clocks half of
# their time.  0: one process.
WORKERS ?= $(shell echo $$(($$(nproc 2>/dev/null || echo 1) + 4)))
# Busy processes per processor that run beside the tests: make test LOAD=1
LOAD ?= 0
# Number of messages that `make routed` sends.
MESSAGES ?= 100000
# Seconds for each target of `make fuzz`, and its targets (empty: all).
SECONDS ?= 60
TARGETS ?=
# At most so many inputs for each target of `make fuzz`; -1: any number.
INPUTS ?= -1
# Duration of `make soak`; 0.1 is six minutes.
HOURS ?= 1
# Number of folders that `make folders` kills and damages.
FOLDERS ?= 2000
# Number of kills in `make soak-pipeline`.
KILLS ?= 200
# Number of fleets with logs that `make soak-pipeline` audits, in any order and in parts.
FLEETS ?= 6
# Number of fleets that `make soak-pipeline` audits night after night, in any parts.
NIGHTS ?= 300
# Number of small fleets that `make soak-pipeline` audits night after night, some dozens in one audit.
SMALL_FLEETS ?= 3000
# The seeds of `make simulate`: how many, and the first one; or SEED: only this one, line by line.
SEEDS ?= 1000
FIRST ?= 1
SEED ?=
# The commit that `make bench-compare` measures beside the present state.
BASE ?= main
# The key with which `make dist` signs a release.
KEY ?=

# Every command below runs this interpreter.  Its environment contains exactly the packages of the
# lock files: qmd's dependencies and, for targets that need them, tools and optional packages.
PY := .venv/bin/python
READY := .venv/ready
# Tests start thousands of interpreters: each would compile all modules if none kept the result.
unexport PYTHONDONTWRITEBYTECODE
TOOLS := .venv/tools
PIP := $(PY) -m pip --disable-pip-version-check install --quiet

.DEFAULT_GOAL := help
.PHONY: help setup tools run demo demo-pipeline test simulate mutants unprotected soak soak-pipeline folders routed fuzz model check audit dist deb image packages-test docs bench format clean install uninstall

help: ## list these targets
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/p' Makefile | expand -t 24

setup: $(READY) ## create .venv with qmd's dependencies (every target below does so if needed)

tools: $(TOOLS) ## the same with tools, Spark and all optional packages: more than a gigabyte

$(READY): requirements.lock requirements-build.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { \
	  echo "$(PYTHON) was not found: qmd needs Python 3.11 or later; name it with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is too old: qmd needs Python 3.11 or later; name one with PYTHON=..." >&2; exit 1; }
	@echo "setting up .venv with $$($(PYTHON) --version) ..."
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	@$(PIP) --require-hashes -r requirements.lock -r requirements-build.lock
	@$(PIP) --no-deps --no-build-isolation --config-settings editable_mode=compat --editable .
	@touch $@

$(TOOLS): requirements-dev.lock $(READY)
	@echo "adding tools and optional libraries, among them Spark: some minutes ..."
	@# pip packs half a gigabyte of Spark into a wheel, only to unpack it: it need not be compressed.
	@$(PIP) --require-hashes -r <(sed 's/^pyspark==[^ ]*/& --config-settings=--build-option=--compression=stored/' \
	  requirements-dev.lock)
	@$(PIP) --require-hashes -r requirements-amqp.lock || \
	  echo "the door for AMQP is left out: qpid-proton needs a C compiler and the headers of Python"
	@touch $@

run: setup ## start one queue manager in the foreground, with its data in ./run
	@test -e run/qmd.toml || $(PY) -m qmd init run
	@exec $(PY) -m qmd --config run/qmd.toml serve

demo: setup ## two queue managers, 22,000 messages, four kills: nothing lost or duplicated
	@$(PY) -m benchmarks.demo

demo-pipeline: tools ## two queue managers with Spark between them, all killed once; then the audit
	@$(PY) -m benchmarks.demo_pipeline

test: tools ## run every test; LOAD=1 keeps all processors busy meanwhile
	@$(PY) -m pytest -q -n $(WORKERS) -p tests.load --load $(LOAD) $(ARGS)

simulate: tools ## queue managers in simulated worlds, SEEDS=1000 from FIRST=1 on; SEED=n replays one
	@$(PY) -m tests.simulation \
	  $(if $(SEED),--seed $(SEED),--first $(FIRST) --seeds $(SEEDS)) $(ARGS)

mutants: tools ## inject faults into the code: the simulation must detect each
	@$(PY) -m tests.simulation.mutants $(ARGS)

unprotected: tools ## take protections of SECURITY.md out: the tests that it names must fail
	@$(PY) -m tests.attack.removals $(ARGS)

soak: tools ## hostile networks, crashes, power losses and new seeds, for HOURS=1
	@$(PY) -m tests.soak --hours $(HOURS) $(ARGS)

folders: tools ## `qmd check` and `--repair` on FOLDERS=2000 killed and damaged folders
	@$(PY) -m tests.crash.folders --folders $(FOLDERS) $(ARGS)

routed: tools ## five daemons, one of them the only relay, cut off and killed: MESSAGES=100000
	@$(PY) -m tests.netns.relayed --messages $(MESSAGES) $(if $(SEED),--seed $(SEED)) $(ARGS)

soak-pipeline: tools ## kill two streams KILLS=200 times; then run jobs over FLEETS=6, in any order and parts
	@$(PY) -m tests.pipeline.kills --kills $(KILLS) $(ARGS)
	@QMD_SOAK=1 QMD_SOAK_SEEDS=$(FLEETS) $(PY) -m pytest -q tests/pipeline -k 'any_fleet or restored or nearly_nothing or dies_anywhere or dies_at_any or full_at or two_runs or finds_each or no_night or last_of_many or both_engines'
	@$(PY) -W ignore -m tests.pipeline.nights --cases $(NIGHTS)
	@$(PY) -W ignore -m tests.pipeline.many_fleets --cases $(SMALL_FLEETS)

fuzz: tools ## fuzz every parser, SECONDS=60 each
	@if $(PY) -c 'import atheris' 2>/dev/null || $(PIP) \
	  --require-hashes --only-binary :all: -r requirements-fuzz.lock; then \
	  $(PY) -m tests.fuzz --seconds $(SECONDS) --inputs $(INPUTS) $(TARGETS); \
	else echo "fuzzing skipped: atheris, the fuzzer, cannot be installed for this Python"; fi

model: tools ## check the formal model of the exactly-once core exhaustively
	@$(PY) -m model

check: tools ## check formatting, lint and types; every change must pass
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .
	@$(PY) -m mypy --strict protocol storage qmd pipeline pyspark_qmd.py

audit: tools ## look for insecure patterns, and for locked versions with known vulnerabilities
	@$(PY) -m bandit --quiet --recursive --configfile pyproject.toml \
	  protocol storage qmd pipeline release deploy pyspark_qmd.py
	@$(PY) -m release.advisories

dist: tools .venv/sbom/ready ## build the files of a release into dist/; KEY=... signs them: docs/releasing.md
	@rm -rf dist
	@$(PY) -m release.dist dist --sbom .venv/sbom/bin/python $(if $(KEY),--key '$(KEY)')

.venv/sbom/ready: requirements-sbom.lock
	@$(PYTHON) -m venv --clear .venv/sbom
	@.venv/sbom/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes -r $<
	@touch $@

deb: tools ## build Debian packages into dist/deb: docs/installing.md
	@$(PY) -m release.deb dist/deb

image: tools ## build a container image, localhost/qmd, with buildah: docs/installing.md
	@$(PY) -m release.image

packages-test: tools .venv/sbom/ready ## build archives, Debian packages and the image, and try each
	@QMD_PACKAGES=1 $(PY) -m pytest -q -rs tests/packages $(ARGS)

docs: ## build the manuals as a site with search: build/docs/index.html
	@test .venv/docs/ready -nt requirements-docs.lock || { \
	  $(PYTHON) -m venv --clear .venv/docs && \
	  .venv/docs/bin/python -m pip --disable-pip-version-check install --quiet \
	    --require-hashes -r requirements-docs.lock && touch .venv/docs/ready; }
	@.venv/docs/bin/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo "build/docs/index.html"

bench: tools .venv/bench ## measure the promised figures, and other queues by turns; ARGS=--write: docs/benchmarks.md
	@$(PY) -m benchmarks $(ARGS)

.venv/bench: requirements-bench.lock $(TOOLS)
	@$(PIP) --require-hashes -r $<
	@touch $@

.PHONY: bench-costs bench-compare
bench-costs: setup ## count writes, bytes and calls for a message: more than allowed above benchmarks/costs.json fails
	@$(PY) -m benchmarks.costs --check

bench-compare: tools ## measure the present state and the commit BASE=main by turns
	@$(PY) -m benchmarks.compare $(BASE) $(ARGS)

format: tools ## format the code
	@$(PY) -m ruff format .
	@$(PY) -m ruff check --fix .

clean: ## remove the files of tools (not .venv, and not the data in ./run)
	@rm -rf build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

install: ## install the service below PREFIX (and DESTDIR, for packagers); run `make setup` first
	@$(MAKE) --no-print-directory --question $(READY) 2>/dev/null || { \
	  echo "there is no .venv for this state of the source: run 'make setup' first, and not as root" >&2; exit 1; }
	@$(PY) deploy/install.py --prefix '$(PREFIX)' --destdir '$(DESTDIR)'

uninstall: ## remove the service; its configuration and its messages stay
	@$(PYTHON) deploy/install.py --uninstall --prefix '$(PREFIX)' --destdir '$(DESTDIR)'
