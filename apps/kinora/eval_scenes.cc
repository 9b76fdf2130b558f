#include "apps/kinora/eval_scenes.h"

#include <algorithm>
#include <string>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/data/scenes.h"
#include "kinora/device/device.h"
#include "kinora/eval/scene_judge.h"
#include "kinora/inference/drawing.h"
#include "kinora/inference/trained_model.h"

namespace kinora::apps {
namespace {

constexpr int64_t kBatch = 250;

double share(int64_t part, int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<int64_t>(whole, 1));
}

}  // namespace

nlohmann::ordered_json score_scenes(const EvalArguments& arguments) {
  device::configure_computation(arguments.threads, /*deterministic=*/false);
  inference::TrainedModel trained =
      inference::load_trained(arguments.eval.samples, {.device = arguments.device});
  const models::ModelConfig& model = trained.recipe.model;
  KINORA_CHECK(model.takes_text() && !model.is_video() && model.in_channels == 3, kConfig,
               "[eval] --scenes is for models that draw pictures from captions in pixels, got ",
               model.name);
  inference::Request request{.guidance = arguments.guidance};
  std::vector<data::SceneContent> asked;
  for (int64_t i = 0; i < arguments.scenes; ++i) {
    request.captions.push_back(data::held_out_caption(i));
    asked.push_back(data::held_out_scene(i).content);
  }
  inference::Drawing drawing(trained, {request}, {.batch = kBatch});
  const eval::SceneScore score = eval::judge_scenes(drawing.draw(), asked);

  nlohmann::ordered_json report;
  report["model"] = arguments.eval.samples;
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
  report["of"] = arguments.scenes;
  report["share"] = share(num_right, arguments.scenes);
  return report;
}

}  // namespace kinora::apps
