// kinora sample --run DIR | --checkpoint FILE_OR_DIR

#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "apps/kinora/commands.h"
#include "apps/kinora/ranks.h"
#include "apps/kinora/sample_draw.h"
#include "apps/kinora/sample_files.h"
#include "apps/kinora/sample_judge.h"
#include "kinora/core/error.h"
#include "kinora/device/device.h"
#include "kinora/models/autoencoders/autoencoder.h"
#include "kinora/pipelines/decode.h"
#include "kinora/train/decoder.h"
#include "kinora/train/setup.h"
#include "kinora/train/shown_samples.h"

namespace kinora::apps {
namespace {

// Ranks that have drawn their samples wait for the others.
constexpr std::chrono::hours kPatience{24};

train::DeviceChoice device_of(const SampleArguments& arguments) {
  if (arguments.device == "auto") {
    return train::DeviceChoice::kAuto;
  }
  return arguments.device == "cpu" ? train::DeviceChoice::kCpu : train::DeviceChoice::kCuda;
}

train::LoadOptions load_options(const SampleArguments& arguments) {
  train::LoadOptions options{.ema = arguments.weights == "ema",
                             .device = device_of(arguments),
                             .overrides = arguments.overrides,
                             .config_file = arguments.config,
                             .adapters = arguments.adapters};
  if (arguments.precision == "fp32") {
    options.precision = train::Precision::kFp32;
  } else if (arguments.precision == "bf16") {
    options.precision = train::Precision::kBf16;
  } else if (arguments.precision == "fp16") {
    options.precision = train::Precision::kFp16;
  }
  return options;
}

/// What was written and judged, in words or as JSON.
void report(const std::string& written, const SampleArguments& arguments, const Drawn& drawn,
            const SampleJudge* judge) {
  nlohmann::json json = {{"samples", drawn.asked.size()}, {"out", arguments.out}};
  std::ostringstream text;
  text << written << '\n';
  if (judge != nullptr) {
    std::vector<bool> right;
    for (size_t i = 0; i < drawn.asked.size(); ++i) {
      right.push_back(judge->is_right(drawn.samples[static_cast<int64_t>(i)], drawn.asked[i]));
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
  train::LoadOptions options = load_options(arguments);
  options.says = world.rank() == 0;
  train::TrainedModel trained =
      train::load_trained(arguments.run.empty() ? arguments.checkpoint : arguments.run, options);
  const models::ModelConfig& model = trained.config.model;
  check_options(arguments, model);
  check_format(arguments.format, model.is_video());
  adjust(trained.config, arguments);
  std::optional<SampleJudge> judge;
  if (arguments.judge) {
    judge.emplace(trained.config.data, model);
  }
  const SampleJudge* judging = judge ? &*judge : nullptr;
  // What it refuses is refused before anything is drawn.
  const std::unique_ptr<models::Autoencoder> decoder =
      world.rank() > 0 ? nullptr
                       : train::open_decoder(
                             trained.config,
                             {.path = arguments.autoencoder, .memory_gib = arguments.memory_budget},
                             trained.device);
  Drawn drawn = draw_samples(trained, arguments, judging, world);
  if (world.rank() > 0) {
    return;
  }
  if (decoder != nullptr) {
    drawn.samples = pipelines::decode_latents(*decoder, drawn.samples, trained.device);
  }
  SampleFiles files{.folder = arguments.out,
                    .samples = drawn.samples,
                    .labels = {},
                    .fps = train::clip_fps(trained.config.data),
                    .format = arguments.format};
  for (const Asked& asked : drawn.asked) {
    files.labels.push_back(model.takes_text() ? std::nullopt : asked.label);
  }
  report(write_samples(files), arguments, drawn, judging);
}

}  // namespace

int run(const SampleArguments& arguments) {
  const std::optional<comm::World> world = own_rank(arguments.ranks);
  if (!world) {
    return launch(arguments.ranks, device_of(arguments));
  }
  on_rank(
      *world, device_of(arguments),
      [&](const comm::Group& group, at::Device /*device*/) { sample_on_rank(arguments, group); },
      {.operation_timeout = kPatience});
  return 0;
}

}  // namespace kinora::apps
