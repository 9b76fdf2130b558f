#include "kinora/data/sample_reader.h"

#include <algorithm>
#include <cstring>

#include "kinora/core/error.h"
#include "kinora/core/log.h"

namespace kinora::data {

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

int64_t SampleReader::num_bytes() const {
  return latent_shape_ ? latent_shape_->num_values() * static_cast<int64_t>(sizeof(float))
                       : 3 * height_ * width_;
}

int64_t SampleReader::read(int64_t index, bool flip, std::byte* out) {
  source_.read(index, sample_);
  if (latent_shape_) {
    write_latent(index, out);
  } else {
    write_image(index, flip, reinterpret_cast<uint8_t*>(out));
  }
  return sample_.label;
}

void SampleReader::write_latent(int64_t index, std::byte* out) const {
  const auto num_values = static_cast<int64_t>(sample_.latent.size());
  KINORA_CHECK(num_values == latent_shape_->num_values(), kIo, "[data] ",
               source_.sample_name(index), " must hold ", latent_shape_->text(), " values, got ",
               num_values);
  std::memcpy(out, sample_.latent.data(), sample_.latent.size() * sizeof(float));
}

void SampleReader::write_image(int64_t index, bool flip, uint8_t* planes) {
  const io::Image* image = &sample_.image;
  KINORA_CHECK(image->height > 0 && image->width > 0 && image->channels == 3, kIo, "[data] ",
               source_.sample_name(index), " must have pixels and 3 channels, got ", image->height,
               " x ", image->width, " x ", image->channels);
  if (image->height != height_ || image->width != width_) {
    resizer_.center_crop(*image, height_, width_, cropped_);
    image = &cropped_;
  }
  const uint8_t* pixel = image->pixels.data();  // [height, width, 3]
  const int64_t plane = height_ * width_;
  for (int64_t row = 0; row < height_; ++row) {
    uint8_t* out = planes + row * width_ + (flip ? width_ - 1 : 0);
    const int64_t step = flip ? -1 : 1;
    for (int64_t column = 0; column < width_; ++column, out += step, pixel += 3) {
      out[0] = pixel[0];
      out[plane] = pixel[1];
      out[2 * plane] = pixel[2];
    }
  }
}

}  // namespace kinora::data
