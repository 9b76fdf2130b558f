#include "kinora/train/step_times.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kinora/core/seconds.h"

namespace kinora::train {
namespace {

constexpr int64_t kNumbers = 3;  // of a rank

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2.0;
}

RankTimes::Spread spread_of(const std::vector<double>& values) {
  const auto [min, max] = std::minmax_element(values.begin(), values.end());
  return {.min = *min, .median = median_of(values), .max = *max};
}

}  // namespace

double StepTimes::compute() const {
  return std::max(step - data - communication, 0.0);
}

void StepClock::restart() {
  last_ = steady_seconds();
}

StepTimes StepClock::lap(double data_wait, std::optional<int64_t> waited) {
  StepTimes times{.step = steady_seconds() - last_};
  restart();
  times.data = data_wait - std::exchange(last_data_wait_, data_wait);
  if (waited) {
    times.communication =
        static_cast<double>(*waited - std::exchange(last_waited_, *waited)) * 1e-9;
  }
  return times;
}

RankTimes compare_ranks(std::span<const StepTimes> ranks, int64_t step) {
  std::vector<double> compute;
  std::vector<double> communication;
  std::vector<double> data;
  std::vector<double> own;  // of the rank itself: not the waiting for others
  for (const StepTimes& rank : ranks) {
    compute.push_back(rank.compute());
    communication.push_back(rank.communication);
    data.push_back(rank.data);
    own.push_back(rank.compute() + rank.data);
  }
  const auto slowest = std::max_element(own.begin(), own.end());
  const double median = median_of(own);
  return {.step = step,
          .compute = spread_of(compute),
          .communication = spread_of(communication),
          .data = spread_of(data),
          .slow_rank = slowest - own.begin(),
          .slowness = median > 0.0 ? *slowest / median : 1.0};
}

StepTimesExchange::StepTimesExchange(comm::Group world, int64_t every)
    : world_(std::move(world)), every_(every) {}

void StepTimesExchange::add(int64_t step, const StepTimes& own) {
  sum_.step += own.step;
  sum_.data += own.data;
  sum_.communication += own.communication;
  ++count_;
  if (world_.size() == 1 || step % every_ != 0) {
    return;
  }
  if (under_way_) {
    under_way_->wait();  // for what all ranks have asked for `every` steps ago
  }
  const auto count = static_cast<double>(std::exchange(count_, 0));
  const StepTimes sum = std::exchange(sum_, {});
  const at::Tensor mine = at::empty({kNumbers}, at::kFloat);
  auto* numbers = mine.mutable_data_ptr<float>();
  numbers[0] = static_cast<float>(sum.step / count);
  numbers[1] = static_cast<float>(sum.data / count);
  numbers[2] = static_cast<float>(sum.communication / count);
  all_ = at::empty({world_.size(), kNumbers}, at::kFloat);
  step_ = step;
  under_way_ = world_.all_gather_async(all_, mine);
}

std::optional<RankTimes> StepTimesExchange::take() {
  if (!under_way_ || !under_way_->is_done()) {
    return std::nullopt;
  }
  under_way_->wait();
  under_way_.reset();
  std::vector<StepTimes> ranks;
  const auto* numbers = all_.const_data_ptr<float>();
  for (int64_t rank = 0; rank < world_.size(); ++rank, numbers += kNumbers) {
    ranks.push_back({.step = numbers[0], .data = numbers[1], .communication = numbers[2]});
  }
  return compare_ranks(ranks, step_);
}

}  // namespace kinora::train
