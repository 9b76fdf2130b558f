#include "kinora/kernels/optimizer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <initializer_list>

#include "kinora/core/rounding.h"
#include "kinora/kernels/block_codes.h"
#include "kinora/kernels/cast.h"
#include "kinora/kernels/code_cells.h"
#include "kinora/kernels/simd.h"

namespace kinora::kernels {
namespace {

// Elements that go through all loops before the next ones. Of fp32 states so few that the next ones
// are loaded meanwhile; of others what they are decoded to stays in the first-level cache.
constexpr int64_t kStride = 64;
constexpr int64_t kBlock = 1024;

[[gnu::always_inline]] inline void widen(int64_t count, const uint16_t* __restrict__ in,
                                         float* __restrict__ out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = widen_bf16(in[i]);
  }
}

template <UpdateRule kRule>
struct UpdateBody {
  [[gnu::always_inline]] static void run(const UpdateBuffers& buffers, const UpdateScalars& scalars,
                                         const RandomStream& rounding, int num_emas, int64_t begin,
                                         int64_t end) {
    if (buffers.master != nullptr && buffers.coded_avg.codes == nullptr) {
      int64_t start = begin;
      for (; start + kStride <= end; start += kStride) {
        update_plain(buffers, scalars, num_emas, start, kStride);
      }
      update_plain(buffers, scalars, num_emas, start, end - start);
    } else {
      for (int64_t start = begin; start < end; start += kBlock) {
        update_blocks(buffers, scalars, rounding, num_emas, start, std::min(kBlock, end - start));
      }
    }
    finish_streaming();
  }

 private:
  static constexpr bool kHasMean = kRule == UpdateRule::kScheduleFree;

  [[gnu::always_inline]] static void update_plain(const UpdateBuffers& buffers,
                                                  const UpdateScalars& scalars, int num_emas,
                                                  int64_t start, int64_t count) {
    float* weight = buffers.master + start;
    update(scalars, count, buffers.leaves_grad, buffers.grad + start, weight,
           reads_first_moment(kRule) ? buffers.exp_avg + start : nullptr,
           has_second_moment(kRule) ? buffers.exp_avg_sq + start : nullptr,
           kHasMean ? buffers.base + start : nullptr, kHasMean ? buffers.ema[0] + start : nullptr);
    finish(buffers, scalars, num_emas, start, count, weight);
  }

  [[gnu::always_inline]] static void update_blocks(const UpdateBuffers& buffers,
                                                   const UpdateScalars& scalars,
                                                   const RandomStream& rounding, int num_emas,
                                                   int64_t start, int64_t count) {
    float weights[kBlock];  // of what is not kept in fp32
    float moments[kBlock];
    float squares[kBlock];
    auto* compute = static_cast<uint16_t*>(buffers.compute);
    float* weight = weights;
    if (buffers.master != nullptr) {
      weight = buffers.master + start;
    } else {
      widen(count, compute + start, weights);
    }
    const bool coded = buffers.coded_avg.codes != nullptr;
    float* first = moments;
    float* second = squares;
    if (coded) {
      decode(buffers.coded_avg, kSignedCodes, start, count, moments);
    } else if (reads_first_moment(kRule)) {
      first = buffers.exp_avg + start;
    }
    if (has_second_moment(kRule)) {
      if (coded) {
        decode(buffers.coded_avg_sq, kUnsignedCodes, start, count, squares);
      } else {
        second = buffers.exp_avg_sq + start;
      }
    }
    update(scalars, count, buffers.leaves_grad, buffers.grad + start, weight, first, second,
           kHasMean ? buffers.base + start : nullptr, kHasMean ? buffers.ema[0] + start : nullptr);
    if (coded) {
      encode(buffers.coded_avg, kSignedCells, start, count, moments);
      if (has_second_moment(kRule)) {
        encode(buffers.coded_avg_sq, kUnsignedCells, start, count, squares);
      }
    }
    if (buffers.master == nullptr) {
      round_weights(rounding, buffers.place + start, count, weights, compute + start);
    }
    finish(buffers, scalars, num_emas, start, count, weight);
  }

  /// What follows the new weights.
  [[gnu::always_inline]] static void finish(const UpdateBuffers& buffers,
                                            const UpdateScalars& scalars, int num_emas,
                                            int64_t start, int64_t count, const float* weight) {
    for (int k = first_ema(kRule); k < num_emas; ++k) {
      average(scalars.ema_keep[k], scalars.ema_take[k], count, weight, buffers.ema[k] + start);
    }
    if (buffers.compute != nullptr && buffers.master != nullptr) {
      auto* compute = static_cast<uint16_t*>(buffers.compute);
      for (int64_t i = 0; i < count; i += kStride) {
        round(std::min(kStride, count - i), weight + i, buffers.compute_type, compute + start + i);
      }
    }
  }

