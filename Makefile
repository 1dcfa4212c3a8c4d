# pfl-ops. `make` alone lists what there is; every target installs first if needed.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
LOWEST := .venv-lowest/bin
SUITE  ?=
SCALE  ?=
HOURS  ?= 1
ARGS   ?=
# four processes (on two cores: many tests wait for others), a file's tests in one of them (tests/conftest.py says
# which go together); N=0: all in this one
N      ?= 4
PYTEST := $(BIN)/python -m pytest -q -n $(N) --max-worker-restart=0

# Python writes no .pyc where this is set: each process would compile the package, and each of pytest's the tests, anew
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install tune reproduce results bench gpu-check test test-fast lowest chaos lint format types ui clean

help: ## list the targets
	@echo "pfl-ops: personalised federated learning, simulated, tuned, tracked."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "  make reproduce SCALE=smoke checks that every suite runs; SUITE=fliu/table1 SCALE=small (or medium, full) runs one"
	@echo "  of them at a larger size; pfl-ops reproduce --list"
	@echo "  PYTHON=python3.12 chooses the interpreter (3.11 to 3.13), VENV=folder the virtual environment."

install: $(STAMP) ## make .venv and install pfl-ops with the versions in constraints.txt (skipped when up to date)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v < (3, 14) else "pfl-ops needs Python 3.11 to 3.13; this is %d.%d. Try: make install PYTHON=python3.12" % v)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): PyTorch with CUDA and the rest, about 7 GB on disk; without a cache the download takes minutes"
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[dev]' -c constraints.txt
	@touch $@

tune: $(STAMP) ## the demo: tune FLIU on real handwritten digits, a minute on two cores
	$(BIN)/pfl-ops tune fliu --dataset digits

reproduce: $(STAMP) ## DRDM's Table 3 and Fig. 5, the start of FLIU's Table I: about 15 minutes on two cores
	$(BIN)/pfl-ops reproduce $(SUITE) $(if $(SCALE),--scale $(SCALE))

