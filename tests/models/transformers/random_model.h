#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kinora/models/model.h"
#include "kinora/ops/parameter.h"
#include "kinora/optim/arena.h"
#include "tests/models/transformers/tuned.h"
#include "tests/ops/named_results.h"
#include "tests/ops/tensors.h"

namespace kinora::models {

/// A model whose weights are all random, those too that start at zero: behind a gate of zero
/// nothing would be compared. They are exact in bf16, so every type computes with the same numbers.
/// It takes training steps on any device, type and path, with everything that comes out of them by
/// name.
class RandomModel {
 public:
  /// The micro-batches of a step, each this batch, whose gradients add up; `wrap` may record them.
  void step(int64_t passes = 1,
            const std::function<void(const std::function<void()>&)>& wrap = {}) {
    model_->begin_step();
    const auto work = [&] {
      start_gradients();
      for (int64_t pass = 0; pass < passes; ++pass) {
        backward(forward(pass));
      }
    };
    if (wrap) {
      wrap(work);
    } else {
      work();
    }
  }

  /// A step of passes whose inputs differ. in_flight: every forward comes before the first
  /// backward; else each pass ends before the next.
  void step_of_unlike_passes(int64_t passes, bool in_flight) {
    model_->begin_step();
    start_gradients();
    std::vector<at::Tensor> outputs;
    for (int64_t pass = 0; pass < passes; ++pass) {
      outputs.push_back(forward(pass, 1.0 / static_cast<double>(pass + 1)));
      if (!in_flight) {
        backward(outputs.back());
      }
    }
    for (const at::Tensor& output : outputs) {
      if (in_flight) {
        backward(output);
      }
    }
  }

  /// Gradients of blocks need not be zero from now on, those of texts neither; what they hold now
  /// is wrong.
  void overwrite_gradients() {
    model_->overwrite_gradients();
    overwrites_ = true;
    for (const optim::Bucket& bucket : arena_.buckets()) {
      at::Tensor(bucket.grad).fill_(7.0);
    }
  }

  /// Copies of the last pass' output and of all gradients, these times `factor`.
  [[nodiscard]] ops::NamedResults results(double factor = 1.0) {
    ops::NamedResults results{{"output", output_.clone()}, {"gradient of x_t", x_grad_ * factor}};
    for (const auto& [path, parameter] : model_->named_parameters()) {
      if (!parameter->frozen) {
        results.push_back({path, parameter->grad * factor});
      }
    }
    return results;
  }

  [[nodiscard]] Model& model() { return *model_; }

 protected:
  /// What a parameter is filled with: normal numbers.
  struct Start {
    double mean = 0.0;
    double deviation = 1.0;
  };
  using StartOf = std::function<Start(const std::string& path, const std::vector<int64_t>& shape)>;
  /// Of a weight [out, in, ..] that keeps the size of what it is multiplied by.
  static double by_inputs(const std::vector<int64_t>& shape) {
    double inputs = 1.0;
    for (size_t i = 1; i < shape.size(); ++i) {
      inputs *= static_cast<double>(shape[i]);
    }
    return 1.0 / std::sqrt(inputs);
  }

  RandomModel(std::unique_ptr<Model> model, at::Device device, at::ScalarType type,
              const StartOf& start_of)
      : model_(std::move(model)),
        arena_(
            model_->named_parameters(), buckets_with_updates(model_->buckets(), *model_),
            {.device = device, .compute_type = type, .seed = 1, .train = true, .ema_decays = {}}) {
    model_->to_device(device);
    int64_t number = 0;
    for (const auto& [path, parameter] : model_->named_parameters()) {
      const Start start = start_of(path, parameter->shape);
      arena_.load_parameter(path,
                            (ops::normal(parameter->shape, number++) * start.deviation + start.mean)
                                .to(at::kBFloat16));
    }
  }
  ~RandomModel() = default;

  /// The first number of inputs: no parameter has it.
  static constexpr int64_t kInputs = 1000;

  /// What every step is given. weighting: of the output in the loss.
  void set_inputs(const at::Tensor& x_t, const at::Tensor& t, diffusion::Conditions conditions,
                  const at::Tensor& weighting) {
    x_t_ = at::Tensor(x_t).set_requires_grad(true);
    x_grad_ = at::zeros_like(x_t_);
    t_ = t;
    conditions_ = std::move(conditions);
    weighting_ = weighting;
  }

  [[nodiscard]] at::Tensor forward(int64_t pass, double scale = 1.0) {
    return model_->forward(ops::with_gradient(x_t_, x_grad_) * scale, t_, conditions_,
                           {.starts_step = pass == 0, .overwrite = pass == 0});
  }

  /// What it was given, for other passes.
  [[nodiscard]] const at::Tensor& x_t() const { return x_t_; }
  [[nodiscard]] const at::Tensor& t() const { return t_; }
  [[nodiscard]] const diffusion::Conditions& conditions() const { return conditions_; }

 private:
  void start_gradients() {
    x_grad_.zero_();
    for (const optim::Bucket& bucket : arena_.buckets()) {
      // What the first pass starts anew is left as it was, which must not be seen.
      if (!overwrites_ || bucket.fp32_island) {
        at::Tensor(bucket.grad).zero_();
      }
    }
  }

  void backward(const at::Tensor& output) {
    torch::autograd::backward({(output * weighting_).sum()}, {});
    output_ = output.detach();
  }

  std::unique_ptr<Model> model_;
  optim::Arena arena_;
  bool overwrites_ = false;
  at::Tensor x_t_, x_grad_, t_, weighting_, output_;
  diffusion::Conditions conditions_;
};

}  // namespace kinora::models
