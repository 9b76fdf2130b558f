#pragma once

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kinora/checkpoint/training_state.h"
#include "tests/checkpoint/testing.h"

namespace kinora::checkpoint {

/// Ranks that train one model, and how they divide its state.
struct Ranks {
  comm::Group world;
  comm::Group shards;  ///< those who own different slices
  int stage = 0;
};

/// What a run keeps: kSmall has moments of 8 bits and masters in bf16.
enum class Kept : uint8_t { kFp32, kSmall, kMuon, kAdafactor, kCame, kProdigy };

inline std::string to_string(Kept kept) {
  constexpr const char* kNames[] = {"fp32", "small", "muon", "adafactor", "came", "prodigy"};
  return kNames[static_cast<size_t>(kept)];
}

/// A model every element of whose state follows from role, place in the bucket and step, so that
/// nobody has to have saved it to know what it must be.
class NumberedState {
 public:
  explicit NumberedState(const Ranks& ranks = {}, int64_t width = 6, at::Device device = at::kCPU,
                         Kept kept = Kept::kFp32)
      : model(width),
        arena(model.named_parameters(), SmallModel::buckets(),
              {.device = device,
               .compute_type = at::kBFloat16,
               .seed = 1,
               .train = true,
               .rule = state(0, kept).optimizer.rule,
               .moments = state(0, kept).optimizer.moments,
               .masters = state(0, kept).optimizer.masters,
               .ema_decays = {0.9},
               .sharding = {.group = ranks.shards, .stage = ranks.stage}}) {
    model.table = at::arange(3, at::kFloat).view({1, 3});
  }

  void set(int64_t step) {
    for (const optim::Bucket& bucket : arena.buckets()) {
      for (size_t k = 0; k < arena.state_roles().size(); ++k) {
        bucket.tensor(arena.state_roles()[k]).copy_(expected(step, k, bucket));
      }
    }
    arena.refresh_compute();
  }

  [[nodiscard]] bool is(int64_t step) const {
    for (const optim::Bucket& bucket : arena.buckets()) {
      for (size_t k = 0; k < arena.state_roles().size(); ++k) {
        if (!at::equal(bucket.tensor(arena.state_roles()[k]).cpu(), expected(step, k, bucket))) {
          return false;
        }
      }
      const at::Tensor& read = bucket.owns_compute ? bucket.whole_compute : bucket.compute;
      const int64_t begin = bucket.owns_compute ? 0 : bucket.slice_begin;
      if (!at::equal(read.cpu(),
                     expected(step, 0, bucket, begin, read.numel()).to(read.scalar_type()))) {
        return false;
      }
    }
    return true;
  }

  [[nodiscard]] static TrainingState state(int64_t step, Kept kept = Kept::kFp32) {
    TrainingState state;
    if (kept == Kept::kSmall) {
      state.optimizer.moments = kernels::MomentFormat::k8Bit;
      state.optimizer.masters = kernels::MasterFormat::kBF16;
    } else if (kept == Kept::kMuon) {
      state.optimizer.rule = kernels::UpdateRule::kMuon;
    } else if (kept == Kept::kAdafactor) {
      state.optimizer.rule = kernels::UpdateRule::kAdafactor;
    } else if (kept == Kept::kCame) {
      state.optimizer.rule = kernels::UpdateRule::kCame;
    } else if (kept == Kept::kProdigy) {
      state.optimizer.rule = kernels::UpdateRule::kProdigy;
      state.optimizer.distance = 0.1 + static_cast<double>(step);
      state.optimizer.distance_sum = -0.3;
    }
    state.step = step;
    state.position = 8 * step;
    state.config = "some: config\n";
    return state;
  }

  SmallModel model;
  optim::Arena arena;

 private:
  /// What this rank has of a role.
  [[nodiscard]] at::Tensor expected(int64_t step, size_t role, const optim::Bucket& bucket) const {
    const optim::Role which = arena.state_roles()[role];
    if (which.is_of_rows()) {
      return at::arange(bucket.tensor(which).numel(), at::kFloat).mul(1024).add(step % 1024);
    }
    at::Tensor numbers = expected(step, role, bucket, bucket.slice_begin, bucket.slice_numel);
    const at::ScalarType type = bucket.tensor(which).scalar_type();
    if (type == at::kByte) {
      numbers = numbers.remainder(251);
    }
    at::Tensor own = at::ones({bucket.numel}, at::kBool);
    for (size_t k = 0; k < bucket.slots.size(); ++k) {
      if (which.kind == optim::Role::Kind::kExpAvgSq && bucket.slots[k].is_matrix) {
        const bool is_last = k + 1 == bucket.slots.size();
        const int64_t end = is_last ? bucket.numel : bucket.slots[k + 1].offset;
        own.slice(0, bucket.slots[k].offset, end).fill_(false);
      }
    }
    own = own.narrow(0, bucket.slice_begin, bucket.slice_numel);
    return numbers.masked_select(own).view({-1, which.elements_each()}).select(1, 0).to(type);
  }

  /// Distinct fp32 numbers for 1024 steps, 6 roles and 2048 places in a row; 0 between the slots.
  static at::Tensor expected(int64_t step, size_t role, const optim::Bucket& bucket, int64_t begin,
                             int64_t count) {
    constexpr int64_t kPeriod = 2048;
    const at::Tensor numbers = at::arange(kPeriod, at::kFloat)
                                   .mul(6)
                                   .add(static_cast<int64_t>(role))
                                   .mul(1024)
                                   .add(step % 1024)
                                   .repeat(bucket.numel / kPeriod + 1);
    const at::Tensor whole = at::zeros({bucket.numel}, at::kFloat);
    for (const optim::Slot& slot : bucket.slots) {
      whole.narrow(0, slot.offset, slot.numel).copy_(numbers.narrow(0, slot.offset, slot.numel));
    }
    return whole.narrow(0, begin, count);
  }
};

}  // namespace kinora::checkpoint
