#include "kinora/train/micro_batch.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>

#include "kinora/core/error.h"

namespace kinora::train {
namespace {

// What Open-Sora's models are told of images, so that they do not take them for slow clips.
constexpr double kFpsOfImages = 120.0;

/// The same number for each of `batch` samples.
at::Tensor of_all(int64_t batch, double value) {
  return at::full({batch}, value, at::kFloat);
}

void check_text(const data::Batch& batch, const models::ModelConfig& model, bool pooled) {
  const at::Tensor& text = pooled ? batch.pooled : batch.text;
  KINORA_CHECK(text.defined(), kConfig, "[train] ", model.name,
               " is conditioned on texts, and the "
               "data has none",
               pooled ? " with a pooled vector" : "",
               ". Hint: data.text=builtin, or data.text_embeddings");
  KINORA_CHECK(text.size(-1) == model.text_channels, kConfig,
               "[train] the data's texts have vectors of ", text.size(-1),
               " numbers, but model.text_channels is ", model.text_channels);
  KINORA_CHECK(pooled || text.size(1) <= model.text_tokens, kConfig,
               "[train] the data's texts have up to ", text.size(1),
               " tokens, but model.text_tokens is ", model.text_tokens);
}

/// function(tensor) of each tensor that is defined.
template <typename Function>
MicroBatch of_each(const MicroBatch& batch, const Function& function) {
  const auto of = [&](const at::Tensor& tensor) {
    return tensor.defined() ? function(tensor) : at::Tensor();
  };
  MicroBatch result{
      .images = of(batch.images), .sample_index = of(batch.sample_index), .conditions = {}};
  for (const auto& [name, tensor] : diffusion::kConditions) {
    result.conditions.*tensor = of(batch.conditions.*tensor);
  }
  return result;
}

}  // namespace

MicroBatch micro_batch_of(const data::Batch& batch, const models::ModelConfig& model) {
  MicroBatch result{.images = batch.images, .sample_index = batch.sample_index, .conditions = {}};
  diffusion::Conditions& conditions = result.conditions;
  const int64_t size = batch.images.size(0);
  if (!model.takes_text()) {
    conditions.labels = batch.labels;
    return result;
  }
  const bool pooled = model.architecture == models::Architecture::kVdit ||
                      model.architecture == models::Architecture::kLatte;
  check_text(batch, model, pooled);
  if (pooled) {
    conditions.pooled = batch.pooled;
  } else {
    conditions.text = batch.text;
    conditions.text_lengths = batch.text_lengths;
  }
  const bool is_clip = model.frames > 1;
  if (model.is_video()) {
    conditions.fps = is_clip ? batch.fps : of_all(size, kFpsOfImages);
  }
  conditions.height = of_all(size, static_cast<double>(model.height * model.compression));
  conditions.width = of_all(size, static_cast<double>(model.width * model.compression));
  conditions.num_frames =
      of_all(size, is_clip ? static_cast<double>(model.frames * model.frame_compression) : 1.0);
  return result;
}

MicroBatch to_device(const MicroBatch& batch, at::Device device) {
  return of_each(
      batch, [&](const at::Tensor& tensor) { return tensor.to(device, /*non_blocking=*/true); });
}

MicroBatch narrow(const MicroBatch& batch, int64_t first, int64_t size) {
  return of_each(batch, [&](const at::Tensor& tensor) { return tensor.narrow(0, first, size); });
}

MicroBatch empty_like(const MicroBatch& batch, at::Device device) {
  return of_each(batch, [&](const at::Tensor& tensor) {
    return at::empty_like(tensor, tensor.options().device(device).pinned_memory(false));
  });
}

void copy(const MicroBatch& from, const MicroBatch& to) {
  const auto copy_one = [](const at::Tensor& source, const at::Tensor& target) {
    if (source.defined()) {
      target.copy_(source, /*non_blocking=*/true);
    }
  };
  copy_one(from.images, to.images);
  copy_one(from.sample_index, to.sample_index);
  for (const auto& [name, tensor] : diffusion::kConditions) {
    copy_one(from.conditions.*tensor, to.conditions.*tensor);
  }
}

void drop_conditions(diffusion::Conditions& conditions, const at::Tensor& dropped,
                     int64_t null_class) {
  if (conditions.labels.defined()) {
    conditions.labels =
        at::where(dropped, at::full_like(conditions.labels, null_class), conditions.labels);
  } else {
    conditions.null_text = dropped;
  }
}

diffusion::Conditions null_of(const diffusion::Conditions& conditions, int64_t null_class) {
  diffusion::Conditions null;
  if (conditions.labels.defined()) {
    null.labels = at::full_like(conditions.labels, null_class);
  } else {
    const at::Tensor& text = conditions.text.defined() ? conditions.text : conditions.pooled;
    null.null_text = at::ones({text.size(0)}, text.options().dtype(at::kBool));
  }
  return null;
}

}  // namespace kinora::train
