// kinora data encode CONFIG [key=value ...] --out FOLDER

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "apps/kinora/commands.h"
#include "apps/kinora/ranks.h"
#include "kinora/core/config.h"
#include "kinora/core/counted.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/progress.h"
#include "kinora/core/stop_signal.h"
#include "kinora/data/causes.h"
#include "kinora/data/data_config.h"
#include "kinora/device/device.h"
#include "kinora/io/file.h"
#include "kinora/pipelines/encode.h"
#include "kinora/train/frozen_encoder.h"
#include "kinora/train/run_config.h"

namespace kinora::apps {
namespace {

DType dtype_of(const std::string& name) {
  if (name == "fp32") {
    return DType::kF32;
  }
  return name == "fp16" ? DType::kF16 : DType::kBF16;
}

/// The recipe with what the options say in its place.
train::RunConfig config_of(const EncodeArguments& arguments) {
  auto config = load_config<train::RunConfig>(arguments.config, arguments.overrides);
  inference::AutoencoderOptions& autoencoder = config.autoencoder;
  if (!arguments.autoencoder.empty()) {
    autoencoder.path = arguments.autoencoder;
  }
  if (arguments.batch > 0) {
    autoencoder.micro_batch = arguments.batch;
  }
  if (arguments.memory_budget >= 0.0) {
    autoencoder.memory_gib = arguments.memory_budget;
  }
  KINORA_CHECK(!autoencoder.path.empty(), kConfig,
               "[encode] an autoencoder is needed. Hint: --autoencoder PATH, or autoencoder.path "
               "in the recipe");
  return config;
}

void encode_on_rank(const EncodeArguments& arguments, const train::RunConfig& config,
                    const comm::Group& group, at::Device device) {
  device::configure_computation(config.train.threads, config.deterministic);
  const auto source = data::open_source(config.data);
  if (group.rank() == 0) {
    data::announce_unusable(*source);
  }
  const auto frozen =
      train::open_encoder(config.autoencoder, {&config.data, &config.image_data}, device);
  pipelines::EncodeOptions options{.out = arguments.out,
                                   .data = config.data,
                                   .autoencoder = train::autoencoder_key(config.autoencoder),
                                   .dtype = dtype_of(arguments.dtype),
                                   .std = !arguments.mean_only,
                                   .mirrored = arguments.mirrored,
                                   .block_seconds = arguments.save_every,
                                   .progress = {}};
  std::optional<Progress> progress;
  options.progress = [&progress](int64_t done, int64_t total, int64_t before) {
    if (!progress) {
      progress.emplace(total, "samples", before);
    }
    progress->update(done);
  };
  const StopSignal stop;
  const pipelines::EncodeResult result =
      pipelines::encode(*source, frozen->encoder, options, group, &stop);
  progress.reset();
  if (result.complete && group.rank() == 0) {
    log_info("[encode] ", arguments.out, " holds latents of ", counted(result.samples, "sample"),
             "; train on them with data.source=latents 'data.path=[", arguments.out, "]'");
    if (result.left_out > 0) {
      log_warn("[encode] left out ", counted(result.left_out, "sample"),
               " that could not be encoded; the cache's part-*.jsonl say why");
    }
  }
}

}  // namespace

int run(const EncodeArguments& arguments) {
  const train::RunConfig config = config_of(arguments);
  io::check_can_write(arguments.out);
  const std::optional<comm::World> world = own_rank(arguments.ranks);
  if (!world) {
    return launch(arguments.ranks, config.train.device, AtStop::kSave);
  }
  // Ranks wait for the slowest at the end, once.
  const comm::GroupOptions options{.operation_timeout = std::chrono::hours(24)};
  on_rank(
      *world, config.train.device,
      [&](const comm::Group& group, at::Device device) {
        encode_on_rank(arguments, config, group, device);
      },
      options);
  return 0;
}

}  // namespace kinora::apps
