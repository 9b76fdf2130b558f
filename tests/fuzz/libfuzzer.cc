// One of the targets as a program of libFuzzer: clang++ -fsanitize=fuzzer.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kinora/core/error.h"
#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kinora;
  static const fuzz::Target kTarget = [] {
    const auto all = fuzz::targets();
    return *std::find_if(all.begin(), all.end(), [](const fuzz::Target& target) {
      return target.name == KINORA_FUZZ_TARGET;
    });
  }();
  try {
    kTarget.parse(std::as_bytes(std::span(data, size)));
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kInternal) {
      throw;
    }
  }
  return 0;
}
