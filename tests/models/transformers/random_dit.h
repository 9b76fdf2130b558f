#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kinora/models/transformers/dit.h"
#include "kinora/ops/parameter.h"
#include "kinora/optim/arena.h"
#include "tests/models/transformers/tuned.h"
#include "tests/ops/named_results.h"
#include "tests/ops/tensors.h"

/// One training pass of a small DiT on any device, type and path, with everything that comes out of
/// it by name.
namespace kinora::models {

/// A DiT of two blocks, and a batch for it.
struct Geometry {
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t batch = 0;
  int64_t rows = 0;     ///< of tokens
  int64_t columns = 0;  ///< of tokens
  bool tuned = false;   ///< by updates of linears, some frozen
  int64_t rank = 0;     ///< of adapt_blocks(); 0: it is not adapted

  [[nodiscard]] ModelConfig config() const {
    constexpr int64_t kPatch = 2;
    ModelConfig config;
    config.transformer.depth = 2;
    config.transformer.hidden = hidden;
    config.transformer.heads = heads;
    config.transformer.patch = kPatch;
    config.in_channels = 4;
    config.height = rows * kPatch;
    config.width = columns * kPatch;
    config.num_classes = 10;
    config.time_scale = 1000.0;
    return resolved(config);
  }

  /// Of ops::expect_as_near.
  [[nodiscard]] double slack() const { return tuned || rank > 0 ? kTunedSlack : 1.0; }

  [[nodiscard]] std::string name() const {
    return "D" + std::to_string(hidden / heads) + "_B" + std::to_string(batch) + "_N" +
           std::to_string(rows * columns) + (tuned ? "_tuned" : "") +
           (rank > 0 ? "_rank" + std::to_string(rank) : "");
  }
};

/// A model whose weights are all random, those too that start at zero: behind a gate of zero
/// nothing would be compared. They are exact in bf16, so every type computes with the same numbers.
class RandomDiT {
 public:
  RandomDiT(const Geometry& geometry, at::Device device, at::ScalarType type)
      : model(geometry),
        arena(
            model.named_parameters(), buckets_with_updates(model.buckets(), model),
            {.device = device, .compute_type = type, .seed = 1, .train = true, .ema_decays = {}}) {
    model.to_device(device);
    int64_t number = 0;
    for (const auto& [path, parameter] : model.named_parameters()) {
      // Activations, gates and logits of about 1.
      const bool is_matrix = parameter->shape.size() > 1 && !path.starts_with("y_embedder");
      const double deviation = path.ends_with("bias") ? 0.3
                               : is_matrix ? std::sqrt(static_cast<double>(parameter->shape[0]) /
                                                       static_cast<double>(parameter->numel()))
                                           : 1.0;
      arena.load_parameter(path,
                           (ops::normal(parameter->shape, number++) * deviation).to(at::kBFloat16));
    }
    const ModelConfig& config = model.config();
    constexpr int64_t kInputs = 1000;  // numbers that no parameter has
    x_t_ = ops::normal({geometry.batch, config.in_channels, config.height, config.width}, kInputs)
               .to(device)
               .set_requires_grad(true);
    x_grad_ = at::zeros_like(x_t_);
    weighting_ = ops::normal({geometry.batch, config.out_channels(), config.height, config.width},
                             kInputs + 1)
                     .to(device);
    const at::Tensor sample = at::arange(geometry.batch, at::kLong);
    labels_ = sample.remainder(config.num_classes + 1).to(device);
    t_ = ((sample * 37).remainder(101).to(at::kFloat) / 101.0).to(device);
  }

