// The memory-bound kernels around the matrix products and the denoiser, at the shapes of DiT-XL/2:
// batch 256 at 256 px, 64 at 512 px (65,536 rows both), and batch 8 (2,048 rows). bytes_per_second
// counts every array once; beside it a copy's.
//   kinora_elementwise_bench [--benchmark_filter=...] ; device: GPU
#include "bench/gpu_timing.h"
#include "kinora/kernels/cuda/activation.h"
#include "kinora/kernels/cuda/column_sums.h"
#include "kinora/kernels/cuda/diffusion_loss.h"
#include "kinora/kernels/cuda/patches.h"
#include "kinora/kernels/cuda/qk_norm_rotary.h"
#include "kinora/kernels/cuda/rms_norm.h"

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

/// IDDPM's loss with learned variance of fp32 latents. Arguments: batch, latent elements, gradient
/// (0, 1).
void BM_DiffusionLoss(benchmark::State& state) {
  if (skip_without_gpu(state)) {
    return;
  }
  const int64_t batch = state.range(0);
  const int64_t size = state.range(1);
  const bool gradient = state.range(2) != 0;
  const int64_t numel = batch * size;
  const int64_t bytes = numel * 4 * (gradient ? 5 : 3);
  const int64_t sets = num_sets(bytes);
  DeviceMemory prediction(static_cast<size_t>(2 * numel * sets * 4));
  DeviceMemory noise(static_cast<size_t>(numel * sets * 4));
  DeviceMemory x0(static_cast<size_t>(numel * sets * 4));
  const DeviceMemory out(static_cast<size_t>(2 * numel * sets * 4));
  DeviceMemory table(1000 * kNumDiffusionColumns * 4);
  const DeviceMemory per_sample(static_cast<size_t>(batch * 4));
  const DeviceMemory workspace(cuda::diffusion_loss_workspace_bytes(batch, size));
  std::vector<float> t(static_cast<size_t>(batch));
  for (size_t b = 0; b < t.size(); ++b) {
    t[b] = static_cast<float>(b * 7 % 1000);
  }
  const DeviceMemory device_t(t.size() * 4);
  KINORA_CUDA_CHECK(cudaMemcpy(device_t.get(), t.data(), t.size() * 4, cudaMemcpyHostToDevice));
  prediction.fill_normal(static_cast<size_t>(2 * numel * sets), DType::kF32);
  noise.fill_normal(static_cast<size_t>(numel * sets), DType::kF32);
  x0.fill_normal(static_cast<size_t>(numel * sets), DType::kF32);
  table.fill_normal(1000 * kNumDiffusionColumns, DType::kF32, 0.1F);
  time_launches(state, bytes, [&](int64_t i) {
    const int64_t first = i % sets * numel;
    DiffusionLoss call;
    call.learned_variance = true;
    call.batch = batch;
    call.sample_size = size;
    call.prediction_size = 2 * size;
    call.prediction = prediction.get<float>() + 2 * first;
    call.noise = noise.get<float>() + first;
    call.x0 = x0.get<float>() + first;
    call.t = device_t.get<float>();
    call.table = table.get<float>();
    call.num_timesteps = 1000;
    call.total = per_sample.get<float>();
    call.d_prediction = gradient ? out.get<float>() + 2 * first : nullptr;
    return cuda::diffusion_loss(call, workspace.get(), nullptr);
  });
}

/// DiT's fp32 latents. Arguments: batch, side of the image, back (0: into tokens, 1: out of the
/// final layer's).
void BM_Patches(benchmark::State& state) {
  if (skip_without_gpu(state)) {
    return;
  }
  const bool back = state.range(2) != 0;
  Patches patches;
  patches.order = back ? PatchOrder::kChannelLast : PatchOrder::kChannelFirst;
  patches.batch = state.range(0);
  patches.channels = back ? 8 : 4;
  patches.height = state.range(1);
  patches.width = state.range(1);
  patches.patch = 2;
  const int64_t numel = patches.batch * patches.channels * patches.height * patches.width;
  const int64_t sets = num_sets(numel * 8);
  DeviceMemory in(static_cast<size_t>(numel * sets * 4));
  const DeviceMemory out(static_cast<size_t>(numel * sets * 4));
  in.fill_normal(static_cast<size_t>(numel * sets), DType::kF32);
  time_launches(state, numel * 8, [&](int64_t i) {
    const float* from = in.get<float>() + i % sets * numel;
    float* to = out.get<float>() + i % sets * numel;
    return back ? cuda::unpatchify(patches, from, to, nullptr)
                : cuda::patchify(patches, from, to, nullptr);
  });
}

