# Thin on purpose: each target is one command that can also be run by hand.
.DEFAULT_GOAL := help
.PHONY: help build install packages setup lint test demo bench pictures clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## The program, optimised: target/release/layersweep
	@command -v protoc >/dev/null || { \
		echo 'error: protoc is not there, and the CRI client is made with it' >&2; \
		echo 'hint: apt-get install protobuf-compiler, or make setup' >&2; exit 1; }
	cargo build --release --locked

install: ## The program and all that belongs to it below DESTDIR, with PREFIX=/usr (after make build)
	packaging/stage.sh $(or $(BINARY),target/release/layersweep) $(or $(DESTDIR),/)

packages: ## DEB and RPM, for glibc 2.28 and later: target/packages
	packaging/build.sh

setup: ## Installs the Debian packages that the tests and the demo need
	tests/setup.sh

lint: ## Format, clippy and documentation, warnings denied
	tests/lint.sh

test: setup lint ## Everything that CI runs (as root: it mounts and runs podman)
	tests/run.sh

demo: setup ## Shows who holds which bytes of a real store, and a full node being collected
	tests/demo.sh

bench: setup ## Our scan against du and its rivals, on a synthetic graphroot
	benches/run.sh

pictures: setup ## Makes the pictures of the documentation anew
	tests/pictures.sh

clean: ## Removes what builds and demos left behind
	tests/demo.sh --clean
	cargo clean
