#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "tests/apps/run_folder.h"

namespace kinora::apps {

/// A run that is watched, with all that a run does besides steps.
inline const Arguments kThousandSteps = {
    "train.steps=1000", "train.global_batch=2", "model.depth=1",        "model.hidden=16",
    "model.heads=1",    "data.validation=8",    "validation.every=250", "sample.every=250",
    "sample.count=1",   "sample.steps=1",       "checkpoint.every=250", "checkpoint.keep_last=1"};

/// Watches the memory of a run of `steps` steps by what it logged of each: on a GPU what tensors
/// took at once so far, on a CPU what the process did.
struct MemoryWatch {
  int64_t steps = 1000;
  int64_t settled = 300;  ///< from this step on everything has been done once: the peak stays
  int64_t slack = 0;      ///< bytes by which it may rise all the same
  int64_t cap = 0;        ///< bytes that it may never be above; 0: any

  /// What is wrong, with numbers; empty: nothing.
  [[nodiscard]] std::string fault_of(const std::filesystem::path& run) const;
};

}  // namespace kinora::apps
