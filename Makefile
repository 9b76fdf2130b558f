# The few commands of a working day; all of them are thin. `make` alone lists them.
BUILD ?= build
PREFIX ?= /usr/local
PRESET ?= dev
JOBS ?= $(shell scripts/jobs.sh)

# A clone elsewhere finds the same objects in the compiler cache.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1

.DEFAULT_GOAL := help
.PHONY: help demo test build install bench format lint clean setup configure

help:  ## list these commands
	@sed -n 's/^\([a-z]*\):.*## */\1|/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "  make %-8s %s\n", $$1, $$2}'

demo:  ## train a small DiT on generated shapes, sample from it, and judge the pictures
	@scripts/demo.sh --announce
	@$(MAKE) --no-print-directory build
	@scripts/demo.sh

test: all  ## build everything and run the tests that this machine can run
	@scripts/test.sh $(BUILD)

build: configure  ## the program, at build/kinora
	@cmake --build $(BUILD) --target kinora --parallel $(JOBS)

bench: setup  ## build and run the micro-benchmarks
	@cmake --preset $(PRESET) -DKINORA_BENCH=ON
	@cmake --build $(BUILD) --parallel $(JOBS)
	@for program in $(BUILD)/kinora_*_bench; do $$program || exit 1; done

format:  ## format all sources
	@scripts/setup.sh --dev
	@scripts/format.sh

lint: configure  ## include rules and clang-tidy
	@scripts/setup.sh --dev
	@python3 scripts/check_includes.py
	@python3 scripts/lint.py --build $(BUILD) --all

install: build  ## program, libraries, headers and a package for CMake into PREFIX (/usr/local)
	@cmake --build $(BUILD) --target kinora_installed --parallel $(JOBS)
	@cmake --install $(BUILD) --prefix "$(PREFIX)"

clean:  ## remove the build; the environment .venv stays
	rm -rf $(BUILD)

.PHONY: all
all: configure
	@cmake --build $(BUILD) --parallel $(JOBS)

setup:
	@scripts/setup.sh $(if $(filter cuda ci,$(PRESET)),--cuda)

# Ninja configures again by itself where a CMakeLists.txt changed.
configure: setup
	@test -f $(BUILD)/build.ninja || cmake --preset $(PRESET)
