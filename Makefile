# Two commands on a fresh Debian or Ubuntu: `make demo` and `make test`. `make help` lists the rest.
.DEFAULT_GOAL := help
SHELL := /bin/bash
GPU ?= auto
DATA ?=
BASELINE ?=
SYNTHETIC := data/cache/synthetic-wikipedia.arrow
CARGO ?= cargo

# Containers and CI run as root; Open MPI asks to be told so.
export OMPI_ALLOW_RUN_AS_ROOT ?= 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM ?= 1

.PHONY: help setup build demo test bench bench-quick lint doc clean

help:
	@echo 'make demo             install what is missing, build, train on a generated stream'
	@echo 'make demo DATA=FILE   the same on a file of events, such as wikipedia.csv.gz'
	@echo 'make test             install what is missing, run every test'
	@echo 'make bench-quick      the kernels against benches/baseline.json, in under three minutes; make bench: at length'
	@echo 'make setup            install what is missing; GPU=auto|none|cuda says with which libtorch'
	@echo 'make build            target/release/tidemill'
	@echo 'make lint doc clean   format check and clippy; documentation; remove what cargo built'

setup:
	@GPU='$(GPU)' ./scripts/setup.sh

build: setup
	$(CARGO) build --release

demo: build
ifeq ($(strip $(DATA)),)
	@echo 'No DATA=FILE was given: a synthetic stream of the shape of Wikipedia edits is used. Its figures say nothing about real data.'
	@mkdir -p $(dir $(SYNTHETIC))
	@test -s $(SYNTHETIC) || target/release/tidemill generate $(SYNTHETIC) --preset wikipedia
	target/release/tidemill train experiments/quickstart.toml
else
	target/release/tidemill train experiments/quickstart.toml --set 'data.path=$(DATA)'
endif

test: setup
	$(CARGO) test --release --workspace
	RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR=target/loom $(CARGO) test --release --manifest-path tests/loom/Cargo.toml

# Ratios mean something on the machine that the baseline names; BASELINE=write makes a new one.
bench-quick: setup
	TIDEMILL_BASELINE='$(BASELINE)' $(CARGO) bench --bench kernels -- --quick

bench: setup
	TIDEMILL_BASELINE='$(BASELINE)' $(CARGO) bench --bench kernels

lint: setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --workspace --all-targets -- -D warnings
	$(CARGO) clippy --release -p tidemill --no-default-features --all-targets -- -D warnings

doc: setup
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --release --no-deps --workspace

clean:
	$(CARGO) clean
