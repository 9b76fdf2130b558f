#!/usr/bin/env bash
# usage: scripts/test.sh [BUILD]: runs the tests of a build that this machine can run.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

gpus="$("$root/scripts/gpus.sh")"
options=()
if [[ "$gpus" == 0 ]]; then
  echo "tests: no GPU here, so those labelled gpu and multi_gpu are left out"
  options=(--label-exclude '^(gpu|multi_gpu)$')
elif [[ "$gpus" == 1 ]]; then
  echo "tests: one GPU here, so those labelled multi_gpu are left out"
  options=(--label-exclude '^multi_gpu$')
fi
exec ctest --test-dir "${1:-$root/build}" --output-on-failure --no-tests=error \
  --parallel "$("$root/scripts/jobs.sh")" "${options[@]}"
