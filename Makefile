.DEFAULT_GOAL := help
.PHONY: demo test check format leaderboards wheel clean help

BIN := .venv/bin
INSTALLED := .venv/installed
SOURCES := patheval tasks model_adapters tests setup.py

DEMO_MODELS ?= path-fox rope
DEMO_TASKS ?= path_phonebook_1k,path_ruler_niah_single_1_1k
DEMO_SAMPLES ?= 8

demo: $(INSTALLED)  ## Evaluate two small shipped checkpoints side by side and print their scores
	HF_HUB_OFFLINE=1 $(BIN)/patheval sweep $(foreach m,$(DEMO_MODELS),--model $(m)=zoo:$(m)) \
		--tasks $(DEMO_TASKS) --metadata '{"num_samples": $(DEMO_SAMPLES)}' \
		--model-args dtype=float32 --out demo-results

test: $(INSTALLED)  ## Run all tests that this machine can run
	$(BIN)/pytest

check: $(INSTALLED)  ## Lint, check the format and the types
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/patheval leaderboard front leaderboards --check

format: $(INSTALLED)  ## Format, and mend what the linter can mend
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

leaderboards: $(INSTALLED)  ## Write leaderboards/README.md from the committed results and speeds
	$(BIN)/patheval leaderboard front leaderboards

wheel: $(INSTALLED)  ## Build the wheel into dist/
	$(BIN)/pip wheel --no-deps --wheel-dir dist .

clean:  ## Remove all that make made
	rm -rf .venv build dist demo-results *.egg-info .mypy_cache .pytest_cache .ruff_cache

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(INSTALLED): pyproject.toml setup.py .ci/install
	.ci/install
	touch $@
