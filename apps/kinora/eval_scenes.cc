#include "apps/kinora/eval_scenes.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/core/seconds.h"
#include "kinora/data/moving_shapes.h"
#include "kinora/data/normalise.h"
#include "kinora/data/scenes.h"
#include "kinora/device/device.h"
#include "kinora/eval/motion_judge.h"
#include "kinora/eval/scene_judge.h"
#include "kinora/inference/drawing.h"
#include "kinora/inference/given_frames.h"
#include "kinora/inference/trained_model.h"
#include "kinora/models/families.h"

namespace kinora::apps {
namespace {

double share(int64_t part, int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<int64_t>(whole, 1));
}

/// Draws what `captions` ask for, and reports how long it took.
at::Tensor drawn(inference::TrainedModel& trained, std::vector<std::string> captions,
                 const EvalArguments& arguments, int64_t batch, nlohmann::ordered_json& report,
                 const inference::DrawStart& start = {}) {
  const inference::Request request{.captions = std::move(captions), .guidance = arguments.guidance};
  inference::Drawing drawing(trained, {request}, {.batch = batch});
  drawing.set_start(start);
  const auto begin = std::chrono::steady_clock::now();
  at::Tensor samples = drawing.draw();  // on the CPU
  report["drawing_s"] = seconds_since(begin);
  return samples;
}

/// Float32 [3, H, W] in [-1, 1].
at::Tensor picture_of(const data::ShapeScene& scene, const models::ModelConfig& model) {
  io::Image picture;
  data::render(scene, model.height, model.width, picture);
  return data::to_float(inference::pixels_of(picture).permute({2, 0, 1}), at::kCPU);
}

/// Held-out clips: what is asked for, and what is shown.
struct AskedClips {
  std::vector<std::string> captions;
  std::vector<data::MovingContent> contents;
  inference::DrawStart start;
};

AskedClips held_out_clips(int64_t count, const models::ModelConfig& model, bool first_frame) {
  const int64_t most = models::shape_of(model).references;
  AskedClips asked;
  if (most == 0) {
    std::vector<at::Tensor> first;
    for (int64_t i = 0; i < count; ++i) {
      const data::MovingScene clip = data::held_out_clip(i);
      asked.captions.push_back(data::held_out_clip_caption(i));
      asked.contents.push_back(clip.content());
      if (first_frame) {
        first.push_back(picture_of(data::scene_at(clip, 0.0F), model).unsqueeze(1));
      }
    }
    if (first_frame) {
      asked.start.given = {.frames = at::stack(first), .places = {0}};
    }
    return asked;
  }
  at::Tensor& beside = asked.start.beside;
  beside = at::zeros({count, 3, most, model.height, model.width}, at::kFloat);
  for (int64_t i = 0; i < count; ++i) {
    const data::ReferencedClip clip = data::held_out_referenced_clip(i, most);
    asked.captions.push_back(clip.caption);
    asked.contents.push_back(clip.scene.content());
    for (size_t number = 0; number < clip.references.size(); ++number) {
      beside[i]
          .select(1, static_cast<int64_t>(number))
          .copy_(picture_of(clip.references[number], model));
    }
  }
  return asked;
}

void score_layouts(inference::TrainedModel& trained, const EvalArguments& arguments,
                   nlohmann::ordered_json& report) {
  constexpr int64_t kBatch = 250;
  std::vector<std::string> captions;
  std::vector<data::Layout> asked;
  for (int64_t i = 0; i < arguments.scenes; ++i) {
    asked.push_back(data::layout_of(data::held_out_scene(i)));
    captions.push_back(data::to_text(asked.back()));
  }
  const eval::LayoutScore score =
      eval::judge_layouts(drawn(trained, std::move(captions), arguments, kBatch, report), asked);
  int64_t num_right = 0;
  int64_t in_boxes = 0;
  int64_t num_objects = 0;
  for (size_t i = 0; i < score.num_right.size(); ++i) {
    report["objects_" + std::to_string(i + 1)] = {
        {"in_boxes", score.num_in_boxes[i]},
        {"of_objects", score.num_objects[i]},
        {"share_in_boxes", share(score.num_in_boxes[i], score.num_objects[i])},
        {"right", score.num_right[i]},
        {"of", score.num_images[i]},
        {"share", share(score.num_right[i], score.num_images[i])}};
    num_right += score.num_right[i];
    in_boxes += score.num_in_boxes[i];
    num_objects += score.num_objects[i];
  }
  report["in_boxes"] = in_boxes;
  report["of_objects"] = num_objects;
  report["share_in_boxes"] = share(in_boxes, num_objects);
  report["right"] = num_right;
}

void score_pictures(inference::TrainedModel& trained, const EvalArguments& arguments,
                    nlohmann::ordered_json& report) {
  constexpr int64_t kBatch = 250;
  std::vector<std::string> captions;
  std::vector<data::SceneContent> asked;
  for (int64_t i = 0; i < arguments.scenes; ++i) {
    captions.push_back(data::held_out_caption(i));
    asked.push_back(data::held_out_scene(i).content);
  }
  const eval::SceneScore score =
      eval::judge_scenes(drawn(trained, std::move(captions), arguments, kBatch, report), asked);
  int64_t num_right = 0;
  for (size_t i = 0; i < score.num_right.size(); ++i) {
    report["objects_" + std::to_string(i + 1)] = {
        {"right", score.num_right[i]},
        {"of", score.num_images[i]},
        {"share", share(score.num_right[i], score.num_images[i])},
        {"chance", score.chance[i]}};
    num_right += score.num_right[i];
  }
  report["right"] = num_right;
}

void score_clips(inference::TrainedModel& trained, const EvalArguments& arguments,
                 nlohmann::ordered_json& report) {
  constexpr int64_t kBatch = 64;
  KINORA_CHECK(!arguments.first_frame || models::shape_of(trained.recipe.model).references == 0,
               kConfig, "[eval] --first-frame is for models of clips without references");
  AskedClips asked = held_out_clips(arguments.scenes, trained.recipe.model, arguments.first_frame);
  const at::Tensor clips =
      drawn(trained, std::move(asked.captions), arguments, kBatch, report, asked.start);
  const eval::MovingScore score = eval::judge_asked_clips(clips, asked.contents);
  if (arguments.first_frame) {
    const at::Tensor kept = clips.narrow(2, 0, 1).eq(asked.start.given.frames).flatten(1).all(1);
    report["first_frame_kept"] = kept.sum().item<int64_t>();
  }
  if (asked.start.beside.defined()) {
    report["identity_right"] = score.num_identity;
    report["identity_right_in_each_frame"] = score.num_identity_in_each_frame;
  }
  report["colour_right"] = score.num_colour;
  report["shape_right"] = score.num_shape;
  report["motion_right"] = score.num_motion;
  report["chance"] = score.chance;
  report["right"] = score.num_right;
}

}  // namespace

