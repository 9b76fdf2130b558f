// Losses of diffusion training with their gradients, see kernels/diffusion_loss.h. A block takes
// 1024 elements of one sample, a thread 8 of them: the prediction, the variance's choice, noise and
// x0 are loaded at once, and both gradients leave from there. The block's two sums go to the
// workspace; a second kernel of one block adds them up per sample, a group of lanes each, and then
// over the batch, in an order that the sizes alone decide. Bound by memory at large batches (fp32:
// 20 bytes an element of x0 with learned variance), by the launches at small ones.
//
// fp32 throughout. The likelihood of a level at t = 0 is a small difference of two distribution
// functions; what lies above the mean is mirrored, so that both are small and keep their digits.
#include <algorithm>
#include <limits>

#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/diffusion_loss.h"
#include "kinora/kernels/cuda/elements.cuh"

namespace kinora::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWidth = 8;  // elements of a thread
constexpr int64_t kBlockElements = int64_t{kThreads} * kWidth;
constexpr int kFinalThreads = 1024;
constexpr float kInverseLn2 = 1.4426950408889634F;
constexpr unsigned kFullWarp = 0xffffffffU;

int64_t blocks_of(int64_t sample_size) {
  return std::max(int64_t{1}, ceil_div(sample_size, kBlockElements));
}

struct Value {
  float f;
  float derivative;
};

/// The approximate distribution function of N(0, 1) at x and its derivative times x.
__device__ __forceinline__ Value normal_cdf(float x) {
  constexpr float kLinear = 1.5957691216057308F;  // 2 sqrt(2 / pi)
  constexpr float kCubic = kLinear * 0.044715F;
  const float square = x * x;
  const float f = 1.0F / (1.0F + expf(-x * (kLinear + kCubic * square)));
  return {f, f * (1.0F - f) * (kLinear + 3.0F * kCubic * square) * x};
}

/// -log p(x0) in nats and its derivative by log_variance, as kernels/diffusion_loss.cc.
__device__ __forceinline__ Value decoder_nll(float x0, float centred, float log_variance) {
  constexpr float kHalfLevel = 1.0F / 255.0F;
  constexpr float kLeastProbability = 1e-12F;
  const float inverse_std = expf(-0.5F * log_variance);
  const float side = centred > 0.0F ? -1.0F : 1.0F;
  const float outermost = x0 < -0.999F ? -side : (x0 > 0.999F ? side : 0.0F);
  const float low = inverse_std * (side * centred - kHalfLevel);
  const float high = inverse_std * (side * centred + kHalfLevel);
  const Value upper = normal_cdf(outermost > 0.0F ? -low : high);
  Value lower = {0.0F, 0.0F};
  if (outermost == 0.0F) {
    lower = normal_cdf(low);
  }
  const float probability = upper.f - lower.f;
  if (probability < kLeastProbability) {
    return {-logf(kLeastProbability), 0.0F};
  }
  return {-logf(probability), 0.5F * (upper.derivative - lower.derivative) / probability};
}

/// KL(q || p) in nats and its derivative by log_ratio.
__device__ __forceinline__ Value divergence(float log_ratio, float mean_error, float log_variance) {
  const float excess = expm1f(-log_ratio);
  const float error = mean_error * mean_error * expf(-log_variance);
  return {0.5F * (excess + log_ratio + error), -0.5F * (excess + error)};
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// The row of the sample's t in the table; null without a table or for a t outside.
__device__ __forceinline__ const float* row_of(const DiffusionLoss& call, int64_t sample) {
  if (call.table == nullptr) {
    return nullptr;
  }
  const float t = call.t[sample];
  return t >= 0.0F && t < static_cast<float>(call.num_timesteps)
             ? call.table + static_cast<int64_t>(t) * kNumDiffusionColumns
             : nullptr;
}

__device__ __forceinline__ float loss_weight(const DiffusionLoss& call, const float* row) {
  return row != nullptr ? row[kLossWeight] : (call.table == nullptr ? 1.0F : kNan);
}

/// target = noise * (its factor) + data * x0.
struct TargetOf {
  float noise;
  float data;
};

__device__ __forceinline__ TargetOf target_of(Target target, const float* row) {
  switch (target) {
    case Target::kNoise:
      break;
    case Target::kData:
      return {0.0F, 1.0F};
    case Target::kV:
      return row != nullptr ? TargetOf{row[kSignal], -row[kNoise]} : TargetOf{kNan, kNan};
    case Target::kVelocity:
      return {1.0F, -1.0F};
  }
  return {1.0F, 0.0F};
}

/// The sum of a block of kThreads in its first thread.
__device__ __forceinline__ float block_sum(float value, float* scratch) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kFullWarp, value, offset);
  }
  if (threadIdx.x % 32 == 0) {
    scratch[threadIdx.x / 32] = value;
  }
  __syncthreads();
  float sum = 0.0F;
