#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include "kinora/ops/random.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"
#include "kinora/ops/cuda_launch.h"

namespace kinora::ops {
namespace {

using kernels::Distribution;

constexpr int64_t kRandomChunk = 16384;  // elements that one thread makes at a time

void check_stream_length(int64_t first_element, int64_t count) {
  KINORA_CHECK(first_element >= 0 && static_cast<uint64_t>(count) <= kernels::kMaxStreamElements &&
                   static_cast<uint64_t>(first_element) <=
                       kernels::kMaxStreamElements - static_cast<uint64_t>(count),
               kShape, "[random] a stream has 2^34 elements, got elements ", first_element, " to ",
               first_element, " + ", count);
}

/// Rows of a contiguous CPU array; `sample_index` null: the samples are stream.sample; `seed`
/// likewise.
void fill_on_cpu(float* out, int64_t rows, int64_t row_size, const int64_t* sample_index,
                 const int64_t* seed, const RandomStream& stream, int64_t first_element,
                 Distribution distribution, float scale) {
  const int64_t chunks_per_row = ceil_div(row_size, kRandomChunk);
  at::parallel_for(0, rows * chunks_per_row, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / chunks_per_row;
      const int64_t start = (i % chunks_per_row) * kRandomChunk;
      RandomStream row_stream = stream;
      if (sample_index != nullptr) {
        row_stream.sample = static_cast<uint64_t>(sample_index[row]);
      }
      if (seed != nullptr) {
        row_stream.seed = static_cast<uint64_t>(seed[row]);
      }
      kernels::random_fill(out + row * row_size + start, std::min(kRandomChunk, row_size - start),
                           row_stream, static_cast<uint64_t>(first_element + start), distribution,
                           scale);
    }
  });
}

void check_row_numbers(const char* name, const at::Tensor& numbers, int64_t rows) {
  KINORA_CHECK(numbers.scalar_type() == at::kLong && numbers.dim() == 1 && numbers.size(0) == rows,
               kShape, "[random] ", name, " must be int64 [", rows, "], got ",
               numbers.scalar_type(), " ", numbers.sizes());
}

/// Contiguous on `device`; undefined ones stay so.
at::Tensor row_numbers_on(at::Device device, const at::Tensor& numbers, bool non_blocking) {
  return numbers.defined() ? numbers.to(device, at::kLong, non_blocking).contiguous() : numbers;
}

const int64_t* data_of(const at::Tensor& numbers) {
  return numbers.defined() ? numbers.const_data_ptr<int64_t>() : nullptr;
}

at::Tensor random_rows(at::IntArrayRef shape, const at::Tensor& sample_index,
                       const RandomSeed& seed, const RandomStep& step, RandomPurpose purpose,
                       Distribution distribution, at::Device device) {
  KINORA_CHECK(!shape.empty(), kShape, "[random] shape must be [B, ...], got no dims");
  check_row_numbers("sample_index", sample_index, shape[0]);
  if (seed.of_each.defined()) {
    check_row_numbers("seed", seed.of_each, shape[0]);
  }
  at::Tensor out = at::empty(shape, at::TensorOptions().dtype(at::kFloat).device(device));
  if (out.numel() == 0 || device.is_meta()) {
    return out;
  }
  const int64_t rows = shape[0];
  const int64_t row_size = out.numel() / rows;
  check_stream_length(0, row_size);
  RandomStream stream{seed.value, 0, step.value, purpose};
  if (device.is_cpu() || !cuda::available()) {
    if (step.on_device.defined()) {
      stream.step = static_cast<uint32_t>(step.on_device.item<int64_t>());
    }
    const at::Tensor index = row_numbers_on(at::kCPU, sample_index, /*non_blocking=*/false);
    const at::Tensor seeds = row_numbers_on(at::kCPU, seed.of_each, /*non_blocking=*/false);
    at::Tensor host = device.is_cpu() ? out : at::empty(shape, at::TensorOptions(at::kFloat));
    fill_on_cpu(host.data_ptr<float>(), rows, row_size, data_of(index), data_of(seeds), stream, 0,
                distribution, 1.0F);
    if (!device.is_cpu()) {
      out.copy_(host);
    }
    return out;
  }
  cuda::random_fill(out, rows, row_numbers_on(out.device(), sample_index, /*non_blocking=*/true),
                    row_numbers_on(out.device(), seed.of_each, /*non_blocking=*/true), stream,
                    step.on_device, 0, distribution, 1.0F);
  return out;
}

}  // namespace

at::Tensor random_normal(at::IntArrayRef shape, const at::Tensor& sample_index,
                         const RandomSeed& seed, const RandomStep& step, RandomPurpose purpose,
                         at::Device device) {
  return random_rows(shape, sample_index, seed, step, purpose, Distribution::kNormal, device);
}

at::Tensor random_uniform(at::IntArrayRef shape, const at::Tensor& sample_index,
                          const RandomSeed& seed, const RandomStep& step, RandomPurpose purpose,
                          at::Device device) {
  return random_rows(shape, sample_index, seed, step, purpose, Distribution::kUniform, device);
}

void random_fill(const at::Tensor& out, const RandomStream& stream, Distribution distribution,
                 double scale, int64_t first_element) {
  KINORA_CHECK(out.scalar_type() == at::kFloat && out.is_contiguous(), kShape,
               "[random] out must be contiguous fp32, got ", out.scalar_type(), " with strides ",
               out.strides());
  const int64_t count = out.numel();
  check_stream_length(first_element, count);
  if (count == 0 || out.is_meta()) {
    return;
  }
  const auto scale_fp32 = static_cast<float>(scale);
  if (out.device().is_cpu()) {
    fill_on_cpu(out.data_ptr<float>(), 1, count, nullptr, nullptr, stream, first_element,
                distribution, scale_fp32);
  } else if (cuda::available()) {
    cuda::random_fill(out, 1, at::Tensor(), at::Tensor(), stream, at::Tensor(), first_element,
                      distribution, scale_fp32);
  } else {
    const at::Tensor host = at::empty(out.sizes(), at::TensorOptions(at::kFloat));
    fill_on_cpu(host.data_ptr<float>(), 1, count, nullptr, nullptr, stream, first_element,
                distribution, scale_fp32);
    out.copy_(host);
  }
}

}  // namespace kinora::ops