  [[gnu::always_inline]] static void update(const UpdateScalars& scalars, int64_t count,
                                            bool leaves_grad, float* __restrict__ grad,
                                            float* __restrict__ weight, float* __restrict__ exp_avg,
                                            float* __restrict__ exp_avg_sq,
                                            float* __restrict__ base, float* __restrict__ mean) {
    const UpdateScalars constants = scalars;  // no aliasing with the arrays
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) {
      update_element<kRule>(constants, grad[i], weight + i,
                            reads_first_moment(kRule) ? exp_avg + i : nullptr,
                            has_second_moment(kRule) ? exp_avg_sq + i : nullptr,
                            kHasMean ? base + i : nullptr, kHasMean ? mean + i : nullptr);
    }
    if (!leaves_grad) {
      std::fill(grad, grad + count, 0.0F);
    }
  }

  [[gnu::always_inline]] static void decode(const CodedMoment& moment, const CodeMap& map,
                                            int64_t start, int64_t count,
                                            float* __restrict__ values) {
    for (int64_t block = 0; block < count; block += kCodeBlock) {
      const float scale = moment.scales[(start + block) / kCodeBlock];
      const uint8_t* __restrict__ codes = moment.codes + start + block;
      for (int64_t i = 0; i < kCodeBlock; ++i) {
        values[block + i] = map.value[codes[i]] * scale;
      }
    }
  }

  [[gnu::always_inline]] static void encode(const CodedMoment& moment, const CodeCells& cells,
                                            int64_t start, int64_t count,
                                            const float* __restrict__ values) {
    for (int64_t block = 0; block < count; block += kCodeBlock) {
      const float scale = largest_magnitude(values + block);
      moment.scales[(start + block) / kCodeBlock] = scale;
      cells.codes_of(values + block, code_multiplier(scale), moment.codes + start + block);
    }
  }

  /// Of a block, but for NaN. By integers, whose largest is found side by side.
  [[gnu::always_inline]] static float largest_magnitude(const float* __restrict__ values) {
    constexpr int32_t kInfinity = 0x7f800000;
    int32_t magnitudes[kCodeBlock];
    for (int64_t i = 0; i < kCodeBlock; ++i) {
      std::memcpy(&magnitudes[i], values + i, sizeof(float));
      magnitudes[i] &= 0x7fffffff;
    }
    int32_t largest = 0;
    for (int64_t i = 0; i < kCodeBlock; ++i) {
      const int32_t known = magnitudes[i] <= kInfinity ? magnitudes[i] : 0;
      largest = known > largest ? known : largest;
    }
    return std::bit_cast<float>(largest);
  }

  /// weight: in; what was stored afterwards.
  [[gnu::always_inline]] static void round_weights(const RandomStream& stream, int64_t place,
                                                   int64_t count, float* __restrict__ weight,
                                                   uint16_t* __restrict__ out) {
    constexpr int64_t kGroups = kCodeBlock / 4;
    for (int64_t start = 0; start < count; start += kCodeBlock) {
      const auto first = static_cast<uint32_t>((place + start) / 4);
      uint32_t words[kCodeBlock];
#pragma GCC ivdep
      for (int64_t i = 0; i < kGroups; ++i) {
        const PhiloxBlock random = philox(stream, first + static_cast<uint32_t>(i));
        words[4 * i] = random.word[0];
        words[4 * i + 1] = random.word[1];
        words[4 * i + 2] = random.word[2];
        words[4 * i + 3] = random.word[3];
      }
#pragma GCC ivdep
      for (int64_t i = 0; i < kCodeBlock; ++i) {
        out[start + i] = round_stochastically(weight[start + i], words[i]);
        weight[start + i] = widen_bf16(out[start + i]);
      }
    }
  }

  [[gnu::always_inline]] static void average(float keep, float take, int64_t count,
                                             const float* __restrict__ weight,
                                             float* __restrict__ ema) {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) {
      ema[i] = ema[i] * keep + weight[i] * take;
    }
  }

  [[gnu::always_inline]] static void round(int64_t count, const float* __restrict__ weight,
                                           DType type, uint16_t* __restrict__ out) {
    alignas(64) uint16_t rounded[kStride];
    if (type == DType::kBF16) {
#pragma GCC ivdep
      for (int64_t i = 0; i < count; ++i) {
        rounded[i] = float_to_bf16(weight[i]);
      }
    } else {
#pragma GCC ivdep
      for (int64_t i = 0; i < count; ++i) {
        rounded[i] = float_to_f16(weight[i]);
      }
    }
    stream(rounded, count, out);
  }
};