results: $(STAMP) ## run what docs/results lacks, its undecided claims for HOURS (1) more, and write its pages
	$(BIN)/pfl-ops reproduce fliu/table1 --only 'path/{fedavg,fliu}' --scale medium --repetitions 9 --results docs/results
	$(BIN)/pfl-ops reproduce fliu/fig7 fliu/fig8 --only 'lsqs/{fedavg,fliu,apfl,fedfomo}' --scale medium --repetitions 7 --results docs/results
	$(BIN)/pfl-ops reproduce fliu/table1 fliu/fig7 fliu/fig8 --only lsqs/local --scale medium --repetitions 6 --results docs/results
	$(BIN)/pfl-ops reproduce fliu/table1 --only 'lsqs/{fedavg,fliu}' --scale medium --repetitions 13 --results docs/results
	$(BIN)/pfl-ops reproduce fliu/table1 --only '{iid,ls}/{fliu,fliu25}' --scale medium --repetitions 7 --results docs/results
	$(BIN)/pfl-ops reproduce fliu/table1 --only '{iid,path,ls,qs}/local' --scale medium --repetitions 5 --results docs/results
	$(BIN)/pfl-ops reproduce fliu/table1 --only 'path/fliu*' --scale medium --repetitions 5 --results docs/results
	$(BIN)/pfl-ops reproduce fliu/table1 --only '{iid,ls,qs}/{fedavg,fliu}' --scale medium --repetitions 6 --results docs/results
	$(BIN)/pfl-ops reproduce fliu/table1 --only '{iid,ls,qs,lsqs}/{fliu75,fliu90}' --scale medium --repetitions 3 --results docs/results
	$(BIN)/pfl-ops reproduce fliu/table1 --only '{iid,ls}/{fliu,fliu75}' --scale medium --repetitions 9 --results docs/results
	$(BIN)/pfl-ops reproduce fliu/table1 --only iid/fliu10 --scale medium --repetitions 3 --results docs/results
	$(BIN)/pfl-ops reproduce fliu/table1 --only iid/fliu50 --scale medium --repetitions 7 --results docs/results
	$(BIN)/pfl-ops reproduce fliu/table2 --only 'path/{fedavg,fliu}' --scale medium --repetitions 5 --results docs/results
	$(BIN)/pfl-ops reproduce fliu/table3 --only 'mnist/k100/{ls,qs,lsqs}/{fedavg,fliu}' --scale medium --repetitions 6 --results docs/results
	$(BIN)/pfl-ops reproduce fliu/table3 --only mnist/k100/lsqs/local --scale medium --repetitions 6 --results docs/results
	$(BIN)/pfl-ops reproduce fliu/table3 --only 'mnist/k100/lsqs/{apfl,fedfomo}' --scale medium --repetitions 7 --results docs/results
	$(BIN)/pfl-ops reproduce fliu/fig5 --only 'path/{fedavg,fliu}' --scale medium --repetitions 5 --results docs/results
	$(BIN)/pfl-ops reproduce fliu/fig6 --only 'path/{fedavg,fliu}' --scale medium --repetitions 7 --results docs/results
	$(BIN)/pfl-ops reproduce fedpg/table2 --scale small --repetitions 5 --results docs/results
	$(BIN)/pfl-ops reproduce fedpg/table2 --only '*/{fedpg,m4}' --scale small --repetitions 21 --results docs/results
	$(BIN)/pfl-ops reproduce fedpg/table2 --only 'fmnist/{fedpg,m2}' --scale small --repetitions 60 --results docs/results
	$(BIN)/pfl-ops reproduce fedpg/table2 --only 'cifar10/{fedpg,m2}' --scale small --repetitions 46 --results docs/results
	$(BIN)/pfl-ops reproduce fedpg/table1 --only '*/{local,fedavg,fedprox,apfl,pfedme,ditto,fedamp,fedfomo,fedrep,fedrod,splitgp,fedmgda_plus,fedpg,s_fedpg,fedpg_0.3,fedpg_0.6,fedpg_1.0}' --scale small --repetitions 5 --results docs/results
	$(BIN)/pfl-ops reproduce fedpg/table1 --only 'fmnist/{pfedme,fedpg}' --scale small --repetitions 8 --results docs/results
	$(BIN)/pfl-ops reproduce fedpg/table1 --only fmnist/apfl --scale small --repetitions 14 --results docs/results
	$(BIN)/pfl-ops reproduce fedpg/table1 --only fmnist/s_fedpg --scale small --repetitions 9 --results docs/results
	$(BIN)/pfl-ops reproduce fedpg/table1 --only cifar10/apfl --scale small --repetitions 11 --results docs/results
	$(BIN)/pfl-ops reproduce fedpg/table1 --only cifar100/fedpg --scale small --repetitions 8 --results docs/results
	$(BIN)/pfl-ops reproduce fedpg/table1 --only 'cifar10/{local,fedavg,fedprox,apfl,pfedme,ditto,fedamp,fedfomo,fedrep,fedrod,splitgp,fedmgda_plus}' --scale small --repetitions 10 --results docs/results
	$(BIN)/pfl-ops reproduce fedpg/table1 --only 'cifar10/{fedpg,s_fedpg,splitgp,fedrod,fedpg_1.0,fedamp,local}' --scale small --repetitions 12 --results docs/results
	$(BIN)/pfl-ops reproduce fedavg2rep/table4 --scale small --repetitions 3 --results docs/results
	$(BIN)/pfl-ops reproduce fedavg2rep/table4 --only '*/*/{fedavg,fedavg2rep}' --scale small --repetitions 9 --results docs/results
	$(BIN)/pfl-ops reproduce fedavg2rep/table4 --only 'nc1/*/{fedavg,fedavg2rep}' --scale small --repetitions 12 --results docs/results
	$(BIN)/pfl-ops reproduce fedavg2rep/table3 --scale small --repetitions 5 --results docs/results
	$(BIN)/pfl-ops reproduce fedavg2rep/table3 --only '{nc50,nc10,nc5}/*/fedavg' --scale small --repetitions 9 --results docs/results
	$(BIN)/pfl-ops reproduce fedavg2rep/table3 --only 'nc1/*/fedavg' --scale small --repetitions 12 --results docs/results
	$(BIN)/pfl-ops reproduce fedavg2rep/table3 --only 'shakespeare_iid/*' --scale small --repetitions 7 --results docs/results
	$(BIN)/pfl-ops reproduce fedavg2rep/fig1 fedavg2rep/fig2 fedavg2rep/fig4 --scale small --repetitions 5 --results docs/results
	$(BIN)/pfl-ops reproduce fedavg2rep/fig5 --scale small --repetitions 7 --results docs/results
	$(BIN)/pfl-ops reproduce fedpg/fig4 fedas/fig5 --scale small --repetitions 5 --results docs/results
	$(BIN)/pfl-ops reproduce fedpg/fig4 --only 'cifar10/{fedpg,splitgp,apfl,fedrod}' --scale small --repetitions 12 --results docs/results
	$(BIN)/pfl-ops reproduce fedas/table3 --scale small --repetitions 2 --results docs/results
	$(BIN)/pfl-ops reproduce fedas/table3 --only 'b0.1/p1/{fedas,fedproto,fedpac,fedavg_p}' --scale small --repetitions 13 --results docs/results
	$(BIN)/pfl-ops reproduce fedas/table3 --only 'b0.1/p0.2/{fedas,fedavg_p}' --scale small --repetitions 13 --results docs/results
	$(BIN)/pfl-ops reproduce fedas/table3 --only 'b0.1/p1/{fedas,fedproto}' --scale small --repetitions 42 --results docs/results
	$(BIN)/pfl-ops reproduce fedas/table4 --scale small --repetitions 5 --results docs/results
	$(BIN)/pfl-ops reproduce fedas/fig3a fedas/fig3b fedas/fig4a fedas/fig4b fedas/fig6a fedas/fig6b fedas/fig7 --scale small --repetitions 5 --results docs/results
	$(BIN)/pfl-ops reproduce fedas/fig3a --scale medium --repetitions 5 --results docs/results
	$(BIN)/pfl-ops reproduce fedas/fig3b fedas/fig4a --only sample --scale medium --repetitions 8 --results docs/results
	$(BIN)/pfl-ops reproduce fedas/fig3b fedas/fig4a --only '{dataset,batch}' --scale medium --repetitions 4 --results docs/results
	$(BIN)/pfl-ops reproduce mcmahan/table1 --only 'iid/*' --scale full --repetitions 4 --results docs/results
	$(BIN)/pfl-ops reproduce mcmahan/table1 --only 'iid/*' --scale full --set training.lr=0.215 --set training.rounds=40 --repetitions 2 --results docs/results
	$(BIN)/pfl-ops reproduce mcmahan/table1 --scale medium --results docs/results
	$(BIN)/pfl-ops reproduce pfllib/fashion_mnist --only 'pathological/*' --scale small --repetitions 1 --results docs/results
	$(BIN)/pfl-ops reproduce niid_bench/label_skew --only 'mnist/{iid,dir05}/*' --scale small --results docs/results
	$(BIN)/pfl-ops reproduce drdm/table5 --only 'a0.1/{!drdm_feddyn}' --scale medium --repetitions 73 --results docs/results
	$(BIN)/pfl-ops reproduce drdm/table5 --only 'a0.3/{!drdm_feddyn}' --scale medium --repetitions 28 --results docs/results
	$(BIN)/pfl-ops reproduce drdm/table5 --only 'a0.5/{!drdm_feddyn}' --scale medium --repetitions 35 --results docs/results
	$(BIN)/pfl-ops reproduce drdm/table5 --only 'a0.7/{!drdm_feddyn}' --scale medium --repetitions 24 --results docs/results
	$(BIN)/pfl-ops reproduce drdm/table5 --only 'a0.9/{!drdm_feddyn}' --scale medium --repetitions 17 --results docs/results
	$(BIN)/pfl-ops reproduce drdm/table6 --only '*/{!drdm_feddyn}' --scale medium --repetitions 11 --results docs/results
	$(BIN)/pfl-ops reproduce drdm/table6 --only 's0.3/{!drdm_feddyn}' --scale medium --repetitions 14 --results docs/results
	$(BIN)/pfl-ops reproduce drdm/table6 --only '*/{drfa,fedavg}' --scale medium --repetitions 16 --results docs/results
	$(BIN)/pfl-ops reproduce drdm/table5 --only a0.1/drfa --scale medium --repetitions 5 --set algorithm.sampling=uniform --set algorithm.snapshot=own --set algorithm.floor=0.001 --set algorithm.gamma=0.09 --set algorithm.gamma_decay=0.9 --results docs/results
	$(BIN)/pfl-ops reproduce drdm/table5 --only a0.1/drfa --scale medium --repetitions 5 --set algorithm.gamma=0 --results docs/results
	$(BIN)/pfl-ops reproduce drdm/table5 --only a0.1/drfa --scale medium --repetitions 5 --set algorithm.gamma=0.0005 --results docs/results
	$(BIN)/pfl-ops reproduce drdm/table5 --only a0.1/drfa --scale medium --repetitions 5 --set training.lr=0.01 --results docs/results
	$(BIN)/pfl-ops reproduce drdm/table3 drdm/table4 drdm/fig3 drdm/fig4 drdm/fig5 drdm/fig6 --scale full --until-decided --hours $(HOURS) --results docs/results

