# Targets for end-to-end tests on a real cluster (docs/developers/testbed.md); included by the Makefile.
E2E_PYTHON := $(BIN)/python

.PHONY: e2e-build
e2e-build: venv ## build and cache the components of the test cluster
	@$(E2E_PYTHON) -m tests.e2e.bed.build

.PHONY: e2e
e2e: e2e-build ## run the end-to-end tests: real kernel, containerd, kubelet, scheduler and API server
	@$(E2E_PYTHON) -m pytest tests/e2e

.PHONY: e2e-full
e2e-full: e2e-build ## run the end-to-end tests on all VM shapes and versions, with load tests
	@$(E2E_PYTHON) -m tests.e2e.bed.matrix

.PHONY: cluster
cluster: e2e-build ## start a test cluster and keep it running; prints its kubeconfig and how to open a shell on the node
	@$(E2E_PYTHON) -m tests.e2e.bed.keeper up

.PHONY: cluster-down
cluster-down: venv ## stop the test cluster
	@$(E2E_PYTHON) -m tests.e2e.bed.keeper down
