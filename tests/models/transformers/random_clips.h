#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kinora/models/families.h"
#include "kinora/models/model.h"
#include "kinora/ops/parameter.h"
#include "kinora/optim/arena.h"
#include "tests/models/transformers/tuned.h"
#include "tests/ops/host_bytes_in_use.h"
#include "tests/ops/named_results.h"
#include "tests/ops/tensors.h"

/// One training pass of a small model of clips and captions on any device, type and path, with
/// everything that comes out of it by name.
namespace kinora::models {

/// A model of two blocks (STDiT3: pairs), and a batch for it.
struct ClipCase {
  const char* name;
  const char* architecture;
  int64_t batch = 3;
  int64_t frames = 4;
  int64_t rows = 3;     ///< of tokens
  int64_t columns = 5;  ///< of tokens
  bool qk_norm = false;
  bool gives_frames = false;  ///< some frames are given
  bool windows = false;
  bool tuned = false;  ///< by updates of linears, some frozen
  int64_t hidden = 144;
  int64_t heads = 2;
  /// Widths C a token and block that recompute level elementwise does not keep: norms, also of
  /// queries and keys, and 4 C of GELU.
  double elementwise = 6.0;

  [[nodiscard]] ModelConfig config() const {
    constexpr int64_t kPatch = 2;
    ModelConfig config;
    config.architecture = architecture;
    config.transformer.depth = 2;
    config.transformer.hidden = hidden;
    config.transformer.heads = heads;
    config.transformer.patch = kPatch;
    config.transformer.patch_frames = 1;
    config.in_channels = 4;
    config.frames = frames;
    config.height = rows * kPatch;
    config.width = columns * kPatch;
    config.text_channels = 32;
    config.text_tokens = 11;
    config.transformer.qk_norm = qk_norm ? ops::Switch::kOn : ops::Switch::kOff;
    config.time_scale = 1.0;
    if (windows) {
      config.transformer.window = {3, 2, 3};
      config.transformer.rotary_3d = true;
    }
    return resolved(config);
  }
};

// A bf16 residual stream, to which three or four branches a block are added, rounds where that of
// the plain path, which is fp32, does not.
inline constexpr double kStreamSlack = 2.5;

inline constexpr ClipCase kClipCases[] = {
    {.name = "stdit", .architecture = "stdit"},
    {.name = "stdit_given_frames", .architecture = "stdit", .gives_frames = true},
    {.name = "stdit_one_frame", .architecture = "stdit", .frames = 1},
    {.name = "stdit_one_clip", .architecture = "stdit", .batch = 1},
    {.name = "stdit2", .architecture = "stdit2", .qk_norm = true, .elementwise = 11.0},
    {.name = "stdit3", .architecture = "stdit3", .qk_norm = true, .elementwise = 8.0},
    {.name = "stdit3_given_frames",
     .architecture = "stdit3",
     .qk_norm = true,
     .gives_frames = true,
     .elementwise = 8.0},
    {.name = "stdit3_windows",
     .architecture = "stdit3",
     .qk_norm = true,
     .windows = true,
     // In every other block no norm but that of the MLP: attention reads what was cut.
     .elementwise = 6.5},
    {.name = "pixart", .architecture = "pixart", .frames = 1},
    {.name = "vdit", .architecture = "vdit"},
    {.name = "latte", .architecture = "latte"},
    {.name = "latte_t2v", .architecture = "latte_t2v"},
    {.name = "latte_t2v_one_frame", .architecture = "latte_t2v", .frames = 1},
    {.name = "stdit2_tuned",
     .architecture = "stdit2",
     .qk_norm = true,
     .tuned = true,
     .elementwise = 11.0},
    {.name = "pixart_tuned", .architecture = "pixart", .frames = 1, .tuned = true},
    {.name = "latte_tuned", .architecture = "latte", .tuned = true},
};

/// A model whose weights are all random, those too that start at zero: behind a gate of zero
/// nothing would be compared. They are exact in bf16, so every type computes with the same numbers.
class RandomClips {
 public:
  RandomClips(const ClipCase& c, at::Device device, at::ScalarType type)
      : model_(made(c)),
        arena_(
            model_->named_parameters(), buckets_with_updates(model_->buckets(), *model_),
            {.device = device, .compute_type = type, .seed = 1, .train = true, .ema_decays = {}}) {
    model_->to_device(device);
    int64_t number = 0;
    for (const auto& [path, parameter] : model_->named_parameters()) {
      arena_.load_parameter(
          path,
          (ops::normal(parameter->shape, number++) * deviation(path, parameter->shape) + mean(path))
              .to(at::kBFloat16));
    }
    const ModelConfig& config = model_->config();
    auto inputs = [&, input = int64_t{1000}](std::vector<int64_t> shape) mutable {
      return ops::normal(std::move(shape), input++).to(device);
    };
    const auto all = [&](double value) {
      return at::full({c.batch}, value, at::device(device).dtype(at::kFloat));
    };
    x_t_ = inputs({c.batch, config.in_channels, c.frames, config.height, config.width})
               .set_requires_grad(true);
    x_grad_ = at::zeros_like(x_t_);
    weighting_ = inputs({c.batch, config.out_channels(), c.frames, config.height, config.width});
    const at::Tensor sample = at::arange(c.batch, at::kLong);
    t_ = ((sample * 37).remainder(101).to(at::kFloat) * 9.0 + 5.0).to(device);
    conditions_.null_text = (sample.remainder(3) == 1).to(device);
    if (family_of(config).conditions.pooled) {
      conditions_.pooled = inputs({c.batch, config.text_channels});
      return;
    }
    conditions_.text = inputs({c.batch, config.text_tokens, config.text_channels});
    // All, none and a few of the tokens.
    conditions_.text_lengths =
        (config.text_tokens - sample * 13).remainder(config.text_tokens + 1).to(device);
    conditions_.fps = all(24.0);
    conditions_.height = all(static_cast<double>(config.height) * 8.0);
    conditions_.width = all(static_cast<double>(config.width) * 8.0);
    conditions_.num_frames = all(static_cast<double>(c.frames));
    if (c.gives_frames) {
      conditions_.frame_mask =
          (at::arange(c.batch * c.frames).view({c.batch, c.frames}) % 3 != 0).to(device);
    }
  }

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

