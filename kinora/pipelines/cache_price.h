#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace kinora::pipelines {

/// The same noise drawn with a step cache and without.
struct CachePrice {
  int64_t samples = 0;
  double seconds = 0.0;          ///< with
  double seconds_without = 0.0;  ///< without
  double relative_error = 0.0;   ///< of what the model draws: L2, the difference over that without
  std::optional<double> psnr{};  ///< of pictures, in dB: of all samples together

  /// "1.6 times as fast as without (8.1 s, 13 s), ..., PSNR 33.1 dB".
  [[nodiscard]] std::string describe() const;
};

/// |with - without| / |without|.
[[nodiscard]] double relative_error(const at::Tensor& with, const at::Tensor& without);
/// Of pictures whose values reach from -1 to 1, in dB; infinite where they are equal.
[[nodiscard]] double psnr(const at::Tensor& with, const at::Tensor& without);

}  // namespace kinora::pipelines
