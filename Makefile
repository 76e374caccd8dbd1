# make demo, make test and make check each do their own set-up; nothing else needs typing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

.PHONY: demo test test-vllm browser sandbox check format setup lock clean

demo: setup
	@if $(BIN)/bough env setup web; then \
		$(BIN)/bough run demo; \
	else \
		echo "The demo plays the household instead of the web, because there is no browser."; \
		$(BIN)/bough run demo-household; \
	fi

test: setup browser sandbox
	$(BIN)/python -m pytest -n 2 --dist loadfile

# vLLM pins much of what it needs, so its tests have an environment of their own.
test-vllm:
	PYTHON="$(PYTHON)" bash tests/engines/vllm_environment/setup.sh .venv-vllm
	VLLM_CPU_KVCACHE_SPACE=1 .venv-vllm/bin/python -m pytest tests/engines/vllm_environment

# Tests that need a browser or bubblewrap are skipped where neither is there nor can be had; the last lines of the
# tests say so.
browser: setup
	-$(BIN)/bough env setup web

sandbox: setup
	-$(BIN)/bough env setup interpreter

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

setup: $(READY)

# torch first and exactly: a later line that merely admits it would pull its CUDA build and packages.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit('Bough needs Python 3.11 or newer, this is ' + sys.version) if sys.version_info < (3, 11) else None"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[datasets,mlflow,web,interpreter,viewer,dev]'
	touch $(READY)

# The versions that every machine gets: what a fresh environment resolves to today.
lock: setup
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu//' > constraints.txt

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