/// bf16. Arguments: rows, width, backward (0, 1).
void BM_RmsNorm(benchmark::State& state) {
  if (skip_without_gpu(state)) {
    return;
  }
  const int64_t rows = state.range(0);
  const int64_t width = state.range(1);
  const bool backward = state.range(2) != 0;
  const int64_t numel = rows * width;
  const int64_t bytes = numel * (backward ? 6 : 4);
  const int64_t sets = num_sets(bytes);
  DeviceMemory x(static_cast<size_t>(numel * sets * 2));
  DeviceMemory dy(static_cast<size_t>(numel * sets * 2));
  const DeviceMemory out(static_cast<size_t>(numel * sets * 2));
  DeviceMemory weight(static_cast<size_t>(width * 4));
  const DeviceMemory dweight(static_cast<size_t>(width * 4));
  const DeviceMemory workspace(cuda::rms_norm_backward_workspace_bytes(rows, width, true));
  x.fill_normal(static_cast<size_t>(numel * sets), DType::kBF16);
  dy.fill_normal(static_cast<size_t>(numel * sets), DType::kBF16);
  weight.fill_normal(static_cast<size_t>(width), DType::kF32);
  time_launches(state, bytes, [&](int64_t i) {
    const int64_t first = i % sets * numel;
    if (!backward) {
      return cuda::rms_norm_forward({.rows = rows,
                                     .width = width,
                                     .x = x.get<uint16_t>() + first,
                                     .weight = weight.get<float>(),
                                     .y = out.get<uint16_t>() + first},
                                    nullptr);
    }
    return cuda::rms_norm_backward({.rows = rows,
                                    .width = width,
                                    .dy = dy.get<uint16_t>() + first,
                                    .x = x.get<uint16_t>() + first,
                                    .weight = weight.get<float>(),
                                    .dx = out.get<uint16_t>() + first,
                                    .dweight = dweight.get<float>()},
                                   workspace.get(), nullptr);
  });
}

/// bf16, packed qkv into queries and keys alone. Arguments: rows, heads, head_dim, half split (0,
/// 1), backward (0, 1).
void BM_QkNormRotary(benchmark::State& state) {
  if (skip_without_gpu(state)) {
    return;
  }
  constexpr int64_t kPositions = 256;
  QkNormRotary rule;
  rule.rows = state.range(0);
  rule.heads = state.range(1);
  rule.head_dim = state.range(2);
  rule.pairs = state.range(3) != 0 ? RotaryPairs::kHalfSplit : RotaryPairs::kInterleaved;
  rule.num_positions = kPositions;
  const bool backward = state.range(4) != 0;
  const int64_t width = rule.heads * rule.head_dim;
  const int64_t numel = rule.rows * width;
  const int64_t bytes = 2 * numel * (backward ? 6 : 4);
  const int64_t sets = num_sets(bytes);
  DeviceMemory qkv(static_cast<size_t>(3 * numel * sets * 2));
  DeviceMemory dout(static_cast<size_t>(2 * numel * sets * 2));
  const DeviceMemory out(static_cast<size_t>(2 * numel * sets * 2));
  DeviceMemory weights(static_cast<size_t>(rule.head_dim * 4));
  DeviceMemory angles(static_cast<size_t>(kPositions * rule.head_dim / 2 * 4));
  const DeviceMemory dweights(static_cast<size_t>(rule.head_dim * 2 * 4));
  const DeviceMemory workspace(
      cuda::qk_norm_rotary_backward_workspace_bytes(rule.rows, rule.head_dim, true));
  qkv.fill_normal(static_cast<size_t>(3 * numel * sets), DType::kBF16);
  dout.fill_normal(static_cast<size_t>(2 * numel * sets), DType::kBF16);
  weights.fill_normal(static_cast<size_t>(rule.head_dim), DType::kF32);
  angles.fill_normal(static_cast<size_t>(kPositions * rule.head_dim / 2), DType::kF32);
  rule.q_weight = weights.get<float>();
  rule.k_weight = weights.get<float>();
  rule.cosine = angles.get<float>();
  rule.sine = angles.get<float>();
  time_launches(state, bytes, [&](int64_t i) {
    const uint16_t* in = qkv.get<uint16_t>() + i % sets * 3 * numel;
    uint16_t* to = out.get<uint16_t>() + i % sets * 2 * numel;
    if (!backward) {
      return cuda::qk_norm_rotary_forward(
          {.rule = rule, .in = in, .in_stride = 3 * width, .out = to, .out_stride = 2 * width},
          nullptr);
    }
    return cuda::qk_norm_rotary_backward({.rule = rule,
                                          .dout = dout.get<uint16_t>() + i % sets * 2 * numel,
                                          .dout_stride = 2 * width,
                                          .in = in,
                                          .in_stride = 3 * width,
                                          .din = to,
                                          .din_stride = 2 * width,
                                          .dq_weight = dweights.get<float>(),
                                          .dk_weight = dweights.get<float>() + rule.head_dim},
                                         workspace.get(), nullptr);
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
    ->Args({256, 193536, 4})
    ->Args({256, 1152, 4})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_DiffusionLoss)
    ->ArgNames({"batch", "size", "gradient"})
    ->Args({256, 4096, 0})
    ->Args({256, 4096, 1})
    ->Args({64, 16384, 1})
    ->Args({8, 4096, 1})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_Patches)
    ->ArgNames({"batch", "side", "back"})
    ->ArgsProduct({{256}, {32}, {0, 1}})
    ->ArgsProduct({{64}, {64}, {0, 1}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_RmsNorm)
    ->ArgNames({"rows", "width", "backward"})
    ->ArgsProduct({{65536, 2048}, {1152}, {0, 1}})
    ->ArgsProduct({{65536}, {3072}, {0, 1}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_QkNormRotary)
    ->ArgNames({"rows", "heads", "dim", "half", "backward"})
    ->ArgsProduct({{65536, 2048}, {16}, {72}, {0, 1}, {0, 1}})
    ->ArgsProduct({{65536}, {9, 24}, {128}, {0, 1}, {0, 1}})
    ->ArgsProduct({{65536}, {24}, {64}, {0}, {0, 1}})
    ->ArgsProduct({{262144}, {4}, {32}, {0}, {0, 1}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kinora::kernels
