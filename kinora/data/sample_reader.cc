#include "kinora/data/sample_reader.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstddef>

#include "kinora/core/counted.h"
#include "kinora/core/log.h"
#include "kinora/data/float_values.h"
#include "kinora/data/planes.h"

namespace kinora::data {
namespace {

// To row `i` of `out`.
template <typename Value>
void copy_values(const std::vector<Value>& values, const at::Tensor& out, int64_t i) {
  assert(static_cast<int64_t>(values.size()) * out.size(0) == out.numel());
  std::copy(values.begin(), values.end(),
            out.mutable_data_ptr<Value>() + i * static_cast<int64_t>(values.size()));
}

template <typename Value>
Value* row_of(const at::Tensor& out, int64_t i) {
  return out.mutable_data_ptr<Value>() + i * (out.numel() / out.size(0));
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

bool is_bad_sample(const Error& error) {
  return error.kind() == ErrorKind::kIo || error.kind() == ErrorKind::kShape;
}

BadSamples::BadSamples(const Source& source, int64_t limit)
    : source_(source), limit_(allowed_bad(source.size(), limit)) {}

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
  sample_.choice = size_.choice(augmentation.start);
  sample_.is_chosen = false;
  sample_.caption_draws = augmentation.caption_draws;
  sample_.mask_draws = augmentation.mask_draws;
  sample_.crop = {size_.height, size_.width, size_.scaled_decode};
  source_.read(index, sample_);
  choose_frames(index);
  if (latent_) {
    write_latents(index, augmentation.flip ? sample_.mirrored : sample_.latent, batch, i);
  } else {
    write_frames(index, augmentation, row_of<uint8_t>(batch.images, i));
    if (batch.before.defined()) {
      write_beside(sample_.before, augmentation.flip, batch.before, i);
    }
    if (batch.references.defined()) {
      write_references(augmentation.flip, batch, i);
    }
  }
  if (batch.control.defined()) {
    write_beside(sample_.control, augmentation.flip, batch.control, i);
  }
  if (batch.mask.defined()) {
    write_beside(sample_.mask, augmentation.flip, batch.mask, i);
  }
  batch.labels.mutable_data_ptr<int64_t>()[i] = sample_.label;
  if (batch.fps.defined()) {
    batch.fps.mutable_data_ptr<float>()[i] =
        sample_.fps / static_cast<float>(sample_.choice->stride(sample_.fps));
  }
  if (batch.text.defined()) {
    copy_values(sample_.text.tokens, batch.text, i);
  }
  if (batch.tokens.defined()) {
    copy_values(sample_.text.ids, batch.tokens, i);
  }
  if (batch.text_lengths.defined()) {
    batch.text_lengths.mutable_data_ptr<int64_t>()[i] = sample_.text.length;
  }
  if (batch.pooled.defined()) {
    copy_values(sample_.text.pooled, batch.pooled, i);
  }
  if (batch.original_size.defined()) {
    const io::ImageSize& size = latent_ ? sample_.pictured : sample_.image.full;
    auto* const out = batch.original_size.mutable_data_ptr<float>() + i * 2;
    out[0] = static_cast<float>(size.height);
    out[1] = static_cast<float>(size.width);
  }
}

void SampleReader::choose_frames(int64_t index) {
  if (sample_.is_chosen) {
    first_frame_ = 0;
    stride_ = 1;
    return;
  }
  const FrameChoice& choice = *sample_.choice;
  KINORA_CHECK(choice.span(sample_.fps) <= sample_.num_frames, kIo, "[data] ",
               source_.sample_name(index), " must have ", choice.needs(sample_.fps), ", got ",
               sample_.num_frames);
  first_frame_ = choice.first(sample_.num_frames, sample_.fps);
  stride_ = choice.stride(sample_.fps);
}

void SampleReader::write_latents(int64_t index, const Latent& latent, const Batch& batch,
                                 int64_t i) const {
  write_latent(index, latent.mean, row_of<float>(batch.images, i));
  if (batch.latent_std.defined()) {
    write_latent(index, latent.std, row_of<float>(batch.latent_std, i));
  }
  if (batch.before.defined()) {
    (void)write_pictures(index, latent.before, 1, row_of<float>(batch.before, i));
  }
  if (batch.masked.defined()) {
    (void)write_pictures(index, latent.masked, 1, row_of<float>(batch.masked, i));
  }
  if (batch.references.defined()) {
    batch.num_references.mutable_data_ptr<int64_t>()[i] = write_pictures(
        index, latent.references, batch.references.size(2), row_of<float>(batch.references, i));
  }
}

void SampleReader::write_plane(int64_t index, const StoredValues& values, int64_t number,
                               float* out) const {
  const int64_t plane = latent_->frame.height * latent_->frame.width;
  const std::span<float> to(out, static_cast<size_t>(plane));
  read_floats(values.bytes.data(), values.dtype, number * plane, to);
  for (const float value : to) {
    KINORA_CHECK(std::isfinite(value), kIo, "[latents] ", source_.sample_name(index),
                 " must be finite, got ", value);
  }
}

// `values` are [n, C, h, w], `out` is [C, places, h, w].
int64_t SampleReader::write_pictures(int64_t index, const StoredValues& values, int64_t places,
                                     float* out) const {
  const SampleShape& frame = latent_->frame;
  const auto num_values = static_cast<int64_t>(values.bytes.size() / size_of(values.dtype));
  const int64_t count = num_values / frame.num_values();
  assert(count <= places);
  for (int64_t number = 0; number < count; ++number) {
    for (int64_t channel = 0; channel < frame.channels; ++channel) {
      write_plane(index, values, number * frame.channels + channel,
                  out + (channel * places + number) * frame.height * frame.width);
    }
  }
  return count;
}

// `out` is [C, frames, h, w].
void SampleReader::write_latent(int64_t index, const StoredValues& values, float* out) const {
  KINORA_CHECK(!values.bytes.empty(), kIo, "[data] ", source_.sample_name(index),
               " was left out when latents were encoded, or not encoded at ", size_.height, " x ",
               size_.width, " pixels, ", counted(size_.frames, "frame"));
  const auto num_values = static_cast<int64_t>(values.bytes.size() / size_of(values.dtype));
  KINORA_CHECK(num_values == latent_->frame.num_values() * sample_.num_frames, kIo, "[data] ",
               source_.sample_name(index), " must hold ", latent_->frame.text(),
               " values in each of ", sample_.num_frames, " frames, got ", num_values);
  const int64_t plane = latent_->frame.height * latent_->frame.width;
  for (int64_t channel = 0; channel < latent_->frame.channels; ++channel) {
    for (int64_t t = 0; t < latent_->frames; ++t) {
      write_plane(index, values, channel * sample_.num_frames + first_frame_ + t * stride_, out);
      out += plane;
    }
  }
}

// `out` is [3, frames, height, width].
void SampleReader::write_frames(int64_t index, const Augmentation& augmentation, uint8_t* out) {
  const io::Image& image = sample_.image;
  KINORA_CHECK(image.height > 0 && image.width > 0 && image.channels == 3, kIo, "[data] ",
               source_.sample_name(index), " must have pixels and 3 channels, got ", image.height,
               " x ", image.width, " x ", image.channels);
  const int64_t width = image.width / sample_.num_frames;
  for (int64_t t = 0; t < size_.frames; ++t) {
    write_frame(image, (first_frame_ + t * stride_) * width, width, augmentation.flip, size_.frames,
                out + t * size_.height * size_.width);
  }
}

void SampleReader::write_beside(const io::Image& picture, bool flip, const at::Tensor& out,
                                int64_t i) {
  const int64_t num_values = out.numel() / out.size(0);
  planes_.resize(static_cast<size_t>(3 * size_.height * size_.width));
  write_frame(picture, 0, picture.width, flip, 1, planes_.data());
  std::copy_n(planes_.begin(), num_values, out.mutable_data_ptr<uint8_t>() + i * num_values);
}

void SampleReader::write_references(bool flip, const Batch& batch, int64_t i) {
  const int64_t most = batch.references.size(2);
  const auto count = std::ssize(sample_.references);
  assert(count <= most);
  auto* const out =
      batch.references.mutable_data_ptr<uint8_t>() + i * 3 * most * size_.height * size_.width;
  for (int64_t number = 0; number < count; ++number) {
    const io::Image& picture = sample_.references[static_cast<size_t>(number)];
    write_frame(picture, 0, picture.width, flip, most, out + number * size_.height * size_.width);
  }
  batch.num_references.mutable_data_ptr<int64_t>()[i] = count;
}

void SampleReader::write_frame(const io::Image& from, int64_t left, int64_t width, bool flip,
                               int64_t frames, uint8_t* out) {
  const io::Image* image = &from;
  if (image->height != size_.height || width != size_.width) {
    if (width != image->width) {
      cut(*image, left, width, frame_);
      image = &frame_;
    }
    resizer_.center_crop(*image, size_.height, size_.width, cropped_);
    image = &cropped_;
    left = 0;
  }
  const int64_t plane = frames * size_.height * size_.width;
  for (int64_t row = 0; row < size_.height; ++row) {
    write_planes(image->pixels.data() + (row * image->width + left) * 3, size_.width, flip, plane,
                 out + row * size_.width);
  }
}

}  // namespace kinora::data
