#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Our own parsers, each as a function of any bytes: it may throw Error and nothing else, and must
/// not crash, hang or read outside. mutations_test.cc feeds them damaged files; with clang and
/// KINORA_FUZZ=ON libfuzzer.cc makes a program of each.
namespace kinora::fuzz {

using Bytes = std::vector<std::byte>;

[[nodiscard]] inline Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

struct Target {
  std::string name;
  /// Takes what the parser is given.
  std::function<void(std::span<const std::byte>)> parse;
  /// Whole files, to be damaged.
  std::vector<Bytes> seeds;
  /// Makes checksums right again, so that what lies behind them is reached too; may be empty.
  std::function<void(Bytes&)> repair = {};
};

[[nodiscard]] std::vector<Target> targets();

/// Those among them that read prompts.
[[nodiscard]] std::vector<Target> prompt_targets();

/// Those among them that read what torch.save writes.
[[nodiscard]] std::vector<Target> torch_targets();

/// Those that read tokenizers.
[[nodiscard]] std::vector<Target> tokenizer_targets();

}  // namespace kinora::fuzz
