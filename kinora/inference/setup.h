#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "kinora/comm/group.h"
#include "kinora/core/compute_choice.h"
#include "kinora/inference/recipe.h"
#include "kinora/models/model.h"
#include "kinora/ops/block_kernels.h"
#include "kinora/parallel/pipeline.h"
#include "kinora/parallel/sequence_plan.h"

/// What a model is computed on and by.
namespace kinora::inference {

/// A GPU is the current one, which a rank among several has chosen. kCuda if a GPU is asked for and
/// there is none.
[[nodiscard]] at::Device choose_device(DeviceChoice choice);

[[nodiscard]] at::ScalarType compute_type(Precision precision);

/// The kernels of the fast path where the recipe takes it; null: the plain path.
[[nodiscard]] std::shared_ptr<ops::BlockKernels> fast_path(const ModelRecipe& recipe,
                                                           const models::Model& model,
                                                           at::Device device);

/// Leaves this rank's part of the linears (parallel::divide), before the model has memory. All
/// ranks of the group call it. kConfig where the model cannot be divided so.
void divide_weights(models::Model& model, const comm::Group& group);

/// Leaves this rank's stages of the model, `chunks` of them, before it has memory, and returns what
/// joins them; null where the group is of one rank, which keeps all blocks. All ranks of the group
/// call it. kConfig where there are too few blocks.
[[nodiscard]] std::unique_ptr<parallel::PipelineLinks> divide_blocks(models::Model& model,
                                                                     const comm::Group& group,
                                                                     int64_t chunks);

/// How the ranks of `group` divide the tokens of a model's samples; measures the links between
/// them, also for a given scheme, whose groups can have several shapes. All ranks call it. kConfig
/// where no scheme is possible.
/// @param facts          scheme, tensor, has_updates, is_fp8 and batch; the others are found here.
/// @param deterministic  nothing is measured, links are taken to be alike: the same scheme is found
///                       each time.
[[nodiscard]] parallel::SequencePlan sequence_plan(const models::ModelConfig& model,
                                                   Precision precision,
                                                   parallel::SequenceFacts facts,
                                                   const comm::Group& group, at::Device device,
                                                   bool deterministic = false);

}  // namespace kinora::inference
