// The memory-bound kernels around the matrix products, at the shapes of DiT-XL/2: batch 256 at
// 256 px, 64 at 512 px (65,536 rows both), and batch 8 (2,048 rows). bytes_per_second counts every
// array once; beside it a copy's.
//   kinora_elementwise_bench [--benchmark_filter=...] ; device: GPU
#include "bench/gpu_timing.h"
#include "kinora/kernels/cuda/activation.h"
#include "kinora/kernels/cuda/column_sums.h"

namespace kinora::kernels {
namespace {

constexpr int64_t kCacheBytes = int64_t{512}
                                << 20;  // sets of arrays exceed this: any L2 several times

int64_t num_sets(int64_t bytes) {
  return std::max(int64_t{1}, kCacheBytes / bytes);
}

/// Arguments: rows, quantise (0, 1).
void BM_GeluForward(benchmark::State& state) {
  if (skip_without_gpu(state)) {
    return;
  }
  constexpr int64_t kWidth = 4608;
  const int64_t rows = state.range(0);
  const int64_t numel = rows * kWidth;
  const bool quantise = state.range(1) != 0;
  const int64_t sets = num_sets(numel * 4);
  DeviceMemory u(static_cast<size_t>(numel * 2 * sets));
  const DeviceMemory g(static_cast<size_t>(numel * 2 * sets));
  const DeviceMemory transposed(static_cast<size_t>(quantise ? numel * sets : 0));
  const DeviceMemory amax(4);
  u.fill_normal(static_cast<size_t>(numel * sets), DType::kBF16);
  time_launches(state, numel * 4, [&](int64_t i) {
    const int64_t set = i % sets;
    ActivationForward call;
    call.rows = rows;
    call.width = kWidth;
    call.u = u.get<uint16_t>() + set * numel;
    if (quantise) {  // two copies of a byte instead of one of two
      call.g_fp8.data = g.get<uint8_t>() + set * numel;
      call.g_fp8.transposed = transposed.get<uint8_t>() + set * numel;
      call.g_fp8.amax = amax.get<float>();
    } else {
      call.g = g.get<uint16_t>() + set * numel;
    }
    return cuda::activation_forward(call, nullptr);
  });
}

/// Arguments: rows, bias gradient (0, 1), quantise (0, 1).
void BM_GeluBackward(benchmark::State& state) {
  if (skip_without_gpu(state)) {
    return;
  }
  constexpr int64_t kWidth = 4608;
  const int64_t rows = state.range(0);
  const int64_t numel = rows * kWidth;
  const bool bias = state.range(1) != 0;
  const bool quantise = state.range(2) != 0;
  const int64_t sets = num_sets(numel * 6);
  DeviceMemory u(static_cast<size_t>(numel * 2 * sets));
  DeviceMemory dg(static_cast<size_t>(numel * 2 * sets));
  const DeviceMemory du(static_cast<size_t>(numel * 2 * sets));
  const DeviceMemory transposed(static_cast<size_t>(quantise ? numel * sets : 0));
  const DeviceMemory amax(4);
  const DeviceMemory bias_grad(kWidth * 4);
  const DeviceMemory workspace(cuda::activation_backward_workspace_bytes(rows, kWidth, bias));
  u.fill_normal(static_cast<size_t>(numel * sets), DType::kBF16);
  dg.fill_normal(static_cast<size_t>(numel * sets), DType::kBF16);
  time_launches(state, numel * 6, [&](int64_t i) {
    const int64_t set = i % sets;
    ActivationBackward call;
    call.rows = rows;
    call.width = kWidth;
    call.u = u.get<uint16_t>() + set * numel;
    call.dg = dg.get<uint16_t>() + set * numel;
    if (quantise) {
      call.du_fp8.data = du.get<uint8_t>() + set * numel;
      call.du_fp8.transposed = transposed.get<uint8_t>() + set * numel;
      call.du_fp8.amax = amax.get<float>();
    } else {
      call.du = du.get<uint16_t>() + set * numel;
    }
    call.bias_grad = bias ? bias_grad.get<float>() : nullptr;
    return cuda::activation_backward(call, workspace.get(), nullptr);
  });
}

/// Arguments: rows, width, bytes of an element (2: bf16, 4: fp32).
void BM_ColumnSums(benchmark::State& state) {
  if (skip_without_gpu(state)) {
    return;
  }
  const int64_t rows = state.range(0);
  const int64_t width = state.range(1);
  const DType type = state.range(2) == 2 ? DType::kBF16 : DType::kF32;
  const int64_t bytes = rows * width * state.range(2);
  const int64_t sets = num_sets(bytes);
  DeviceMemory in(static_cast<size_t>(bytes * sets));
  const DeviceMemory out(static_cast<size_t>(width * 4));
  const DeviceMemory workspace(cuda::column_sums_workspace_bytes(rows, width));
  in.fill_normal(static_cast<size_t>(rows * width * sets), type);
  time_launches(state, bytes, [&](int64_t i) {
    const ColumnSums call = {
        rows, width, width, type, in.get<uint8_t>() + i % sets * bytes, out.get<float>()};
    return cuda::column_sums(call, workspace.get(), nullptr);
  });
}

BENCHMARK(BM_DeviceCopy)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_GeluForward)
    ->ArgNames({"rows", "fp8"})
    ->ArgsProduct({{65536, 2048}, {0, 1}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_GeluBackward)
    ->ArgNames({"rows", "bias", "fp8"})
    ->ArgsProduct({{65536, 2048}, {0, 1}, {0, 1}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_ColumnSums)
    ->ArgNames({"rows", "width", "bytes"})
    ->Args({65536, 3456, 2})
    ->Args({65536, 1152, 2})
    ->Args({256, 6912 * 28, 4})
    ->Args({256, 1152, 4})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kinora::kernels