bench: $(STAMP) ## speed on this machine beside a plain PyTorch loop: about ten minutes on two cores
	$(BIN)/pfl-ops bench

gpu-check: ## what to run first on a GPU, ten minutes at most; ARGS='--device cpu --quick' where there is none
	$(if $(wildcard $(STAMP)),$(BIN)/python,$(PYTHON)) -m pfl_ops.bench.gpu_check --json gpu-check.json $(ARGS)

test: $(STAMP) ## all tests, in four processes (N=2: in two)
	$(PYTEST)

test-fast: $(STAMP) ## the tests that take less than a few seconds each
	$(PYTEST) -m "not slow"

lowest: ## the quick tests with the oldest versions that pyproject.toml allows, in .venv-lowest; needs a network
	@test -x $(LOWEST)/python || $(PYTHON) -m venv .venv-lowest
	$(LOWEST)/python -m pip install --quiet --disable-pip-version-check uv
	$(LOWEST)/uv pip compile --quiet --python $(LOWEST)/python --resolution lowest-direct --extra dev pyproject.toml -o .venv-lowest/versions.txt
	$(LOWEST)/uv pip install --python $(LOWEST)/python -r .venv-lowest/versions.txt -e .
	$(LOWEST)/python -m pytest -q -n $(N) --max-worker-restart=0 -m "not slow"

chaos: $(STAMP) ## faults on purpose against real runs and studies: about 90 minutes on two cores; CHAOS_N=10: a tenth
	$(BIN)/python -m tests.chaos

lint: $(STAMP) ## ruff: errors and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP) ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP) ## mypy
	$(BIN)/mypy

ui: $(STAMP) ## MLflow's UI on the local store, this machine only
	$(BIN)/pfl-ops ui

clean: ## remove the virtual environment, builds and caches; results in mlruns/ stay
	rm -rf $(VENV) .venv-lowest dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
