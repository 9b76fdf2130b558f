#pragma once

#include <cstdint>
#include <string_view>

namespace kinora::optim {

/// The learning rate as a function of the optimizer step.
struct LrSchedule {
  enum class Kind : uint8_t {
    kConstant,
    kCosine,  ///< half a cosine (Loshchilov and Hutter, "SGDR", ICLR 2017, section 3)
    kLinear,
  };
  Kind kind = Kind::kConstant;
  double value = 1e-4;  ///< the highest
  /// Steps of linear warm-up (Goyal et al., "Accurate, large minibatch SGD", 2017, section 2.2):
  /// step s has value * (s + 1) / warmup, so that the first step already learns.
  int64_t warmup = 0;
  /// The step, counted from the start and warm-up included, at which a decay ends. kConstant has
  /// none.
  int64_t horizon = 0;
  double final_fraction = 0.0;  ///< of `value`, from the horizon on

  /// Of optimizer step `step`, 0 being the first.
  [[nodiscard]] double at(int64_t step) const;

  /// Throws kConfig unless value >= 0, 0 <= warmup, final_fraction in [0, 1] and, for a decay,
  /// warmup < horizon.
  void validate() const;
};

/// "constant", "cosine", "linear". Throws kConfig for others.
[[nodiscard]] LrSchedule::Kind parse_lr_kind(std::string_view name);

}  // namespace kinora::optim
