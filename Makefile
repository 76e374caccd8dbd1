# make demo, make test and make check each do their own set-up; nothing else needs typing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
DOCS := $(VENV)/docs-ready

.PHONY: demo test test-vllm test-verifiers test-cluster browser sandbox check docs wheel format setup lock clean

demo: setup
	@if $(BIN)/bough env setup web; then \
		$(BIN)/bough run demo; \
	else \
		echo "The demo plays the household instead of the web, because there is no browser."; \
		$(BIN)/bough run demo-household; \
	fi

# Three processes for two cores: many tests wait for a browser, a sandbox or another process.
# Tests start Bough some hundred times: compiled modules are kept, also where the environment says otherwise.
test: setup browser sandbox
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -p tests.forked -n 3 --dist loadfile

# Ray clusters and processes that train together on this machine, one after another: the tests kill their processes.
# make test only sees that two processes start and train a step.
test-cluster: setup
	$(BIN)/python -m pytest -m cluster --cluster

# vLLM pins much of what it needs, so its tests have an environment of their own.
test-vllm:
	PYTHON="$(PYTHON)" bash tests/engines/vllm_environment/setup.sh .venv-vllm
	VLLM_CPU_KVCACHE_SPACE=1 .venv-vllm/bin/python -m pytest tests/engines/vllm_environment

# verifiers pins packages of ours to other versions.
test-verifiers:
	PYTHON="$(PYTHON)" bash tests/environments/verifiers_environment/setup.sh .venv-verifiers
	.venv-verifiers/bin/python -m pytest tests/environments/verifiers_environment

# Tests that need a browser or bubblewrap are skipped where these are missing and cannot be installed; the last lines
# of the tests say so.
browser: setup
	-$(BIN)/bough env setup web

sandbox: setup
	-$(BIN)/bough env setup interpreter

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site, in site/, where a broken link or anchor fails; then every code block of every page is run, with a browser
# and bubblewrap where there are any. make test only reads the settings of their commands.
docs: $(DOCS) browser sandbox
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -p tests.forked -n 3 tests/docs -m docs --docs

wheel: setup
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

setup: $(READY)

# torch first and exactly: a looser requirement would pull its CUDA build and packages.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit('Bough needs Python 3.11 or newer, this is ' + sys.version) if sys.version_info < (3, 11) else None"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[datasets,mlflow,web,interpreter,viewer,gymnasium,mcp,openenv,textarena,ray,dev]'
	touch $(READY)

$(DOCS): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	touch $(DOCS)

# The versions that every machine gets: what a fresh environment resolves to today.
lock: $(DOCS)
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu//' > constraints.txt

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build site
