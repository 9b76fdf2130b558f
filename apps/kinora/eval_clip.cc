#include "apps/kinora/eval_clip.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include <memory>
#include <string>
#include <vector>

#include "apps/kinora/eval_progress.h"
#include "kinora/core/error.h"
#include "kinora/core/progress.h"
#include "kinora/device/device.h"
#include "kinora/eval/clip_network.h"
#include "kinora/eval/clip_score.h"
#include "kinora/eval/extract.h"
#include "kinora/inference/decoder.h"
#include "kinora/inference/drawing.h"
#include "kinora/inference/prompts.h"
#include "kinora/inference/setup.h"
#include "kinora/inference/trained_model.h"
#include "kinora/pipelines/decode.h"

namespace kinora::apps {
namespace {

nlohmann::ordered_json report_of(const EvalArguments& arguments, const eval::ClipNetwork& network,
                                 const at::Tensor& features,
                                 const std::vector<std::string>& prompts) {
  const eval::DistinctTexts texts = eval::distinct(prompts);
  const eval::ClipScore score =
      eval::clip_score(features, network.embed(texts.texts), texts.number);
  nlohmann::ordered_json report = {{"samples", arguments.eval.samples},
                                   {"num_samples", features.size(0)},
                                   {"num_prompts", texts.texts.size()},
                                   {"network", network.name()},
                                   {"clip_score", score.score}};
  if (score.score_of_others) {
    report["clip_score_of_other_prompts"] = *score.score_of_others;
    report["own_prompt_is_nearest"] = *score.own_is_nearest;
  }
  return report;
}

/// uint8 [B, 3, ...] of [-1, 1]; grey ones three times.
at::Tensor bytes_of(const at::Tensor& samples) {
  const at::Tensor bytes = ((samples + 1.0) * 127.5).round().clamp(0, 255).to(at::kByte);
  std::vector<int64_t> shape = bytes.sizes().vec();
  shape[1] = 3;
  return bytes.expand(shape);
}

}  // namespace

nlohmann::ordered_json score_clip(const EvalArguments& arguments, const comm::Group& group,
                                  at::Device device) {
  const eval::SampleSet set = eval::SampleSet::open(arguments.eval.samples, arguments.eval.set);
  const std::vector<std::string> prompts = eval::prompts_of(set, arguments.prompts);
  const eval::ClipNetwork network(arguments.clip, device);
  const eval::FeatureTable table =
      eval::extract(set, network, group, shown_extraction(arguments.eval, group, device));
  return report_of(arguments, network, table.features, prompts);
}

bool is_run(const EvalArguments& arguments) {
  return inference::find_checkpoint(arguments.eval.samples).has_value();
}

nlohmann::ordered_json score_clip_of_run(const EvalArguments& arguments) {
  const std::string& ranks = arguments.ranks.ranks;
  KINORA_CHECK(ranks.empty() || ranks == "1", kConfig,
               "[eval] --clip of a run draws on one rank, got --ranks ", ranks,
               ". Hint: kinora sample --ranks, then eval of its folder");
  device::configure_computation(arguments.threads, /*deterministic=*/false);
  const at::Device device = inference::choose_device(arguments.device);
  inference::TrainedModel trained = inference::load_trained(
      arguments.eval.samples, {.device = arguments.device, .overrides = arguments.overrides});
  const models::ModelConfig& model = trained.recipe.model;
  KINORA_CHECK(model.takes_text(), kConfig,
               "[eval] --clip is for models that draw from captions, got ", model.name);
  KINORA_CHECK(!arguments.prompts.empty() || arguments.eval.set.limit > 0, kConfig,
               "[eval] what the run is to draw must be said. Hint: --prompts FILE, or --limit N "
               "for the first captions of its data");
  inference::Request request{
      .count = arguments.eval.set.limit, .seed = arguments.seed, .guidance = arguments.guidance};
  if (!arguments.prompts.empty()) {
    request.captions = inference::caption_lines(arguments.prompts);
  }
  inference::Drawing drawing(trained, {request}, {.batch = arguments.eval.batch});
  const std::unique_ptr<models::Autoencoder> decoder =
      inference::open_decoder(drawing.recipe(), {}, device);
  KINORA_CHECK(decoder != nullptr || model.in_channels == 3 || model.in_channels == 1, kConfig,
               "[eval] the run draws latents and names no autoencoder. Hint: autoencoder.path, or "
               "kinora sample --autoencoder, then eval of its folder");
  std::vector<std::string> prompts;
  for (const inference::Asked& asked : drawing.asked()) {
    KINORA_CHECK(!asked.caption.empty(), kConfig,
                 "[eval] the texts of the run's data are not known in words. Hint: --prompts FILE");
    prompts.push_back(asked.caption);
  }
  const eval::ClipNetwork network(arguments.clip, device);
  std::vector<at::Tensor> features;  // of a batch each, which come in order
  Progress progress(std::ssize(prompts), model.is_video() ? "clips" : "images");
  pipelines::DrawEvents events{.done = [&](int64_t /*first*/, const at::Tensor& samples) {
    const at::Tensor pixels = bytes_of(
        decoder == nullptr ? samples : pipelines::decode_latents(*decoder, samples, device));
    std::vector<at::Tensor> inputs;
    for (int64_t i = 0; i < pixels.size(0); ++i) {
      inputs.push_back(network.prepare(pixels[i]));
    }
    features.push_back(network.forward(at::stack(inputs).to(device)).features.cpu());
  }};
  events.progress = [&](const pipelines::DrawProgress& now) {
    progress.update(now.part * static_cast<double>(prompts.size()));
  };
  (void)drawing.draw_batches({}, events);
  progress.finish();
  return report_of(arguments, network, at::cat(features), prompts);
}

}  // namespace kinora::apps
