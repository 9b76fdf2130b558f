#include "kinora/device/out_of_memory.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <new>
#include <string_view>

#include "kinora/core/error.h"

namespace kinora::device {
namespace {

/// How libtorch and CUDA say it where they have no type of error for it.
constexpr std::array<std::string_view, 3> kWords = {"can't allocate memory", "out of memory",
                                                    "cudaErrorMemoryAllocation"};

bool says_it(std::string_view text) {
  return std::ranges::any_of(
      kWords, [text](std::string_view words) { return text.find(words) != text.npos; });
}

}  // namespace

std::optional<std::string> out_of_memory_text(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return "the system has no more";
  }
  std::string text = error.what();
  bool is_memory = false;
  if (const auto* ours = dynamic_cast<const Error*>(&error)) {
    // Others speak of the memory of another rank, or of words in a file.
    is_memory =
        ours->kind() == ErrorKind::kMemory || (ours->kind() == ErrorKind::kCuda && says_it(text));
  } else if (const auto* of_torch = dynamic_cast<const c10::Error*>(&error)) {
    text = of_torch->what_without_backtrace();
    is_memory = dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr || says_it(text);
  } else {
    is_memory = says_it(text);
  }
  return is_memory ? std::optional(std::move(text)) : std::nullopt;
}

}  // namespace kinora::device