nlohmann::ordered_json score_scenes(const EvalArguments& arguments) {
  device::configure_computation(arguments.threads, /*deterministic=*/false);
  inference::TrainedModel trained = inference::load_trained(
      arguments.eval.samples, {.device = arguments.device, .overrides = arguments.overrides});
  const models::ModelConfig& model = trained.recipe.model;
  KINORA_CHECK(model.takes_text() && model.in_channels == 3, kConfig,
               "[eval] --scenes is for models that draw from captions in pixels, got ", model.name);
  KINORA_CHECK(!arguments.first_frame || (model.is_video() && model.frames > 1), kConfig,
               "[eval] --first-frame is for models of clips, got ", model.name);
  nlohmann::ordered_json report;
  report["model"] = arguments.eval.samples;
  if (model.is_video() && model.frames > 1) {
    score_clips(trained, arguments, report);
  } else if (trained.recipe.data.layout_grid > 0) {
    score_layouts(trained, arguments, report);
  } else {
    score_pictures(trained, arguments, report);
  }
  if (const std::string use = trained.model->step_cache_use().describe(); !use.empty()) {
    report["step_cache"] = use;
  }
  report["of"] = arguments.scenes;
  report["share"] = share(report["right"].get<int64_t>(), arguments.scenes);
  return report;
}

}  // namespace kinora::apps
