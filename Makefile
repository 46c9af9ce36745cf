.DEFAULT_GOAL := help
.PHONY: demo test check format wheel clean help

BIN := .venv/bin
INSTALLED := .venv/installed
SOURCES := patheval tasks model_adapters tests setup.py

DEMO_CHECKPOINT ?= zoo:path-fox
DEMO_TASKS ?= path_phonebook_1k,path_ruler_niah_single_1_1k
DEMO_LIMIT ?= 8

demo: $(INSTALLED)  ## Evaluate a small shipped checkpoint and print its scores
	HF_HUB_OFFLINE=1 $(BIN)/lm_eval --model path --tasks $(DEMO_TASKS) --limit $(DEMO_LIMIT) \
		--model_args pretrained=$(DEMO_CHECKPOINT),dtype=float32

test: $(INSTALLED)  ## Run all tests that this machine can run
	$(BIN)/pytest

check: $(INSTALLED)  ## Lint, check the format and the types
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy

format: $(INSTALLED)  ## Format, and mend what the linter can mend
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

wheel: $(INSTALLED)  ## Build the wheel into dist/
	$(BIN)/pip wheel --no-deps --wheel-dir dist .

clean:  ## Remove all that make made
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(INSTALLED): pyproject.toml setup.py .ci/install
	.ci/install
	touch $@