  /// The micro-batches of a step, each this batch, whose gradients add up; `wrap` may record them.
  void step(int64_t passes = 1,
            const std::function<void(const std::function<void()>&)>& wrap = {}) {
    model.begin_step();
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
    model.begin_step();
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

  /// The blocks' gradients are overwritten from now on; what they hold now is wrong.
  void overwrite_gradients() {
    model.overwrite_gradients();
    overwrites_ = true;
    for (const optim::Bucket& bucket : arena.buckets()) {
      at::Tensor(bucket.grad).fill_(7.0);
    }
  }

  /// Copies of the last pass' output and of all gradients, these times `factor`.
  [[nodiscard]] ops::NamedResults results(double factor = 1.0) {
    ops::NamedResults results{{"output", output_.clone()}, {"gradient of x_t", x_grad_ * factor}};
    for (const auto& [path, parameter] : model.named_parameters()) {
      if (!parameter->frozen) {
        results.push_back({path, parameter->grad * factor});
      }
    }
    return results;
  }

  /// The output without gradients, all samples at the time of the first.
  [[nodiscard]] ops::NamedResults sample() {
    const at::NoGradGuard no_grad;
    const at::Tensor t = t_.narrow(0, 0, 1).repeat({t_.size(0)});
    return {{"output", model.forward(x_t_, t, {.labels = labels_})}};
  }

  /// The same by vectors made in advance, as samplers do; the fast path only.
  [[nodiscard]] ops::NamedResults sample_prepared() {
    const at::NoGradGuard no_grad;
    const at::Tensor vectors = model.prepare(t_.narrow(0, 0, 1), {.labels = labels_});
    return {{"output", model.forward(x_t_, t_, {.labels = labels_}, {.prepared = vectors[0]})}};
  }

  struct Made : DiT {
    explicit Made(const Geometry& geometry) : DiT(geometry.config()) {
      if (geometry.tuned) {
        tune(*this);
      }
      if (geometry.rank > 0) {
        adapt_blocks(*this, geometry.rank);
      }
    }
  };
  Made model;
  optim::Arena arena;

 private:
  void start_gradients() {
    x_grad_.zero_();
    for (const optim::Bucket& bucket : arena.buckets()) {
      // What the first pass overwrites is left as it was, which must not be seen.
      if (!overwrites_ || bucket.fp32_island) {
        at::Tensor(bucket.grad).zero_();
      }
    }
  }

  [[nodiscard]] at::Tensor forward(int64_t pass, double scale = 1.0) {
    return model.forward(ops::with_gradient(x_t_, x_grad_) * scale, t_, {.labels = labels_},
                         {.starts_step = pass == 0, .overwrite = pass == 0});
  }

  void backward(const at::Tensor& output) {
    torch::autograd::backward({(output * weighting_).sum()}, {});
    output_ = output.detach();
  }

  bool overwrites_ = false;
  at::Tensor x_t_, x_grad_, t_, labels_, weighting_, output_;
};

/// What a block keeps, and how many blocks only their input.
struct Recomputation {
  const char* name;
  ops::Recompute level = ops::Recompute::kNone;
  int64_t blocks = 0;
};

inline constexpr Recomputation kRecomputations[] = {
    {"none", ops::Recompute::kNone},
    {"elementwise", ops::Recompute::kElementwise},
    {"mlp", ops::Recompute::kMlp},
    {"block", ops::Recompute::kBlock},
    {"mlp, one block wholly", ops::Recompute::kMlp, 1},
};

/// One step of the plain path.
inline ops::NamedResults plain_results(const Geometry& geometry, at::Device device,
                                       at::ScalarType type) {
  RandomDiT dit(geometry, device, type);
  dit.step();
  return dit.results();
}

/// The same weights on the fast path.
inline std::unique_ptr<RandomDiT> fast_dit(const Geometry& geometry, at::Device device,
                                           at::ScalarType type,
                                           const std::shared_ptr<ops::BlockKernels>& kernels,
                                           const Recomputation& recomputation) {
  auto dit = std::make_unique<RandomDiT>(geometry, device, type);
  dit->model.set_recompute(recomputation.blocks);
  dit->model.use_fast_path(kernels, recomputation.level);
  return dit;
}

/// One step of the fast path.
inline ops::NamedResults fast_results(const Geometry& geometry, at::Device device,
                                      at::ScalarType type,
                                      const std::shared_ptr<ops::BlockKernels>& kernels,
                                      const Recomputation& recomputation = kRecomputations[0]) {
  const auto dit = fast_dit(geometry, device, type, kernels, recomputation);
  dit->step();
  return dit->results();
}

}  // namespace kinora::models