template <UpdateRule kRule>
struct DirectionBody {
  [[gnu::always_inline]] static void run(const UpdateBuffers& buffers, const UpdateScalars& scalars,
                                         int64_t begin, int64_t end) {
    float weights[kBlock];  // of what is not kept in fp32
    for (int64_t start = begin; start < end; start += kBlock) {
      const int64_t count = std::min(kBlock, end - start);
      const float* weight = weights;
      if (buffers.master != nullptr) {
        weight = buffers.master + start;
      } else if (directs_by_weights(kRule)) {
        widen(count, static_cast<const uint16_t*>(buffers.compute) + start, weights);
      }
      constexpr bool kIsProdigy = kRule == UpdateRule::kProdigy;
      direct(scalars, count, weight, kIsProdigy ? buffers.base + start : nullptr,
             buffers.grad + start, buffers.exp_avg + start,
             has_second_moment(kRule) ? buffers.exp_avg_sq + start : nullptr,
             kIsProdigy ? buffers.grad_sum + start : nullptr);
    }
  }

 private:
  [[gnu::always_inline]] static void direct(const UpdateScalars& scalars, int64_t count,
                                            const float* __restrict__ weight,
                                            const float* __restrict__ base,
                                            float* __restrict__ grad, float* __restrict__ exp_avg,
                                            float* __restrict__ exp_avg_sq,
                                            float* __restrict__ grad_sum) {
    const UpdateScalars constants = scalars;  // no aliasing with the arrays
    constexpr bool kIsProdigy = kRule == UpdateRule::kProdigy;
    for (int64_t i = 0; i < count; ++i) {
      direct_element<kRule>(constants, weight[i], kIsProdigy ? base[i] : 0.0F, grad + i,
                            exp_avg + i, has_second_moment(kRule) ? exp_avg_sq + i : nullptr,
                            kIsProdigy ? grad_sum + i : nullptr);
    }
  }
};

}  // namespace

void make_directions(const UpdateBuffers& buffers, const UpdateParameters& parameters,
                     const StepControl& control, int64_t begin, int64_t end) {
  make_directions(buffers, parameters, control, begin, end, best_instruction_set());
}

void make_directions(const UpdateBuffers& buffers, const UpdateParameters& parameters,
                     const StepControl& control, int64_t begin, int64_t end, InstructionSet set) {
  if (control.skip != 0) {
    return;
  }
  const UpdateScalars scalars = update_scalars(parameters, control, buffers.lr_factor);
  const auto run = [&]<UpdateRule kRule> {
    run_simd_by<DirectionBody<kRule>>(set, buffers, scalars, begin, end);
  };
  switch (parameters.rule) {
    case UpdateRule::kMuon:
      return run.template operator()<UpdateRule::kMuon>();
    case UpdateRule::kLamb:
      return run.template operator()<UpdateRule::kLamb>();
    case UpdateRule::kProdigy:
      return run.template operator()<UpdateRule::kProdigy>();
    default:
      return;  // the rule has one pass
  }
}

void update_weights(const UpdateBuffers& buffers, const UpdateParameters& parameters,
                    const StepControl& control, int64_t begin, int64_t end) {
  update_weights(buffers, parameters, control, begin, end, best_instruction_set());
}

void update_weights(const UpdateBuffers& buffers, const UpdateParameters& parameters,
                    const StepControl& control, int64_t begin, int64_t end, InstructionSet set) {
  if (control.skip != 0) {
    if (!buffers.leaves_grad) {
      std::fill(buffers.grad + begin, buffers.grad + end, 0.0F);
    }
    return;
  }
  const UpdateScalars scalars = update_scalars(parameters, control, buffers.lr_factor);
  const RandomStream rounding = rounding_stream(parameters, control, buffers.rounding);
  const auto run = [&]<UpdateRule kRule> {
    run_simd_by<UpdateBody<kRule>>(set, buffers, scalars, rounding, parameters.num_emas, begin,
                                   end);
  };
  switch (parameters.rule) {
    case UpdateRule::kAdamW:
      return run.template operator()<UpdateRule::kAdamW>();
    case UpdateRule::kLion:
      return run.template operator()<UpdateRule::kLion>();
    case UpdateRule::kSgd:
      return run.template operator()<UpdateRule::kSgd>();
    case UpdateRule::kProdigy:
      return run.template operator()<UpdateRule::kProdigy>();
    case UpdateRule::kScheduleFree:
      return run.template operator()<UpdateRule::kScheduleFree>();
    case UpdateRule::kMuon:
    case UpdateRule::kAdafactor:
    case UpdateRule::kCame:
    case UpdateRule::kLamb:
      return run.template operator()<UpdateRule::kMuon>();
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
    for (const float* array :
         std::initializer_list<const float*>{buffers.master, buffers.grad, buffers.exp_avg,
                                             buffers.exp_avg_sq, buffers.base, buffers.grad_sum}) {
      aligned = aligned && is_aligned(array, 16);
    }
    for (const float* array : buffers.ema) {
      aligned = aligned && is_aligned(array, 16);
    }
    bucket.first_chunk = chunks;
    bucket.aligned = aligned ? 1 : 0;
    chunks += ceil_div(bucket.count, kBucketChunk);
  }
  return chunks;
}

}  // namespace kinora::kernels
