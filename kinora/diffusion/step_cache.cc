#include "kinora/diffusion/step_cache.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/device/dry_run.h"
#include "kinora/device/graph.h"

namespace kinora::diffusion {
namespace {

using Kind = StepCacheConfig::Kind;

// Noise levels at which PAB of Open-Sora 1.2 reuses anything (VideoSys: timesteps 450 to 930).
constexpr double kPabLow = 0.45;
constexpr double kPabHigh = 0.93;
// Levels are sums of rounded steps.
constexpr double kLevelTolerance = 1e-6;

constexpr const char* kBranchNames[] = {"attention in space", "attention in time",
                                        "attention to texts", "MLPs"};

double value_of(const std::vector<double>& polynomial, double x) {
  if (polynomial.empty()) {
    return x;
  }
  double value = 0.0;
  for (const double coefficient : polynomial) {
    value = value * x + coefficient;
  }
  return value;
}

/// The sum of each sample's magnitudes, [B].
at::Tensor magnitude(const at::Tensor& values) {
  return at::abs(values.to(at::kFloat)).flatten(1).sum(1);
}

int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
}

}  // namespace

void StepCacheDecisions::add(const Key& key, size_t count, bool reuses) {
  std::vector<bool>& all = all_[key];
  all.resize(count);
  all.push_back(reuses);
}

bool StepCacheDecisions::find(const Key& key, size_t count) const {
  const auto found = all_.find(key);
  return found != all_.end() && count < found->second.size() && found->second[count];
}

std::string StepCacheUse::describe() const {
  std::ostringstream text;
  const auto add = [&text](const Count& count, const char* name) {
    if (count.all > 0) {
      text << (text.tellp() > 0 ? ", " : "left out ") << count.left_out << " of " << count.all
           << " " << name << " ("
           << std::lround(100.0 * static_cast<double>(count.left_out) /
                          static_cast<double>(count.all))
           << " %)";
    }
  };
  add(blocks, "blocks");
  for (size_t kind = 0; kind < branches.size(); ++kind) {
    add(branches[kind], kBranchNames[kind]);
  }
  if (evaluations > 0) {
    text << "computed " << in_patches << " of " << evaluations << " evaluations in patches";
  }
  if (text.tellp() > 0) {
    text << ", and kept up to " << human_bytes(most_bytes) << " of a batch";
  }
  return text.str();
}

void StepCache::begin(const Moment& moment) {
  moment_ = moment;
  take_row(0);
  next_ = 0;
  number_ = evaluations_[moment.rows_kind]++;
  if (config_.has_patches()) {
    ++use_.evaluations;
    use_.in_patches += patches() > 1 ? 1 : 0;
  }
  choose_branches();
}

void StepCache::forget() {
  states_.clear();
  take_row(0);
  choose_branches();
}

void StepCache::choose_branches() {
  if (config_.kind != Kind::kPab) {
    return;
  }
  for (size_t kind = 0; kind < ops::kBranchKinds; ++kind) {
    std::optional<double>& computed_at = state_->computed_at[kind];
    reuses_[kind] = is_in_interval() && computed_at &&
                    std::abs(moment_.level - *computed_at) < config_.ranges[kind] - kLevelTolerance;
    if (!reuses_[kind]) {
      computed_at = moment_.level;
    }
  }
}

void StepCache::end() {
  const int64_t kept = bytes();
  use_.most_bytes = std::max(use_.most_bytes, kept);
  KINORA_CHECK(
      static_cast<double>(kept) <= config_.most_gib * kGiB, kMemory, "[step_cache] ", config_.key(),
      " keeps ", human_bytes(kept), " of a batch, and sample.cache_gib allows ", config_.most_gib,
      " GiB. Hint: fewer samples at once (--batch), ",
      config_.has_patches() ? "" : "sample.cache=first_block ", "or a larger sample.cache_gib");
}

int64_t StepCache::bytes() const {
  int64_t sum = 0;
  for (const auto& [rows, state] : states_) {
    sum += bytes_of(state.watched);
    for (const Computed& computed : state.computed) {
      sum += bytes_of(computed.watched) + bytes_of(computed.residual);
    }
    for (const ops::KeptResult& result : state.results) {
      sum += bytes_of(result.streams[0]) + bytes_of(result.streams[1]);
    }
    for (const at::Tensor& tokens : state.keys_and_values) {
      sum += bytes_of(tokens);
    }
  }
  return sum;
}

