# xputrace: `make demo` shows the main job, `make test` runs everything that can run here.
# On a machine with nothing but Rust, git and make, both install the rest (as root;
# otherwise they print the one line to run).

CARGO ?= cargo
BINARY := target/release/xputrace

.PHONY: build demo test check pictures install-needs clean

build: install-needs          ## leaves target/release/xputrace, one file that carries everything
	@[ -e $(BINARY) ] || echo "building; the first time this takes some minutes"
	@$(CARGO) build --release -p xputrace
	@echo "built $(BINARY)"

demo: build                   ## the main job, on any machine
	@$(BINARY) demo

test: install-needs           ## all tests; those that need root or a GPU say when they are skipped
	@bash tests/install-test-needs.sh
	@bash tests/run.sh

check:                        ## formatting and lints
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

pictures: build               ## the flame graph that the README shows
	@$(BINARY) -q flame --svg=docs/flame.svg --replay tests/replay/llm.xpt

install-needs:
	@bash tests/install-needs.sh

clean:
	$(CARGO) clean
