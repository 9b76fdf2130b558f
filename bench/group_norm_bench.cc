// GroupNorm + SiLU at the shapes of Stable Diffusion 1.5's U-Net (512 px), bf16, beside ATen's
// group_norm and silu, channels_last and contiguous: forward (backward:0), or forward and backward
// with all gradients. Calls are timed as parts of a CUDA graph. All of them read the same x, which
// so lies in the cache where it fits, as after the convolution that wrote it. bytes_per_second
// counts every array once a way.
//   kinora_group_norm_bench [--benchmark_filter=...] ; device: GPU
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/silu.h>

#include <functional>

#include "bench/gpu_timing.h"
#include "kinora/device/graph.h"
#include "kinora/ops/group_norm.h"

namespace kinora::ops {
namespace {

constexpr int64_t kGroups = 32;
constexpr int kCalls = 20;  // of a graph

enum Way : int64_t { kOurs, kAtenChannelsLast, kAtenContiguous };

void time_in_graph(benchmark::State& state, int64_t bytes, const std::function<void()>& call) {
  call();  // loads the kernels
  device::Graph graph;
  graph.record([&] {
    for (int i = 0; i < kCalls; ++i) {
      call();
    }
  });
  kernels::time_launches(state, bytes, [&](int64_t /*i*/) {
    graph.replay();
    return cudaGetLastError();
  });
}

/// Arguments: way, with backward, batch, channels, side.
void BM_GroupNormSilu(benchmark::State& state) {
  if (kernels::skip_without_gpu(state)) {
    return;
  }
  const int64_t way = state.range(0);
  const bool backward = state.range(1) != 0;
  const int64_t channels = state.range(3);
  const auto options = at::device(at::kCUDA).dtype(at::kBFloat16);
  at::Tensor x = at::randn({state.range(2), channels, state.range(4), state.range(4)}, options)
                     .contiguous(way == kAtenContiguous ? at::MemoryFormat::Contiguous
                                                        : at::MemoryFormat::ChannelsLast);
  const at::Tensor dy = at::randn_like(x);
  at::Tensor weight = at::randn({channels}, options);
  at::Tensor bias = at::randn({channels}, options);
  const at::AutoGradMode with_gradients(backward);
  for (at::Tensor* tensor : {&x, &weight, &bias}) {
    tensor->set_requires_grad(backward);
  }
  time_in_graph(state, kCalls * x.numel() * 2 * (backward ? 5 : 2), [&] {
    const at::Tensor y = way == kOurs
                             ? group_norm(x, weight, bias, {.groups = kGroups, .silu = true})
                             : at::silu(at::group_norm(x, kGroups, weight, bias));
    if (backward) {
      y.backward(dy);
      for (at::Tensor* tensor : {&x, &weight, &bias}) {
        tensor->mutable_grad().reset();  // the next replaces it instead of adding to it
      }
    }
  });
  state.counters["us_per_call"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * kCalls * 1e-6,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"way", "backward", "batch", "channels", "side"})->UseManualTime();
  bench->Unit(benchmark::kMicrosecond)->MinTime(0.1);
  constexpr int64_t kShapes[][2] = {{320, 64}, {640, 32}, {1280, 16},
                                    {1280, 8}, {2560, 8}, {960, 64}};
  for (const int64_t backward : {0, 1}) {
    for (const int64_t batch : {2, 32}) {
      for (const auto& [channels, side] : kShapes) {
        for (const int64_t way : {kOurs, kAtenChannelsLast, kAtenContiguous}) {
          bench->Args({way, backward, batch, channels, side});
        }
      }
    }
  }
}

BENCHMARK(BM_GroupNormSilu)->Apply(shapes);

}  // namespace
}  // namespace kinora::ops