  /// On the CPU: what a forward leaves for its backward, which then runs.
  [[nodiscard]] int64_t bytes_kept() {
    model_->begin_step();
    ops::HostBytesInUse counter;
    const at::Tensor output = forward(/*pass=*/0);
    const int64_t kept = counter.bytes();
    torch::autograd::backward({output.sum()}, {});
    return kept;
  }

  /// Gradients of blocks and texts need not be zero from now on; what they hold now is wrong.
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

  /// The output without gradients.
  [[nodiscard]] ops::NamedResults sample() {
    const at::NoGradGuard no_grad;
    return {{"output", model_->forward(x_t_, t_, conditions_)}};
  }

  [[nodiscard]] Model& model() { return *model_; }

 private:
  static std::unique_ptr<Model> made(const ClipCase& c) {
    std::unique_ptr<Model> model = make_model(c.config());
    if (c.tuned) {
      tune(*model);
    }
    return model;
  }

  void start_gradients() {
    x_grad_.zero_();
    for (const optim::Bucket& bucket : arena_.buckets()) {
      // What the first pass starts anew is left as it was, which must not be seen.
      if (!overwrites_ || bucket.fp32_island) {
        at::Tensor(bucket.grad).zero_();
      }
    }
  }

  [[nodiscard]] at::Tensor forward(int64_t pass, double scale = 1.0) {
    return model_->forward(ops::with_gradient(x_t_, x_grad_) * scale, t_, conditions_,
                           {.starts_step = pass == 0, .overwrite = pass == 0});
  }

  void backward(const at::Tensor& output) {
    torch::autograd::backward({(output * weighting_).sum()}, {});
    output_ = output.detach();
  }

  /// Activations, gates and logits of about 1.
  static double deviation(const std::string& path, const std::vector<int64_t>& shape) {
    if (path.ends_with("bias") || path.ends_with("norm.weight")) {
      return 0.3;
    }
    int64_t fan_in = 1;
    for (size_t i = 1; i < shape.size(); ++i) {
      fan_in *= shape[i];
    }
    return path.ends_with("table") ? 0.5 : 1.0 / std::sqrt(static_cast<double>(fan_in));
  }
  static double mean(const std::string& path) { return path.ends_with("norm.weight") ? 1.0 : 0.0; }

  std::unique_ptr<Model> model_;
  optim::Arena arena_;
  bool overwrites_ = false;
  diffusion::Conditions conditions_;
  at::Tensor x_t_, x_grad_, t_, weighting_, output_;
};

}  // namespace kinora::models
