#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "kinora/data/source.h"
#include "kinora/models/dit.h"
#include "kinora/ops/block_kernels.h"
#include "kinora/optim/adamw.h"
#include "kinora/train/run_config.h"

namespace kinora::train {

/// The samples of a run: the whole set, and its two disjoint parts.
struct RunData {
  std::unique_ptr<data::Source> whole;
  std::unique_ptr<data::Source> train;
  std::unique_ptr<data::Source> validation;  ///< null if nothing is held out
};

/// Opens the data and holds out data.validation samples. kConfig if too few are left.
[[nodiscard]] RunData open_data(const data::DataConfig& config);

/// kCuda if a GPU is asked for and there is none.
[[nodiscard]] at::Device choose_device(DeviceChoice choice);

[[nodiscard]] at::ScalarType compute_type(Precision precision);

/// Gives the model the path and the recomputation that the configuration asks for. Returns the fast
/// path's kernels, null on the plain path. kConfig where it cannot be had.
std::shared_ptr<ops::BlockKernels> set_path(models::DiT& model, const RunConfig& config,
                                            at::Device device);

/// Whether the update runs by our own kernel (CPU or CUDA). kConfig where it must and cannot.
[[nodiscard]] bool own_optimizer(const RunConfig& config, at::Device device);

/// Lets backward overwrite gradients where it can, instead of the optimizer zeroing them.
void skip_zeroing(models::DiT& model, const ops::BlockKernels* kernels, optim::AdamW& optimizer);

/// Whether steps are recorded as CUDA graphs. kConfig where they must be and cannot.
[[nodiscard]] bool use_graphs(const RunConfig& config, const ops::BlockKernels* kernels);

/// What will run: "plain path, attention flash (bf16, 256 tokens, head_dim 72), linears of
/// libtorch, optimizer own (CUDA)".
[[nodiscard]] std::string kernel_summary(const RunConfig& config, const ops::BlockKernels* kernels,
                                         at::Device device);

}  // namespace kinora::train
