#include "kinora/data/batch.h"

#include <optional>
#include <vector>

#include "kinora/core/error.h"

namespace kinora::data {

std::optional<LatentShape> latents_of(const Source& source, const SampleSize& size) {
  if (auto own = source.latent_shape_at(size.pixels())) {
    return own;
  }
  const auto shape = source.latent_shape();
  return shape ? std::optional(LatentShape{.frame = *shape, .frames = size.frames}) : std::nullopt;
}

namespace {

/// Of latents, or of pixels.
LatentShape shape_of(const Source& source, const SampleSize& size) {
  return latents_of(source, size)
      .value_or(LatentShape{.frame = {3, size.height, size.width}, .frames = size.frames});
}

std::vector<int64_t> images_shape(const Source& source, const SampleSize& size, int64_t batch) {
  const auto [shape, frames] = shape_of(source, size);
  KINORA_CHECK(shape.height > 0 && shape.width > 0, kConfig, "[data] images must have pixels, got ",
               shape.height, " x ", shape.width, ". Hint: set data.height and data.width.");
  KINORA_CHECK(size.frames > 0 && size.frame_stride > 0, kConfig,
               "[data] data.frames and data.frame_stride must be at least 1, got ", size.frames,
               " and ", size.frame_stride);
  if (size.frames == 1) {
    return {batch, shape.channels, shape.height, shape.width};
  }
  KINORA_CHECK(source.is_video(), kConfig, "[data] clips of ", size.frames,
               " frames must come from a set of videos, got a set of images. Hint: set "
               "data.frames to 1, or data.frame_layout to video, or to strip if the images are "
               "strips of frames.");
  return {batch, shape.channels, frames, shape.height, shape.width};
}

at::ScalarType images_type(const Source& source) {
  return source.latent_shape() ? at::kFloat : at::kByte;
}

// function(tensor) of each tensor that is defined.
template <typename Function>
Batch of_each(const Batch& batch, const Function& function) {
  const auto of = [&](const at::Tensor& tensor) {
    return tensor.defined() ? function(tensor) : at::Tensor();
  };
  return {.images = of(batch.images),
          .latent_std = of(batch.latent_std),
          .labels = of(batch.labels),
          .sample_index = of(batch.sample_index),
          .fps = of(batch.fps),
          .text = of(batch.text),
          .tokens = of(batch.tokens),
          .text_lengths = of(batch.text_lengths),
          .pooled = of(batch.pooled),
          .original_size = of(batch.original_size),
          .control = of(batch.control),
          .before = of(batch.before),
          .references = of(batch.references),
          .num_references = of(batch.num_references),
          .mask = of(batch.mask),
          .masked = of(batch.masked),
          .beside = of(batch.beside),
          .given = of(batch.given),
          .image_prompt = of(batch.image_prompt)};
}

}  // namespace

Batch first_samples(const Batch& batch, int64_t count) {
  return of_each(batch, [count](const at::Tensor& tensor) { return tensor.narrow(0, 0, count); });
}

Batch selected_samples(const Batch& batch, const at::Tensor& rows) {
  return of_each(batch, [&rows](const at::Tensor& tensor) { return tensor.index_select(0, rows); });
}

BatchBuffers::BatchBuffers(const Source& source, const SampleSize& size, int64_t batch, bool pinned)
    : images_(images_shape(source, size, batch), images_type(source), pinned),
      labels_({batch}, at::kLong, /*pinned=*/false),
      sample_index_({batch}, at::kLong, /*pinned=*/false) {
  if (source.latent_parts().std) {
    latent_std_.emplace(images_shape(source, size, batch), images_type(source), pinned);
  }
  if (source.is_video() && size.frames > 1) {
    fps_.emplace(std::vector<int64_t>{batch}, at::kFloat, /*pinned=*/false);
  }
  if (!source.is_video()) {
    original_size_.emplace(std::vector<int64_t>{batch, 2}, at::kFloat, /*pinned=*/false);
  }
  const auto plane = [&](int64_t channels) {
    return std::vector<int64_t>{batch, channels, size.height, size.width};
  };
  if (source.beside().control) {
    control_.emplace(plane(3), at::kByte, pinned);
  }
  const SampleShape frame = shape_of(source, size).frame;
  const std::vector<int64_t> picture = {batch, frame.channels, frame.height, frame.width};
  if (source.beside().before) {
    before_.emplace(picture, images_type(source), pinned);
  }
  if (const int64_t count = source.beside().references; count > 0) {
    references_.emplace(
        std::vector<int64_t>{batch, frame.channels, count, frame.height, frame.width},
        images_type(source), pinned);
    num_references_.emplace(std::vector<int64_t>{batch}, at::kLong, /*pinned=*/false);
  }
  if (source.beside().mask) {
    mask_.emplace(plane(1), at::kByte, pinned);
    if (source.latent_shape()) {
      masked_.emplace(picture, at::kFloat, pinned);
    }
  }
  if (const std::optional<TextShape> text = source.text_shape()) {
    if (text->is_ids()) {
      tokens_.emplace(std::vector<int64_t>{batch, text->length}, at::kLong, /*pinned=*/false);
    } else {
      text_.emplace(std::vector<int64_t>{batch, text->length, text->channels}, at::kFloat, pinned);
    }
    text_lengths_.emplace(std::vector<int64_t>{batch}, at::kLong, /*pinned=*/false);
    if (text->pooled_channels > 0) {
      pooled_.emplace(std::vector<int64_t>{batch, text->pooled_channels}, at::kFloat, pinned);
    }
  }
}

Batch BatchBuffers::take() {
  const auto taken = [](std::optional<BufferPool>& pool) {
    return pool ? pool->take() : at::Tensor();
  };
  return {.images = images_.take(),
          .latent_std = taken(latent_std_),
          .labels = labels_.take(),
          .sample_index = sample_index_.take(),
          .fps = taken(fps_),
          .text = taken(text_),
          .tokens = taken(tokens_),
          .text_lengths = taken(text_lengths_),
          .pooled = taken(pooled_),
          .original_size = taken(original_size_),
          .control = taken(control_),
          .before = taken(before_),
          .references = taken(references_),
          .num_references = taken(num_references_),
          .mask = taken(mask_),
          .masked = taken(masked_)};
}

int64_t BatchBuffers::num_allocated() const {
  int64_t sum = images_.num_allocated() + labels_.num_allocated() + sample_index_.num_allocated();
  for (const auto* pool :
       {&latent_std_, &fps_, &text_, &tokens_, &text_lengths_, &pooled_, &original_size_, &control_,
        &before_, &references_, &num_references_, &mask_, &masked_}) {
    sum += *pool ? (*pool)->num_allocated() : 0;
  }
  return sum;
}

}  // namespace kinora::data
