#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "kinora/comm/world.h"
#include "kinora/data/source.h"
#include "kinora/inference/recipe.h"
#include "kinora/models/model.h"
#include "kinora/ops/block_kernels.h"
#include "kinora/pipelines/latent_encoder.h"
#include "kinora/pipelines/text_batch_encoder.h"
#include "kinora/train/run_config.h"
#include "kinora/train/step_samples.h"

namespace kinora::train {

/// What `encoder` makes of the pictures or clips of a set.
[[nodiscard]] inference::LatentSize encoded_size(const data::DataConfig& data,
                                                 const pipelines::LatentEncoder& encoder);

/// The latents that the model gets of a set: those of the source, or what `encoder` (may be null)
/// makes of its pixels; none: it gets pixels.
[[nodiscard]] std::optional<inference::LatentSize> latent_size(
    const data::DataConfig& data, const data::Source& source,
    const pipelines::LatentEncoder* encoder);

/// kConfig where the model cannot use what `data`, the section of that name, asks for: texts, or
/// buckets of sizes.
void check_model_takes(const data::DataConfig& data, const models::ModelConfig& model,
                       std::string_view section);

/// The section of that kind.
[[nodiscard]] const data::DataConfig& data_of(const RunConfig& config, StepKind kind);

/// kConfig where samples of one of the run's sets are not what its model takes:
/// pixels, or these latents, and texts as they are or as `texts` encodes them. config.model is
/// resolved.
void check_data(const RunConfig& config, const data::Source& source, StepKind kind,
                const std::optional<inference::LatentSize>& latents,
                const pipelines::TextBatchEncoder* texts = nullptr);

/// Whether any set of the run has tokens for texts.
[[nodiscard]] bool takes_tokens(const RunConfig& config);

/// What the rank computes on: its GPU by local rank, which becomes the current one, or the CPU. The
/// only GPU that it can see is its own, since a launcher may have chosen it. kConfig if there are
/// too few GPUs.
[[nodiscard]] at::Device rank_device(const comm::World& world,
                                     DeviceChoice choice = DeviceChoice::kAuto);

/// Gives the model the path and the recomputation that the configuration asks for. Returns the fast
/// path's kernels, null on the plain path. kConfig where it cannot be had.
std::shared_ptr<ops::BlockKernels> set_path(models::Model& model, const RunConfig& config,
                                            at::Device device);

/// What the model learns of pictures or clips of so many pixels, [C, h, w] or [C, T, h, w]: as much
/// smaller as the model's size is than that of the data, by an autoencoder.
[[nodiscard]] std::vector<int64_t> sample_shape(const RunConfig& config,
                                                const data::PixelSize& pixels);

/// Whether the update runs by our own kernel (CPU or CUDA). kConfig where it must and cannot.
[[nodiscard]] bool own_optimizer(ops::Switch wanted, at::Device device);

/// Whether steps are recorded as CUDA graphs. kConfig where they must be and cannot.
[[nodiscard]] bool use_graphs(const RunConfig& config, const ops::BlockKernels* kernels);

/// With data.buckets, the bytes that graphs may take: StepSettings::graph_limit.
[[nodiscard]] std::optional<int64_t> graph_limit(const RunConfig& config);

/// What will run: "plain path, attention flash (bf16, 256 tokens, head_dim 72), linears of
/// libtorch, optimizer own (CUDA)".
[[nodiscard]] std::string kernel_summary(const RunConfig& config, const ops::BlockKernels* kernels,
                                         int64_t micro_batch, at::Device device);

}  // namespace kinora::train
