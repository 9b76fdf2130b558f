#!/usr/bin/env bash
# Trains in every layout of up to eight ranks, and compares each with one rank: losses, gradients,
# weights and averages, with accumulation, recomputation and a skipped step, and from a checkpoint
# that another layout wrote. CI has a part of them. It takes half an hour on two cores.
#
# usage: scripts/layouts.sh [FAMILY]     dit, stdit3, pixart, flux or unet; all unless said
#
# Prints a row for each family and path: how many layouts equal one rank, the largest differences of
# losses and norms, of gradients (both as shares), and of weights (updates are of 0.01); then which
# layouts were refused, how often and why. Ends with 1 where one differs.
set -euo pipefail
cd "$(dirname "$0")/.."

test=build/kinora_train_test
if [ ! -x "$test" ]; then
  echo "layouts: there is no $test. Hint: make all" >&2
  exit 2
fi
report=$(mktemp)
trap 'rm -f "$report"' EXIT
status=0
GTEST_ALSO_RUN_DISABLED_TESTS=1 KINORA_LAYOUTS_REPORT="$report" \
  "$test" --gtest_filter="*AllLayoutsTest*/${1:-*}" >&2 || status=1
if [ "$status" = 0 ] && [ ! -s "$report" ]; then
  echo "layouts: no family is called ${1:-}. Hint: dit, stdit3, pixart, flux or unet" >&2
  exit 2
fi
cat "$report"
exit "$status"
