# Every target sets the environment up first, which takes no time once it is done (.ci/setup).
PYTHON ?=
VENV ?= .venv
TORCH_INDEX ?=
ARGS ?=
RUN ?= runs/latest
BENCH ?=

BIN = $(VENV)/bin
# Each process would compile all that it imports again.
unexport PYTHONDONTWRITEBYTECODE
# One order of hashes and sets in every process, so that a failure can be repeated.
PYTEST = PYTHONHASHSEED=0 $(BIN)/python -m pytest
# Without arguments: training, tests and checks. With them: these extras as well.
SETUP = PYTHON="$(PYTHON)" VENV="$(VENV)" TORCH_INDEX="$(TORCH_INDEX)" bash .ci/setup

.DEFAULT_GOAL := help
.PHONY: help setup train real listen eval test check docs coverage test-slow test-benchmarks test-browser test-clients test-elsewhere test-docker test-games test-ray test-real test-reasoning test-vllm test-gpu bench prime clean

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  PYTHON=python3.12   the interpreter that setup starts from (default: the first >= 3.11 found)"
	@echo "  VENV=.venv          where the environment is"
	@echo "  TORCH_INDEX=URL     where torch is taken from, e.g. https://download.pytorch.org/whl/cpu"
	@echo "  ARGS='...'          more options for the command, e.g. make train ARGS='--max-steps 5'"

setup: ## Make the virtual environment with the pinned versions
	@$(SETUP)

train: setup ## Train a tool user and a reasoner on the embedded model (the main job)
	$(BIN)/pettingllms-train --env math --policies per-role $(ARGS)

real: setup ## Train two readers on SmolLM2, a pretrained model of 135M parameters, on a CPU
	$(BIN)/pettingllms-train --env read --model smollm2 --lora-target-modules q_proj,v_proj \
		--learning-rate 1.6e-3 --max-steps 30 --max-completion-length 10 $(ARGS)

listen: setup ## Train two roles from a base without bad habits, and show who needs whom
	$(BIN)/python -m benchmarks.parts --only plan_path --seeds 1 --out build/listen.json $(ARGS)

eval: setup ## Play held-out tasks with a run's adapters: make eval RUN=runs/NAME
	$(BIN)/pettingllms-eval --adapters $(RUN) $(ARGS)

test: setup ## Run the tests
	$(PYTEST) -n logical --maxprocesses 8 --dist worksteal --durations 15 $(ARGS)

check: setup ## Lint, format, types, import directions, spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

docs: ## Build the documentation site into build/site; a broken link is an error
	@$(SETUP) docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

coverage: setup ## Run the tests in one process and report the lines that none of them reaches
	PYTHONHASHSEED=0 $(BIN)/coverage run -m pytest $(ARGS)
	PYTHONHASHSEED=0 $(BIN)/coverage run -m pytest -m slow $(ARGS)
	$(BIN)/coverage combine
	$(BIN)/coverage report

test-slow: setup ## Run the tests that take longer: whole trainings, commands, tutorials (10 to 24 CPU-minutes)
	$(PYTEST) -m slow $(ARGS)

test-benchmarks: setup ## Run longer commands of benchmarks/ with their smallest settings
	$(PYTEST) -m benchmarks $(ARGS)

test-browser: setup ## Run the tests of the viewer in Chromium (they are skipped where there is none)
	$(PYTEST) -m browser $(ARGS)

test-clients: setup ## Ask a server with clients, and train programs of agent frameworks, from environments of their own (1 GB)
	@PYTHON=$(BIN)/python bash .ci/clients
	@PYTHON=$(BIN)/python bash .ci/frameworks
	$(PYTEST) -m clients $(ARGS)

test-elsewhere: setup ## Play our environments with verifiers and OpenEnv, from environments of their own (0.5 GB)
	@PYTHON=$(BIN)/python bash .ci/elsewhere
	$(PYTEST) -m elsewhere $(ARGS)

test-docker: setup ## Run the tests that need a Docker daemon
	$(PYTEST) -m docker $(ARGS)

test-games: ## Run the tests that need TextArena and PettingZoo's classic games
	@$(SETUP) textarena classic
	$(PYTEST) -m games $(ARGS)

test-ray: ## Run the tests of workers and learners on Ray, which they kill and stop
	@$(SETUP) ray
	$(PYTEST) -m "ray and not real" $(ARGS)

test-real: ## Run the tests on SmolLM2, a pretrained model of 135M parameters (also on Ray; the one with vLLM: make test-vllm)
	@$(SETUP) ray
	$(PYTEST) -m "real and not vllm" $(ARGS)

test-reasoning: ## Run the tests that need reasoning-gym (a C compiler to install)
	@$(SETUP) reasoning
	$(PYTEST) -m reasoning $(ARGS)

test-vllm: VENV = .venv-vllm
test-vllm: ## Run the tests that need vLLM, some with Ray, in an environment of their own (4 GB)
	@$(SETUP) vllm ray
	$(PYTEST) -m vllm $(ARGS)

test-gpu: setup ## Run the tests that need an NVIDIA GPU
	$(PYTEST) -m gpu $(ARGS)

bench: setup ## Run one script of benchmarks/: make bench BENCH=NAME
	@test -n "$(BENCH)" || { echo "which one? make bench BENCH=NAME with one of:" $(basename $(notdir $(wildcard benchmarks/*.py))); exit 1; }
	$(BIN)/python -m benchmarks.$(BENCH) $(ARGS)

prime: setup ## Make the embedded model again from scratch
	$(BIN)/python -m benchmarks.priming.prime $(ARGS)

clean: ## Remove caches and build output; the environment and the runs stay
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage* htmlcov
	find pettingllms tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
