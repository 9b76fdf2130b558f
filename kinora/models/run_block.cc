#include "kinora/models/run_block.h"

#include <utility>

#include "kinora/ops/recompute.h"

namespace kinora::models {

std::vector<at::Tensor> run_block(
    const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>& body,
    std::vector<at::Tensor> streams, const std::vector<at::Tensor>& shared, bool recompute,
    const ops::BucketHook& hook, int64_t bucket) {
  using Moment = ops::BucketMoment;
  if (hook) {
    hook(Moment::kBeforeForward, bucket);
    streams = ops::on_backward(std::move(streams),
                               [hook, bucket] { hook(Moment::kAfterBackward, bucket); });
  }
  std::vector<at::Tensor> inputs = std::move(streams);
  inputs.insert(inputs.end(), shared.begin(), shared.end());
  std::vector<at::Tensor> results = recompute ? ops::recompute(body, inputs) : body(inputs);
  if (hook) {
    hook(Moment::kAfterForward, bucket);
    results = ops::on_backward(std::move(results),
                               [hook, bucket] { hook(Moment::kBeforeBackward, bucket); });
  }
  return results;
}

at::Tensor run_block(const std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>& body,
                     const std::vector<at::Tensor>& inputs, bool recompute,
                     const ops::BucketHook& hook, int64_t bucket) {
  return run_block([body](const std::vector<at::Tensor>& in) { return std::vector{body(in)}; },
                   {inputs.front()}, {inputs.begin() + 1, inputs.end()}, recompute, hook, bucket)
      .front();
}

}  // namespace kinora::models
