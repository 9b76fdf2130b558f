// kinora sample --run DIR | --checkpoint FILE_OR_DIR

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <sstream>

#include "apps/kinora/commands.h"
#include "apps/kinora/ranks.h"
#include "kinora/core/error.h"
#include "kinora/core/progress.h"
#include "kinora/core/text.h"
#include "kinora/device/device.h"
#include "kinora/eval/sample_judge.h"
#include "kinora/inference/decoder.h"
#include "kinora/inference/drawing.h"
#include "kinora/inference/sample_files.h"
#include "kinora/inference/shown_samples.h"
#include "kinora/models/autoencoders/autoencoder.h"
#include "kinora/pipelines/decode.h"

namespace kinora::apps {
namespace {

// Ranks that have drawn their samples wait for the others.
constexpr std::chrono::hours kPatience{24};

// Of a model of many classes, those that are drawn where none are named.
constexpr int64_t kMostClasses = 64;

inference::LoadOptions load_options(const SampleArguments& arguments) {
  return {.ema = arguments.weights == "ema",
          .device = arguments.device,
          .precision = arguments.precision,
          .overrides = arguments.overrides,
          .config_file = arguments.config,
          .adapters = arguments.adapters};
}

/// The lines of a file that are not empty.
std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  KINORA_CHECK(file.good(), kIo, "[sample] cannot read ", path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (!trim(line).empty()) {
      lines.emplace_back(trim(line));
    }
  }
  KINORA_CHECK(!lines.empty(), kConfig, "[sample] ", path, " must hold at least one caption");
  return lines;
}

inference::Request request_of(const SampleArguments& arguments, const models::ModelConfig& model) {
  inference::Request request = arguments.request;
  if (!arguments.captions_file.empty()) {
    request.captions = lines_of(arguments.captions_file);
  }
  if (request.classes.empty() && !model.takes_text()) {
    request.classes.resize(static_cast<size_t>(std::min(model.num_classes, kMostClasses)));
    std::iota(request.classes.begin(), request.classes.end(), 0);
  }
  return request;
}

/// What was written and judged, in words or as JSON.
void report(const std::string& written, const SampleArguments& arguments, const at::Tensor& samples,
            const std::vector<inference::Asked>& asked, const eval::SampleJudge* judge) {
  nlohmann::json json = {{"samples", asked.size()}, {"out", arguments.out}};
  std::ostringstream text;
  text << written << '\n';
  if (judge != nullptr) {
    std::vector<bool> right;
    for (size_t i = 0; i < asked.size(); ++i) {
      right.push_back(judge->is_right(samples[static_cast<int64_t>(i)], asked[i]));
    }
    const auto num_right = std::count(right.begin(), right.end(), true);
    const double share = static_cast<double>(num_right) / static_cast<double>(right.size());
    text << "judged " << num_right << "/" << right.size() << " right\n";
    json["judge"] = {{"right", num_right}, {"share", share}, {"each", right}};
  }
  std::cout << (arguments.json ? json.dump() + "\n" : text.str());
}

void sample_on_rank(const SampleArguments& arguments, const comm::Group& world) {
  device::configure_computation(arguments.threads, arguments.deterministic);
  inference::LoadOptions options = load_options(arguments);
  const bool speaks = world.rank() == 0;
  options.says = speaks;
  inference::TrainedModel trained = inference::load_trained(
      arguments.run.empty() ? arguments.checkpoint : arguments.run, options);
  // What is refused is refused before anything is drawn.
  inference::check_format(arguments.format, trained.recipe.model.is_video());
  inference::Drawing drawing(trained, {request_of(arguments, trained.recipe.model)},
                             arguments.options);
  const inference::ModelRecipe& recipe = drawing.recipe();
  const std::vector<inference::Asked>& asked = drawing.asked();
  std::optional<eval::SampleJudge> judge;
  if (arguments.judge) {
    judge.emplace(recipe.data, recipe.model);
    for (const inference::Asked& each : asked) {
      (void)judge->label_of(each);
    }
  }
  const std::unique_ptr<models::Autoencoder> decoder =
      speaks ? inference::open_decoder(
                   recipe, {.path = arguments.autoencoder, .memory_gib = arguments.memory_budget},
                   trained.device)
             : nullptr;
  if (!speaks) {
    (void)drawing.draw(world);
    return;
  }
  Progress progress(static_cast<int64_t>(asked.size()),
                    recipe.model.is_video() ? "clips" : "images");
  at::Tensor samples = drawing.draw(
      world, [&progress](double done) { progress.update(static_cast<int64_t>(done)); });
  progress.finish();
  if (decoder != nullptr) {
    samples = pipelines::decode_latents(*decoder, samples, trained.device);
  }
  inference::SampleFiles files{.folder = arguments.out,
                               .samples = samples,
                               .labels = {},
                               .fps = inference::clip_fps(recipe.data),
                               .format = arguments.format};
  for (const inference::Asked& each : asked) {
    files.labels.push_back(recipe.model.takes_text() ? std::nullopt : each.label);
  }
  report(inference::write_samples(files), arguments, samples, asked, judge ? &*judge : nullptr);
}

}  // namespace

int run(const SampleArguments& arguments) {
  const std::optional<comm::World> world = own_rank(arguments.ranks);
  if (!world) {
    return launch(arguments.ranks, arguments.device);
  }
  on_rank(
      *world, arguments.device,
      [&](const comm::Group& group, at::Device /*device*/) { sample_on_rank(arguments, group); },
      {.operation_timeout = kPatience});
  return 0;
}

}  // namespace kinora::apps
