#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "kinora/kernels/matmul.h"

/// Which algorithm of cuBLASLt a matrix product uses, as text that people can read and other runs
/// can use. The text may come from anywhere: what cannot be read is passed over, and what was read
/// are numbers that the library still has to accept (cublasLtMatmulAlgoCheck).
namespace kinora::kernels {

/// An algorithm by the attributes of cublasLtMatmulAlgoConfigAttributes_t.
struct MatmulChoice {
  int32_t id = -1;
  uint32_t tile = 0;
  int32_t split_k = 1;
  uint32_t reduction = 0;
  uint32_t swizzle = 0;
  uint32_t custom = 0;
  uint32_t stages = 0;
  uint32_t inner_shape = 0;
  uint32_t cluster_shape = 0;
  int64_t nanoseconds = 0;  ///< of one product when chosen; 0: not timed
};

/// Whether both name the same algorithm.
[[nodiscard]] bool same_algorithm(const MatmulChoice& x, const MatmulChoice& y);

/// What the addresses are multiples of, in bytes, at most 16: more buys nothing.
struct MatmulAlignment {
  uint8_t a = 16;
  uint8_t b = 16;
  uint8_t d = 16;
  uint8_t vectors = 16;  ///< bias, bias_grad and aux

  bool operator==(const MatmulAlignment&) const = default;
};

/// The problem with every default written out and what has no effect reset, so that equal problems
/// compare equal.
[[nodiscard]] MatmulProblem normalised(MatmulProblem problem);

/// A normalised problem on one line: "m=256 n=1152 k=4608 a=BF16 b=BF16^T d=BF16 epilogue=bias".
[[nodiscard]] std::string describe(const MatmulProblem& problem, const MatmulAlignment& alignment);

/// "id=66 tile=20 split_k=1 ...", without the time.
[[nodiscard]] std::string describe(const MatmulChoice& choice);

/// Choices by key; ordered, so that equal contents give equal text.
using MatmulChoices = std::map<std::string, MatmulChoice, std::less<>>;

/// Which search found a choice; another one since searches try other tiles, clusters and options.
inline constexpr int kSearch = 3;

/// "GPU|version.search|problem|".
[[nodiscard]] std::string choice_key(std::string_view gpu, size_t library_version,
                                     const MatmulProblem& problem,
                                     const MatmulAlignment& alignment);

/// "GPU|version.search|", with which all keys of this GPU, library and search start.
[[nodiscard]] std::string choice_key_prefix(std::string_view gpu, size_t library_version);

/// "KEYid=66 tile=20 ...|ns=712300|", without a line end.
[[nodiscard]] std::string format_choice(const std::string& key, const MatmulChoice& choice);

/// The inverse; nothing for any other text.
[[nodiscard]] std::optional<std::pair<std::string, MatmulChoice>> parse_choice(
    std::string_view line);

/// A line each; the last of equal keys counts, other lines are passed over.
[[nodiscard]] MatmulChoices parse_choices(std::string_view text);
[[nodiscard]] std::string format_choices(const MatmulChoices& choices);

/// The choices of a file; none if it is missing, unreadable or larger than 16 MiB.
[[nodiscard]] MatmulChoices read_choices(const std::string& path);

/// Adds `choices` to those of the file, making its folder; readers see the old file or the new one.
/// kIo if it cannot be written.
void write_choices(const std::string& path, const MatmulChoices& choices);

}  // namespace kinora::kernels
