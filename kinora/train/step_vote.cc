#include "kinora/train/step_vote.h"

#include <ATen/ops/empty.h>

#include <bit>

namespace kinora::train {

void StepVote::ask(const StepWish& own) {
  own_ = own;
  if (world_.size() == 1) {
    return;
  }
  votes_ = at::empty({3}, at::kLong);
  auto* const votes = votes_.mutable_data_ptr<int64_t>();
  votes[0] = own.stop;
  votes[1] = static_cast<int64_t>(own.command);
  votes[2] = std::bit_cast<int64_t>(own.value);  // not negative: its bits are those of no other's 0
  question_ = world_.all_reduce_async(votes_, comm::Reduction::kMax);
}

StepWish StepVote::answer() {
  if (!votes_.defined()) {
    return own_;
  }
  question_.wait();
  const auto* const votes = votes_.const_data_ptr<int64_t>();
  return {.stop = votes[0],
          .command = static_cast<RunCommand>(votes[1]),
          .value = std::bit_cast<double>(votes[2])};
}

}  // namespace kinora::train
