#include "kinora/train/run.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "kinora/checkpoint/buffers.h"
#include "kinora/checkpoint/frozen.h"
#include "kinora/checkpoint/step_folders.h"
#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/core/process_memory.h"
#include "kinora/core/text.h"
#include "kinora/device/device.h"
#include "kinora/diffusion/objective_config.h"
#include "kinora/inference/setup.h"
#include "kinora/inference/text_tokens.h"
#include "kinora/io/clip_file.h"
#include "kinora/io/file.h"
#include "kinora/models/families.h"
#include "kinora/models/unconditional.h"
#include "kinora/pipelines/tokenizer_folder.h"
#include "kinora/train/dynamic_sequence.h"
#include "kinora/train/own_text_encoder.h"
#include "kinora/train/plan/memory_budget.h"
#include "kinora/train/rank_agreement.h"
#include "kinora/train/run_resume.h"

namespace kinora::train {
namespace {

/// The others find it as rank 0 leaves it.
RunDirectory opened_directory(const std::string& folder, const Resume& resume,
                              const comm::Group& world) {
  std::optional<RunDirectory> directory;
  if (world.rank() == 0) {
    directory.emplace(folder, resume);
    checkpoint::remove_unfinished(directory->checkpoints());
  } else {
    directory.emplace(folder);
  }
  world.barrier();
  return std::move(*directory);
}

/// Pictures of a class that the model drew before. kConfig, with how to draw them, where there are
/// none.
data::RunData open_prior(const RunConfig& config, const data::CaptionTokens* tokens) {
  const data::DataConfig& prior = config.prior_data;
  const bool is_there = prior.path.empty() || std::filesystem::exists(prior.path.front());
  KINORA_CHECK(is_there, kConfig, "[train] prior_data.path: ", prior.path.front(),
               " does not exist. Hint: draw pictures of the class first, kinora sample --model "
               "FOLDER --prompt \"",
               prior.caption.empty() ? "a photo of ..." : prior.caption, "\" --count 200 --out ",
               prior.path.front(), "; stopped, the same command goes on");
  return data::open_data(prior, tokens);
}

/// What the sampler refuses is refused before the first step, not after hours.
void check_samples(const RunConfig& config, const diffusion::Objective& objective, bool writes) {
  if (config.shown.every == 0) {
    return;
  }
  (void)sampler_of(config, objective);
  if (config.model.is_video() && writes) {
    io::check_can_write(config.shown.format);
  }
}

/// Keeps the names of the data's classes with the model, for people who sample from it where the
/// data are not at hand.
void name_classes(const data::Source& data, models::ModelConfig& model) {
  constexpr size_t kMostNames = 10000;  // they are in every checkpoint
  const std::vector<std::string>& names = data.class_names();
  const bool are_text = std::all_of(names.begin(), names.end(), is_utf8);
  const bool is_told = !model.takes_text() && !models::is_unconditional(model);
  if (is_told && model.class_names.empty() && names.size() <= kMostNames && are_text) {
    model.class_names = names;
  }
}

}  // namespace

Run::Run(const RunConfig& asked, const Resume& resume, const comm::Group& world)
    : config(agree_on_run(with_own_text_encoder(with_kept_plan(asked)), resume, world)),
      mesh(world, config.parallel.mesh()),
      micro_batch(config.micro_batch(mesh.data_ranks())),
      device(inference::choose_device(config.train.device)),
      tokens(takes_tokens(config) ? inference::caption_tokens(config) : std::nullopt),
      data(data::open_data(config.data, tokens ? &*tokens : nullptr)),
      image_data(config.image_steps.any()
                     ? data::open_data(config.image_data, tokens ? &*tokens : nullptr)
                     : data::RunData()),
      prior_data(config.prior.any() ? open_prior(config, tokens ? &*tokens : nullptr)
                                    : data::RunData()),
      directory(opened_directory(config.run_dir, resume, mesh.world())) {
  KINORA_CHECK(config.train.profile_steps == 0 || device.is_cuda(), kConfig,
               "[train] train.profile_steps traces a GPU, but this run computes on the CPU");
  check_dynamic_sequence(config);
  device::configure_computation(config.train.threads, config.deterministic);
  const std::initializer_list<const data::DataConfig*> sets = {&config.data, &config.image_data,
                                                               &config.prior_data};
  encoder = open_encoder(config.autoencoder, sets, device);
  check_cached_texts(config.text.encoder, sets);
  const pipelines::LatentEncoder* encodes = encoder ? &encoder->encoder : nullptr;
  int64_t num_classes = data.train->num_classes();
  for (const data::RunData* other : {&image_data, &prior_data}) {
    num_classes = std::max(num_classes, other->train ? other->train->num_classes() : 0);
  }
  const auto sizes = latent_size(config.data, *data.train, encodes);
  config.model = resolved_model(config, num_classes, sizes);
  name_classes(*data.train, config.model);
  if (tokens) {
    text_encoder = inference::open_text_encoder(config, *tokens, device,
                                                config.text.shared ? mesh.world() : comm::Group());
  }
  const pipelines::TextBatchEncoder* texts = text_encoder ? &text_encoder->encoder : nullptr;
  check_data(config, *data.train, StepKind::kData, sizes, texts);
  if (image_data.train) {
    check_data(config, *image_data.train, StepKind::kImageData,
               latent_size(config.image_data, *image_data.train, encodes), texts);
    (void)config.image_micro_batch(mesh.data_ranks());
  }
  if (prior_data.train) {
    check_data(config, *prior_data.train, StepKind::kPriorData,
               latent_size(config.prior_data, *prior_data.train, encodes), texts);
    (void)config.prior_micro_batch(mesh.data_ranks());
  }
  if (models::shape_of(config.model).image_states > 0) {
    frame_states =
        std::make_unique<inference::FrameStates>(config.image.encoder, config.model, device);
  }
  objective = diffusion::make_objective(config.objective, config.model.learn_sigma);
  diffusion::move_to(objective, device);
  check_samples(config, objective, writes());
  if (config.objective.timestep_sampling ==
      diffusion::ObjectiveConfig::TimestepSampling::kImportance) {
    KINORA_CHECK(mesh.shape().sequence == 1, kConfig,
                 "[train] objective.timestep_sampling=importance does not work with "
                 "parallel.sequence, which shows a sample to several ranks");
    importance.emplace(config.objective.timesteps);
  }
  config = within_budget(config, device, mesh.world());
  micro_batch = config.micro_batch(mesh.data_ranks());
  if (writes()) {
    planned = plan_of_run(config, {.device = device.type(), .ranks = world.size()});
  }
  const auto seed = static_cast<uint64_t>(config.train.seed);
  trainable = std::make_unique<Trainable>(config, mesh, device, seed);
  start_or_resume(*this, resume);
  // Steps change neither.
  state.buffers = checkpoint::buffers_of(trainable->model());
  state.frozen = checkpoint::frozen_of(trainable->arena());
  config_yaml = dump_config(config);
  // Ranks gather the encoder's blocks on a communicator of their own: beside a step's, in another
  // order on each GPU, both could wait for each other.
  stage.emplace(seed, device,
                EncodeOptions{.encoder = encodes,
                              .texts = texts,
                              .states = frame_states.get(),
                              .input = models::shape_of(config.model).input,
                              .given = config.frame_masks,
                              .compression = config.model.frame_compression,
                              .beside = !config.text.shared || mesh.world().size() == 1,
                              .ranks = encoding_ranks(config, encoder.get(), mesh)});
}

void Run::open_log() {
  if (writes()) {
    io::write_file_atomic(directory.config_file(), config_yaml);
    if (tokens && !config.text.tokenizer.empty()) {
      pipelines::copy_tokenizer(config.text.tokenizer, directory.tokenizer());
    }
    log.emplace(directory, state.step, config.train.log_every);
  }
}

void Run::start() {
  samples = std::make_unique<StepSupply>(
      StepLoader(config, {data.train.get(), image_data.train.get(), prior_data.train.get()}, mesh,
                 StepPosition{state.step, state.position, state.image_position}, device.is_cuda(),
                 share_out),
      *stage);
  watchdog = std::make_unique<Watchdog>(
      mesh.world(),
      StallOptions{.seconds = mesh.world().size() > 1 ? config.train.stall_timeout : 0.0,
                   .data_file = [&loader = samples->loader()] { return loader.waits_for(); },
                   .end_process = {}});
}

void Run::stop() {
  watchdog.reset();
  samples.reset();
}

bool Run::shows_samples() const {
  return encoder != nullptr || config.model.in_channels == 3 || config.model.in_channels == 1;
}

int64_t Run::peak_memory() const {
  if (device.is_cuda()) {
    return device::peak_memory(device);
  }
  try {
    return peak_resident_bytes();
  } catch (const Error&) {
    return 0;
  }
}

void Run::renew_config() {
  config_yaml = dump_config(config);
  if (writes()) {
    io::write_file_atomic(directory.config_file(), config_yaml);
  }
}

}  // namespace kinora::train
