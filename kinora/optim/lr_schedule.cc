#include "kinora/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kinora/core/error.h"

namespace kinora::optim {

double LrSchedule::at(int64_t step) const {
  if (step < warmup) {
    return value * static_cast<double>(step + 1) / static_cast<double>(warmup);
  }
  if (kind == Kind::kConstant) {
    return value;
  }
  const double progress = std::clamp(
      static_cast<double>(step - warmup) / static_cast<double>(horizon - warmup), 0.0, 1.0);
  const double remaining =
      kind == Kind::kCosine ? 0.5 * (1.0 + std::cos(std::numbers::pi * progress)) : 1.0 - progress;
  return value * (final_fraction + (1.0 - final_fraction) * remaining);
}

void LrSchedule::validate() const {
  KINORA_CHECK(std::isfinite(value) && value >= 0.0, kConfig,
               "[lr] value must be finite and not negative, got ", value);
  KINORA_CHECK(warmup >= 0, kConfig, "[lr] warmup must not be negative, got ", warmup);
  KINORA_CHECK(final_fraction >= 0.0 && final_fraction <= 1.0, kConfig,
               "[lr] final_fraction must be in [0, 1], got ", final_fraction);
  KINORA_CHECK(kind == Kind::kConstant || horizon > warmup, kConfig,
               "[lr] a schedule that decays must have a horizon above its warm-up of ", warmup,
               " steps, got ", horizon);
}

LrSchedule::Kind parse_lr_kind(std::string_view name) {
  if (name == "constant") {
    return LrSchedule::Kind::kConstant;
  }
  if (name == "cosine") {
    return LrSchedule::Kind::kCosine;
  }
  KINORA_CHECK(name == "linear", kConfig, "[lr] schedule must be constant, cosine or linear, got ",
               name);
  return LrSchedule::Kind::kLinear;
}

}  // namespace kinora::optim
