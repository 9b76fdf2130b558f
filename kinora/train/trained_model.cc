#include "kinora/train/trained_model.h"

#include <utility>

#include "kinora/checkpoint/checkpoint.h"
#include "kinora/checkpoint/model_weights.h"
#include "kinora/checkpoint/step_folders.h"
#include "kinora/checkpoint/weights_file.h"
#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/parallel/guidance_parallel.h"
#include "kinora/parallel/sequence.h"
#include "kinora/pipelines/diffusers_transformer.h"
#include "kinora/train/finetune.h"
#include "kinora/train/setup.h"

namespace kinora::train {
namespace {

namespace fs = std::filesystem;

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

TrainedModel initial_model(RunConfig config, at::Device device, uint64_t seed) {
  config.train.recompute = "none";
  config.train.fp8 = false;  // samples are computed in train.precision
  config.parallel = {};
  config.finetune = {};  // weights are merged
  TrainedModel initial;
  initial.objective = diffusion::make_objective(config.objective, config.model.learn_sigma);
  diffusion::move_to(initial.objective, device);
  initial.model = models::make_model(config.model);
  initial.arena = std::make_unique<optim::Arena>(
      initial.model->named_parameters(), initial.model->buckets(),
      optim::ArenaOptions{.device = device,
                          .compute_type = compute_type(config.train.precision),
                          .seed = seed,
                          .train = false,
                          .ema_decays = {}});
  initial.model->to_device(device);
  initial.kernels = set_path(*initial.model, config, device);
  initial.graphs = use_graphs(config, initial.kernels.get());
  initial.device = device;
  initial.config = std::move(config);
  return initial;
}

std::optional<fs::path> find_checkpoint(const fs::path& path) {
  if (!fs::is_directory(path)) {
    return std::nullopt;
  }
  if (checkpoint::step_of(path) || fs::exists(path / "manifest.json")) {
    return path;
  }
  const auto checkpoints = checkpoint::list_checkpoints(path / "checkpoints");
  return checkpoints.empty() ? std::nullopt : std::optional(checkpoints.back());
}

TrainedModel load_trained(const fs::path& path, const LoadOptions& options) {
  KINORA_CHECK(fs::exists(path), kIo, "[sample] ", path, " does not exist");
  const std::optional<fs::path> folder = find_checkpoint(path);
  std::optional<checkpoint::WeightsFile> file;
  std::string text;
  if (folder) {
    text = checkpoint::load_state(*folder).config;
  } else {
    file = pipelines::open_weights(path, options.ema);
    text = file->metadata(checkpoint::kConfigMetadata);
    text = text.empty() ? pipelines::diffusers_recipe(path) : text;
  }
  RunConfig config = config_for(text, path, options);
  config.model = resolved_model(config, config.model.num_classes);
  KINORA_CHECK(config.model.num_classes > 0 || config.model.takes_text(), kConfig,
               "[sample] model.num_classes must be given for ", path);
  if (options.precision) {
    config.train.precision = *options.precision;
  }
  const RunConfig given = config;
  TrainedModel trained = initial_model(std::move(config), choose_device(options.device), 0);
  const bool ema = options.ema && !trained.config.ema_decays.empty();
  const bool is_plain = options.adapters.empty() && (file || !given.finetune.freezes());
  if (!is_plain) {
    checkpoint::LateTensors weights =
        file ? file->tensors()
             : checkpoint::checkpoint_weights(
                   *folder, *trained.model, ema ? optim::Role::average(0) : optim::Role::master());
    if (folder) {
      (void)merge_updates(given, weights);
    }
    merge_adapters(options.adapters, trained.config.model, weights);
    checkpoint::load_weights(weights, path, *trained.model, *trained.arena);
  } else if (file) {
    checkpoint::load_weights(*file, *trained.model, *trained.arena);
  } else {
    checkpoint::load_for_sampling(*folder, ema ? std::optional<size_t>(0) : std::nullopt,
                                  *trained.model, *trained.arena);
  }
  if (!options.says) {
    return trained;
  }
  for (const std::string& adapter : options.adapters) {
    const checkpoint::AdapterChoice choice = checkpoint::parse_adapter_choice(adapter);
    log_info("[sample] adapter ", choice.path, " merged with weight ", choice.weight);
  }
  if (folder) {
    log_info("[sample] ", ema ? "averaged" : "raw", " weights of ", *folder,
             options.ema && !ema ? ": the run keeps no averages" : "");
    return trained;
  }
  log_info("[sample] weights of ", path);
  if (!options.ema && path.extension() == ".safetensors") {
    log_warn("[sample] raw weights were asked for, but ", path,
             " holds one set only: that is used");
  }
  return trained;
}

std::unique_ptr<diffusion::Denoiser> share(TrainedModel& trained, const parallel::Mesh& mesh,
                                           parallel::SequenceScheme scheme, int64_t rows) {
  if (const comm::Group& group = mesh.group(parallel::Axis::kSequence); group.size() > 1) {
    trained.config.parallel.sp_size = group.size();
    trained.config.parallel.sequence_scheme = scheme;
    const parallel::SequencePlan plan = sequence_plan(trained.config, group, rows, trained.device);
    trained.kernels = set_path(*trained.model, trained.config, trained.device);
    trained.model->use_sequence(parallel::make_sequence(plan, group));
    // Two communicators in one graph can wait for each other forever where their calls may be under
    // way at once: those of a sequence's two levels, but not guidance's, which waits for all of
    // them and they for it.
    trained.graphs = plan.num_levels() == 1 && use_graphs(trained.config, trained.kernels.get());
    if (mesh.world().rank() == 0) {
      log_info("[sample] ", plan.reason);
    }
  }
  return std::make_unique<parallel::GuidanceParallel>(*trained.model,
                                                      mesh.group(parallel::Axis::kGuidance));
}

}  // namespace kinora::train
