#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kinora/models/families.h"
#include "tests/models/transformers/random_model.h"
#include "tests/ops/host_bytes_in_use.h"

namespace kinora::models {

// A bf16 residual stream, to which three or four branches a block are added, rounds where that of
// the plain path, which is fp32, does not.
inline constexpr double kStreamSlack = 2.5;

/// A model of a few blocks (STDiT3: pairs), and a batch for it.
struct ClipCase {
  const char* name;
  const char* architecture;
  int64_t depth = 2;
  int64_t batch = 3;
  int64_t frames = 4;
  int64_t rows = 3;     ///< of tokens
  int64_t columns = 5;  ///< of tokens
  bool qk_norm = false;
  bool gives_frames = false;  ///< some frames are given
  bool embeds_given = false;  ///< to embedders of their own
  bool gives_levels = false;  ///< in part, and the first frame is shown at a place of its own
  bool clean_first = false;   ///< the first alone, which has vectors of its own
  bool windows = false;
  std::optional<std::array<int64_t, 3>> sliding_window = {};
  bool kv_compress = false;  ///< of the second block
  bool tuned = false;        ///< by updates of linears, some frozen
  bool joint = false;        ///< text has a stream of its own
  int64_t parallel_depth = 0;
  bool second_attention = false;  ///< of the second block
  ShownInput input = ShownInput::kPlain;
  int64_t references = 0;
  int64_t image_channels = 0;  ///< of states of pictures that are read beside the text
  bool has_words = false;      ///< tokens for an encoder of its own
  int64_t text_tokens = 11;
  int64_t hidden = 144;
  int64_t heads = 2;
  int64_t patch = 2;  ///< side
  static constexpr int64_t kWords = 20;
  /// Widths C a token and block that recompute level elementwise does not keep: norms, also of
  /// queries and keys, and 4 C of GELU.
  double elementwise = 6.0;
  double slack = kStreamSlack;  ///< of ops::expect_as_near in bf16

