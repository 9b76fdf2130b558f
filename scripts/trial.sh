#!/usr/bin/env bash
# Tries to break Kinora for an hour, and prints one table of what happened.
#
# usage: scripts/trial.sh [--minutes N] [--seed N] [--only TRIAL,TRIAL]
#
# The trials: options and keys with absurd values; mutated files; kill -9 while it trains and draws;
# full disks and read-only folders (small file systems in memory, which need the right to mount); two
# runs in one directory; SIGSTOP of a rank; a clock that jumps. It ends with 1 if anything crashed,
# hung, lost a byte or ended with an internal error. docs/reliability.md has the last result.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ ! -x build/kinora ]; then
  echo "trial: there is no build/kinora. Hint: make build" >&2
  exit 2
fi
exec python3 scripts/trial.py build/kinora "$@"
