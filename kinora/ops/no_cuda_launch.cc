#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include "kinora/core/error.h"
#include "kinora/ops/cuda_launch.h"

namespace kinora::ops::cuda {
namespace {

[[noreturn]] void no_kernels() {
  KINORA_UNREACHABLE("[ops] a CPU-only build was asked to launch a CUDA kernel");
}

}  // namespace

bool available() {
  return false;
}

void random_fill(const at::Tensor& /*out*/, int64_t /*rows*/, const at::Tensor& /*sample_index*/,
                 const at::Tensor& /*seed*/, const RandomStream& /*stream*/,
                 const at::Tensor& /*step*/, int64_t /*first_element*/,
                 kernels::Distribution /*distribution*/, float /*scale*/) {
  no_kernels();
}

at::Tensor sum_squares_workspace(const BucketTable& /*table*/) {
  no_kernels();
}

void add_sum_squares(const BucketTable& /*table*/, const at::Tensor& /*control*/) {
  no_kernels();
}

void prepare_update(const at::Tensor& /*control*/, const kernels::UpdatePolicy& /*policy*/,
                    const kernels::StepExchange* /*exchange*/) {
  no_kernels();
}

void conclude_update(const at::Tensor& /*control*/) {
  no_kernels();
}

void make_directions(const BucketTable& /*table*/, const kernels::UpdateParameters& /*parameters*/,
                     const at::Tensor& /*control*/) {
  no_kernels();
}

void adapt_distance(const at::Tensor& /*control*/, const kernels::UpdatePolicy& /*policy*/) {
  no_kernels();
}

void update_weights(const BucketTable& /*table*/, const kernels::UpdateParameters& /*parameters*/,
                    const at::Tensor& /*control*/) {
  no_kernels();
}

void update_and_add_squares(const BucketTable& /*table*/,
                            const kernels::UpdateParameters& /*parameters*/,
                            const at::Tensor& /*control*/) {
  no_kernels();
}

void run_pass(kernels::FactoredPass /*pass*/, const kernels::FactoredTable& /*table*/,
              const kernels::FactoredRule& /*rule*/, const at::Tensor& /*control*/) {
  no_kernels();
}

void publish_report(const at::Tensor& /*control*/, const at::Tensor& /*loss*/,
                    kernels::StepExchange* /*exchange*/) {
  no_kernels();
}

void check_device(at::Device /*device*/) {
  no_kernels();
}

void round_to(const at::Tensor& /*in*/, DType /*type*/, const at::Tensor& /*out*/) {
  no_kernels();
}

void dequantise_weight(const kernels::WeightCodes& /*call*/, DType /*type*/,
                       const at::Tensor& /*out*/) {
  no_kernels();
}

}  // namespace kinora::ops::cuda
