# Developer commands. Every target builds what it needs; `make help` lists the targets.
SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# The environment is recreated when the lock file changes; drakit is reinstalled when its metadata changes.
# --no-deps: the lock is complete, and older pips (Debian 12's) reject a package that is required with an extra as soon
# as it has a newer release than the locked one. `pip check` verifies that the lock is complete.
LOCKED := $(VENV)/.locked-$(shell cksum < requirements-dev.lock | cut -d' ' -f1)
STAMP  := $(VENV)/.drakit-$(shell cat requirements-dev.lock pyproject.toml | cksum | cut -d' ' -f1)
# 1.5 workers per CPU: many tests wait.
WORKERS ?= $(shell echo $$(( ($$(nproc 2>/dev/null || echo 2) * 3 + 1) / 2 )))

.PHONY: help
help: ## list the targets
	@echo 'drakit: make targets'
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

.PHONY: venv
venv: $(STAMP) ## create .venv with the locked dependencies and drakit itself

$(LOCKED):
	@$(PYTHON) -c 'import sys; sys.exit("drakit needs Python 3.11 or newer; this is %s. Choose another with: make PYTHON=python3.12" % sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "this Python has no venv module; on Debian: apt-get install python3-venv"; exit 1; }
	@echo "creating $(VENV) (locked dependencies from PyPI)"
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements-dev.lock
	@touch $@

$(STAMP): $(LOCKED)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m pip --disable-pip-version-check check > $(VENV)/check.log || { cat $(VENV)/check.log; exit 1; }
	@touch $@

.PHONY: demo
demo: venv ## show drakit at work on this machine (no cluster, no privileges)
	@$(BIN)/drakit demo

.PHONY: test
test: venv ## run the test suite on all cores, with branch coverage
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --cov --cov-report=term:skip-covered --cov-fail-under=90

.PHONY: test-long
test-long: venv ## run the test suite with many more random steps and fuzz inputs
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --long

.PHONY: lint
lint: venv ## check style, types, import layers, spelling and generated files
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/codespell
	@$(BIN)/python tools/generate_protos.py --check

.PHONY: proto
proto: venv ## generate the protobuf code from proto/
	@$(BIN)/python tools/generate_protos.py

.PHONY: pictures
pictures: venv ## redraw the pictures of the documentation
	@$(BIN)/python docs/pictures.py

.PHONY: install-yaml
install-yaml: ## render deploy/install*.yaml from the charts (needs helm on the PATH)
	@for driver in cpu cpumem; do \
	  to=deploy/install$$([ $$driver = cpu ] || echo -$$driver).yaml; \
	  { echo "# dra-driver-$$driver, rendered by 'helm template dra-driver-$$driver deploy/helm/dra-driver-$$driver -n kube-system' (make install-yaml)."; \
	    helm template dra-driver-$$driver deploy/helm/dra-driver-$$driver -n kube-system --kube-version 1.34.0; } > $$to.new && mv $$to.new $$to; \
	done

.PHONY: image
image: venv ## build the drivers as an OCI archive, without a container engine (needs Debian's apt)
	@$(BIN)/python tools/build_image.py --output build/drakit-image.tar

.PHONY: format
format: venv ## format the code and apply ruff's automatic fixes
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

.PHONY: bench
bench: venv ## run the benchmarks; results are ratios from one run
	@$(BIN)/python -m benchmarks

.PHONY: lock
lock: ## update the lock files (needs uv on the PATH)
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --group dev pyproject.toml -o requirements-dev.lock
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url -c requirements-dev.lock pyproject.toml -o requirements.lock

.PHONY: clean
clean: ## remove everything that the targets created in this tree
	rm -rf $(VENV) build dist .coverage* .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

-include tests/e2e/e2e.mk
