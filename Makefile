# Every verb does its own set-up: a virtual environment, torch, the requirements, nvcc, the extension.
# Variables to override: PYTHON, VENV, ARCH, TORCH (pip's requirement), PYTEST_ARGS, RUN_ARGS,
# KERNELS (which are compiled: `core`, `all`, or patterns as "rms_norm_linear gqa/D128_*"). A wheel
# holds all kernels, or those of RECIPES (such patterns) and MODEL ("llama-3.1-8b llama-3.1-70b@8":
# what decoding takes, on one of 8 GPUs), where one of them is given.
PYTHON ?= python3
VENV ?= .venv
ARCH ?= sm_90a
TORCH ?=
PYTEST_ARGS ?= -n 2 --dist loadfile --no-loadscope-reorder
RUN_ARGS ?=
KERNELS ?= core
RECIPES ?=
MODEL ?=

PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
MIRAGE := $(PY) -m mirage_kernels.generator.cli
INSTALLED := $(VENV)/.installed
TOOLS := $(VENV)/.tools
EXTENSION := kernels/_C.abi3.so
# Static tools do not follow setuptools' package_dir: here links give packages their real names.
TYPING := $(VENV)/typing
C_STYLE := $(filter-out kernels/%/table.cpp,$(shell find csrc kernels -name '*.cu' -o -name '*.cuh' \
  -o -name '*.cpp' -o -name '*.h'))
export MIRAGE_KERNELS_ARCH := $(ARCH)
# Tests run side by side, those of a file in one process, which makes what they share once, and
# multiply many small tiles: threads would only get in their way.
export OPENBLAS_NUM_THREADS := 1
export OMP_NUM_THREADS := 1
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

.PHONY: help
help: ## list the verbs
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

.PHONY: run
run: $(INSTALLED) ## generate RMSNorm+Linear (search, proofs, emit, compile) and run it on real data
	$(MIRAGE) run rms_norm_linear --arch $(ARCH) $(RUN_ARGS)

.PHONY: test
test: extension $(TOOLS) ## run every test that this machine can, with the kernels KERNELS (core)
	$(PY) -m pytest $(PYTEST_ARGS)

.PHONY: vllm sglang
vllm: ## test the vLLM plugin in the classes of vLLM itself (downloads 340 MB)
sglang: ## test the SGLang plugin in the classes of SGLang itself
vllm sglang: extension $(TOOLS)
	$(PIP) install -qq --no-deps --upgrade --target build/$@ --group $@
	PYTHONPATH=build/$@ $(PY) -m pytest tests/integrations/test_$@_classes.py

.PHONY: check
check: $(INSTALLED) ## re-verify every committed muGraph, re-emit every committed source
	$(MIRAGE) check

.PHONY: bench
bench: KERNELS := all
bench: extension ## measure against PyTorch and the memory floor (needs a GPU)
	$(MIRAGE) bench

.PHONY: extension
extension: $(INSTALLED) ## compile the kernels KERNELS (core, all, or names) into this checkout
	MIRAGE_KERNELS_ONLY="$(filter-out all,$(KERNELS))" $(PY) -W ignore setup.py -q build_ext --inplace

.PHONY: lint
lint: $(TOOLS) ## check style: ruff, clang-format
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(VENV)/bin/clang-format --dry-run --Werror $(C_STYLE)

.PHONY: format
format: $(TOOLS) ## apply the style that lint checks
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	$(VENV)/bin/clang-format -i $(C_STYLE)

.PHONY: types
types: $(TOOLS) ## check types: mypy --strict
	rm -rf $(TYPING) && mkdir -p $(TYPING)/mirage_kernels
	ln -s $(abspath $(wildcard kernels/*.py) kernels/py.typed) \
	  $(abspath kernels/matching kernels/integrations generator recipes) \
	  $(TYPING)/mirage_kernels
	cd $(TYPING) && $(abspath $(PY)) -m mypy --config-file $(abspath pyproject.toml) \
	  --cache-dir $(abspath .mypy_cache) -p mirage_kernels

# A fixed date: the same sources make the same bytes.
.PHONY: wheel
wheel: export SOURCE_DATE_EPOCH := 315532800
wheel: export MIRAGE_KERNELS_ONLY = $(RECIPES) $(addprefix model:,$(MODEL))
wheel: $(INSTALLED) ## build dist/mirage_kernels-*.whl for ARCH, no GPU needed
	$(PIP) install -qq --group wheel
	rm -rf build/lib* build/bdist* build/wheel
	label=$$($(PY) -m mirage_kernels.generator.build.selection) && \
	  $(PY) -W ignore setup.py -q egg_info --tag-build="+$$label" \
	    bdist_wheel --dist-dir build/wheel
	PATH="$(abspath $(VENV)/bin):$$PATH" $(VENV)/bin/auditwheel repair --wheel-dir dist \
	  --exclude 'libtorch*.so' --exclude 'libc10*.so' build/wheel/mirage_kernels-*.whl
	@ls -l dist/*.whl; ls build/wheel | sed 's/-cp.*//; s|.*|next: pip install dist/&-*.whl|'

.PHONY: clean
clean: ## remove what was built, not what was installed
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache $(EXTENSION)

.PHONY: distclean
distclean: clean ## remove the virtual environment too
	rm -rf $(VENV)

# The stamp files are written last: an installation that broke off starts again.
$(INSTALLED): pyproject.toml setup.py
	@command -v g++ >/dev/null || { echo "g++ is needed: apt-get install g++"; exit 2; }
	@if command -v nvidia-smi >/dev/null && $(PYTHON) -c 'import torch' 2>/dev/null; \
	  then system=--system-site-packages; fi; \
	  test -x $(PY) || $(PYTHON) -m venv $$system $(VENV) || \
	  { echo "$(PYTHON) can't make a virtual environment: apt-get install python3-venv"; exit 2; }
	$(PIP) install -qq --upgrade 'pip>=25.1' 'setuptools>=77' wheel
	@$(PY) -c 'import torch' 2>/dev/null || { \
	  if [ -n "$(TORCH)" ]; then torch="$(TORCH)"; \
	  elif command -v nvidia-smi >/dev/null; then torch='torch>=2.10'; else torch='torch==2.13.0'; fi; \
	  echo "installing $$torch"; $(PIP) install -qq --no-compile "$$torch"; }
	@command -v nvcc >/dev/null || test -x "$${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" || nvcc=,nvcc; \
	  echo "installing the requirements and the package$${nvcc:+, nvcc from pip packages}"; \
	  $(PIP) install -qq --no-compile --no-build-isolation --editable ".[generate$$nvcc]"
	@touch $@

$(TOOLS): $(INSTALLED)
	@echo "installing what tests and checks of style need"
	$(PIP) install -qq --no-compile --no-build-isolation --editable '.[generate,dev,ray,integrations]'
	@touch $@
