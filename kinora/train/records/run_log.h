#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kinora/inference/conditions.h"
#include "kinora/io/image.h"
#include "kinora/io/jsonl.h"
#include "kinora/io/tensorboard.h"
#include "kinora/train/micro_batch.h"
#include "kinora/train/records/best_effort.h"
#include "kinora/train/records/run_directory.h"
#include "kinora/train/step_samples.h"
#include "kinora/train/step_times.h"
#include "kinora/train/validation.h"

namespace kinora::train {

/// Of the samples of a step, as the model sees them.
struct StepSize {
  int64_t samples = 0;                      ///< of all ranks
  std::optional<inference::ClipSize> size;  ///< nothing: they are of several,
  int64_t batches = 0;                      ///< in so many batches
};

/// What one optimizer step did.
struct StepRecord {
  int64_t step = 0;  ///< updates done, this one included
  StepKind kind = StepKind::kData;
  bool has_kinds = false;        ///< whether the run's steps are of several kinds
  std::optional<StepSize> size;  ///< where it differs from step to step
  double loss = 0.0;             ///< mean over the global batch
  double lr = 0.0;
  double grad_norm = 0.0;  ///< before clipping
  double loss_scale = 1.0;
  double distance = 0.0;  ///< optim::StepResult's
  bool skipped = false;   ///< a gradient was not finite
  double samples_per_s = 0.0;
  int64_t peak_memory = 0;      ///< bytes at once so far: the GPU's, on the CPU the process's
  StepTimes times;              ///< of this step on this rank
  data::SlowestSample slowest;  ///< of this step on this rank, to be read
  /// Of all ranks, where it has come together since the last step; of earlier steps.
  std::optional<RankTimes> ranks = {};
  /// Validation after this step, by weights: "raw", "ema0", ...
  std::vector<std::pair<std::string, ValidationLoss>> validation;
};

/// The metrics of a run: one object a step in log.jsonl, a choice of them in TensorBoard's event
/// file. Steps with image_data have curves of their own there.
///
/// A run outlives a log that cannot be written: see BestEffort.
class RunLog {
 public:
  /// Forgets what is recorded after `first_step` updates (resume), and sets a damaged log aside.
  /// kIo if it cannot be opened.
  RunLog(const RunDirectory& directory, int64_t first_step, int64_t tensorboard_every);

  void add_step(const StepRecord& record);
  void add_samples(int64_t step, const io::Image& grid);
  void flush();

 private:
  void add_events(const StepRecord& record);

  int64_t tensorboard_every_;
  io::JsonlWriter jsonl_;
  io::EventWriter events_;
  BestEffort write_log_{"log.jsonl"};
  BestEffort write_events_{"TensorBoard's file"};
};

}  // namespace kinora::train
