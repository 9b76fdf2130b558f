#pragma once

#include "kinora/data/loader.h"
#include "kinora/train/run.h"

namespace kinora::train {

/// Rank 0 says what a run consists of, before its first step.
void announce(const Run& run);

/// And what it took, behind its last.
void announce_end(const Run& run, const data::LoaderStats& stats);

}  // namespace kinora::train
