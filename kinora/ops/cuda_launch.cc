#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include "kinora/ops/cuda_launch.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "kinora/core/cuda.h"
#include "kinora/device/dry_run.h"
#include "kinora/kernels/cuda/factored.h"
#include "kinora/kernels/cuda/optimizer.h"
#include "kinora/kernels/cuda/random.h"
#include "kinora/kernels/cuda/weight_codes.h"
#include "kinora/ops/optimizer_step.h"

namespace kinora::ops::cuda {
namespace {

kernels::StepControl* device_control(const at::Tensor& control) {
  return reinterpret_cast<kernels::StepControl*>(control.data_ptr<uint8_t>());
}

kernels::cuda::BucketTable launch_table(const BucketTable& table) {
  return {.buckets = reinterpret_cast<const kernels::UpdateBucket*>(
              table.device_table().const_data_ptr<uint8_t>()),
          .num_buckets = static_cast<int32_t>(table.buckets().size()),
          .num_chunks = table.num_chunks()};
}

}  // namespace

bool available() {
  return kernels::cuda::has_cuda_kernels();
}

void random_fill(const at::Tensor& out, int64_t rows, const at::Tensor& sample_index,
                 const at::Tensor& seed, const RandomStream& stream, const at::Tensor& step,
                 int64_t first_element, kernels::Distribution distribution, float scale) {
  if (device::in_dry_run()) {
    return;
  }
  const c10::cuda::CUDAGuard guard(out.device());
  const int64_t row_size = rows == 0 ? 0 : out.numel() / rows;
  KINORA_CUDA_CHECK(kernels::cuda::random_fill(
      out.data_ptr<float>(), rows, row_size,
      sample_index.defined() ? sample_index.const_data_ptr<int64_t>() : nullptr,
      seed.defined() ? seed.const_data_ptr<int64_t>() : nullptr, stream,
      step.defined() ? step.const_data_ptr<int64_t>() : nullptr,
      static_cast<uint64_t>(first_element), distribution, scale,
      c10::cuda::getCurrentCUDAStream()));
}

at::Tensor sum_squares_workspace(const BucketTable& table) {
  const auto bytes = kernels::cuda::sum_squares_workspace_bytes(table.num_chunks());
  return at::empty({static_cast<int64_t>(bytes)}, table.device_table().options());
}

void add_sum_squares(const BucketTable& table, const at::Tensor& control) {
  const c10::cuda::CUDAGuard guard(control.device());
  KINORA_CUDA_CHECK(kernels::cuda::sum_squares(launch_table(table), table.workspace().data_ptr(),
                                               device_control(control),
                                               c10::cuda::getCurrentCUDAStream()));
}

void prepare_update(const at::Tensor& control, const kernels::UpdatePolicy& policy,
                    const kernels::StepExchange* exchange) {
  const c10::cuda::CUDAGuard guard(control.device());
  KINORA_CUDA_CHECK(kernels::cuda::prepare_update(device_control(control), policy, exchange,
                                                  c10::cuda::getCurrentCUDAStream()));
}

void conclude_update(const at::Tensor& control) {
  const c10::cuda::CUDAGuard guard(control.device());
  KINORA_CUDA_CHECK(
      kernels::cuda::conclude_update(device_control(control), c10::cuda::getCurrentCUDAStream()));
}

void make_directions(const BucketTable& table, const kernels::UpdateParameters& parameters,
                     const at::Tensor& control) {
  const c10::cuda::CUDAGuard guard(control.device());
  KINORA_CUDA_CHECK(kernels::cuda::make_directions(
      launch_table(table), parameters, device_control(control), c10::cuda::getCurrentCUDAStream()));
}

void adapt_distance(const at::Tensor& control, const kernels::UpdatePolicy& policy) {
  const c10::cuda::CUDAGuard guard(control.device());
  KINORA_CUDA_CHECK(kernels::cuda::adapt_distance(device_control(control), policy,
                                                  c10::cuda::getCurrentCUDAStream()));
}

void update_weights(const BucketTable& table, const kernels::UpdateParameters& parameters,
                    const at::Tensor& control) {
  const c10::cuda::CUDAGuard guard(control.device());
  KINORA_CUDA_CHECK(kernels::cuda::update_weights(
      launch_table(table), parameters, device_control(control), c10::cuda::getCurrentCUDAStream()));
}

void update_and_add_squares(const BucketTable& table, const kernels::UpdateParameters& parameters,
                            const at::Tensor& control) {
  const c10::cuda::CUDAGuard guard(control.device());
  KINORA_CUDA_CHECK(kernels::cuda::update_and_add_squares(
      launch_table(table), parameters, table.workspace().data_ptr(), device_control(control),
      c10::cuda::getCurrentCUDAStream()));
}

void run_pass(kernels::FactoredPass pass, const kernels::FactoredTable& table,
              const kernels::FactoredRule& rule, const at::Tensor& control) {
  const c10::cuda::CUDAGuard guard(control.device());
  KINORA_CUDA_CHECK(kernels::cuda::run_pass(pass, table, rule, device_control(control),
                                            c10::cuda::getCurrentCUDAStream()));
}

void publish_report(const at::Tensor& control, const at::Tensor& loss,
                    kernels::StepExchange* exchange) {
  const c10::cuda::CUDAGuard guard(control.device());
  KINORA_CUDA_CHECK(kernels::cuda::publish_report(
      device_control(control), loss.defined() ? loss.const_data_ptr<float>() : nullptr, exchange,
      c10::cuda::getCurrentCUDAStream()));
}

void check_device(at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  const cudaError_t error = cudaStreamQuery(c10::cuda::getCurrentCUDAStream());
  if (error == cudaErrorNotReady) {
    (void)cudaGetLastError();  // else the next launch would report it
  } else {
    KINORA_CUDA_CHECK(error);
  }
}

void round_to(const at::Tensor& in, DType type, const at::Tensor& out) {
  if (device::in_dry_run()) {
    return;
  }
  const c10::cuda::CUDAGuard guard(in.device());
  KINORA_CUDA_CHECK(kernels::cuda::cast(in.const_data_ptr<float>(), in.numel(), type,
                                        out.data_ptr(), c10::cuda::getCurrentCUDAStream()));
}

void dequantise_weight(const kernels::WeightCodes& call, DType type, const at::Tensor& out) {
  const c10::cuda::CUDAGuard guard(out.device());
  const int64_t width = out.size(-1);
  const int64_t gap = out.is_contiguous() ? 0 : out.stride(0) - width;
  KINORA_CUDA_CHECK(kernels::cuda::dequantise_weight(call, type, out.data_ptr(), width, gap,
                                                     c10::cuda::getCurrentCUDAStream()));
}

}  // namespace kinora::ops::cuda
