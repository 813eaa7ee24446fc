# `make demo` shows what xputrace does, `make test` runs all tests that can run on this machine, `make quick` those that trace
# nothing. All need Rust, git and make, and install everything else as root; without root they print the command that does.

CARGO ?= cargo
BINARY := target/release/xputrace

.PHONY: build demo test quick check fuzz pictures roots install-needs clean

build: install-needs          ## build target/release/xputrace, a single file with everything in it
	@[ -e $(BINARY) ] || echo "building; the first build takes some minutes"
	@$(CARGO) build --release -p xputrace
	@echo "built $(BINARY)"

demo: build                   ## run the demo, on any machine
	@$(BINARY) demo

test: install-needs           ## run all tests; those that need root or a GPU say if they are skipped
	@bash tests/install-test-needs.sh
	@bash tests/kernels.sh
	@bash tests/run.sh

quick: install-needs          ## run unit tests, goldens and documents: what needs no traced program
	@bash tests/run.sh quick

check:                        ## check formatting, lints, and the crates that it is built from (cargo-deny)
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	@! grep -rn --include=Cargo.toml --exclude-dir=target '= *"\*"' . || { echo "a crate of any version: name one"; exit 1; }
	@$(CARGO) deny --version >/dev/null 2>&1 || { echo "installing cargo-deny, which takes some minutes"; \
	    $(CARGO) install --locked --quiet cargo-deny; }
	$(CARGO) deny --locked check bans licenses sources
	@if $(CARGO) deny --locked fetch db 2>/dev/null; then \
	    $(CARGO) deny --locked check advisories; \
	else echo "advisories are not checked: their database can't be fetched from here"; fi

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
