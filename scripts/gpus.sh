#!/usr/bin/env bash
# Prints how many NVIDIA GPUs a program may use. --any: prints nothing, succeeds if there is one.
set -euo pipefail
shopt -s nullglob

if [[ -n "${CUDA_VISIBLE_DEVICES+set}" ]]; then
  IFS=, read -ra devices <<<"$CUDA_VISIBLE_DEVICES"
else
  devices=(/dev/nvidia[0-9]*)
  # WSL has no such files.
  if [[ ${#devices[@]} -eq 0 ]] && command -v nvidia-smi >/dev/null; then
    mapfile -t devices < <(nvidia-smi -L 2>/dev/null | grep '^GPU ' || true)
  fi
fi

if [[ "${1:-}" == --any ]]; then
  [[ ${#devices[@]} -gt 0 ]]
else
  echo "${#devices[@]}"
fi