  [[nodiscard]] ModelConfig config() const {
    ModelConfig config;
    config.architecture = architecture;
    config.transformer.depth = depth;
    config.transformer.hidden = hidden;
    config.transformer.heads = heads;
    config.transformer.patch = patch;
    config.transformer.patch_frames = 1;
    config.in_channels = 4;
    config.frames = frames;
    config.height = rows * patch;
    config.width = columns * patch;
    config.text_channels = 32;
    config.text_tokens = text_tokens;
    config.transformer.qk_norm = qk_norm ? ops::Switch::kOn : ops::Switch::kOff;
    config.time_scale = 1.0;
    if (kv_compress) {
      config.transformer.kv_compress = KvSampling::kConv;
    }
    config.transformer.given_embedders = embeds_given;
    config.transformer.single_first_frame = gives_levels;
    config.transformer.clean_first_frame = clean_first;
    if (joint) {
      config.pooled_channels = has_words ? 0 : 24;
      config.learn_sigma = false;
      config.transformer.parallel_depth = parallel_depth;
    }
    config.transformer.input = input;
    config.transformer.references = references;
    config.transformer.image_channels = image_channels;
    if (has_words) {
      config.text_encoder = {.layers = 1, .width = 32, .heads = 2, .mlp = 48, .vocab = kWords};
    }
    if (second_attention) {
      config.transformer.second_attention = {1};
    }
    config.transformer.rotary_3d = config.architecture == "cogvideox";
    if (sliding_window) {
      config.transformer.sliding_window.assign(sliding_window->begin(), sliding_window->end());
    }
    if (windows) {
      config.transformer.window = {3, 2, 3};
      config.transformer.rotary_3d = true;
    }
    return resolved(config);
  }
};

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
    {.name = "stdit3_embedded_frames",
     .architecture = "stdit3",
     .qk_norm = true,
     .gives_frames = true,
     .embeds_given = true,
     .windows = true,
     .elementwise = 6.5},
    {.name = "pixart", .architecture = "pixart", .frames = 1},
    {.name = "pixart_kv_compress",
     .architecture = "pixart",
     .frames = 1,
     .kv_compress = true,
     .elementwise = 5.5},  // no norm of the second block's attention
    {.name = "vdit", .architecture = "vdit"},
    {.name = "latte", .architecture = "latte"},
    {.name = "latte_t2v", .architecture = "latte_t2v"},
    {.name = "latte_t2v_one_frame", .architecture = "latte_t2v", .frames = 1},
    {.name = "sd3", .architecture = "sd3", .frames = 1, .joint = true},
    {.name = "sd3_second_attention",
     .architecture = "sd3",
     .frames = 1,
     .qk_norm = true,
     .joint = true,
     .second_attention = true},
    {.name = "flux",
     .architecture = "flux",
     .frames = 1,
     .qk_norm = true,
     .joint = true,
     .parallel_depth = 2},
    {.name = "flux_one_picture",
     .architecture = "flux",
     .batch = 1,
     .frames = 1,
     .qk_norm = true,
     .joint = true,
     .parallel_depth = 1},
    {.name = "open_sora2_given_frames",
     .architecture = "open_sora2",
     .qk_norm = true,
     .gives_frames = true,
     .embeds_given = true,
     .joint = true,
     .parallel_depth = 1},
    {.name = "flux_fill",
     .architecture = "flux",
     .frames = 1,
     .qk_norm = true,
     .joint = true,
     .parallel_depth = 1,
     .input = ShownInput::kFill},
    {.name = "flux_kontext",
     .architecture = "flux",
     .frames = 1,
     .qk_norm = true,
     .joint = true,
     .parallel_depth = 1,
     .input = ShownInput::kReference},
    {.name = "open_sora2_references",
     .architecture = "open_sora2",
     .batch = 2,
     .frames = 2,
     .qk_norm = true,
     .gives_frames = true,
     .embeds_given = true,
     .joint = true,
     .parallel_depth = 1,
     .references = 3},
    {.name = "open_sora2_slides",  // over seven blocks of tokens
     .architecture = "open_sora2",
     .batch = 1,
     .frames = 6,
     .rows = 12,
     .columns = 12,
     .qk_norm = true,
     .sliding_window = {{3, 5, 5}},
     .joint = true,
     .parallel_depth = 1,
     .hidden = 128},
    {.name = "sd3_slides",
     .architecture = "sd3",
     .batch = 2,
     .frames = 1,
     .rows = 16,
     .columns = 33,
     .sliding_window = {{0, 5, 9}},
     .joint = true,
     .second_attention = true,
     .hidden = 128},
    {.name = "sd3_words", .architecture = "sd3", .frames = 1, .joint = true, .has_words = true},
    {.name = "flux_words",
     .architecture = "flux",
     .frames = 1,
     .qk_norm = true,
     .joint = true,
     .parallel_depth = 1,
     .has_words = true},
    {.name = "sd3_tuned",
     .architecture = "sd3",
     .frames = 1,
     .qk_norm = true,
     .tuned = true,
     .joint = true,
     .second_attention = true},
    {.name = "flux_tuned",
     .architecture = "flux",
     .frames = 1,
     .qk_norm = true,
     .tuned = true,
     .joint = true,
     .parallel_depth = 2},
    {.name = "hunyuan_video",
     .architecture = "hunyuan_video",
     .qk_norm = true,
     .joint = true,
     .parallel_depth = 2},
    {.name = "hunyuan_video_first_frame",
     .architecture = "hunyuan_video",
     .qk_norm = true,
     .clean_first = true,
     .joint = true,
     .parallel_depth = 2},
    {.name = "hunyuan_video_tuned",
     .architecture = "hunyuan_video",
     .frames = 1,
     .qk_norm = true,
     .tuned = true,
     .joint = true,
     .parallel_depth = 1},
    {.name = "stdit2_tuned",
     .architecture = "stdit2",
     .qk_norm = true,
     .tuned = true,
     .elementwise = 11.0},
    {.name = "pixart_tuned", .architecture = "pixart", .frames = 1, .tuned = true},
    {.name = "latte_tuned", .architecture = "latte", .tuned = true},
    {.name = "wan", .architecture = "wan", .elementwise = 10.0},
    {.name = "wan_given_frames", .architecture = "wan", .gives_frames = true, .elementwise = 10.0},
    {.name = "wan_pictures",
     .architecture = "wan",
     .frames = 2,
     .embeds_given = true,
     .image_channels = 20,
     .elementwise = 10.0},
    {.name = "wan_one_frame", .architecture = "wan", .batch = 1, .frames = 1, .elementwise = 10.0},
    {.name = "wan_tuned",
     .architecture = "wan",
     .embeds_given = true,
     .tuned = true,
     .image_channels = 20,
     .elementwise = 10.1},  // and x A^T of what is made again
    {.name = "wan_slides",  // 8 tiles, one a block of tokens
     .architecture = "wan",
     .batch = 1,
     .frames = 4,
     .rows = 8,
     .columns = 32,
     .sliding_window = {{3, 5, 0}},
     .hidden = 128,
     .elementwise = 10.0},
    {.name = "ltx_video_slides",  // blocks have parts of two tiles, some of two frames
     .architecture = "ltx_video",
     .batch = 1,
     .frames = 4,
     .rows = 12,
     .columns = 20,
     .gives_frames = true,
     .sliding_window = {{3, 5, 9}},
     .hidden = 128,
     .patch = 1,
     .elementwise = 9.0},
    {.name = "ltx_video", .architecture = "ltx_video", .patch = 1, .elementwise = 9.0},
    {.name = "ltx_video_given_frames",
     .architecture = "ltx_video",
     .gives_frames = true,
     .patch = 1,
     .elementwise = 9.0},
    {.name = "ltx_video_given_in_part",
     .architecture = "ltx_video",
     .gives_frames = true,
     .gives_levels = true,
     .patch = 1,
     .elementwise = 9.0},
    {.name = "ltx_video_tuned",
     .architecture = "ltx_video",
     .tuned = true,
     .patch = 1,
     .elementwise = 9.1},
    {.name = "cogvideox", .architecture = "cogvideox", .hidden = 128, .elementwise = 8.0},
    {.name = "cogvideox_slides",
     .architecture = "cogvideox",
     .batch = 1,
     .frames = 6,
     .rows = 12,
     .columns = 12,
     .sliding_window = {{3, 5, 5}},
     .hidden = 128,
     .elementwise = 8.0,
     // The gradient of keys' bias: softmax hardly sees what is added to all keys, so rounding is a
     // larger part of what is left.
     .slack = 4.0},
    {.name = "cogvideox_one_frame",
     .architecture = "cogvideox",
     .batch = 1,
     .frames = 1,
     .hidden = 128,
     .elementwise = 8.0},
    {.name = "cogvideox_tuned",
     .architecture = "cogvideox",
     .tuned = true,
     .hidden = 128,
     .elementwise = 8.0},
};

