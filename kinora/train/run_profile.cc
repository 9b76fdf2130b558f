#include "kinora/train/run_profile.h"

#include <sstream>
#include <string>

#include "kinora/core/log.h"
#include "kinora/device/gpu_profile.h"
#include "kinora/io/file.h"
#include "kinora/train/records/best_effort.h"

namespace kinora::train {

void RunProfile::run_begins(int64_t step) {
  const int64_t from = run_.config.train.profile_from;
  if (run_.writes() && step > from) {
    log_warn("[train] nothing is traced: train.profile_from is ", from,
             ", and this run goes on from step ", step);
  }
}

void RunProfile::before_step(int64_t step) {
  const TrainOptions& options = run_.config.train;
  if (!trace_ && step == options.profile_from) {
    trace_.emplace();
    trace_->start();
  } else if (trace_ && step >= options.profile_from + options.profile_steps) {
    end_trace(step);
  }
}

void RunProfile::run_ended(int64_t step) {
  if (trace_) {
    end_trace(step);
  }
}

void RunProfile::end_trace(int64_t step) {
  const device::GpuRecords records = trace_->stop();
  trace_.reset();
  const int64_t rank = run_.mesh.world().rank();
  const auto path = run_.directory.path() / ("profile-rank" + std::to_string(rank) + ".json");
  const bool written = BestEffort("the trace")(
      [&] { io::write_file_atomic(path, device::chrome_trace(records, rank)); });
  if (!written || !run_.writes()) {
    return;
  }
  const device::GpuProfile profile = device::profile_of(records);
  const auto steps = static_cast<double>(step - run_.config.train.profile_from);
  std::ostringstream text;
  text.precision(4);
  text << profile.span_seconds * 1e3 / steps << " ms a step, of which "
       << profile.exposed_communication_seconds * 1e3 / steps << " ms only communication and "
       << (profile.span_seconds - profile.busy_seconds) * 1e3 / steps << " ms nothing ran";
  log_info("[train] wrote ", path, ": ", text.str());
}

}  // namespace kinora::train
