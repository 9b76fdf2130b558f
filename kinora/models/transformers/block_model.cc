#include "kinora/models/transformers/block_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_zero.h>

#include <algorithm>
#include <map>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/ops/block_kernels.h"

namespace kinora::models {

BlockModel::BlockModel(const ModelConfig& config) : Model(config) {}

void BlockModel::to_device(const at::Device& device) {
  for (const auto& [path, buffer] : named_buffers()) {
    *buffer = buffer->to(device);
  }
}

void BlockModel::set_buckets(std::vector<nn::BucketSpec> buckets) {
  std::map<std::string, const nn::Parameter*> by_path;
  for (const auto& [path, parameter] : named_parameters()) {
    by_path[path] = parameter;
  }
  buckets_ = std::move(buckets);
  first_block_ = std::ranges::find_if(buckets_, &nn::BucketSpec::is_block) - buckets_.begin();
  parameters_.clear();
  for (const nn::BucketSpec& bucket : buckets_) {
    std::vector<const nn::Parameter*>& parameters = parameters_.emplace_back();
    for (const std::string& path : bucket.parameters) {
      parameters.push_back(by_path.at(path));
    }
  }
}

int64_t BlockModel::num_fast_linears() const {
  int64_t linears = 0;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    for (const nn::Parameter* parameter : parameters_[i]) {
      linears += !buckets_[i].ring.empty() && parameter->shape.size() == 2 ? 1 : 0;
    }
  }
  return linears;
}

void BlockModel::use_fast_path(std::shared_ptr<ops::BlockKernels> kernels, ops::Recompute level) {
  KINORA_CHECK(kernels == nullptr || kernels->fp8() == nullptr, kConfig, "[model] ", config().name,
               " does not compute in fp8. Hint: train.fp8=false");
  kernels_ = std::move(kernels);
  recomputes_blocks_ = level == ops::Recompute::kBlock;
  if (kernels_ != nullptr) {
    kernels_->set_recompute(recomputes_blocks_ ? ops::Recompute::kNone : level);
  }
  set_kernels(kernels_.get());
}

ops::BucketHook BlockModel::start(const diffusion::Pass& pass) const {
  if (!may_overwrite() || !pass.overwrite || kernels() == nullptr) {
    return hook();
  }
  // What is no ring's bucket adds up over a step, also where blocks' gradients do not.
  for (size_t i = 0; pass.starts_step && i < buckets_.size(); ++i) {
    if (buckets_[i].ring.empty() && !buckets_[i].fp32_island) {
      zero_gradients(i);
    }
  }
  return [this, tell = hook()](ops::BucketMoment moment, int64_t bucket) {
    if (tell) {
      tell(moment, bucket);
    }
    if (moment == ops::BucketMoment::kBeforeBackward) {  // the block then adds its own
      zero_gradients(static_cast<size_t>(bucket));
    }
  };
}

void BlockModel::zero_gradients(size_t bucket) const {
  std::vector<at::Tensor> gradients;
  for (const nn::Parameter* parameter : parameters_[bucket]) {
    if (parameter->grad.defined()) {
      gradients.push_back(parameter->grad);
    }
  }
  if (!gradients.empty()) {
    const at::NoGradGuard no_grad;
    at::_foreach_zero_(gradients);
  }
}

at::Tensor BlockModel::as_stream(const at::Tensor& x) const {
  if (kernels() == nullptr) {
    return x;
  }
  for (size_t i = 0; i < buckets_.size(); ++i) {
    if (!buckets_[i].ring.empty()) {
      return x.to(parameters_[i].front()->value.scalar_type());
    }
  }
  return x;
}

}  // namespace kinora::models
