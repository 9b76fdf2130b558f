#include "kinora/inference/compare.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/inference/conditions.h"

namespace kinora::inference {
namespace {

/// A module's path and its output, float32 on the CPU.
using Output = std::pair<std::string, at::Tensor>;

at::Tensor forward(TrainedModel& model, const ComparedInput& input) {
  return model.model
      ->forward(input.batch.x_t.to(model.device), input.batch.t.to(model.device),
                to_device(input.conditions, model.device))
      .to(at::kCPU);
}

std::vector<Output> all_outputs(TrainedModel& model, const ComparedInput& input) {
  std::vector<Output> outputs;
  model.model->set_tap([&outputs](const std::string& path, const at::Tensor& output) {
    outputs.emplace_back(path, output.detach().to(at::kCPU, at::kFloat));
    return output;
  });
  struct RemoveTap {
    nn::Module& model;
    ~RemoveTap() { model.set_tap({}); }
  } remove_tap{*model.model};
  (void)forward(model, input);
  return outputs;
}

/// Outputs by path and how often the module was called before.
std::map<std::pair<std::string, int64_t>, at::Tensor> by_call(const std::vector<Output>& outputs) {
  std::map<std::string, int64_t> calls;
  std::map<std::pair<std::string, int64_t>, at::Tensor> result;
  for (const auto& [path, output] : outputs) {
    result.emplace(std::pair(path, calls[path]++), output);
  }
  return result;
}

}  // namespace

OutputDifference difference(const at::Tensor& a, const at::Tensor& b) {
  KINORA_CHECK(a.sizes() == b.sizes(), kShape, "[compare] outputs must have one shape, got ",
               a.sizes(), " and ", b.sizes());
  const at::Tensor left = a.flatten().to(at::kDouble);
  const at::Tensor right = b.flatten().to(at::kDouble);
  OutputDifference result{.module = {}};
  if (!at::isfinite(left).all().item<bool>() || !at::isfinite(right).all().item<bool>()) {
    const bool is_same = a.to(at::kDouble).equal(b.to(at::kDouble));
    result.cosine = is_same ? 1.0 : 0.0;
    result.largest = is_same ? 0.0 : std::numeric_limits<double>::infinity();
    result.relative_error = result.largest;
    return result;
  }
  if (left.numel() == 0) {
    return result;
  }
  const double left_norm = at::linalg_vector_norm(left).item<double>();
  const double right_norm = at::linalg_vector_norm(right).item<double>();
  const double error = at::linalg_vector_norm(right.sub(left)).item<double>();
  result.largest = (right.sub(left)).abs().max().item<double>();
  if (left_norm > 0.0) {
    result.relative_error = error / left_norm;
  } else if (error > 0.0) {
    result.relative_error = std::numeric_limits<double>::infinity();
  }
  if (left_norm > 0.0 && right_norm > 0.0) {
    result.cosine = left.dot(right).item<double>() / (left_norm * right_norm);
  } else if (left_norm != right_norm) {
    result.cosine = 0.0;
  }
  return result;
}

const OutputDifference* Comparison::first_above(double threshold) const {
  const auto found = std::find_if(modules.begin(), modules.end(), [&](const auto& output) {
    return !(output.relative_error <= threshold);
  });
  return found == modules.end() ? nullptr : &*found;
}

Comparison compare(TrainedModel& a, TrainedModel& b, const ComparedInput& input) {
  at::NoGradGuard no_grad;
  Comparison result;
  result.prediction = difference(forward(a, input), forward(b, input));
  const std::vector<Output> left = all_outputs(a, input);
  auto right = by_call(all_outputs(b, input));
  std::map<std::string, int64_t> calls;
  for (const auto& [path, output] : left) {
    const auto found = right.find({path, calls[path]++});
    if (found == right.end() || found->second.sizes() != output.sizes()) {
      result.only_in_a.push_back(path);
      continue;
    }
    result.modules.push_back(difference(output, found->second));
    result.modules.back().module = path;
    right.erase(found);
  }
  for (const auto& [call, output] : right) {
    result.only_in_b.push_back(call.first);
  }
  return result;
}

}  // namespace kinora::inference
