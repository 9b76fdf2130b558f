#include "kinora/inference/trained_model.h"

#include <algorithm>
#include <utility>

#include "kinora/checkpoint/checkpoint.h"
#include "kinora/checkpoint/model_weights.h"
#include "kinora/checkpoint/step_folders.h"
#include "kinora/checkpoint/weights_file.h"
#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/text.h"
#include "kinora/diffusion/experts.h"
#include "kinora/inference/kept_tokenizer.h"
#include "kinora/inference/setup.h"
#include "kinora/inference/updates.h"
#include "kinora/models/families.h"
#include "kinora/models/unconditional.h"
#include "kinora/models/unets/unet_names.h"
#include "kinora/ops/fp8.h"
#include "kinora/optim/held_weights.h"
#include "kinora/optim/weight_exchange.h"
#include "kinora/parallel/guidance_parallel.h"
#include "kinora/parallel/pipeline.h"
#include "kinora/parallel/sequence.h"
#include "kinora/parallel/tensor.h"
#include "kinora/pipelines/diffusers_model.h"
#include "kinora/pipelines/diffusers_unet.h"
#include "kinora/pipelines/ip_adapter_file.h"
#include "kinora/pipelines/pipeline.h"

namespace kinora::inference {
namespace {

namespace fs = std::filesystem;

ModelRecipe recipe_in(const std::string& text, const fs::path& path, const LoadOptions& options) {
  if (!options.config_file.empty()) {
    return load_config<ModelRecipe>(options.config_file, options.overrides);
  }
  KINORA_CHECK(!text.empty(), kConfig, "[sample] ", path,
               " does not say what model it is. Hint: give its recipe with --config");
  return parse_config<ModelRecipe>({.text = text, .origin = "configuration in " + path.string()},
                                   options.overrides);
}

/// Whether text.tokenizer is what the caller says.
bool chooses_tokenizer(const LoadOptions& options) {
  return !options.config_file.empty() ||
         std::ranges::any_of(options.overrides, [](const std::string& override) {
           return override.starts_with("text.tokenizer=");
         });
}

/// A checkpoint's folder or a file of weights, and what they say that they are of.
struct OpenModel {
  std::optional<fs::path> folder;
  std::optional<checkpoint::WeightsFile> file;
  ModelRecipe recipe;
  std::vector<fs::path> controlnets;

