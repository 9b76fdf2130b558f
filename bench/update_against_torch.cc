// The optimizer's update on a CPU beside torch's: AdamW, one average, a bf16 copy. Both work on the
// same tensors with the same threads of one process and take turns: medians of the rounds, and of
// the rounds' ratios.
//
// usage: kinora_update_against_torch [ROUNDS]   (default 15)
//
// torch is what torch.optim.AdamW(fused=True) calls on a CPU; then the average by _foreach_lerp_,
// or by _foreach_mul_ and _foreach_add_; then _foreach_copy_ to bf16. "streams" reads and writes
// what the update does and computes next to nothing: the bandwidth that there is.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/InferenceMode.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string_view>
#include <vector>

#include "kinora/kernels/simd.h"
#include "kinora/ops/optimizer_step.h"

namespace {

using kinora::kernels::run_simd;
namespace ops = kinora::ops;

struct State {
  std::vector<at::Tensor> weights, grads, exp_avgs, exp_avg_sqs, averages, copies, steps;
  int64_t count = 0;

  State(const std::vector<int64_t>& sizes, bool huge_pages) {
    const auto zeros = [&](int64_t size, at::ScalarType type) {
      at::Tensor tensor = at::empty({size}, type);
      if (huge_pages) {
        const auto begin = reinterpret_cast<uintptr_t>(tensor.data_ptr());
        const uintptr_t page = begin / 4096 * 4096;
        madvise(reinterpret_cast<void*>(page), tensor.nbytes() + begin - page, MADV_HUGEPAGE);
      }
      return tensor.zero_();
    };
    for (const int64_t size : sizes) {
      weights.push_back(zeros(size, at::kFloat).normal_(0.0, 0.02));
      grads.push_back(zeros(size, at::kFloat));
      exp_avgs.push_back(zeros(size, at::kFloat));
      exp_avg_sqs.push_back(zeros(size, at::kFloat));
      averages.push_back(zeros(size, at::kFloat).copy_(weights.back()));
      copies.push_back(zeros(size, at::kBFloat16));
      steps.push_back(at::full({}, 1.0, at::kFloat));
      count += size;
    }
  }

  [[nodiscard]] ops::BucketTable table(bool leaves_grad) const {
    std::vector<ops::OptimizerBucket> buckets;
    for (size_t i = 0; i < weights.size(); ++i) {
      buckets.push_back({.master = weights[i],
                         .grad = grads[i],
                         .exp_avg = exp_avgs[i],
                         .exp_avg_sq = exp_avg_sqs[i],
                         .ema = {averages[i]},
                         .compute = copies[i],
                         .leaves_grad = leaves_grad});
    }
    return ops::BucketTable(std::move(buckets));
  }
};

constexpr double kDecay = 0.9999;

void torch_adamw(const State& state) {
  at::_fused_adamw_(state.weights, state.grads, state.exp_avgs, state.exp_avg_sqs, {}, state.steps,
                    1e-4, 0.9, 0.999, 0.01, 1e-8, false, false);
}

void torch_lerp(const State& state) {
  torch_adamw(state);
  at::_foreach_lerp_(state.averages, state.weights, 1.0 - kDecay);
  at::_foreach_copy_(state.copies, state.weights);
}

void torch_mul_add(const State& state) {
  torch_adamw(state);
  at::_foreach_mul_(state.averages, kDecay);
  at::_foreach_add_(state.averages, state.weights, 1.0 - kDecay);
  at::_foreach_copy_(state.copies, state.weights);
}

void ours(const ops::BucketTable& table) {
  kinora::kernels::UpdateParameters parameters;
  parameters.weight_decay = 0.01;
  parameters.num_emas = 1;
  parameters.ema_decay[0] = kDecay;
  kinora::kernels::StepControl control;
  control.lr = 1e-4;
  control.grad_sum_squares = 1.0;
  kinora::kernels::prepare_update(&control, {});
  ops::update_weights(table, parameters, ops::make_step_control(control, at::kCPU));
}

struct Streams {
  [[gnu::always_inline]] static void run(float* __restrict__ a, float* __restrict__ b,
                                         float* __restrict__ c, float* __restrict__ d,
                                         const float* __restrict__ g, uint16_t* __restrict__ copy,
                                         int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float grad = g[i];
      a[i] = a[i] + grad;
      b[i] = b[i] + grad;
      c[i] = c[i] + grad;
      d[i] = d[i] + grad;
      copy[i] = static_cast<uint16_t>(static_cast<int>(grad));
    }
  }
};

