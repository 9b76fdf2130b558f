#include "kinora/train/trained_model.h"

#include "kinora/checkpoint/checkpoint.h"
#include "kinora/checkpoint/weights_file.h"
#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/train/setup.h"

namespace kinora::train {
namespace {

namespace fs = std::filesystem;

/// The checkpoint that a folder stands for: itself, or the newest of a run.
fs::path checkpoint_of(const fs::path& path) {
  if (checkpoint::step_of(path) || fs::exists(path / "manifest.json")) {
    return path;
  }
  const auto checkpoints = checkpoint::list_checkpoints(path / "checkpoints");
  KINORA_CHECK(!checkpoints.empty(), kIo, "[sample] ", path,
               " is neither a checkpoint nor a run with one");
  return checkpoints.back();
}

RunConfig config_for(const std::string& text, const fs::path& path, const LoadOptions& options) {
  if (!options.config_file.empty()) {
    return load_config<RunConfig>(options.config_file, options.overrides);
  }
  KINORA_CHECK(!text.empty(), kConfig, "[sample] ", path,
               " does not say what model it is. Hint: give its recipe with --config");
  return parse_config<RunConfig>({.text = text, .origin = "configuration in " + path.string()},
                                 options.overrides);
}

}  // namespace

TrainedModel load_trained(const fs::path& path, const LoadOptions& options) {
  KINORA_CHECK(fs::exists(path), kIo, "[sample] ", path, " does not exist");
  std::optional<fs::path> folder;
  std::optional<checkpoint::WeightsFile> file;
  std::string text;
  if (fs::is_directory(path)) {
    folder = checkpoint_of(path);
    text = checkpoint::load_state(*folder).config;
  } else {
    file = checkpoint::WeightsFile::open(path, options.ema);
    text = file->metadata(checkpoint::kConfigMetadata);
  }
  TrainedModel trained;
  trained.config = config_for(text, path, options);
  trained.config.model = resolved_model(trained.config, trained.config.model.num_classes);
  KINORA_CHECK(trained.config.model.num_classes > 0 || trained.config.model.takes_text(), kConfig,
               "[sample] model.num_classes must be given for ", path);
  if (options.precision) {
    trained.config.train.precision = *options.precision;
  }
  trained.device = choose_device(options.device);
  trained.objective =
      diffusion::make_objective(trained.config.objective, trained.config.model.learn_sigma);
  diffusion::move_to(trained.objective, trained.device);
  trained.model = models::make_model(trained.config.model);
  trained.arena = std::make_unique<optim::Arena>(
      trained.model->named_parameters(), trained.model->buckets(),
      optim::ArenaOptions{.device = trained.device,
                          .compute_type = compute_type(trained.config.train.precision),
                          .seed = 0,
                          .train = false,
                          .ema_decays = {}});
  trained.model->to_device(trained.device);
  trained.config.train.recompute = "none";
  trained.config.train.fp8 = false;  // samples are computed in train.precision
  trained.kernels = set_path(*trained.model, trained.config, trained.device);
  trained.graphs = use_graphs(trained.config, trained.kernels.get());
  if (file) {
    checkpoint::load_weights(*file, *trained.model, *trained.arena);
    log_info("[sample] weights of ", path);
    if (!options.ema && path.extension() == ".safetensors") {
      log_warn("[sample] raw weights were asked for, but ", path,
               " holds one set only: that is used");
    }
  } else {
    const bool ema = options.ema && !trained.config.ema_decays.empty();
    checkpoint::load_for_sampling(*folder, ema ? std::optional<size_t>(0) : std::nullopt,
                                  *trained.model, *trained.arena);
    log_info("[sample] ", ema ? "averaged" : "raw", " weights of ", *folder,
             options.ema && !ema ? ": the run keeps no averages" : "");
  }
  return trained;
}

}  // namespace kinora::train
