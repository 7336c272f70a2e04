# Every target makes what it needs under .envs/, from a bare clone, with python3 and pip alone.
# `make help` lists them; CONTRIBUTING.md says more.

PYTHON ?= python3
WORKERS ?= 2
ARGS ?=

# Python keeps its bytecode, even where the environment says not to: the tests start many processes.
export PYTHONDONTWRITEBYTECODE =

MATRIX := jax-0.8.0-python-3.11 jax-0.10.2-python-3.11 jax-0.11.2-python-3.12 \
          jax-0.12.0.1-python-3.13

# The newest JAX that the PATH's python3 runs; looked up only by the targets that use it.
DEFAULT = $(eval DEFAULT := $(shell $(PYTHON) tools/environments.py default))$(or \
  $(DEFAULT),$(error no environment to use, see above))
PINS := pyproject.toml $(wildcard requirements/*.txt)
PYTEST = -m pytest -q -n $(WORKERS) --dist worksteal $(ARGS)
SLOW = -m slow --hypothesis-profile=slow --timeout 1200
CAMPAIGNS = -m campaign --timeout 3600 -p campaign_results
# The fast suite compiles without optimizations, see tests/conftest.py.
OPTIMIZED = JAX_DISABLE_MOST_OPTIMIZATIONS=0

# Tests that do not depend on the version of JAX. `make test` runs them, and the older rows of the
# matrix leave them out; a file that is not listed here runs in every row.
WITHOUT_JAX := tests/cli tests/friends tests/runs tests/test_benchmarks.py tests/test_docs.py \
  tests/test_gates.py tests/test_package.py tests/test_tools.py \
  $(addprefix tests/loggers/test_,conformance.py console.py console_terminal.py csv.py jsonl.py \
    mlflow.py numbers.py permissions.py tensorboard.py text.py trackio.py wandb.py) \
  $(addprefix tests/loop/test_,live_plot.py notebook.py notify.py progress_bar.py text.py) \
  $(addprefix tests/storage/test_,damage.py faults.py kills.py live.py random.py reader.py)

.PHONY: help demo test test-slow campaigns coverage matrix matrix-interpreters check bench docs \
  docs-test pins clean
.SECONDARY:
.SECONDEXPANSION:

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.* ## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 12

demo: .envs/demo/ready ## train 64 networks in one call: live, saved, listed and plotted
	@.envs/demo/bin/python examples/demo.py $(ARGS)

# The suite of one environment. It leaves its verdict in a file, so that the matrix goes on after
# a row that failed, and `make test matrix` runs a row that both want only once.
suite-%: .envs/%/ready
	@echo "Running the tests on $* with $(WORKERS) processes. It takes a few minutes."
	@rm -f .envs/$*/verdict
	@begin=$$(date +%s); verdict=FAILED; \
	.envs/$*/bin/python $(PYTEST) \
	  $(if $(filter $(DEFAULT) $(lastword $(MATRIX)),$*),,$(WITHOUT_JAX:%=--ignore=%)) \
	  && verdict=passed; \
	echo "$*: $$verdict in $$(( $$(date +%s) - begin )) s" > .envs/$*/verdict

test: suite-$$(DEFAULT) ## the fast suite, on the newest JAX that python3 runs
	@cat .envs/$(DEFAULT)/verdict; ! grep -q FAILED .envs/$(DEFAULT)/verdict
	@echo 'A part of them: make test ARGS="-k scan -x".'

test-slow: .envs/$$(DEFAULT)/ready ## the tests that are too long for `make test`
	@echo "Running the slow tests on $(DEFAULT)."
	@$(OPTIMIZED) .envs/$(DEFAULT)/bin/python $(PYTEST) $(SLOW)

campaigns: .envs/$$(DEFAULT)/ready ## hundreds of kills, flipped bits and interrupts; long
	@echo "Running the campaigns on $(DEFAULT). The results go to benchmarks/results/."
	@PYTHONPATH=tools $(OPTIMIZED) .envs/$(DEFAULT)/bin/python $(PYTEST) $(CAMPAIGNS)

# Not a verdict: some tests count memory or fork, which being watched changes.
coverage: .envs/$$(DEFAULT)/ready ## the lines and branches of src/logax that both suites reach
	rm -rf .coverage
	-PYTHONPATH=tools .envs/$(DEFAULT)/bin/coverage run $(PYTEST) -p whole_coverage
	-PYTHONPATH=tools $(OPTIMIZED) .envs/$(DEFAULT)/bin/coverage run $(PYTEST) -p whole_coverage $(SLOW)
	.envs/$(DEFAULT)/bin/coverage combine --quiet
	.envs/$(DEFAULT)/bin/coverage report

matrix: matrix-interpreters $(MATRIX:%=suite-%) ## the tests that depend on JAX, on every supported version
	@cat $(MATRIX:%=.envs/%/verdict); ! grep -q FAILED $(MATRIX:%=.envs/%/verdict)

matrix-interpreters:
	@$(PYTHON) tools/interpreters.py $(sort $(foreach row,$(MATRIX),$(lastword $(subst -, ,$(row))))) \
	  > /dev/null

check: .envs/$$(DEFAULT)/ready ## style, types and layers
	.envs/$(DEFAULT)/bin/ruff check
	.envs/$(DEFAULT)/bin/ruff format --check
	.envs/$(DEFAULT)/bin/mypy
	.envs/$(DEFAULT)/bin/lint-imports --no-cache

bench: .envs/bench/ready ## ratios against programs by hand and peers; how cost grows, in bench.png
	.envs/bench/bin/python -m benchmarks --plot bench.png $(ARGS)

docs: .envs/docs/ready ## the documentation, into site/
	@echo "Building the documentation from docs/ and the docstrings."
	@NO_MKDOCS_2_WARNING=1 .envs/docs/bin/mkdocs build --quiet --strict --clean
	@.envs/docs/bin/python tools/offline.py site
	@echo "The documentation is in site/. Open site/index.html."

docs-test: docs ## search the documentation and measure its pages in Chromium
	@$(PYTHON) tools/browse_site.py site

pins: ## write requirements/ anew from pyproject.toml
	$(PYTHON) tools/pins.py

clean: ## remove the environments and all that was built
	rm -rf .envs site .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis

.envs/%/ready: $(PINS)
	@$(PYTHON) tools/environments.py create $*
	@touch $@
