#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kinora/checkpoint/training_state.h"
#include "kinora/comm/group.h"
#include "kinora/data/run_data.h"
#include "kinora/diffusion/importance.h"
#include "kinora/diffusion/objective.h"
#include "kinora/inference/frozen_text_encoder.h"
#include "kinora/inference/shown_frames.h"
#include "kinora/parallel/mesh.h"
#include "kinora/train/encode_stage.h"
#include "kinora/train/frozen_encoder.h"
#include "kinora/train/plan/memory_plan.h"
#include "kinora/train/records/run_directory.h"
#include "kinora/train/records/run_log.h"
#include "kinora/train/run_config.h"
#include "kinora/train/setup.h"
#include "kinora/train/step_supply.h"
#include "kinora/train/trainable.h"
#include "kinora/train/watchdog.h"

namespace kinora::train {

/// What the parts of a run share: its steps (run_steps.h), those who look on (run_observer.h), and
/// what people ask of it (run_control.h).
struct Run {
  /// Opens data and run directory, builds or resumes the model, and refuses what can be refused.
  /// All ranks of `world` make one.
  Run(const RunConfig& config, const Resume& resume, const comm::Group& world);
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  /// Writes config.yaml, copies the tokenizer and opens the log, on rank 0.
  void open_log();
  /// Begins to read samples and to watch the ranks; stop() ends both.
  void start();
  void stop();

  /// Whether this rank writes logs, samples and messages.
  [[nodiscard]] bool writes() const { return mesh.world().rank() == 0; }
  /// Whether samples can be shown as a picture, decoded if need be.
  [[nodiscard]] bool shows_samples() const;
  [[nodiscard]] bool is_complete() const { return state.step >= config.train.steps; }
  /// Bytes that were needed at once so far: on the GPU, else by the process; 0 where the system
  /// does not say.
  [[nodiscard]] int64_t peak_memory() const;

  /// This rank begins `phase`, of the step behind `step` others or of the last of them.
  void enter(Phase phase, int64_t step) const { watchdog->enter(phase, step); }
  /// After a change of the configuration on the way: resuming goes by it.
  void renew_config();

  RunConfig config;
  parallel::Mesh mesh;
  int64_t micro_batch;
  at::Device device;
  std::optional<data::CaptionTokens> tokens;  ///< of data.text tokens
  data::RunData data;
  data::RunData image_data;  ///< empty where image_data.share is 0
  data::RunData prior_data;  ///< empty where prior_data.weight is 0
  RunDirectory directory;
  std::unique_ptr<FrozenEncoder> encoder;  ///< null where the model sees the data as it is
  diffusion::Objective objective;
  std::optional<diffusion::LossSecondMoment> importance;
  std::optional<MemoryPlan> planned;  ///< rank 0's
  std::unique_ptr<Trainable> trainable;
  checkpoint::TrainingState state;  ///< step: updates begun; a checkpoint fills in the rest
  std::string config_yaml;
  /// Null where texts come as the model takes them.
  std::unique_ptr<inference::FrozenTextEncoder> text_encoder;
  /// Null where no image encoder reads given frames.
  std::unique_ptr<inference::FrameStates> frame_states;
  std::optional<EncodeStage> stage;
  data::ShareOut share_out;             ///< of parallel.dynamic_sequence, from RunSteps on
  std::optional<RunLog> log;            ///< rank 0's, from open_log() on
  std::unique_ptr<StepSupply> samples;  ///< from start() to stop(), as the watchdog, whose thread
  std::unique_ptr<Watchdog> watchdog;   ///< looks at the samples
};

}  // namespace kinora::train
