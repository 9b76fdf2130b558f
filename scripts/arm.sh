#!/usr/bin/env bash
# usage: scripts/arm.sh [FOLDER]: compiles our CPU kernels and their tests for 64-bit Arm (NEON), into FOLDER
# (build-arm), and runs them in an emulator. Wants g++-aarch64-linux-gnu and qemu-user.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
folder="$(realpath -m "${1:-$root/build-arm}")"
readonly GTEST=/usr/src/googletest

for tool in aarch64-linux-gnu-g++ qemu-aarch64; do
  command -v "$tool" >/dev/null || {
    echo "arm: error: $tool is not there. Hint: apt-get install g++-aarch64-linux-gnu qemu-user" >&2
    exit 1
  }
done
compiler=(aarch64-linux-gnu-g++)
! command -v ccache >/dev/null || compiler=(ccache "${compiler[@]}")
mkdir -p "$folder"
cd "$root"

# As kinora/kernels/CMakeLists.txt: what the vectoriser needs.
flags=(-std=c++20 -O3 -fno-math-errno -fno-trapping-math -ffp-contract=off -I.
       -isystem "$GTEST/googletest/include" -isystem "$GTEST/googlemock/include"
       -I"$GTEST/googletest" -I"$GTEST/googlemock")
sources=(kinora/kernels/*.cc kinora/core/{dtype,error,text}.cc "$GTEST"/googletest/src/gtest-all.cc
         "$GTEST"/googlemock/src/gmock-all.cc "$GTEST"/googletest/src/gtest_main.cc)
for test in tests/kernels/*_test.cc; do
  [[ "$test" == */gpu_* || "$test" == */matmul_cache_test.cc ]] || sources+=("$test")
done
objects=()
for source in "${sources[@]}"; do
  objects+=("$folder/$(basename "$source" .cc).o")
done
printf '%s\0' "${sources[@]}" | xargs -0 -P "$(scripts/jobs.sh)" -I{} bash -c \
  '"${@:3}" -c "$2" -o "$1/$(basename "$2" .cc).o"' compile "$folder" {} "${compiler[@]}" "${flags[@]}"
"${compiler[-1]}" -static "${objects[@]}" -o "$folder/kernels_test" -pthread
GTEST_BRIEF=1 qemu-aarch64 "$folder/kernels_test"
