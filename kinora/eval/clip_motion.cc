#include "kinora/eval/clip_motion.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/eval/script_network.h"

namespace kinora::eval {
namespace {

constexpr int64_t kFewestFrames = 3;
constexpr double kMostLevels = 255.0;

class FrameByFrame : public FeatureNetwork {
 public:
  explicit FrameByFrame(std::unique_ptr<FeatureNetwork> images) : images_(std::move(images)) {}

  [[nodiscard]] std::string name() const override { return images_->name(); }

  [[nodiscard]] at::Tensor prepare(const at::Tensor& sample) const override {
    std::vector<at::Tensor> frames;
    for (const at::Tensor& frame : sample.unbind(1)) {
      frames.push_back(images_->prepare(frame));
    }
    return at::stack(frames);  // [T, ...]
  }

  [[nodiscard]] NetworkOutput forward(const at::Tensor& inputs) const override {
    const at::Tensor features = images_->forward(inputs.flatten(0, 1)).features;  // [B * T, D]
    return {.features = features.reshape({inputs.size(0), -1}), .logits = {}};
  }

 private:
  std::unique_ptr<FeatureNetwork> images_;
};

/// A network of two frames, which judges a clip by pairs of them.
class OfPairs : public FeatureNetwork {
 public:
  OfPairs(const std::filesystem::path& script, at::Device device) : script_(script, device) {}

  [[nodiscard]] std::string name() const override { return script_.name(); }

  [[nodiscard]] at::Tensor prepare(const at::Tensor& sample) const override {
    KINORA_CHECK(sample.dim() == 4 && sample.size(1) >= kFewestFrames, kShape,
                 "[eval] motion is judged in clips of ", kFewestFrames, " frames or more, got ",
                 sample.dim() == 4 ? sample.size(1) : 1);
    return sample.to(at::kFloat);
  }

  [[nodiscard]] NetworkOutput forward(const at::Tensor& inputs) const override {
    return {.features = judge(inputs).to(at::kFloat).unsqueeze(1), .logits = {}};
  }

 protected:
  /// [B] of clips [B, 3, T, H, W] in 0 to 255.
  [[nodiscard]] virtual at::Tensor judge(const at::Tensor& clips) const = 0;

  [[nodiscard]] const PairScript& script() const { return script_; }

 private:
  PairScript script_;
};

class Smoothness : public OfPairs {
  using OfPairs::OfPairs;

  [[nodiscard]] at::Tensor judge(const at::Tensor& clips) const override {
    at::Tensor sum = at::zeros({clips.size(0)}, clips.options());
    int64_t count = 0;
    for (int64_t t = 0; t + 2 < clips.size(2); t += 2) {
      const at::Tensor between = clips.select(2, t + 1);
      const at::Tensor made =
          script().forward(clips.select(2, t) / kMostLevels, clips.select(2, t + 2) / kMostLevels);
      KINORA_CHECK(made.sizes() == between.sizes(), kShape, "[torchscript] ", script().name(),
                   " must return a frame of ", between.sizes(), ", got ", made.sizes());
      const at::Tensor levels = (made * kMostLevels).clamp(0.0, kMostLevels).floor();
      sum += (levels - between).abs().flatten(1).mean(1);
      ++count;
    }
    return (kMostLevels - sum / count) / kMostLevels;
  }
};

class Dynamics : public OfPairs {
  using OfPairs::OfPairs;

  [[nodiscard]] at::Tensor judge(const at::Tensor& clips) const override {
    constexpr double kPart = 0.05;  // of the pixels, the fastest
    constexpr double kPixels = 6.0;
    constexpr double kAtSide = 256.0;
    const int64_t frames = clips.size(2);
    const auto side = static_cast<double>(std::min(clips.size(3), clips.size(4)));
    at::Tensor count = at::zeros({clips.size(0)}, clips.options());
    for (int64_t t = 0; t + 1 < frames; ++t) {
      const at::Tensor flow = script().forward(clips.select(2, t), clips.select(2, t + 1));
      KINORA_CHECK(flow.dim() == 4 && flow.size(0) == clips.size(0) && flow.size(1) == 2, kShape,
                   "[torchscript] ", script().name(), " must return [", clips.size(0),
                   ", 2, h, w], got ", flow.sizes());
      const at::Tensor speed = at::linalg_vector_norm(flow, 2, at::IntArrayRef{1}).flatten(1);
      const int64_t fastest =
          std::max(static_cast<int64_t>(kPart * static_cast<double>(speed.size(1))), int64_t{1});
      count += std::get<0>(speed.topk(fastest)).mean(1) > kPixels * side / kAtSide;
    }
    return count >= std::nearbyint(static_cast<double>(frames) / 4.0);
  }
};

}  // namespace

std::unique_ptr<FeatureNetwork> frame_by_frame(std::unique_ptr<FeatureNetwork> images) {
  return std::make_unique<FrameByFrame>(std::move(images));
}

double frame_consistency(const at::Tensor& features, int64_t frames) {
  constexpr double kLeast = 1e-12;  // a vector of zeros stays one
  KINORA_CHECK(frames >= 2 && features.size(1) % frames == 0, kShape,
               "[eval] frames are compared in clips of two or more, got ", frames, " frames and ",
               features.size(1), " features");
  const at::Tensor vectors = features.to(at::kDouble).view({features.size(0), frames, -1});
  const at::Tensor unit =
      vectors / at::linalg_vector_norm(vectors, 2, at::IntArrayRef{2}, true).clamp_min(kLeast);
  const at::Tensor later = unit.slice(1, 1);
  const auto likeness = [&](const at::Tensor& earlier) {
    return (later * earlier).sum(2).clamp_min(0.0).mean().item<double>();
  };
  return (likeness(unit.slice(1, 0, 1)) + likeness(unit.slice(1, 0, frames - 1))) / 2.0;
}

std::unique_ptr<FeatureNetwork> open_interpolator(const std::filesystem::path& script,
                                                  at::Device device) {
  return std::make_unique<Smoothness>(script, device);
}

std::unique_ptr<FeatureNetwork> open_flow(const std::filesystem::path& script, at::Device device) {
  return std::make_unique<Dynamics>(script, device);
}

}  // namespace kinora::eval