  /// Those of its files: these and `controls`, which are to be filled, must outlive them.
  [[nodiscard]] checkpoint::LateTensors tensors(
      std::vector<checkpoint::WeightsFile>& controls) const;
};

checkpoint::LateTensors OpenModel::tensors(std::vector<checkpoint::WeightsFile>& controls) const {
  checkpoint::LateTensors all = file->tensors();
  for (const fs::path& folder : controlnets) {
    const std::string prefix = models::control_prefix(std::ssize(controls));
    controls.push_back(checkpoint::WeightsFile::open(folder));
    for (auto& [name, tensor] : controls.back().tensors()) {
      all.emplace(prefix + name, std::move(tensor));
    }
  }
  return all;
}

/// kConfig where what is said of a second expert does not fit together.
void check_low_noise(const ModelRecipe& recipe, const LoadOptions& options) {
  const pipelines::SamplingConfig& sampling = recipe.sample.sampling;
  KINORA_CHECK((sampling.low_noise > 0.0) == !sampling.low_noise_model.empty(), kConfig,
               "[sample] sample.low_noise and sample.low_noise_model must be given together, got ",
               sampling.low_noise, " and \"", sampling.low_noise_model, "\"");
  KINORA_CHECK(
      sampling.low_noise == 0.0 || recipe.objective.kind == diffusion::ObjectiveConfig::Kind::kFlow,
      kConfig, "[sample] sample.low_noise is for flows (objective.kind flow)");
  KINORA_CHECK(sampling.low_noise == 0.0 || !sampling.cache.has_patches(), kConfig,
               "[sample] sample.patches is of one model, and this one has a second expert for low "
               "noise (sample.low_noise). Hint: sample.patches=1");
  KINORA_CHECK(sampling.low_noise > 0.0 || options.low_noise_adapters.empty(), kConfig,
               "[sample] this model has no second expert for --low-noise-lora. Hint: --lora");
  KINORA_CHECK(sampling.low_noise > 0.0 || !options.exchange_experts, kConfig,
               "[sample] this model has no second expert to exchange with. Hint: without "
               "--exchange-experts; --offload SHARE");
}

OpenModel open_model(const fs::path& path, const LoadOptions& options) {
  KINORA_CHECK(
      fs::exists(path), kIo, "[sample] ", path,
      " does not exist. Hint: give a folder or file of this machine; nothing is downloaded");
  OpenModel model{.folder = find_checkpoint(path),
                  .file = {},
                  .recipe = {},
                  .controlnets = {options.controlnets.begin(), options.controlnets.end()}};
  KINORA_CHECK(!model.folder || model.controlnets.empty(), kConfig, "[sample] ", path,
               " is a run, beside whose model no other ControlNets are put. Hint: kinora convert "
               "it to a file first");
  std::string text;
  std::optional<Precision> stored;
  if (model.folder) {
    text = checkpoint::load_state(*model.folder).config;
  } else if (const auto pipeline = pipelines::find_pipeline(path)) {
    text = options.config_file.empty() ? pipelines::pipeline_recipe(*pipeline) : "";
    model.file = pipelines::open_weights(path, options.ema);
    if (model.controlnets.empty()) {
      model.controlnets = pipeline->controlnets;
    }
    if (choose_device(options.device).is_cuda()) {
      stored = stored_precision(*model.file);
    }
  } else {
    model.file = pipelines::open_weights(path, options.ema);
    text = model.file->metadata(checkpoint::kConfigMetadata);
    text = text.empty() ? pipelines::model_recipe(path) : text;
  }
  ModelRecipe& recipe = model.recipe;
  recipe = recipe_in(text, path, options);
  if (!chooses_tokenizer(options)) {
    take_kept_tokenizer(model.folder.value_or(path), model.file ? &*model.file : nullptr, recipe);
  }
  recipe.model = resolved_model(recipe, recipe.model.num_classes);
  if (models::is_unconditional(recipe.model)) {
    recipe.sample.sampling.guidance = 1.0;  // there is nothing that it could be by
  }
  if (!model.controlnets.empty() || !options.control_scales.empty()) {
    recipe.model = pipelines::with_controls(std::move(recipe.model), model.controlnets,
                                            options.control_scales);
  }
  if (!options.ip_adapter.empty()) {
    recipe.model =
        pipelines::with_ip_adapter(std::move(recipe.model), options.ip_adapter, options.ip_scale);
  }
  KINORA_CHECK(recipe.model.num_classes > 0 || recipe.model.takes_text(), kConfig,
               "[sample] model.num_classes must be given for ", path);
  check_low_noise(recipe, options);
  recipe.precision = options.precision.value_or(stored.value_or(recipe.precision));
  return model;
}

/// Whether sampling can be recorded as a CUDA graph. kConfig where it must be and cannot.
bool records(const ModelRecipe& recipe, const ops::BlockKernels* kernels) {
  // A graph repeats what another batch decided.
  const bool decides_alone =
      recipe.sample.sampling.cache.measures() && recipe.sample.sampling.batch_invariant;
  const bool has_experts = recipe.sample.sampling.low_noise > 0.0;
  const bool can =
      kernels != nullptr && kernels->can_be_recorded() && !decides_alone && !has_experts;
  KINORA_CHECK(
      recipe.kernels.graphs != ops::Switch::kOn || can, kConfig,
      "[sample] kernels.graphs is on, but sampling cannot be recorded: ",
      decides_alone ? "with sample.batch_invariant sample.cache first_block and tea decide "
                      "for each sample what to compute. Hint: sample.cache=pab, or "
                      "kernels.graphs=off"
      : has_experts ? "its steps are of two experts (sample.low_noise). Hint: kernels.graphs=auto"
                    : "it needs the fast path on a GPU with its kernels");
  return can && recipe.kernels.graphs != ops::Switch::kOff;
}

/// Loads the second expert of a recipe that has one: beside the first, or in its place, which the
/// first has again then.
void load_low_noise(const LoadOptions& options, TrainedModel& trained) {
  using Set = optim::WeightExchange::Set;
  const ModelRecipe& recipe = trained.recipe;
  const pipelines::SamplingConfig& sampling = recipe.sample.sampling;
  if (sampling.low_noise == 0.0) {
    return;
  }
  const fs::path path = sampling.low_noise_model;
  const checkpoint::WeightsFile file = pipelines::open_weights(path, options.ema);
  if (options.exchange_experts) {
    trained.experts = std::make_unique<optim::WeightExchange>(*trained.arena);
    trained.experts->bring(Set::kSecond);
  } else {
    trained.low_noise = std::make_unique<TrainedModel>(
        initial_model(recipe, trained.device, 0, options.held, options.groups));
  }
  const TrainedModel& second = options.exchange_experts ? trained : *trained.low_noise;
  checkpoint::LateTensors weights = file.tensors();
  merge_adapters(options.low_noise_adapters, recipe.model, weights, options.says,
                 options.has_encoder);
  checkpoint::load_weights(weights, path, *second.model, *second.arena);
  std::string waiting;
  if (options.exchange_experts) {
    trained.experts->bring(Set::kFirst);
    waiting = "; one of the two is on the device, the other waits in the host's memory: " +
              human_bytes(trained.experts->host_bytes());
  }
  if (options.says) {
    log_info("[sample] weights of ", path, " where the noise level is below ", sampling.low_noise,
             waiting);
  }
}

/// Takes the path that the recipe asks for.
void set_path(TrainedModel& trained) {
  trained.kernels = fast_path(trained.recipe, *trained.model, trained.device);
  if (trained.recipe.sample.sampling.fp8) {
    const models::Model& model = *trained.model;
    KINORA_CHECK(trained.kernels != nullptr && model.can_sample_in_fp8(), kConfig,
                 "[sample] sample.fp8 is for transformers on the fast path, and ",
                 models::name_of(model.config()),
                 trained.kernels == nullptr ? " takes the plain one here" : " is none",
                 ". Hint: it needs a GPU and --precision bf16 or fp16; sample.fp8=false");
    trained.kernels->use_fp8(std::make_unique<ops::Fp8>(model.num_fast_linears(), trained.device,
                                                        ops::Fp8Scaling::kDelayed,
                                                        ops::Fp8Use::kSampling));
  }
  trained.model->use_fast_path(trained.kernels);
  const diffusion::StepCacheConfig& cache = trained.recipe.sample.sampling.cache;
  trained.model->use_step_cache(cache);
  trained.graphs = records(trained.recipe, trained.kernels.get()) && trained.links == nullptr;
  if (cache.measures() && trained.graphs) {
    log_info(
        "[sample] sample.cache decides in the first batch which steps compute all blocks; the CUDA "
        "graph of later batches repeats it (kernels.graphs=off: each decides)");
  }
}

}  // namespace

ModelGroups ModelGroups::of(const comm::Group& world, const pipelines::SamplingRanks& ranks) {
  return {.tensor = parallel::tensor_group(world, ranks.tensor),
          .pipeline = parallel::stage_group(world, ranks.pipeline)};
}

Precision stored_precision(const checkpoint::WeightsFile& file) {
  const checkpoint::LateTensors tensors = file.tensors();
  const auto largest =
      std::ranges::max_element(tensors, {}, [](const auto& named) { return named.second.numel(); });
  const at::ScalarType type = largest == tensors.end() ? at::kFloat : largest->second.type;
  return type == at::kBFloat16 ? Precision::kBf16
         : type == at::kHalf   ? Precision::kFp16
                               : Precision::kFp32;
}

TrainedModel initial_model(const ModelRecipe& recipe, at::Device device, uint64_t seed,
                           optim::HeldOptions held, const ModelGroups& groups) {
  TrainedModel initial{
      .recipe = recipe,
      .model = models::make_model(recipe.model),
      .arena = nullptr,
      .objective = diffusion::make_objective(recipe.objective, recipe.model.learn_sigma),
      .device = device,
      .kernels = nullptr};
  diffusion::move_to(initial.objective, device);
  divide_weights(*initial.model, groups.tensor);
  initial.links = divide_blocks(*initial.model, groups.pipeline, /*chunks=*/1);
  if (initial.links != nullptr) {
    initial.model->use_pipeline(std::make_shared<parallel::StagePipeline>(*initial.links));
  }
  held.buckets = initial.model->buckets();
  optim::ArenaOptions arena;
  arena.device = device;
  arena.compute_type = compute_type(recipe.precision);
  arena.seed = seed;
  arena.train = false;
  arena.held = std::move(held);
  arena.tensor = groups.tensor;
  arena.pipeline = groups.pipeline;
  initial.arena = std::make_unique<optim::Arena>(initial.model->named_parameters(),
                                                 initial.model->buckets(), arena);
  if (initial.arena->held() != nullptr) {
    initial.model->tell_buckets(initial.arena->held()->hook());
  }
  initial.model->to_device(device);
  set_path(initial);
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

ModelRecipe read_recipe(const fs::path& path, const LoadOptions& options) {
  const OpenModel model = open_model(path, options);
  if (model.file && !options.adapters.empty()) {  // those of other models are refused here
    (void)read_adapters(options.adapters, model.recipe.model, model.file->tensors());
  }
  return model.recipe;
}

TrainedModel load_trained(const fs::path& path, const LoadOptions& options) {
  const OpenModel opened = open_model(path, options);
  const auto& [folder, file, recipe, controlnets] = opened;
  TrainedModel trained =
      initial_model(recipe, choose_device(options.device), 0, options.held, options.groups);
  const bool ema = options.ema && folder && checkpoint::has_averages(*folder);
  const bool is_plain = options.adapters.empty() && controlnets.empty() &&
                        options.ip_adapter.empty() && !options.held.any() &&
                        (file || !recipe.finetune.freezes());
  if (!is_plain) {
    std::vector<checkpoint::WeightsFile> controls;
    checkpoint::LateTensors weights =
        file ? opened.tensors(controls)
             : checkpoint::checkpoint_weights(
                   *folder, *trained.model, ema ? optim::Role::average(0) : optim::Role::master());
    if (folder) {
      (void)merge_updates(recipe, weights);
    }
    merge_adapters(options.adapters, recipe.model, weights, options.says, options.has_encoder);
    std::optional<checkpoint::WeightsFile> ip_adapter;
    if (!options.ip_adapter.empty()) {
      ip_adapter = checkpoint::WeightsFile::open(options.ip_adapter, /*averaged=*/false);
      weights.merge(pipelines::ip_adapter_tensors(*ip_adapter));
    }
    checkpoint::load_weights(weights, path, *trained.model, *trained.arena);
  } else if (file) {
    checkpoint::load_weights(*file, *trained.model, *trained.arena);
  } else {
    checkpoint::load_for_sampling(*folder, ema ? std::optional<size_t>(0) : std::nullopt,
                                  *trained.model, *trained.arena);
  }
  load_low_noise(options, trained);
  if (!options.says) {
    return trained;
  }
  if (!options.ip_adapter.empty()) {
    log_info("[sample] IP-Adapter ", options.ip_adapter, ", scale ", options.ip_scale);
  }
  if (folder) {
    log_info("[sample] ", ema ? "averaged" : "raw", " weights of ", *folder,
             options.ema && !ema ? ": the run keeps no averages" : "");
    return trained;
  }
  for (const fs::path& control : controlnets) {
    log_info("[sample] ControlNet ", control);
  }
  log_info("[sample] weights of ", path);
  if (!options.ema && path.extension() == ".safetensors") {
    log_warn("[sample] raw weights were asked for, but ", path,
             " holds one set only: that is used");
  }
  return trained;
}

std::unique_ptr<diffusion::Denoiser> share(TrainedModel& trained, const models::ModelConfig& model,
                                           const parallel::Mesh& mesh,
                                           parallel::SequenceScheme scheme, int64_t rows) {
  if (const comm::Group& group = mesh.group(parallel::Axis::kSequence); group.size() > 1) {
    KINORA_CHECK(!trained.recipe.sample.sampling.cache.has_patches(), kConfig,
                 "[sample] sample.patches and --sequence ", group.size(),
                 " both divide the tokens of a sample. Hint: sample.patches=1, or --sequence 1");
    const parallel::SequencePlan plan = sequence_plan(model, trained.recipe.precision,
                                                      {.scheme = scheme,
                                                       .tensor = mesh.shape().tensor,
                                                       .is_fp8 = trained.recipe.sample.sampling.fp8,
                                                       .batch = rows},
                                                      group, trained.device);
    for (TrainedModel* expert : {&trained, trained.low_noise.get()}) {
      if (expert != nullptr) {
        set_path(*expert);
        expert->model->use_sequence(parallel::make_sequence(plan, group));
      }
    }
    // Two communicators in one graph can wait for each other forever where their calls may be under
    // way at once: those of a sequence's two levels, or of a sequence and of divided linears, but
    // not guidance's, which waits for all of them and they for it.
    trained.graphs = trained.graphs && plan.num_levels() == 1 && mesh.shape().tensor == 1;
    if (mesh.world().rank() == 0) {
      log_info("[sample] ", plan.reason);
    }
  }
  const auto shared = [&](const TrainedModel& one) -> std::unique_ptr<diffusion::Denoiser> {
    if (one.links != nullptr) {
      return std::make_unique<parallel::RowsInFlight>(*one.model, *one.links, model.out_channels());
    }
    return std::make_unique<parallel::GuidanceParallel>(*one.model,
                                                        mesh.group(parallel::Axis::kGuidance));
  };
  const double below = trained.recipe.sample.sampling.low_noise;
  if (optim::WeightExchange* experts = trained.experts.get()) {
    using Set = optim::WeightExchange::Set;
    return std::make_unique<diffusion::Experts>(
        shared(trained), shared(trained), below, [experts](diffusion::Expert expert) {
          experts->bring(expert == diffusion::Expert::kHigh ? Set::kFirst : Set::kSecond);
        });
  }
  if (trained.low_noise != nullptr) {
    return std::make_unique<diffusion::Experts>(shared(trained), shared(*trained.low_noise), below);
  }
  return shared(trained);
}

}  // namespace kinora::inference
