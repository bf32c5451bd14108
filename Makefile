# Confide's commands for people who have the source. `make` alone lists them.
VENV ?= .venv
PYTHON ?= python3
BIN = $(VENV)/bin
JOBS ?= 2

# One thread per process: the tests start many processes, and sums must not depend on the number of cores.
export OMP_NUM_THREADS ?= 1
export FLWR_TELEMETRY_ENABLED = 0
export FLWR_DISABLE_UPDATE_CHECK = 1
export RAY_USAGE_STATS_ENABLED = 0

.PHONY: help demo demo-keep test test-slow lint coverage bench bench-utility install install-dev proto documents clean

help:
	@echo "make demo       four hospitals train one model on this machine (the first run installs)"
	@echo "make test       lint, types, import contracts, and every test that fits in 15 minutes"
	@echo "make test-slow  the rest: real lengths, clean environments"
	@echo "make demo-keep  the demo, left running"
	@echo "make coverage   lines and branches that tests run of the modules that decide, held to their floors"
	@echo "make bench      benchmarks against a peer or a limit; writes build/bench.json"
	@echo "make bench-utility CONFIDE_BENCH_DATA=...  how good models are under privacy, on real tables"
	@echo "make lint       format, lint, types, import contracts, wording"
	@echo "make documents  write the pages that are generated from the code"

install:
	@$(PYTHON) deploy/prepare.py --venv $(VENV)

install-dev:
	@$(PYTHON) deploy/prepare.py --venv $(VENV) --extras dev

demo: install
	@$(BIN)/confide demo --folder build/demo

demo-keep: install
	@$(BIN)/confide demo --folder build/demo --keep

lint: install-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python deploy/check_layout.py
	$(BIN)/python deploy/check_words.py

test: lint
	$(BIN)/pytest -n $(JOBS) -m "not slow" $(PYTEST)

coverage: install-dev
	mkdir -p build
	COVERAGE_FILE=build/coverage $(BIN)/pytest -n $(JOBS) -m "not slow and not process" --cov --cov-report= \
	  tests/unit tests/properties tests/protocol tests/vectors tests/adversarial $(PYTEST)
	COVERAGE_FILE=build/coverage $(BIN)/coverage json -q -o build/coverage.json
	$(BIN)/python deploy/check_coverage.py build/coverage.json

test-slow: install-dev
	$(BIN)/pytest -m slow $(PYTEST)

bench: install-dev
	@$(BIN)/python -m benchmarks $(BENCH)

documents: install-dev
	@$(BIN)/python deploy/write_documents.py

# A folder with heart/ and diabetes130/ as `benchmarks/README.md` describes them.
bench-utility: install-dev
	@CONFIDE_BENCH_DATA=$(CONFIDE_BENCH_DATA) $(BIN)/python -m benchmarks utility

proto: install-dev
	$(BIN)/python -m federation.link.generate

clean:
	rm -rf build .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
