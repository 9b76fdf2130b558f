#include "apps/kinora/eval_scenes.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kinora/core/error.h"
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

/// Draws what `captions` ask for, beside: with DrawStart's, undefined: without.
at::Tensor drawn(inference::TrainedModel& trained, std::vector<std::string> captions,
                 const EvalArguments& arguments, int64_t batch, const at::Tensor& beside = {}) {
  const inference::Request request{.captions = std::move(captions), .guidance = arguments.guidance};
  inference::Drawing drawing(trained, {request}, {.batch = batch});
  if (beside.defined()) {
    drawing.set_start({.beside = beside});
  }
  return drawing.draw();
}

/// Held-out clips: what is asked for, and of clips with references what is shown.
struct AskedClips {
  std::vector<std::string> captions;
  std::vector<data::MovingContent> contents;
  at::Tensor beside;  // float32 [clips, 3, N, H, W]
};

AskedClips held_out_clips(int64_t count, const models::ModelConfig& model) {
  const int64_t most = models::shape_of(model).references;
  AskedClips asked;
  if (most == 0) {
    for (int64_t i = 0; i < count; ++i) {
      asked.captions.push_back(data::held_out_clip_caption(i));
      asked.contents.push_back(data::held_out_clip(i).content());
    }
    return asked;
  }
  asked.beside = at::zeros({count, 3, most, model.height, model.width}, at::kFloat);
  for (int64_t i = 0; i < count; ++i) {
    const data::ReferencedClip clip = data::held_out_referenced_clip(i, most);
    asked.captions.push_back(clip.caption);
    asked.contents.push_back(clip.scene.content());
    for (size_t number = 0; number < clip.references.size(); ++number) {
      io::Image picture;
      data::render(clip.references[number], model.height, model.width, picture);
      asked.beside[i]
          .select(1, static_cast<int64_t>(number))
          .copy_(data::to_float(inference::pixels_of(picture).permute({2, 0, 1}), at::kCPU));
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
      eval::judge_layouts(drawn(trained, std::move(captions), arguments, kBatch), asked);
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
      eval::judge_scenes(drawn(trained, std::move(captions), arguments, kBatch), asked);
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
  AskedClips asked = held_out_clips(arguments.scenes, trained.recipe.model);
  const eval::MovingScore score = eval::judge_asked_clips(
      drawn(trained, std::move(asked.captions), arguments, kBatch, asked.beside), asked.contents);
  if (asked.beside.defined()) {
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
  inference::TrainedModel trained =
      inference::load_trained(arguments.eval.samples, {.device = arguments.device});
  const models::ModelConfig& model = trained.recipe.model;
  KINORA_CHECK(model.takes_text() && model.in_channels == 3, kConfig,
               "[eval] --scenes is for models that draw from captions in pixels, got ", model.name);
  nlohmann::ordered_json report;
  report["model"] = arguments.eval.samples;
  if (model.is_video() && model.frames > 1) {
    score_clips(trained, arguments, report);
  } else if (trained.recipe.data.layout_grid > 0) {
    score_layouts(trained, arguments, report);
  } else {
    score_pictures(trained, arguments, report);
  }
  report["of"] = arguments.scenes;
  report["share"] = share(report["right"].get<int64_t>(), arguments.scenes);
  return report;
}

}  // namespace kinora::apps
