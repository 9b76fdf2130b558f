#include "kinora/data/bucket.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>
#include <utility>

#include "kinora/core/counted.h"
#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/data/frame_choice.h"

namespace kinora::data {
namespace {

// A sample may have so many fewer pixels than its bucket.
constexpr double kEnough = 0.8;

constexpr int64_t kMaxBatch = int64_t{1} << 20;
constexpr int64_t kMaxFrames = 4096;
constexpr int64_t kMaxSide = 16384;

// Of both orientations, from widths over heights of at least 1.
std::vector<double> both_ways(const std::vector<double>& widths_over_heights) {
  std::set<double> ratios;
  for (const double ratio : widths_over_heights) {
    ratios.insert({1.0 / ratio, ratio});
  }
  return {ratios.begin(), ratios.end()};
}

bool is_probability(double value) {
  return value >= 0.0 && value <= 1.0;
}

int64_t rounded_to(double value, int64_t multiple) {
  return multiple * std::llround(value / static_cast<double>(multiple));
}

// The shortest text that gives the same number, with a point.
std::string probability_text(double value) {
  std::array<char, 32> buffer;
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  const std::string text(buffer.data(), result.ptr);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

}  // namespace

const std::vector<double>& heights_over_widths(AspectRatios ratios) {
  static const std::vector<double> kSquareOnly = {1.0};
  static const std::vector<double> kSecond =
      both_ways({1.0, 4.0 / 3.0, 3.0 / 2.0, 8.0 / 5.0, 16.0 / 9.0, 1.85, 2.0, 2.39});
  static const std::vector<double> kFirst = {0.39,       0.42,       0.48, 0.50, 0.52,
                                             9.0 / 16.0, 0.66,       0.75, 1.00, 1.33,
                                             1.52,       16.0 / 9.0, 1.92, 2.00, 2.10};
  switch (ratios) {
    case AspectRatios::kOpenSora2:
      return kSecond;
    case AspectRatios::kOpenSora1:
      return kFirst;
    case AspectRatios::kSquare:
      return kSquareOnly;
  }
  KINORA_UNREACHABLE("[buckets] unknown aspect ratios");
}

std::optional<int64_t> resolution_pixels(std::string_view name) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const std::string_view unit(end, static_cast<size_t>(name.data() + name.size() - end));
  if (error != std::errc() || number < 1 || number > kMaxSide) {
    return std::nullopt;
  }
  if (unit.empty() || unit == "px") {
    return number * number;
  }
  if (unit == "p") {
    return number * 2 * std::llround(static_cast<double>(number) * 8.0 / 9.0);
  }
  return std::nullopt;
}

std::string bucket_yaml(const ConfigTable& rows, int64_t indent) {
  std::string text;
  std::string resolution;
  for (const ConfigTableRow& row : rows) {
    if (row.first != resolution) {
      text += resolution.empty() ? "" : "}\n";
      text += std::string(static_cast<size_t>(indent), ' ') + quote(row.first) + ": {";
      resolution = row.first;
    } else {
      text += ", ";
    }
    const std::vector<double>& numbers = row.numbers;
    const std::string keep = probability_text(numbers.front());
    text += std::to_string(row.second) + ": [" +
            (numbers.size() == 3 ? "[" + keep + ", " + probability_text(numbers[1]) + "]" : keep) +
            ", " + std::to_string(static_cast<int64_t>(numbers.back())) + "]";
  }
  return text + (rows.empty() ? "" : "}\n");
}

std::string Bucket::text() const {
  return resolution + ", " + counted(frames, "frame") + ", " + std::to_string(height) + " x " +
         std::to_string(width);
}

BucketTable::BucketTable(const BucketOptions& options) : options_(options) {
  KINORA_CHECK(!options.rows.empty(), kConfig,
               "[buckets] there must be at least one row, got none");
  KINORA_CHECK(options.multiple >= 1 && options.multiple <= kMaxSide, kConfig,
               "[buckets] sizes must be multiples of 1 to ", kMaxSide, ", got ", options.multiple);
  for (const ConfigTableRow& from : options.rows) {
    const std::string name = from.first + ", " + counted(from.second, "frame");
    const std::optional<int64_t> pixels = resolution_pixels(from.first);
    KINORA_CHECK(pixels, kConfig,
                 "[buckets] a resolution must be a number of pixels a side, as 256px, or of lines, "
                 "as 480p, got ",
                 from.first);
    KINORA_CHECK(from.second >= 1 && from.second <= kMaxFrames, kConfig, "[buckets] ", name,
                 ": the number of frames must be from 1 to ", kMaxFrames);
    const std::vector<double>& numbers = from.numbers;
    const bool is_valid = (numbers.size() == 2 || numbers.size() == 3) &&
                          std::all_of(numbers.begin(), numbers.end() - 1, is_probability) &&
                          numbers.back() >= 1.0 &&
                          numbers.back() <= static_cast<double>(kMaxBatch) &&
                          std::trunc(numbers.back()) == numbers.back();
    KINORA_CHECK(is_valid, kConfig, "[buckets] ", name,
                 " must be [keep probability, batch size] or [[keep, keep frames], batch size], "
                 "with probabilities from 0 to 1 and a whole batch size from 1 to ",
                 kMaxBatch, ", got ", numbers.size(), " numbers",
                 numbers.empty() ? "" : ", the last of them ",
                 numbers.empty() ? "" : std::to_string(numbers.back()));
    rows_.push_back({.resolution = from.first,
                     .pixels = *pixels,
                     .frames = from.second,
                     .keep = numbers.front(),
                     .keep_frames = numbers.size() == 3 ? numbers[1] : 1.0,
                     .batch = static_cast<int64_t>(numbers.back())});
  }
  std::stable_sort(rows_.begin(), rows_.end(), [](const Row& a, const Row& b) {
    return std::pair(a.pixels, a.frames) > std::pair(b.pixels, b.frames);
  });
  for (size_t i = 0; i < rows_.size(); ++i) {
    Row& row = rows_[i];
    KINORA_CHECK(i == 0 || row.pixels != rows_[i - 1].pixels || row.frames != rows_[i - 1].frames,
                 kConfig, "[buckets] ", row.resolution, ", ", counted(row.frames, "frame"),
                 " must come once, got it twice");
    row.first_bucket = std::ssize(buckets_);
    for (const double ratio : heights_over_widths(options.ratios)) {
      const double area = static_cast<double>(row.pixels);
      const Bucket bucket{.resolution = row.resolution,
                          .frames = row.frames,
                          .height = rounded_to(std::sqrt(area * ratio), options.multiple),
                          .width = rounded_to(std::sqrt(area / ratio), options.multiple),
                          .ratio = ratio,
                          .row = static_cast<int64_t>(i),
                          .batch = row.batch};
      KINORA_CHECK(bucket.height > 0 && bucket.width > 0, kConfig, "[buckets] ", bucket.text(),
                   " must have pixels. Hint: multiples of ", options.multiple,
                   " are too coarse for it");
      buckets_.push_back(bucket);
    }
  }
}

bool BucketTable::is_large_enough(const Row& row, const SampleFacts& sample) const {
  return static_cast<double>(sample.height * sample.width) >=
         kEnough * static_cast<double>(row.pixels);
}

bool BucketTable::has_frames(const Row& row, const SampleFacts& sample) const {
  if (sample.num_frames == 1 || row.frames == 1) {
    return sample.num_frames == row.frames;
  }
  const FrameChoice choice{
      .count = row.frames, .min_stride = options_.frame_stride, .max_fps = options_.max_fps};
  return sample.num_frames >= choice.span(static_cast<double>(sample.fps));
}

bool BucketTable::suits(int64_t row, const SampleFacts& sample) const {
  const Row& wanted = rows_[static_cast<size_t>(row)];
  return is_large_enough(wanted, sample) && has_frames(wanted, sample);
}

int64_t BucketTable::nearest(const Row& row, const SampleFacts& sample) const {
  const double wanted = static_cast<double>(sample.height) / static_cast<double>(sample.width);
  const std::vector<double>& ratios = heights_over_widths(options_.ratios);
  // On a scale on which 2:1 is as far from 1:1 as 1:2 is.
  const auto best = std::min_element(ratios.begin(), ratios.end(), [wanted](double a, double b) {
    return std::abs(std::log(a / wanted)) < std::abs(std::log(b / wanted));
  });
  return row.first_bucket + (best - ratios.begin());
}

std::optional<int64_t> BucketTable::find(const SampleFacts& sample,
                                         const RandomStream& draws) const {
  int64_t refused = 0;  // the pixels of the resolution that did not keep the sample
  for (size_t i = 0; i < rows_.size(); ++i) {
    const Row& row = rows_[i];
    if (row.pixels == refused || !is_large_enough(row, sample) || !has_frames(row, sample)) {
      continue;
    }
    const auto drawn = [&draws, i](size_t which) {
      return static_cast<double>(random_uniform(draws, static_cast<uint32_t>(2 * i + which)));
    };
    if (drawn(0) >= row.keep_frames) {
      continue;
    }
    if (drawn(1) < row.keep) {
      return nearest(row, sample);
    }
    refused = row.pixels;
  }
  return std::nullopt;
}

std::vector<int64_t> BucketTable::possible(const SampleFacts& sample) const {
  std::vector<int64_t> found;
  bool arrives = true;      // whether chance may bring the sample to this row,
  bool is_refused = false;  // and to the next resolution
  for (size_t i = 0; i < rows_.size(); ++i) {
    const Row& row = rows_[i];
    if (i > 0 && row.pixels != rows_[i - 1].pixels) {
      arrives = arrives || is_refused;
      is_refused = false;
    }
    if (!arrives || row.keep_frames == 0.0 || !is_large_enough(row, sample) ||
        !has_frames(row, sample)) {
      continue;
    }
    if (row.keep > 0.0) {
      found.push_back(nearest(row, sample));
    }
    is_refused = is_refused || row.keep < 1.0;
    arrives = row.keep_frames < 1.0;
  }
  return found;
}

std::optional<int64_t> BucketTable::largest(const SampleFacts& sample) const {
  for (const Row& row : rows_) {
    if (is_large_enough(row, sample) && has_frames(row, sample)) {
      return nearest(row, sample);
    }
  }
  return std::nullopt;
}

std::string BucketTable::misfit(const SampleFacts& sample) const {
  if (largest(sample)) {
    return {};
  }
  const bool some_frames = std::any_of(rows_.begin(), rows_.end(),
                                       [&](const Row& row) { return has_frames(row, sample); });
  if (some_frames) {
    return "smaller than every bucket";
  }
  return sample.num_frames == 1 ? "an image, and all buckets are for clips"
                                : "fewer frames than every bucket";
}

}  // namespace kinora::data
