#include "kinora/data/sample_reader.h"

#include <algorithm>
#include <cassert>
#include <cstddef>

#include "kinora/core/error.h"
#include "kinora/core/log.h"

namespace kinora::data {
namespace {

// To row `i` of `out`.
void copy_values(const std::vector<float>& values, const at::Tensor& out, int64_t i) {
  assert(static_cast<int64_t>(values.size()) * out.size(0) == out.numel());
  std::copy(values.begin(), values.end(),
            out.mutable_data_ptr<float>() + i * static_cast<int64_t>(values.size()));
}

// The columns [left, left + width) of `strip`.
void cut(const io::Image& strip, int64_t left, int64_t width, io::Image& out) {
  io::set_size(out, strip.height, width);
  for (int64_t row = 0; row < strip.height; ++row) {
    const uint8_t* pixels = strip.pixels.data() + (row * strip.width + left) * 3;
    std::copy(pixels, pixels + width * 3, out.pixels.data() + row * width * 3);
  }
}

}  // namespace

BadSamples::BadSamples(const Source& source, int64_t limit)
    : source_(source), limit_(limit >= 0 ? limit : std::max<int64_t>(10, source.size() / 100)) {}

bool BadSamples::contains(int64_t index) const {
  if (count() == 0) {  // the usual case, without the lock
    return false;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  return indices_.contains(index);
}

void BadSamples::add(int64_t index, const std::string& reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!indices_.insert(index).second) {
    return;
  }
  constexpr size_t kNumNamed = 5;
  if (first_reasons_.size() < kNumNamed) {
    first_reasons_.push_back(reason);
  }
  count_.store(static_cast<int64_t>(indices_.size()), std::memory_order_relaxed);
  check_locked();
  log_warn("[data] left out a sample that cannot be read: ", reason);
}

void BadSamples::check() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  check_locked();
}

void BadSamples::check_locked() const {
  const auto count = static_cast<int64_t>(indices_.size());
  if (count > limit_ || count >= source_.size()) {
    std::string list;
    for (const std::string& first : first_reasons_) {
      list += "\n  " + first;
    }
    throw_error(ErrorKind::kIo, "[data] at most ", limit_, " of ", source_.size(),
                " samples may be unreadable, got ", count, "; the first of them:", list,
                "\nHint: mend or remove these files, or raise data.max_bad.");
  }
}

void SampleReader::read(int64_t index, const Augmentation& augmentation, const Batch& batch,
                        int64_t i) {
  source_.read(index, sample_);
  const int64_t num_values = batch.images.numel() / batch.images.size(0);
  if (latent_shape_) {
    write_latent(index, augmentation, batch.images.mutable_data_ptr<float>() + i * num_values);
  } else {
    write_frames(index, augmentation, batch.images.mutable_data_ptr<uint8_t>() + i * num_values);
  }
  batch.labels.mutable_data_ptr<int64_t>()[i] = sample_.label;
  if (batch.fps.defined()) {
    batch.fps.mutable_data_ptr<float>()[i] = sample_.fps / static_cast<float>(size_.frame_stride);
  }
  if (batch.text.defined()) {
    copy_values(sample_.text.tokens, batch.text, i);
    batch.text_lengths.mutable_data_ptr<int64_t>()[i] = sample_.text.length;
  }
  if (batch.pooled.defined()) {
    copy_values(sample_.text.pooled, batch.pooled, i);
  }
}

int64_t SampleReader::first_frame(int64_t index, const Augmentation& augmentation) const {
  const int64_t span = size_.span();
  KINORA_CHECK(span <= sample_.num_frames, kIo, "[data] ", source_.sample_name(index),
               " must have at least ", span, " frames for data.frames ", size_.frames,
               " and data.frame_stride ", size_.frame_stride, ", got ", sample_.num_frames);
  const int64_t num_starts = sample_.num_frames - span + 1;
  return static_cast<int64_t>(static_cast<double>(augmentation.start) *
                              static_cast<double>(num_starts));
}

// `out` is [C, frames, h, w].
void SampleReader::write_latent(int64_t index, const Augmentation& augmentation, float* out) const {
  const auto num_values = static_cast<int64_t>(sample_.latent.size());
  KINORA_CHECK(num_values == latent_shape_->num_values() * sample_.num_frames, kIo, "[data] ",
               source_.sample_name(index), " must hold ", latent_shape_->text(),
               " values in each of ", sample_.num_frames, " frames, got ", num_values);
  const int64_t plane = latent_shape_->height * latent_shape_->width;
  const int64_t start = first_frame(index, augmentation);
  for (int64_t channel = 0; channel < latent_shape_->channels; ++channel) {
    for (int64_t t = 0; t < size_.frames; ++t) {
      const int64_t frame = channel * sample_.num_frames + start + t * size_.frame_stride;
      out = std::copy_n(sample_.latent.data() + frame * plane, plane, out);
    }
  }
}

// `out` is [3, frames, height, width].
void SampleReader::write_frames(int64_t index, const Augmentation& augmentation, uint8_t* out) {
  const io::Image& image = sample_.image;
  KINORA_CHECK(image.height > 0 && image.width > 0 && image.channels == 3, kIo, "[data] ",
               source_.sample_name(index), " must have pixels and 3 channels, got ", image.height,
               " x ", image.width, " x ", image.channels);
  const int64_t start = first_frame(index, augmentation);
  const int64_t width = image.width / sample_.num_frames;
  for (int64_t t = 0; t < size_.frames; ++t) {
    write_frame((start + t * size_.frame_stride) * width, width, augmentation.flip,
                out + t * size_.height * size_.width);
  }
}

// The columns [left, left + width) of the sample as planes, which lie `frames` planes apart.
void SampleReader::write_frame(int64_t left, int64_t width, bool flip, uint8_t* out) {
  const io::Image* image = &sample_.image;
  if (image->height != size_.height || width != size_.width) {
    if (width != image->width) {
      cut(*image, left, width, frame_);
      image = &frame_;
    }
    resizer_.center_crop(*image, size_.height, size_.width, cropped_);
    image = &cropped_;
    left = 0;
  }
  const int64_t plane = size_.frames * size_.height * size_.width;
  for (int64_t row = 0; row < size_.height; ++row) {
    const uint8_t* pixel = image->pixels.data() + (row * image->width + left) * 3;
    uint8_t* to = out + row * size_.width + (flip ? size_.width - 1 : 0);
    const int64_t step = flip ? -1 : 1;
    for (int64_t column = 0; column < size_.width; ++column, to += step, pixel += 3) {
      to[0] = pixel[0];
      to[plane] = pixel[1];
      to[2 * plane] = pixel[2];
    }
  }
}

}  // namespace kinora::data
