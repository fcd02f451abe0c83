# Each target is one command that can also be run by hand.
.DEFAULT_GOAL := help
.PHONY: help build install packages release setup lint test demo bench pictures clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build the optimised program: target/release/layersweep
	@command -v protoc >/dev/null || { \
		echo 'error: protoc is missing; the CRI client is generated with it' >&2; \
		echo 'hint: apt-get install protobuf-compiler, or make setup' >&2; exit 1; }
	cargo build --release --locked

install: ## Install the program and its files below DESTDIR, with PREFIX=/usr (after make build)
	packaging/stage.sh $(or $(BINARY),target/release/layersweep) $(or $(DESTDIR),/)

packages: ## Build DEB and RPM for glibc 2.28 and later: target/packages
	packaging/build.sh

release: setup ## Build and check all files of a release, for x86_64 and aarch64: target/release-set (an hour on 2 cores)
	packaging/setup.sh
	packaging/release.sh
	packaging/check.sh

setup: ## Install the Debian packages that the tests and the demo need
	tests/setup.sh

lint: ## Check format, clippy and documentation, warnings denied
	tests/lint.sh

test: setup lint ## Run everything that CI runs (as root: it mounts and runs podman)
	tests/run.sh

demo: setup ## Show who holds which bytes of a real store, and gc on a full node
	tests/demo.sh

bench: setup ## Compare the scan with du and similar tools, on a synthetic graphroot
	benches/run.sh

pictures: setup ## Regenerate the pictures of the documentation
	tests/pictures.sh

clean: ## Remove the output of builds and demos
	tests/demo.sh --clean
	cargo clean
