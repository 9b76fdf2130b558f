#include "kinora/train/recording_choice.h"

#include <algorithm>

#include "kinora/core/text.h"

namespace kinora::train {

RecordingChoice::Action RecordingChoice::next(Shape& shape, int64_t step) const {
  constexpr int64_t kComputedSteps = 2;
  const bool is_new = shape.last_step != step;
  if (is_new) {
    shape.last_step = step;
    ++shape.steps;
  }
  switch (shape.state) {
    case Shape::State::kRecorded:
      return Action::kReplay;
    case Shape::State::kRefused:
      return Action::kCompute;
    case Shape::State::kComputed:
      break;
  }
  if (shape.steps > kComputedSteps) {
    return Action::kTryToRecord;
  }
  const bool measures = limit_ && is_new && shape.steps == kComputedSteps;
  return measures ? Action::kMeasure : Action::kCompute;
}

void RecordingChoice::measured(Shape& shape, int64_t needs) {
  shape.needs = needs;
  largest_ = std::max(largest_, needs);
}

std::string RecordingChoice::refusal(const Shape& shape, int64_t inputs, const Room& room) const {
  if (!limit_) {
    return {};
  }
  constexpr int64_t kReserve = int64_t{1} << 30;  // for validation and samples
  const int64_t more = shape.needs + inputs;
  const int64_t after = room.taken + more;
  if (*limit_ > 0 && after > *limit_) {
    return "graphs might take " + human_bytes(after) + ", and train.graph_memory_gib allows " +
           human_bytes(*limit_);
  }
  if (more + largest_ + kReserve > room.free) {
    return "it might take " + human_bytes(more) + " of the " + human_bytes(room.free) +
           " that are free, and sizes without a graph need " + human_bytes(largest_);
  }
  return {};
}

}  // namespace kinora::train
