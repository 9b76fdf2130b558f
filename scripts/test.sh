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
build="$(realpath "${1:-$root/build}")"
rm -rf "$build/reports"
status=0
# Brief: of a process that fails, what failed. One more than cores, since some tests wait for others' time-outs.
GTEST_BRIEF=1 ctest --test-dir "$build" --output-on-failure --no-tests=error \
  --parallel "$(($("$root/scripts/jobs.sh") + 1))" "${options[@]}" || status=$?

compgen -G "$build/reports/*.xml" >/dev/null || exit "$status"  # no tests of C++

# Each process above is many tests: why some were skipped, what failed, once more and without what
# it printed, and what became of all.
awk '
  /<testcase / {
    ++all
    test = $0
    sub(/.*<testcase name="/, "", test)
    sub(/".*/, "", test)
  }
  /<failure message=/ {
    if (number != all) { ++failed; number = all }
    message = $0
    sub(/.*<failure message="/, "", message)
    sub(/" type=.*/, "", message)
    gsub(/&#x0A;/, "\n  ", message)
    gsub(/&quot;/, "\"", message)
    gsub(/&lt;/, "<", message)
    gsub(/&gt;/, ">", message)
    failures = failures sprintf("failed: %s: %s\n", test, substr(message, 1, 3000))
  }
  /<skipped message=/ {
    reason = $0
    sub(/.*<skipped message="[^"]*\.cc:[0-9]+&#x0A;/, "", reason)
    sub(/(&#x0A;)*".*/, "", reason)
    ++skipped
    ++reasons[reason]
  }
  END {
    for (reason in reasons) printf "skipped %d: %s\n", reasons[reason], reason
    printf "%s", failures
    printf "tests: %d passed, %d failed, %d skipped\n", all - failed - skipped, failed, skipped
  }' "$build"/reports/*.xml
exit "$status"
