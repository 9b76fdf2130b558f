#include "kinora/train/step_supply.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "kinora/core/error.h"

namespace kinora::train {

StepSupply::StepSupply(StepLoader loader, const EncodeStage& stage)
    : loader_(std::move(loader)), stage_(stage) {}

void StepSupply::fetch(int64_t steps_left) {
  constexpr int64_t kStepsOfSamples = 2;
  const int64_t wanted = std::min(kStepsOfSamples, steps_left);
  while (error_ == nullptr && static_cast<int64_t>(samples_.size()) < wanted) {
    std::optional<StepSamples> next;
    try {
      next = loader_.next();
    } catch (const Error&) {
      error_ = std::current_exception();
    }
    if (!stage_.all_have(next.has_value())) {
      return;
    }
    try {
      samples_.push_back(std::move(*next));
      stage_.begin(samples_.back());
    } catch (const Error&) {
      error_ = std::current_exception();
    }
  }
}

StepSamples StepSupply::take() {
  StepSamples samples = std::move(samples_.front());
  samples_.pop_front();
  stage_.wait(samples);
  return samples;
}

}  // namespace kinora::train
