#pragma once

#include "kinora/train/records/run_directory.h"

namespace kinora::train {

struct Run;

/// Gives a new run the state of a checkpoint, or weights to start from, as `resume` and
/// checkpoint.init_from say; else it stays at step 0. All ranks call it. Errors of loading; of the
/// run's own checkpoints damaged ones are set aside where an older one is whole.
void start_or_resume(Run& run, const Resume& resume);

}  // namespace kinora::train
