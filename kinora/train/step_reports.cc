#include "kinora/train/step_reports.h"

#include <sstream>

#include "kinora/core/log.h"
#include "kinora/core/text.h"

namespace kinora::train {

void StepReports::run_begins(int64_t step) {
  progress_.emplace(run_.config.train.steps, "steps", step);
}

void StepReports::step_finished(StepRecord& record) {
  constexpr int64_t kStepsOfChoosing = 3;  // then every kernel has been timed
  if (run_.trainable->kernels() != nullptr && ++finished_ == kStepsOfChoosing) {
    log_info("[train] kernels chosen: ",
             kernel_summary(run_.config, run_.trainable->kernels(), run_.micro_batch, run_.device));
  }
  run_.log->add_step(record);
  std::ostringstream suffix;
  suffix.precision(4);
  suffix << (record.kind == StepKind::kImageData ? "image_data loss " : "loss ") << record.loss
         << "  " << human_rate(record.samples_per_s) << " samples/s";
  if (record.ranks) {
    ranks_ = *record.ranks;
  }
  if (ranks_.is_uneven()) {
    suffix << "  rank " << ranks_.slow_rank << " takes " << ranks_.slowness << "x";
  }
  progress_->set_total(run_.config.train.steps);
  progress_->update(record.step, suffix.str());
}

void StepReports::run_ended(int64_t /*step*/) {
  progress_->finish();
}

}  // namespace kinora::train
