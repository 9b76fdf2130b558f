#pragma once

#include <cstdint>
#include <vector>

#include "kinora/kernels/cast.h"
#include "kinora/kernels/optimizer.h"
#include "kinora/kernels/random.h"

namespace kinora::kernels {

/// One bucket's arrays on the host, filled with plausible random values.
struct OptimizerArrays {
  std::vector<float> master, grad, exp_avg, exp_avg_sq, base, grad_sum;
  std::vector<std::vector<float>> ema;
  std::vector<uint16_t> compute;
  DType type;

  OptimizerArrays(int64_t count, int num_emas, DType compute_type) : type(compute_type) {
    master = values(count, 1, Distribution::kNormal, 1.0F);
    grad = values(count, 2, Distribution::kNormal, 0.1F);
    exp_avg = values(count, 3, Distribution::kNormal, 0.1F);
    exp_avg_sq = values(count, 4, Distribution::kUniform, 0.01F);
    base = values(count, 5, Distribution::kNormal, 1.0F);
    grad_sum = values(count, 6, Distribution::kNormal, 0.1F);
    for (int k = 0; k < num_emas; ++k) {
      ema.push_back(values(count, 10 + static_cast<uint64_t>(k), Distribution::kNormal, 1.0F));
    }
    if (type != DType::kF32) {
      compute.assign(static_cast<size_t>(count), 0);
    }
  }

  [[nodiscard]] UpdateBuffers buffers() {
    UpdateBuffers result;
    result.master = master.data();
    result.grad = grad.data();
    result.exp_avg = exp_avg.data();
    result.exp_avg_sq = exp_avg_sq.data();
    result.base = base.data();
    result.grad_sum = grad_sum.data();
    for (size_t k = 0; k < ema.size(); ++k) {
      result.ema[k] = ema[k].data();
    }
    result.compute = compute.empty() ? nullptr : compute.data();
    result.compute_type = type;
    return result;
  }

  [[nodiscard]] UpdateParameters parameters(UpdateRule rule = UpdateRule::kAdamW) const {
    UpdateParameters result;
    result.rule = rule;
    result.weight_decay = 0.02;
    result.num_emas = static_cast<int>(ema.size());
    const double decays[kMaxEmas] = {0.9, 0.999, 0.9999, 0.5};
    for (int k = 0; k < result.num_emas; ++k) {
      result.ema_decay[k] = decays[k];
    }
    return result;
  }

  bool operator==(const OptimizerArrays&) const = default;

 private:
  static std::vector<float> values(int64_t count, uint64_t sample, Distribution distribution,
                                   float scale) {
    std::vector<float> result(static_cast<size_t>(count));
    random_fill(result.data(), count, {1, sample, 0, RandomPurpose::kTest}, 0, distribution, scale);
    return result;
  }
};

}  // namespace kinora::kernels
