#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include "kinora/ops/random.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "kinora/core/error.h"
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

/// Rows of a contiguous CPU array; `sample_index` null: the samples are stream.sample.
void fill_on_cpu(float* out, int64_t rows, int64_t row_size, const int64_t* sample_index,
                 const RandomStream& stream, int64_t first_element, Distribution distribution,
                 float scale) {
  const int64_t chunks_per_row = (row_size + kRandomChunk - 1) / kRandomChunk;
  at::parallel_for(0, rows * chunks_per_row, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / chunks_per_row;
      const int64_t start = (i % chunks_per_row) * kRandomChunk;
      RandomStream row_stream = stream;
      if (sample_index != nullptr) {
        row_stream.sample = static_cast<uint64_t>(sample_index[row]);
      }
      kernels::random_fill(out + row * row_size + start, std::min(kRandomChunk, row_size - start),
                           row_stream, static_cast<uint64_t>(first_element + start), distribution,
                           scale);
    }
  });
}

at::Tensor random_rows(at::IntArrayRef shape, const at::Tensor& sample_index, RandomStream stream,
                       const RandomStep& step, Distribution distribution, at::Device device) {
  KINORA_CHECK(!shape.empty(), kShape, "[random] shape must be [B, ...], got no dims");
  KINORA_CHECK(sample_index.scalar_type() == at::kLong && sample_index.dim() == 1 &&
                   sample_index.size(0) == shape[0],
               kShape, "[random] sample_index must be int64 [", shape[0], "], got ",
               sample_index.scalar_type(), " ", sample_index.sizes());
  at::Tensor out = at::empty(shape, at::TensorOptions().dtype(at::kFloat).device(device));
  if (out.numel() == 0 || device.is_meta()) {
    return out;
  }
  const int64_t rows = shape[0];
  const int64_t row_size = out.numel() / rows;
  check_stream_length(0, row_size);
  stream.step = step.value;
  if (device.is_cpu() || !cuda::available()) {
    if (step.on_device.defined()) {
      stream.step = static_cast<uint32_t>(step.on_device.item<int64_t>());
    }
    const at::Tensor index = sample_index.to(at::kCPU).contiguous();
    at::Tensor host = device.is_cpu() ? out : at::empty(shape, at::TensorOptions(at::kFloat));
    fill_on_cpu(host.data_ptr<float>(), rows, row_size, index.const_data_ptr<int64_t>(), stream, 0,
                distribution, 1.0F);
    if (!device.is_cpu()) {
      out.copy_(host);
    }
    return out;
  }
  const at::Tensor index =
      sample_index.to(out.device(), sample_index.scalar_type(), /*non_blocking=*/true).contiguous();
  cuda::random_fill(out, rows, index, stream, step.on_device, 0, distribution, 1.0F);
  return out;
}

}  // namespace

at::Tensor random_normal(at::IntArrayRef shape, const at::Tensor& sample_index, uint64_t seed,
                         const RandomStep& step, RandomPurpose purpose, at::Device device) {
  return random_rows(shape, sample_index, {seed, 0, 0, purpose}, step, Distribution::kNormal,
                     device);
}

at::Tensor random_uniform(at::IntArrayRef shape, const at::Tensor& sample_index, uint64_t seed,
                          const RandomStep& step, RandomPurpose purpose, at::Device device) {
  return random_rows(shape, sample_index, {seed, 0, 0, purpose}, step, Distribution::kUniform,
                     device);
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
    fill_on_cpu(out.data_ptr<float>(), 1, count, nullptr, stream, first_element, distribution,
                scale_fp32);
  } else if (cuda::available()) {
    cuda::random_fill(out, 1, at::Tensor(), stream, at::Tensor(), first_element, distribution,
                      scale_fp32);
  } else {
    const at::Tensor host = at::empty(out.sizes(), at::TensorOptions(at::kFloat));
    fill_on_cpu(host.data_ptr<float>(), 1, count, nullptr, stream, first_element, distribution,
                scale_fp32);
    out.copy_(host);
  }
}

}  // namespace kinora::ops
