#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "kinora/data/source.h"
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

/// What will run: "attention flash (bf16, 256 tokens, head_dim 72), optimizer own CUDA kernels".
[[nodiscard]] std::string kernel_summary(const models::DiTConfig& model, Precision precision,
                                         int64_t micro_batch, at::Device device);

}  // namespace kinora::train
