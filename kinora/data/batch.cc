#include "kinora/data/batch.h"

#include <optional>
#include <vector>

#include <ATen/ops/empty.h>

#include "kinora/core/error.h"

namespace kinora::data {
namespace {

std::vector<int64_t> images_shape(const Source& source, const SampleSize& size, int64_t batch) {
  const SampleShape shape = source.latent_shape().value_or(SampleShape{3, size.height, size.width});
  KINORA_CHECK(shape.height > 0 && shape.width > 0, kConfig, "[data] images must have pixels, got ",
               shape.height, " x ", shape.width, ". Hint: set data.height and data.width.");
  KINORA_CHECK(size.frames > 0 && size.frame_stride > 0, kConfig,
               "[data] data.frames and data.frame_stride must be at least 1, got ", size.frames,
               " and ", size.frame_stride);
  if (size.frames == 1) {
    return {batch, shape.channels, shape.height, shape.width};
  }
  KINORA_CHECK(
      source.is_video(), kConfig, "[data] clips of ", size.frames,
      " frames must come from a set of videos, got a set of images. Hint: set "
      "data.frames to 1, or data.frame_layout to strip if the images are strips of frames.");
  return {batch, shape.channels, size.frames, shape.height, shape.width};
}

at::ScalarType images_type(const Source& source) {
  return source.latent_shape() ? at::kFloat : at::kByte;
}

TextShape text_shape(const Source& source) {
  return source.text_shape().value_or(TextShape());
}

}  // namespace

Batch first_samples(const Batch& batch, int64_t count) {
  const auto part = [count](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.narrow(0, 0, count) : tensor;
  };
  return {.images = part(batch.images),
          .labels = part(batch.labels),
          .sample_index = part(batch.sample_index),
          .fps = part(batch.fps),
          .text = part(batch.text),
          .text_lengths = part(batch.text_lengths),
          .pooled = part(batch.pooled)};
}

BatchBuffers::BatchBuffers(const Source& source, const SampleSize& size, int64_t batch, bool pinned)
    : batch_(batch),
      has_fps_(source.is_video() && size.frames > 1),
      has_text_(source.text_shape().has_value()),
      has_pooled_(text_shape(source).pooled_channels > 0),
      images_(images_shape(source, size, batch), images_type(source), pinned),
      texts_({batch, text_shape(source).length, text_shape(source).channels}, at::kFloat, pinned),
      pooled_({batch, text_shape(source).pooled_channels}, at::kFloat, pinned) {}

Batch BatchBuffers::take() {
  const auto integers = at::TensorOptions().dtype(at::kLong);
  Batch batch{.images = images_.take(),
              .labels = at::empty({batch_}, integers),
              .sample_index = at::empty({batch_}, integers)};
  if (has_fps_) {
    batch.fps = at::empty({batch_}, at::TensorOptions().dtype(at::kFloat));
  }
  if (has_text_) {
    batch.text = texts_.take();
    batch.text_lengths = at::empty({batch_}, integers);
  }
  if (has_pooled_) {
    batch.pooled = pooled_.take();
  }
  return batch;
}

}  // namespace kinora::data
