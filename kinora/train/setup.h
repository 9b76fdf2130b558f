#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>

#include "kinora/comm/group.h"
#include "kinora/comm/world.h"
#include "kinora/data/source.h"
#include "kinora/diffusion/objective.h"
#include "kinora/diffusion/sampler.h"
#include "kinora/models/model.h"
#include "kinora/ops/block_kernels.h"
#include "kinora/parallel/sequence_plan.h"
#include "kinora/pipelines/latent_encoder.h"
#include "kinora/train/run_config.h"
#include "kinora/train/step_samples.h"

namespace kinora::train {

/// The samples of a run: the whole set, and its two disjoint parts.
struct RunData {
  std::unique_ptr<data::Source> whole;
  std::unique_ptr<data::Source> train;
  std::unique_ptr<data::Source> validation;  ///< null if nothing is held out
};

/// Opens the data and holds out data.validation samples. kConfig if too few are left.
[[nodiscard]] RunData open_data(const data::DataConfig& config);

/// What `encoder` makes of the pictures or clips of a set.
[[nodiscard]] LatentSize encoded_size(const data::DataConfig& data,
                                      const pipelines::LatentEncoder& encoder);

/// The latents that the model gets of a set: those of the source, or what `encoder` (may be null)
/// makes of its pixels; none: it gets pixels.
[[nodiscard]] std::optional<LatentSize> latent_size(const data::DataConfig& data,
                                                    const data::Source& source,
                                                    const pipelines::LatentEncoder* encoder);

/// kConfig where samples of the run's data, or of its image_data, are not what its model takes:
/// pixels, or these latents. config.model is resolved.
void check_data(const RunConfig& config, const data::Source& source, StepKind kind,
                const std::optional<LatentSize>& latents);

/// A GPU is the current one, which a rank among several has chosen. kCuda if a GPU is asked for and
/// there is none.
[[nodiscard]] at::Device choose_device(DeviceChoice choice);

/// What the rank computes on: its GPU by local rank, which becomes the current one, or the CPU. The
/// only GPU that it can see is its own, since a launcher may have chosen it. kConfig if there are
/// too few GPUs.
[[nodiscard]] at::Device rank_device(const comm::World& world,
                                     DeviceChoice choice = DeviceChoice::kAuto);

[[nodiscard]] at::ScalarType compute_type(Precision precision);

/// Gives the model the path and the recomputation that the configuration asks for. Returns the fast
/// path's kernels, null on the plain path. kConfig where it cannot be had.
std::shared_ptr<ops::BlockKernels> set_path(models::Model& model, const RunConfig& config,
                                            at::Device device);

/// Whether the update runs by our own kernel (CPU or CUDA). kConfig where it must and cannot.
[[nodiscard]] bool own_optimizer(ops::Switch wanted, at::Device device);

/// How the ranks of `group` divide the tokens of `batch` samples; measures the links between them,
/// also for a given parallel.sequence_scheme, whose groups can have several shapes. All ranks call
/// it. kConfig where no scheme is possible.
[[nodiscard]] parallel::SequencePlan sequence_plan(const RunConfig& config,
                                                   const comm::Group& group, int64_t batch,
                                                   at::Device device);

/// What samples of the run's clips are drawn with. kConfig where sample.* does not fit the
/// objective.
[[nodiscard]] diffusion::Sampler sampler_of(const RunConfig& config,
                                            const diffusion::Objective& objective);

/// Whether steps are recorded as CUDA graphs. kConfig where they must be and cannot.
[[nodiscard]] bool use_graphs(const RunConfig& config, const ops::BlockKernels* kernels);

/// What will run: "plain path, attention flash (bf16, 256 tokens, head_dim 72), linears of
/// libtorch, optimizer own (CUDA)".
[[nodiscard]] std::string kernel_summary(const RunConfig& config, const ops::BlockKernels* kernels,
                                         int64_t micro_batch, at::Device device);

}  // namespace kinora::train