/// A model of clips or captions, its batch, and steps with it.
class RandomClips : public RandomModel {
 public:
  RandomClips(const ClipCase& c, at::Device device, at::ScalarType type)
      : RandomModel(made(c), device, type, start_of) {
    const ModelConfig& config = model().config();
    auto inputs = [&, input = kInputs](std::vector<int64_t> shape) mutable {
      return ops::normal(std::move(shape), input++).to(device);
    };
    const auto all = [&](double value) {
      return at::full({c.batch}, value, at::device(device).dtype(at::kFloat));
    };
    const at::Tensor x_t =
        inputs({c.batch, config.in_channels, c.frames, config.height, config.width});
    const at::Tensor weighting =
        inputs({c.batch, config.out_channels(), c.frames, config.height, config.width});
    const at::Tensor sample = at::arange(c.batch, at::kLong);
    const at::Tensor t = ((sample * 37).remainder(101).to(at::kFloat) * 9.0 + 5.0).to(device);
    diffusion::Conditions conditions;
    conditions.null_text = (sample.remainder(3) == 1).to(device);
    if (family_of(config).conditions.pooled || family_of(config).conditions.pooled_beside) {
      conditions.pooled = inputs(
          {c.batch, config.pooled_channels > 0 ? config.pooled_channels : config.text_channels});
    }
    if (!family_of(config).conditions.text) {
      set_inputs(x_t, t, std::move(conditions), weighting);
      return;
    }
    if (c.has_words) {
      conditions.tokens = (at::arange(c.batch * config.text_tokens, at::kLong) * 7)
                              .remainder(ClipCase::kWords)
                              .view({c.batch, config.text_tokens})
                              .to(device);
      conditions.null_text = at::Tensor();
    } else {
      conditions.text = inputs({c.batch, config.text_tokens, config.text_channels});
    }
    // All, none and a few of the tokens.
    conditions.text_lengths =
        (config.text_tokens - sample * 13).remainder(config.text_tokens + 1).to(device);
    conditions.fps = all(24.0);
    conditions.height = all(static_cast<double>(config.height) * 8.0);
    conditions.width = all(static_cast<double>(config.width) * 8.0);
    conditions.num_frames = all(static_cast<double>(c.frames));
    if (c.gives_frames) {
      conditions.frame_mask =
          (at::arange(c.batch * c.frames).view({c.batch, c.frames}) % 3 != 0).to(device);
      conditions.given = inputs(x_t.sizes().vec());
    }
    if (c.gives_levels) {
      conditions.given_levels = (at::arange(c.batch * c.frames).view({c.batch, c.frames}) * 137)
                                    .remainder(401)
                                    .to(device, at::kFloat);
      conditions.shown_places = at::full({c.batch, 1}, 5.0).to(device, at::kFloat);
    }
    if (c.clean_first) {
      conditions.frame_mask = at::full({c.batch, c.frames}, true, at::kBool);
      conditions.frame_mask.select(1, 0).copy_(sample.remainder(2) == 1);  // of some it is noised
      conditions.frame_mask = conditions.frame_mask.to(device);
    }
    if (c.image_channels > 0) {
      conditions.beside =
          inputs({c.batch, channels_beside(config), c.frames, config.height, config.width});
      conditions.image_prompt = inputs({c.batch, 5, c.image_channels});
    }
    if (c.input == ShownInput::kFill) {
      conditions.beside =
          inputs({c.batch, channels_beside(config), 1, config.height, config.width});
    } else if (c.input == ShownInput::kReference) {  // of another size
      conditions.beside =
          inputs({c.batch, config.in_channels, config.height - c.patch, config.width - c.patch});
    }
    if (c.references > 0) {  // fewer than they may be, and of another size
      conditions.beside = inputs({c.batch, config.in_channels, c.references - 1,
                                  config.height - c.patch, config.width - c.patch});
    }
    set_inputs(x_t, t, std::move(conditions), weighting);
  }

