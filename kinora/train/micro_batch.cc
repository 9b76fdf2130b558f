#include "kinora/train/micro_batch.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/models/families.h"

namespace kinora::train {
namespace {

/// The same number for each of `batch` samples.
at::Tensor of_all(int64_t batch, double value) {
  return at::full({batch}, value, at::kFloat);
}

/// Of the texts in a batch.
data::TextShape text_shape(const data::Batch& batch) {
  const bool has_text = batch.text.defined();
  return {.length = has_text ? batch.text.size(1) : 0,
          .channels = has_text ? batch.text.size(2) : 0,
          .pooled_channels = batch.pooled.defined() ? batch.pooled.size(1) : 0};
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

ClipSize clip_size(const at::Tensor& images) {
  return {.frames = images.dim() == 5 ? images.size(2) : 1,
          .height = images.size(-2),
          .width = images.size(-1)};
}

at::Tensor unseen_samples(const models::ModelConfig& model, int64_t batch) {
  std::vector<int64_t> sizes = model.sample_shape();
  sizes.insert(sizes.begin(), batch);
  return at::empty({1}).expand(sizes);
}

void check_texts(const data::TextShape& texts, const models::ModelConfig& model) {
  if (!model.takes_text()) {
    return;
  }
  const bool pooled = models::family_of(model).conditions.pooled;
  const int64_t channels = pooled ? texts.pooled_channels : texts.channels;
  KINORA_CHECK(channels > 0, kConfig, "[train] ", model.name,
               " is conditioned on texts, and the data has none",
               pooled ? " with a pooled vector" : "",
               ". Hint: data.text=builtin, or data.text_embeddings");
  KINORA_CHECK(channels == model.text_channels, kConfig,
               "[train] the data's texts have vectors of ", channels,
               " numbers, but model.text_channels is ", model.text_channels);
  KINORA_CHECK(pooled || texts.length <= model.text_tokens, kConfig,
               "[train] the data's texts have up to ", texts.length,
               " tokens, but model.text_tokens is ", model.text_tokens);
}

MicroBatch micro_batch_of(const data::Batch& batch, const models::ModelConfig& model) {
  MicroBatch result{.images = batch.images, .sample_index = batch.sample_index, .conditions = {}};
  const models::FamilyConditions& wanted = models::family_of(model).conditions;
  diffusion::Conditions& conditions = result.conditions;
  if (wanted.labels) {
    conditions.labels = batch.labels;
  }
  check_texts(text_shape(batch), model);
  if (wanted.text) {
    conditions.text = batch.text;
    conditions.text_lengths = batch.text_lengths;
  }
  if (wanted.pooled) {
    conditions.pooled = batch.pooled;
  }
  const int64_t batch_size = batch.images.size(0);
  const ClipSize size = clip_size(batch.images);
  const bool is_image = size.frames == 1;
  if (wanted.fps) {
    conditions.fps = is_image ? of_all(batch_size, kImageFps) : batch.fps;
  }
  const auto number = [batch_size](int64_t value) {
    return of_all(batch_size, static_cast<double>(value));
  };
  if (wanted.size) {
    conditions.height = number(size.height * model.compression);
    conditions.width = number(size.width * model.compression);
  }
  if (wanted.num_frames) {
    conditions.num_frames = number(is_image ? 1 : size.frames * model.frame_compression);
  }
  return result;
}

MicroBatch to_device(const MicroBatch& batch, at::Device device) {
  return of_each(
      batch, [&](const at::Tensor& tensor) { return tensor.to(device, /*non_blocking=*/true); });
}

MicroBatch narrow(const MicroBatch& batch, int64_t first, int64_t size) {
  return of_each(batch, [&](const at::Tensor& tensor) { return tensor.narrow(0, first, size); });
}

bool same_shapes(const MicroBatch& left, const MicroBatch& right) {
  const auto same = [](const at::Tensor& a, const at::Tensor& b) {
    return a.defined() == b.defined() &&
           (!a.defined() || (a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type()));
  };
  return same(left.images, right.images) && same(left.sample_index, right.sample_index) &&
         std::ranges::all_of(diffusion::kConditions, [&](const auto& condition) {
           return same(left.conditions.*condition.tensor, right.conditions.*condition.tensor);
         });
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