bool StepCache::is_in_interval() const {
  double low = config_.kind == Kind::kPab ? kPabLow : 0.0;
  double high = config_.kind == Kind::kPab ? kPabHigh : 1.0;
  if (!config_.interval.empty()) {
    low = config_.interval[0];
    high = config_.interval[1];
  }
  return moment_.level >= low && moment_.level <= high;
}

double StepCache::change(const at::Tensor& watched, const at::Tensor& before,
                         const Combine& add_up) const {
  const at::Tensor sums = at::stack({magnitude(watched - before), magnitude(before)});
  add_up(sums);
  const at::Tensor greatest = (sums[0] / sums[1]).max();
  if (greatest_) {
    greatest_(greatest);
  }
  return greatest.item<double>();
}

at::Tensor StepCache::forecast(at::Tensor Computed::*member) const {
  const std::deque<Computed>& computed = state_->computed;
  if (computed.size() == 1) {
    return computed.front().*member;
  }
  const double newest = computed.back().level;
  const double span = std::abs(computed.front().level - newest);
  const double level = std::clamp(moment_.level, newest - span, newest + span);
  at::Tensor sum;
  for (const Computed& one : computed) {
    double share = 1.0;  // Lagrange's form of the polynomial through all of them
    for (const Computed& other : computed) {
      if (&other != &one) {
        share *= (level - other.level) / (one.level - other.level);
      }
    }
    sum = sum.defined() ? sum.add_(one.*member, share) : one.*member * share;
  }
  return sum;
}

bool StepCache::is_alike(const at::Tensor& watched, const Combine& add_up) {
  if (config_.kind == Kind::kFirstBlock) {
    return change(watched, forecast(&Computed::watched), add_up) <= config_.threshold;
  }
  state_->sum += value_of(config_.polynomial, change(watched, state_->watched, add_up));
  return state_->sum < config_.threshold;
}

bool StepCache::reuses(const at::Tensor& watched, const Combine& add_up) {
  State& state = *state_;
  const bool is_first_block = config_.kind == Kind::kFirstBlock;
  const StepCacheDecisions::Key key(moment_.rows_kind, moment_.level);
  const size_t count = decided_[key]++;
  const bool may =
      !state.computed.empty() && is_in_interval() && (is_first_block || !moment_.is_last);
  bool reuses = false;
  if (device::Graph::is_recording() || device::in_dry_run()) {
    reuses = may && use_.decisions.find(key, count);
  } else {
    reuses = may && is_alike(watched, add_up);
    use_.decisions.add(key, count, reuses);
  }
  if (!is_first_block) {
    state.watched = watched;
  }
  if (!reuses) {
    state.sum = 0.0;
    std::erase_if(state.computed,
                  [this](const Computed& one) { return one.level == moment_.level; });
    state.computed.push_back(
        {.level = moment_.level, .watched = is_first_block ? watched : at::Tensor()});
    if (static_cast<int64_t>(state.computed.size()) > config_.order + 1) {
      state.computed.pop_front();
    }
  }
  return reuses;
}

at::Tensor StepCache::residual() const {
  return forecast(&Computed::residual);
}

void StepCache::keep(at::Tensor residual) {
  state_->computed.back().residual = std::move(residual);
}

void StepCache::count_blocks(int64_t all, int64_t left_out) {
  use_.blocks.all += all;
  use_.blocks.left_out += left_out;
}

ops::KeptResult* StepCache::next(ops::BranchKind kind) {
  const auto number = static_cast<size_t>(kind);
  if (config_.kind != Kind::kPab || config_.ranges[number] <= 0.0) {
    return nullptr;
  }
  if (next_ == state_->results.size()) {
    state_->results.emplace_back();
  }
  ops::KeptResult& result = state_->results[next_++];
  result.is_reused = reuses_[number];
  ++use_.branches[number].all;
  use_.branches[number].left_out += result.is_reused ? 1 : 0;
  return &result;
}

at::Tensor& StepCache::keys_and_values(size_t use) {
  std::deque<at::Tensor>& kept = state_->keys_and_values;
  if (use == kept.size()) {
    kept.emplace_back();
  }
  return kept[use];
}

}  // namespace kinora::diffusion
