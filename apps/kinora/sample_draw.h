#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/kinora/options/sample.h"
#include "apps/kinora/sample_files.h"
#include "apps/kinora/sample_judge.h"
#include "kinora/comm/group.h"
#include "kinora/pipelines/sampling_ranks.h"
#include "kinora/train/trained_model.h"

namespace kinora::apps {

/// kConfig for options that are for another kind of model.
void check_options(const SampleArguments& arguments, const models::ModelConfig& model);

/// Puts into a run's configuration what the command line says of sampling, size and speed of clips.
/// kConfig for a size that the model does not take.
void adjust(train::RunConfig& config, const SampleArguments& arguments);

/// Samples, and what each was asked to show.
struct Drawn {
  /// float32 [B, C, H, W] or [B, C, T, H, W] on the CPU; on ranks other than 0 those of the rank.
  at::Tensor samples;
  std::vector<Asked> asked;
};

/// Draws with the run's configuration, adjusted, on all ranks of `world`. judge: null, or who has
/// to know the classes that captions name. kConfig, kIo.
[[nodiscard]] Drawn draw_samples(train::TrainedModel& trained, const SampleArguments& arguments,
                                 const SampleJudge* judge, const comm::Group& world);

}  // namespace kinora::apps
