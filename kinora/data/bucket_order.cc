#include "kinora/data/bucket_order.h"

#include <algorithm>
#include <map>
#include <utility>

#include "kinora/core/counted.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/data/header_scan.h"

namespace kinora::data {

BucketOrder::BucketOrder(const Source& source, const BucketOrderOptions& options)
    : table_(options.table),
      order_(source.size(), options.seed),
      seed_(options.seed),
      batches_per_step_(options.batches_per_step),
      sizes_(static_cast<size_t>(source.size())),
      num_attempts_((source.latent_shape() ? 1 : 2) * source.size()),
      waiting_(table_.buckets().size()) {
  look_at(source, options);
  find_misfits(source);
  check_latents(source);
}

void BucketOrder::look_at(const Source& source, const BucketOrderOptions& options) {
  scan_headers(source, options.num_threads, options.max_bad,
               [this](int64_t index, const SampleFacts& found) {
                 sizes_[static_cast<size_t>(index)] = {
                     .height = static_cast<int32_t>(found.height),
                     .width = static_cast<int32_t>(found.width),
                     .num_frames = static_cast<int32_t>(found.num_frames),
                     .fps = found.fps};
               });
}

void BucketOrder::check_latents(const Source& source) const {
  if (!source.latent_shape()) {
    return;
  }
  int64_t num_missing = 0;
  std::string example;
  for (int64_t i = 0; i < source.size(); ++i) {
    const SampleFacts sample = facts(i);
    if (sample.height == 0) {
      continue;
    }
    for (const int64_t number : table_.possible(sample)) {
      const Bucket& bucket = table_.buckets()[static_cast<size_t>(number)];
      if (!source.has_latent_at(i, bucket.pixels()) && num_missing++ == 0) {
        example = source.sample_name(i) + " at " + bucket.text();
      }
    }
  }
  KINORA_CHECK(num_missing == 0, kConfig,
               "[buckets] the latents must be of the sizes of the "
               "buckets, but ",
               num_missing, " that samples may go to were not encoded, such as ", example,
               ". Hint: kinora data encode with the same data.buckets, data.frame_stride, "
               "data.max_fps and data.validation");
}

void BucketOrder::find_misfits(const Source& source) {
  std::map<std::string, MisfitGroup> causes;
  std::vector<int64_t> counts(table_.buckets().size());
  for (int64_t i = 0; i < source.size(); ++i) {
    const SampleFacts sample = facts(i);
    const std::string why = sample.height == 0 ? "unreadable" : table_.misfit(sample);
    if (why.empty()) {
      ++counts[static_cast<size_t>(*table_.largest(sample))];
    } else if (MisfitGroup& group = causes[why]; group.count++ == 0) {
      group.cause = why;
      group.first = source.sample_name(i);
    }
  }
  std::string text;
  int64_t num_left_out = 0;
  for (auto& [why, group] : causes) {
    text += "\n  " + why + ": " + std::to_string(group.count) + ", the first " + group.first;
    num_left_out += group.count;
    left_out_.push_back(std::move(group));
  }
  KINORA_CHECK(num_left_out < source.size(), kConfig, "[buckets] none of the ", source.size(),
               " samples suits a bucket:", text);
  log_info(
      "[buckets] ", source.size() - num_left_out, " of ", counted(source.size(), "sample"), " in ",
      counted(std::count_if(counts.begin(), counts.end(), [](int64_t count) { return count > 0; }),
              "bucket"),
      text.empty() ? "" : "; left out are:", text);
}

SampleFacts BucketOrder::facts(int64_t index) const {
  const Size& size = sizes_[static_cast<size_t>(index)];
  return {
      .height = size.height, .width = size.width, .num_frames = size.num_frames, .fps = size.fps};
}

std::optional<int64_t> BucketOrder::bucket_of(int64_t index, int64_t epoch) const {
  const SampleFacts sample = facts(index);
  if (sample.height == 0) {
    return std::nullopt;
  }
  return table_.find(sample, {seed_, static_cast<uint64_t>(index), static_cast<uint32_t>(epoch),
                              RandomPurpose::kBucket});
}

std::vector<int64_t> BucketOrder::counts(int64_t epoch) const {
  std::vector<int64_t> counts(table_.buckets().size());
  for (int64_t i = 0; i < std::ssize(sizes_); ++i) {
    if (const auto bucket = bucket_of(i, epoch)) {
      ++counts[static_cast<size_t>(*bucket)];
    }
  }
  return counts;
}

BucketStep BucketOrder::next() {
  const auto count = static_cast<int64_t>(sizes_.size());
  while (true) {
    const int64_t epoch = num_drawn_ / count;
    const int64_t index = order_.at(num_drawn_++);
    KINORA_CHECK(num_drawn_ - last_taken_ <= 2 * count, kConfig,
                 "[buckets] the keep probabilities must not leave out all samples, which they did "
                 "in epoch ",
                 epoch);
    const std::optional<int64_t> bucket = bucket_of(index, epoch);
    if (!bucket) {
      continue;
    }
    last_taken_ = num_drawn_;
    const auto number = static_cast<size_t>(*bucket);
    std::vector<int64_t>& waiting = waiting_[number];
    waiting.push_back(index);
    if (std::ssize(waiting) == table_.buckets()[number].batch * batches_per_step_) {
      const int64_t first = std::exchange(position_, position_ + std::ssize(waiting));
      return {.bucket = *bucket, .first_position = first, .indices = std::exchange(waiting, {})};
    }
  }
}

bool BucketOrder::seek(int64_t position) {
  if (position < position_) {
    std::fill(waiting_.begin(), waiting_.end(), std::vector<int64_t>());
    num_drawn_ = 0;
    last_taken_ = 0;
    position_ = 0;
  }
  while (position_ < position) {
    (void)next();
  }
  return position_ == position;
}

int64_t BucketOrder::replacement(int64_t bucket, int64_t index, int64_t attempt) const {
  const auto count = static_cast<int64_t>(sizes_.size());
  const int64_t other = (index + attempt) % count;
  const SampleFacts sample = facts(other);
  if (sample.height == 0) {
    return -1;
  }
  const bool suits = attempt <= count
                         ? std::ranges::count(table_.possible(sample), bucket) > 0
                         : table_.suits(table_.buckets()[static_cast<size_t>(bucket)].row, sample);
  return suits ? other : -1;
}

}  // namespace kinora::data