void streams(const State& state) {
  for (size_t i = 0; i < state.weights.size(); ++i) {
    at::parallel_for(0, state.weights[i].numel(), 16384, [&](int64_t begin, int64_t end) {
      run_simd<Streams>(state.weights[i].data_ptr<float>(), state.exp_avgs[i].data_ptr<float>(),
                        state.exp_avg_sqs[i].data_ptr<float>(), state.averages[i].data_ptr<float>(),
                        state.grads[i].data_ptr<float>(),
                        static_cast<uint16_t*>(state.copies[i].data_ptr()), begin, end);
    });
  }
}

double seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::vector<int64_t> dit_b_sizes() {
  constexpr int64_t kWidth = 768;
  std::vector<int64_t> sizes = {kWidth * 16,     kWidth, kWidth * 256, kWidth,
                                kWidth * kWidth, kWidth, 1001 * kWidth};
  const auto linear = [&sizes](int64_t out, int64_t in) {
    sizes.push_back(out * in);
    sizes.push_back(out);
  };
  for (int block = 0; block < 12; ++block) {
    linear(3 * kWidth, kWidth);
    linear(kWidth, kWidth);
    linear(4 * kWidth, kWidth);
    linear(kWidth, 4 * kWidth);
    linear(6 * kWidth, kWidth);
  }
  linear(2 * kWidth, kWidth);
  linear(32, kWidth);
  return sizes;
}

void compare(const char* name, const std::vector<int64_t>& sizes, bool huge_pages, int threads,
             int rounds) {
  at::set_num_threads(threads);
  const State state(sizes, huge_pages);
  const ops::BucketTable zeroes = state.table(false);
  const ops::BucketTable leaves = state.table(true);
  struct Way {
    const char* name;
    int64_t bytes;  // a weight
    std::function<void()> work;
    std::vector<double> times;
  };
  std::vector<Way> ways = {{"ours", 38, [&] { ours(leaves); }, {}},
                           {"ours, gradients zeroed", 42, [&] { ours(zeroes); }, {}},
                           {"torch, lerp", 46, [&] { torch_lerp(state); }, {}},
                           {"torch, mul and add", 54, [&] { torch_mul_add(state); }, {}},
                           {"torch, AdamW alone", 28, [&] { torch_adamw(state); }, {}},
                           {"streams", 38, [&] { streams(state); }, {}}};
  for (int round = -2; round < rounds; ++round) {  // two to warm up
    for (Way& way : ways) {
      const bool adds = way.name == std::string_view("streams");  // the gradient to all else
      for (const at::Tensor& grad : state.grads) {
        grad.fill_(adds ? 0.0F : 0.01F);
      }
      const double time = seconds(way.work);
      if (round >= 0) {
        way.times.push_back(time);
      }
    }
  }
  std::printf("%s: %.1f M weights in %zu tensors, %s pages, %d threads, %d rounds\n", name,
              static_cast<double>(state.count) / 1e6, sizes.size(), huge_pages ? "huge" : "small",
              threads, rounds);
  for (const Way& way : ways) {
    std::vector<double> ratios;
    for (size_t i = 0; i < way.times.size(); ++i) {
      ratios.push_back(way.times[i] / ways[0].times[i]);
    }
    const double time = median(way.times);
    std::printf("  %-24s %8.2f ms  %6.2f GB/s  %5.2f times ours\n", way.name, time * 1e3,
                static_cast<double>(state.count * way.bytes) / time * 1e-9, median(ratios));
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const c10::InferenceMode guard;
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  for (const int threads : {1, 2}) {
    for (const bool huge_pages : {false, true}) {
      compare("large tensors", std::vector<int64_t>(4, 1366 * 12288), huge_pages, threads, rounds);
      compare("DiT-B", dit_b_sizes(), huge_pages, threads, rounds);
    }
  }
  return 0;
}