#pragma unroll
  for (int warp = 0; warp < kThreads / 32; ++warp) {
    sum += scratch[warp];
  }
  return sum;
}

/// partial[block] = (sum of squared errors, sum of L_t in nats).
template <typename T>
__global__ void __launch_bounds__(kThreads)
    loss_kernel(const DiffusionLoss call, int64_t blocks_per_sample, float grad_per_element,
                bool aligned, float2* __restrict__ partial) {
  __shared__ float scratch[2][kThreads / 32];
  const int64_t sample = blockIdx.x / blocks_per_sample;
  const int64_t begin = (blockIdx.x % blocks_per_sample) * kBlockElements;
  const int64_t n = call.sample_size;
  const int64_t i = begin + static_cast<int64_t>(threadIdx.x) * kWidth;
  const int count = static_cast<int>(min(max(n - i, int64_t{0}), int64_t{kWidth}));
  const bool whole = aligned && count == kWidth;
  const int64_t in = sample * n + i;
  const int64_t out = sample * call.prediction_size + i;
  const float* row = row_of(call, sample);
  const TargetOf target = target_of(call.target, row);
  const float t = call.learned_variance ? call.t[sample] : 1.0F;
  const bool reads_x0 = call.target != Target::kNoise || (call.learned_variance && t == 0.0F);

  const Packed<T, kWidth> packed = load_some<T, kWidth>(call.prediction, out, count, whole);
  Packed<T, kWidth> packed_variance = {};
  if (call.learned_variance) {
    packed_variance = load_some<T, kWidth>(call.prediction, out + n, count, whole);
  }
  float noise[kWidth] = {};
  if (call.target != Target::kData) {
    load_floats<float, kWidth>(call.noise, in, count, whole, noise);
  }
  float x0[kWidth] = {};
  if (reads_x0) {
    load_floats<float, kWidth>(call.x0, in, count, whole, x0);
  }
  float scale = grad_per_element;
  if (call.d_prediction != nullptr) {
    scale *= call.grad_scale == nullptr ? 1.0F : *call.grad_scale;
    scale *= call.weights == nullptr ? 1.0F : call.weights[sample];
  }

  const float mse_scale = scale * loss_weight(call, row);
  float value[kWidth];
  unpack<T, kWidth>(packed, value);
  float squares = 0.0F;
  float error[kWidth];
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    // What lies behind the sample is zero everywhere, and so is its error.
    error[k] = target.noise * noise[k] + target.data * x0[k] - value[k];
    squares += error[k] * error[k];
    value[k] = -2.0F * mse_scale * error[k];
  }
  if (call.d_prediction != nullptr) {
    store_floats<T, kWidth>(call.d_prediction, out, count, whole, value);
  }

  float nats = 0.0F;
  if (call.learned_variance) {
    float range = kNan;  // for a t outside of the table
    float min_log_variance = 0.0F;
    float deviation = 0.0F;
    if (row != nullptr) {
      range = row[kLogVarianceRange];
      min_log_variance = row[kMinLogVariance];
      deviation = row[kPosteriorDeviation];
    }
    const float bound_scale = static_cast<float>(call.bound_scale) * kInverseLn2;
    unpack<T, kWidth>(packed_variance, value);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const float log_ratio = 0.5F * (value[k] + 1.0F) * range;
      const float log_variance = min_log_variance + log_ratio;
      const float mean_error = deviation * error[k];
      const Value bound = t == 0.0F ? decoder_nll(x0[k], -mean_error, log_variance)
                                    : divergence(log_ratio, mean_error, log_variance);
      nats += k < count ? bound.f : 0.0F;
      value[k] = scale * bound_scale * 0.5F * range * bound.derivative;
    }
    if (call.d_prediction != nullptr) {
      store_floats<T, kWidth>(call.d_prediction, out + n, count, whole, value);
    }
  }
  if (call.d_prediction != nullptr) {  // what the loss does not read
    const int64_t used = call.learned_variance ? 2 * n : n;
    for (int64_t rest = used + begin + threadIdx.x; rest < call.prediction_size;
         rest += blocks_per_sample * kBlockElements) {
      for (int64_t k = rest; k < min(rest + kBlockElements, call.prediction_size); k += kThreads) {
        static_cast<T*>(call.d_prediction)[sample * call.prediction_size + k] = from_float<T>(0.0F);
      }
    }
  }
  if (partial != nullptr) {
    squares = block_sum(squares, scratch[0]);
    nats = block_sum(nats, scratch[1]);
    if (threadIdx.x == 0) {
      partial[blockIdx.x] = make_float2(squares, nats);
    }
  }
}