  /// On the CPU: what a forward leaves for its backward, which then runs.
  [[nodiscard]] int64_t bytes_kept() {
    model().begin_step();
    ops::HostBytesInUse counter;
    const at::Tensor output = forward(/*pass=*/0);
    const int64_t kept = counter.bytes();
    torch::autograd::backward({output.sum()}, {});
    return kept;
  }

  /// The output without gradients.
  [[nodiscard]] ops::NamedResults sample() {
    const at::NoGradGuard no_grad;
    return {{"output", model().forward(x_t(), t(), conditions())}};
  }

  /// Outputs of evaluations that differ a little, at noise levels 1, 0.95, ..., with the model's
  /// step cache. prepares: from what is prepared.
  [[nodiscard]] ops::NamedResults sample_steps(int64_t steps, bool prepares = false) {
    const at::NoGradGuard no_grad;
    const auto cache = model().make_cache();
    ops::NamedResults results;
    for (int64_t step = 0; step < steps; ++step) {
      const at::Tensor times = t().narrow(0, 0, 1).repeat({t().size(0)}) - 0.05 * step;
      if (cache) {
        cache->begin({.level = 1.0 - 0.05 * static_cast<double>(step), .is_last = false});
      }
      const diffusion::Prepared prepared =
          prepares ? model().prepare(times.narrow(0, 0, 1), conditions()) : diffusion::Prepared();
      results.push_back({"step " + std::to_string(step),
                         model().forward((1.0 - 0.02 * step) * x_t(), times, conditions(),
                                         {.prepared = prepared.at_time(0), .cache = cache.get()})});
      if (cache) {
        cache->end();
      }
    }
    return results;
  }

  /// What the model makes of conditions and the first sample's time.
  [[nodiscard]] diffusion::Prepared prepared() {
    const at::NoGradGuard no_grad;
    return model().prepare(t().narrow(0, 0, 1), conditions());
  }
  /// The output without gradients, all samples at the time of the first, with what was prepared.
  [[nodiscard]] ops::NamedResults sample_at_first_time(const diffusion::Prepared& prepared) {
    const at::NoGradGuard no_grad;
    const at::Tensor times = t().narrow(0, 0, 1).repeat({t().size(0)});
    return {{"output", model().forward(x_t(), times, conditions(), {.prepared = prepared})}};
  }

 private:
  static std::unique_ptr<Model> made(const ClipCase& c) {
    std::unique_ptr<Model> model = make_model(c.config());
    if (c.tuned) {
      tune(*model);
    }
    return model;
  }

  /// Activations, gates and logits of about 1.
  static Start start_of(const std::string& path, const std::vector<int64_t>& shape) {
    if (path.ends_with("bias")) {
      return {.deviation = 0.3};
    }
    if (path.ends_with("norm.weight")) {
      return {.mean = 1.0, .deviation = 0.3};
    }
    return {.deviation = path.ends_with("table") ? 0.5 : by_inputs(shape)};
  }
};

}  // namespace kinora::models
