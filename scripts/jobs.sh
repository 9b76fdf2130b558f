#!/usr/bin/env bash
# Prints how many compile jobs this machine bears: one a core, 2 GB of memory each.
set -euo pipefail
memory_mb=$(awk '/^MemAvailable/ {print int($2 / 1024)}' /proc/meminfo)
limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
if [[ "$limit" != max && $((limit / 1048576)) -lt $memory_mb ]]; then
  memory_mb=$((limit / 1048576))
fi
jobs=$(nproc)
if [[ $((memory_mb / 2048)) -lt $jobs ]]; then
  jobs=$((memory_mb / 2048))
fi
echo $((jobs > 1 ? jobs : 1))
