# Included by the Makefile: a real cluster on this machine (docs/developers/testbed.md).
E2E_PYTHON := $(BIN)/python

.PHONY: e2e-build
e2e-build: venv ## build and cache what the real cluster is made of
	@$(E2E_PYTHON) -m tests.e2e.bed.build

.PHONY: e2e
e2e: e2e-build ## test against a real kernel, containerd, kubelet, scheduler and API server
	@$(E2E_PYTHON) -m pytest tests/e2e

.PHONY: e2e-full
e2e-full: e2e-build ## the same with all VM shapes, versions and storms
	@$(E2E_PYTHON) -m tests.e2e.bed.matrix

.PHONY: cluster
cluster: e2e-build ## keep a real cluster up; prints its kubeconfig and how to get a shell in the node
	@$(E2E_PYTHON) -m tests.e2e.bed.keeper up

.PHONY: cluster-down
cluster-down: venv ## tear it down
	@$(E2E_PYTHON) -m tests.e2e.bed.keeper down