/// group: lanes a sample, a power of two.
__global__ void __launch_bounds__(kFinalThreads)
    sum_kernel(const DiffusionLoss call, const float2* __restrict__ partial,
               int64_t blocks_per_sample, int group, float mean_factor) {
  __shared__ float sums[kFinalThreads / 32];
  const int lane = static_cast<int>(threadIdx.x) % group;
  const int64_t groups = kFinalThreads / group;
  const float per_element = 1.0F / static_cast<float>(call.sample_size);
  const float per_bound = per_element * kInverseLn2 * static_cast<float>(call.bound_scale);
  float weighted = 0.0F;
  for (int64_t first = 0; first < call.batch; first += groups) {  // the same for a whole warp
    const int64_t sample = first + threadIdx.x / group;
    float mse = 0.0F;
    float vb = 0.0F;
    if (sample < call.batch) {
      for (int64_t i = lane; i < blocks_per_sample; i += group) {
        const float2 sum = partial[sample * blocks_per_sample + i];
        mse += sum.x;
        vb += sum.y;
      }
    }
    for (int offset = group / 2; offset > 0; offset /= 2) {
      mse += __shfl_xor_sync(kFullWarp, mse, offset);
      vb += __shfl_xor_sync(kFullWarp, vb, offset);
    }
    mse *= per_element;
    vb *= per_bound;
    if (lane == 0 && sample < call.batch) {
      const float total = loss_weight(call, row_of(call, sample)) * mse + vb;
      weighted += total * (call.weights == nullptr ? 1.0F : call.weights[sample]);
      if (call.mse != nullptr) {
        call.mse[sample] = mse;
      }
      if (call.vb != nullptr) {
        call.vb[sample] = vb;
      }
      if (call.total != nullptr) {
        call.total[sample] = total;
      }
    }
  }
  if (call.mean == nullptr) {
    return;
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    weighted += __shfl_xor_sync(kFullWarp, weighted, offset);
  }
  if (threadIdx.x % 32 == 0) {
    sums[threadIdx.x / 32] = weighted;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0.0F;
    for (const float sum : sums) {
      total += sum;
    }
    *call.mean += total * mean_factor;
  }
}

}  // namespace

size_t diffusion_loss_workspace_bytes(int64_t batch, int64_t sample_size) {
  return static_cast<size_t>(batch * blocks_of(sample_size)) * sizeof(float2);
}

cudaError_t diffusion_loss(const DiffusionLoss& call, void* workspace, cudaStream_t stream) {
  if (call.batch == 0 || call.sample_size == 0) {
    return cudaSuccess;
  }
  const bool sums_wanted =
      call.mse != nullptr || call.vb != nullptr || call.total != nullptr || call.mean != nullptr;
  if (!sums_wanted && call.d_prediction == nullptr) {
    return cudaSuccess;
  }
  auto* partial = sums_wanted ? static_cast<float2*>(workspace) : nullptr;
  const int64_t blocks = blocks_of(call.sample_size);
  const auto batch = static_cast<double>(call.batch);
  const auto grad_per_element =
      static_cast<float>(call.grad_factor / (batch * static_cast<double>(call.sample_size)));
  const cudaError_t error = with_type(call.type, [&](auto example) {
    using T = decltype(example);
    const bool aligned = call.sample_size % kWidth == 0 && call.prediction_size % kWidth == 0 &&
                         is_aligned_to<16>(call.prediction) && is_aligned_to<16>(call.noise) &&
                         is_aligned_to<16>(call.x0) && is_aligned_to<16>(call.d_prediction);
    loss_kernel<T><<<static_cast<unsigned>(call.batch * blocks), kThreads, 0, stream>>>(
        call, blocks, grad_per_element, aligned, partial);
    return cudaGetLastError();
  });
  if (error != cudaSuccess || !sums_wanted) {
    return error;
  }
  int group = 1;
  while (group < 32 && group < blocks) {
    group *= 2;
  }
  sum_kernel<<<1, kFinalThreads, 0, stream>>>(call, partial, blocks, group,
                                              static_cast<float>(call.mean_share / batch));
  return cudaGetLastError();
}

}  // namespace kinora::kernels::cuda
