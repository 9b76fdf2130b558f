#!/usr/bin/env bash
# usage: scripts/demo.sh [--announce | OPTION...]
#
# What `make demo` runs after the build: train on generated shapes, sample, judge the pictures.
# --announce, which it runs first: says what it is about to do and how long that takes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ "${1:-}" != --announce ]]; then
  exec build/kinora demo "$@"
fi
say() { printf 'demo: %s\n' "$*"; }
# Times of an idle machine with two cores, as README has them.
say "trains a small diffusion model on generated shapes, draws with it and judges the pictures"
if [[ ! -x build/kinora ]]; then
  [[ -f .venv/kinora-setup ]] ||
    say '1. set-up: Debian packages, and torch into .venv/ (0.5 GB; 2.5 GB for NVIDIA GPUs): half a minute to a minute'
  say '2. build, into build/: 4 to 9 minutes on two cores'
fi
say '3. training and pictures, into runs/demo/: 3 to 5 minutes on two cores; Ctrl-C saves and ends it'
