# `make demo` shows what xputrace does, `make test` runs all tests that can run on this machine.
# Both need Rust, git and make, and install everything else as root; without root they print the
# command that does.

CARGO ?= cargo
BINARY := target/release/xputrace

.PHONY: build demo test check fuzz pictures roots install-needs clean

build: install-needs          ## build target/release/xputrace, a single file with everything in it
	@[ -e $(BINARY) ] || echo "building; the first build takes some minutes"
	@$(CARGO) build --release -p xputrace
	@echo "built $(BINARY)"

demo: build                   ## run the demo, on any machine
	@$(BINARY) demo

test: install-needs           ## run all tests; those that need root or a GPU say if they are skipped
	@bash tests/install-test-needs.sh
	@bash tests/run.sh

check:                        ## check formatting and lints
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

fuzz:                         ## feed all that reads what others write with damaged input, for an hour
	@bash tests/fuzz/run.sh

roots: build                  ## as root: run the binary in the roots of other distributions (debootstrap)
	@bash tests/old-roots.sh

pictures: build               ## draw the README's flame graph
	@$(BINARY) -q flame --svg=docs/flame.svg --replay tests/replay/pytorch.xpt

install-needs:
	@bash tests/install-needs.sh

clean:
	$(CARGO) clean
