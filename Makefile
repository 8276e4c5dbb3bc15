PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -q -c constraints.txt
OUT ?= build

# The longest first: they are trained two at a time.
TRAINED := eagle3 coral coral-router hydra++ medusa2 hass hydra eagle medusa1 bigram unigram

MODELS := --target data/models/stdlib-llama --drafter data/models/stdlib-medusa --prompts data/prompts/stdlib.jsonl

.PHONY: demo test slow check format bench models drafters profile validate gpu clean

demo: $(VENV)/.core  ## the main job, on the shipped trace and profile
	$(BIN)/treeopt search --trace data/traces/medusa-t0.npz --batch 4

test: $(VENV)/.all  ## all fast tests
	$(BIN)/python -m pytest -q -m "not slow"

slow: $(VENV)/.all  ## statistical and whole-data suites
	$(BIN)/python -m pytest -q -m slow

check: $(VENV)/.all  ## style, types, architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy treeopt simulate executor
	$(BIN)/python -m pytest -q tests/test_architecture.py

format: $(VENV)/.all
	$(BIN)/ruff check --fix -q .
	$(BIN)/ruff format -q .

bench: $(VENV)/.all  ## timings, printed; ratios within one run
	$(BIN)/python -m tests.benchmarks.bench_search
	$(BIN)/python -m tests.benchmarks.bench_executor --output data/benchmarks/executor-cpu.json

models: $(VENV)/.all  ## tokenizer, target, drafters, prompts and traces from nothing, on 2 cores in about an hour
	$(BIN)/python -m executor.train.shipped data target
	OMP_NUM_THREADS=1 $(MAKE) -j 2 $(TRAINED:%=drafter-%)
	$(BIN)/python -m executor.train.traces data

drafter-%: $(VENV)/.all
	$(BIN)/python -m executor.train.shipped data $*

drafter-coral-router: drafter-coral

drafters: $(VENV)/.all  ## all shipped drafters side by side, from their traces and in the loop
	$(BIN)/python -m tests.benchmarks.bench_drafters --output data/benchmarks/drafters-cpu.json

profile: $(VENV)/.all  ## step times of the shipped model on this machine, which should be idle
	$(BIN)/treeopt profile $(MODELS) --skip 1000 --new-tokens 32 --output data/profiles/medusa-cpu.json

validate: $(VENV)/.all  ## predicted against measured on this machine, on prompts that no trace holds
	$(BIN)/treeopt validate $(MODELS) --skip 1000 --requests 160 --blocks 8 --new-tokens 32 --trace data/traces/medusa-t0.npz \
		--profile data/profiles/medusa-cpu.json --output data/validations/medusa-cpu.json

gpu:  ## on a CUDA machine, with the Python that is there: correctness, profiles, validation, written below OUT
	$(or $(wildcard $(BIN)/python),$(PYTHON)) -m tests.benchmarks.gpu --output $(OUT)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(VENV)/.all: $(VENV)/.core
	$(PIP) -e '.[executor,train,report,dev]'
	touch $@
