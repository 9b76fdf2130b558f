#include "kinora/train/run_checkpoints.h"

#include <algorithm>

#include "kinora/checkpoint/low_rank_file.h"
#include "kinora/checkpoint/model_weights.h"
#include "kinora/checkpoint/step_folders.h"
#include "kinora/checkpoint/weights_file.h"
#include "kinora/checkpoint/weights_output.h"
#include "kinora/core/log.h"
#include "kinora/inference/kept_tokenizer.h"
#include "kinora/inference/learned_embeddings.h"
#include "kinora/inference/text_tokens.h"
#include "kinora/inference/updates.h"
#include "kinora/train/exact_resume.h"
#include "kinora/train/finetune.h"

namespace kinora::train {
namespace {

checkpoint::WriterOptions writer_options(const Run& run) {
  return {.folder = run.directory.checkpoints(),
          .keep_last = run.config.checkpoint.keep_last,
          .keep_every = run.config.checkpoint.keep_every,
          .ranks_per_host = std::max<int64_t>(run.mesh.world().world().local_size, 1)};
}

}  // namespace

RunCheckpoints::RunCheckpoints(Run& run)
    : run_(run), writer_(writer_options(run), run.trainable->arena(), run.mesh.world()) {}

bool RunCheckpoints::looks_at(int64_t step) const {
  return is_due(step, run_.config.checkpoint.every) || step == run_.config.train.steps;
}

void RunCheckpoints::after_step(int64_t step) {
  if (looks_at(step)) {
    save();
  }
}

void RunCheckpoints::save() {
  run_.enter(Phase::kCheckpoint, run_.state.step);
  update_state();
  try {
    writer_.start(run_.state);
  } catch (const Error& failure) {  // of the one before
    try_again(failure);
  }
}

void RunCheckpoints::wait() {
  try {
    writer_.wait();
  } catch (const Error& failure) {
    update_state();
    try_again(failure);
  }
}

void RunCheckpoints::finish_writing() {
  try {
    writer_.wait();
  } catch (const Error& failure) {
    log_error(failure.what());
  }
}

/// All ranks come here, since the writer's errors are the same on all of them.
void RunCheckpoints::try_again(const Error& failure) {
  if (failure.kind() != ErrorKind::kIo) {
    throw failure;
  }
  if (run_.writes()) {
    log_error(failure.what(), "; trying once more, with step ", run_.state.step);
  }
  try {
    writer_.start(run_.state);
    writer_.wait();
  } catch (const Error& error) {
    const auto whole = checkpoint::list_checkpoints(run_.directory.checkpoints());
    throw_error(error.kind(), error.what(), "; the run ends at step ", run_.state.step, ", and ",
                whole.empty() ? "has no checkpoint"
                              : "its last whole checkpoint is " + whole.back().string());
  }
}

void RunCheckpoints::update_state() {
  checkpoint::TrainingState& state = run_.state;
  state.optimizer = run_.trainable->optimizer().state();
  if (run_.importance) {
    state.timestep_history = run_.importance->state().history;
    state.timestep_counts = run_.importance->state().counts;
  }
  keep_for_resume(run_.config, run_.device, run_.trainable->kernels(), state);
  state.config = run_.config_yaml;
}

void export_weights(Run& run) {
  const auto folder = run.directory.path();
  const auto path = folder / "model.safetensors";
  if (run.mesh.index(parallel::Axis::kReplicate) == 0) {
    const optim::Arena& arena = run.trainable->arena();
    checkpoint::LateTensors weights = checkpoint::arena_weights(
        run.trainable->model(), arena,
        arena.options().num_averages() == 0 ? optim::Role::master() : optim::Role::average(0));
    const checkpoint::Adapter adapter = merge_updates(run.config, weights);
    checkpoint::WeightsMetadata metadata = checkpoint::weights_metadata(run.config_yaml);
    if (run.writes()) {
      auto recipe = static_cast<const inference::ModelRecipe&>(run.config);
      inference::take_kept_tokenizer(path, nullptr, recipe);
      metadata.merge(inference::tokenizer_metadata(recipe));
    }
    checkpoint::write_arena_weights(path, weights, arena, at::kFloat, metadata);
    if (run.writes() && !adapter.changes.empty()) {
      checkpoint::write_adapter(folder / "adapter", adapter, {});
      log_info("[train] wrote ", folder / "adapter");
    }
    if (const auto added = inference::new_tokens_of(run.config.text);
        run.writes() && !added.empty()) {
      const at::Tensor rows = checkpoint::WeightsFile::open(path).read("text_encoder.new_tokens");
      std::vector<inference::LearnedEmbedding> learned;
      for (const inference::NewToken& token : added) {
        learned.push_back({token.token, rows[std::ssize(learned)]});
      }
      inference::write_embeddings(folder, learned);
    }
  }
  if (run.writes()) {
    log_info("[train] wrote ", path);
  }
}

}  // namespace kinora::train
