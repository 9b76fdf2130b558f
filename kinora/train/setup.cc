#include "kinora/train/setup.h"

#include <ATen/ops/empty.h>

#include <sstream>

#include "kinora/core/build_info.h"
#include "kinora/core/error.h"
#include "kinora/data/epoch_order.h"
#include "kinora/data/subset.h"
#include "kinora/ops/attention.h"
#include "kinora/ops/device.h"

namespace kinora::train {

RunData open_data(const data::DataConfig& config) {
  RunData data;
  data.whole = data::open_source(config);
  data::Split parts =
      data::split(data.whole->size(), config.validation, static_cast<uint64_t>(config.seed));
  data.train = std::make_unique<data::SubsetSource>(*data.whole, std::move(parts.train));
  if (!parts.validation.empty()) {
    data.validation =
        std::make_unique<data::SubsetSource>(*data.whole, std::move(parts.validation));
  }
  return data;
}

at::Device choose_device(DeviceChoice choice) {
  switch (choice) {
    case DeviceChoice::kAuto:
      return ops::best_device();
    case DeviceChoice::kCpu:
      return at::kCPU;
    case DeviceChoice::kCuda:
      ops::require_cuda();
      return {at::kCUDA, 0};
  }
  KINORA_UNREACHABLE("[train] unknown device");
}

at::ScalarType compute_type(Precision precision) {
  switch (precision) {
    case Precision::kFp32:
      return at::kFloat;
    case Precision::kBf16:
      return at::kBFloat16;
    case Precision::kFp16:
      return at::kHalf;
  }
  KINORA_UNREACHABLE("[train] unknown precision");
}

std::string kernel_summary(const models::DiTConfig& model, Precision precision, int64_t micro_batch,
                           at::Device device) {
  at::Tensor qkv = at::empty({micro_batch, model.num_tokens(), 3 * model.hidden},
                             at::device(device).dtype(compute_type(precision)));
  qkv.set_requires_grad(true);  // the choice depends on it
  std::ostringstream text;
  text << "attention " << ops::attention_kernel(qkv, model.heads) << " (" << qkv.scalar_type()
       << ", " << model.num_tokens() << " tokens, head_dim " << model.hidden / model.heads
       << "), linears of libtorch, optimizer ";
  if (device.is_cpu()) {
    text << "own (CPU)";
  } else if (build_info().has_own_kernels) {
    text << "own (CUDA)";
  } else {
    text << "composed of libtorch's kernels, several times slower: this build has no nvcc";
  }
  return text.str();
}

}  // namespace kinora::train
