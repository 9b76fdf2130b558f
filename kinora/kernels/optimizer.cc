#include "kinora/kernels/optimizer.h"

#include <algorithm>

#include "kinora/kernels/cast.h"
#include "kinora/kernels/simd.h"

namespace kinora::kernels {
namespace {

// Elements that go through all loops before the next ones: few enough to stay in the first-level
// cache (8 arrays of 4 KiB), so that memory sees one pass.
constexpr int64_t kBlock = 1024;

template <UpdateRule kRule>
struct UpdateBody {
  [[gnu::always_inline]] static void run(const UpdateBuffers& buffers, const UpdateScalars& scalars,
                                         int num_emas, int64_t begin, int64_t end) {
    for (int64_t start = begin; start < end; start += kBlock) {
      const int64_t count = std::min(kBlock, end - start);
      float* __restrict__ weight = buffers.master + start;
      float* second = has_second_moment(kRule) ? buffers.exp_avg_sq + start : nullptr;
      update(scalars, count, buffers.grad + start, weight, buffers.exp_avg + start, second);
      for (int k = 0; k < num_emas; ++k) {
        average(scalars.ema_keep[k], scalars.ema_take[k], count, weight, buffers.ema[k] + start);
      }
      if (buffers.compute != nullptr) {
        round(count, weight, buffers.compute_type, static_cast<uint16_t*>(buffers.compute) + start);
      }
    }
  }

 private:
  [[gnu::always_inline]] static void update(const UpdateScalars& scalars, int64_t count,
                                            float* __restrict__ grad, float* __restrict__ weight,
                                            float* __restrict__ exp_avg,
                                            float* __restrict__ exp_avg_sq) {
    const UpdateScalars constants = scalars;  // no aliasing with the arrays
    for (int64_t i = 0; i < count; ++i) {
      update_element<kRule>(constants, grad[i], weight + i, exp_avg + i,
                            has_second_moment(kRule) ? exp_avg_sq + i : nullptr);
      grad[i] = 0.0F;
    }
  }

  [[gnu::always_inline]] static void average(float keep, float take, int64_t count,
                                             const float* __restrict__ weight,
                                             float* __restrict__ ema) {
    for (int64_t i = 0; i < count; ++i) {
      ema[i] = ema[i] * keep + weight[i] * take;
    }
  }

  [[gnu::always_inline]] static void round(int64_t count, const float* __restrict__ weight,
                                           DType type, uint16_t* __restrict__ out) {
    if (type == DType::kBF16) {
      for (int64_t i = 0; i < count; ++i) {
        out[i] = float_to_bf16(weight[i]);
      }
    } else {
      for (int64_t i = 0; i < count; ++i) {
        out[i] = float_to_f16(weight[i]);
      }
    }
  }
};

}  // namespace

void update_weights(const UpdateBuffers& buffers, const UpdateParameters& parameters,
                    const StepControl& control, int64_t begin, int64_t end) {
  if (control.skip != 0) {
    std::fill(buffers.grad + begin, buffers.grad + end, 0.0F);
    return;
  }
  const UpdateScalars scalars = update_scalars(parameters, control, buffers.lr_factor);
  switch (parameters.rule) {
    case UpdateRule::kAdamW:
      return run_simd<UpdateBody<UpdateRule::kAdamW>>(buffers, scalars, parameters.num_emas, begin,
                                                      end);
    case UpdateRule::kLion:
      return run_simd<UpdateBody<UpdateRule::kLion>>(buffers, scalars, parameters.num_emas, begin,
                                                     end);
    case UpdateRule::kSgd:
      return run_simd<UpdateBody<UpdateRule::kSgd>>(buffers, scalars, parameters.num_emas, begin,
                                                    end);
  }
}

int64_t number_chunks(std::span<UpdateBucket> buckets) {
  const auto is_aligned = [](const void* pointer, uintptr_t bytes) {
    return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;  // null is aligned
  };
  int64_t chunks = 0;
  for (UpdateBucket& bucket : buckets) {
    const UpdateBuffers& buffers = bucket.buffers;
    bool aligned = is_aligned(buffers.compute, 8);
    for (const float* array : {buffers.master, buffers.grad, buffers.exp_avg, buffers.exp_avg_sq}) {
      aligned = aligned && is_aligned(array, 16);
    }
    for (const float* array : buffers.ema) {
      aligned = aligned && is_aligned(array, 16);
    }
    bucket.first_chunk = chunks;
    bucket.aligned = aligned ? 1 : 0;
    chunks += (bucket.count + kBucketChunk - 1) / kBucketChunk;
  }
  return chunks;
}

}  // namespace kinora::kernels
