#!/usr/bin/env bash
# usage: scripts/format.sh [--check]: formats all sources, or fails where one is not formatted.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

options=(-i)
if [[ "${1:-}" == --check ]]; then
  options=(--dry-run -Werror)
fi
git ls-files -z --cached --others --exclude-standard -- '*.h' '*.cc' '*.cu' '*.cuh' |
  while IFS= read -rd '' file; do
    [[ ! -f "$file" ]] || printf '%s\0' "$file"  # deleted, but not yet in a commit
  done | xargs -0 --no-run-if-empty -n 40 -P "$(nproc)" clang-format-14 "${options[@]}"
