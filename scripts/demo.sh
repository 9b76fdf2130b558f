#!/usr/bin/env bash
# What `make demo` runs after the build: train on generated shapes, sample, judge the pictures.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec build/kinora demo "$@"
