#include "kinora/data/loader.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/philox.h"
#include "kinora/core/seconds.h"
#include "kinora/data/bucket_order.h"
#include "kinora/data/epoch_order.h"
#include "kinora/data/sample_reader.h"

namespace kinora::data {
namespace {

using Clock = std::chrono::steady_clock;

/// In the place of the step, which loading has none of: 0 is of pictures and clips.
constexpr uint32_t kCaptionStep = 1;

SampleSize sample_size(const LoaderOptions& options) {
  return {.height = options.height,
          .width = options.width,
          .frames = options.frames,
          .frame_stride = options.frame_stride,
          .max_fps = options.max_fps,
          .scaled_decode = options.scaled_decode};
}

void check(const Source& source, const LoaderOptions& options) {
  KINORA_CHECK(!options.random_flip || !source.latent_shape() || source.latent_parts().mirrored,
               kConfig,
               "[loader] latents cannot be flipped: a mirrored latent is not the latent of the "
               "mirrored image. Hint: kinora data encode --mirrored stores both");
  KINORA_CHECK(options.num_ranks > 0 && options.rank >= 0 && options.rank < options.num_ranks,
               kConfig, "[loader] the rank must be in [0, ", options.num_ranks, "), got ",
               options.rank);
  if (options.buckets.rows.empty()) {
    KINORA_CHECK(options.micro_batch > 0 && options.global_batch > 0 &&
                     options.global_batch % (options.micro_batch * options.num_ranks) == 0,
                 kConfig, "[loader] the global batch must be a multiple of micro batch (",
                 options.micro_batch, ") x ranks (", options.num_ranks, "), got ",
                 options.global_batch);
  } else {
    KINORA_CHECK(options.bucket_batches >= 0 &&
                     (options.share_out || options.bucket_batches % options.num_ranks == 0),
                 kConfig, "[loader] data.bucket_batches must be a multiple of the ",
                 options.num_ranks, " ranks, got ", options.bucket_batches);
  }
  KINORA_CHECK(options.first_position >= 0, kConfig,
               "[loader] the first position must not be negative, got ", options.first_position);
  KINORA_CHECK(options.queue_depth > 0, kConfig,
               "[loader] the queue must hold at least 1 batch, got ", options.queue_depth);
  KINORA_CHECK(options.num_threads >= 0, kConfig,
               "[loader] the number of threads must not be negative, got ", options.num_threads);
}

}  // namespace

int64_t thread_count(int64_t asked) {
  if (asked > 0) {
    return asked;
  }
  return std::clamp<int64_t>(std::thread::hardware_concurrency() / 2, 1, 16);
}

// Batches are made in a ring of slots. Threads claim chunks of the newest slot's samples and open
// the next slot when all are claimed, at most queue_depth ahead of what next() has handed out.
class Loader::Impl {
 public:
  Impl(const Source& source, const LoaderOptions& options)
      : source_(source),
        options_(options),
        order_(source.size(), options.seed),
        bad_(source, options.max_bad),
        slots_(static_cast<size_t>(options.queue_depth)) {
    const int64_t num_threads = thread_count(options.num_threads);
    chunks_ = 4 * num_threads;
    if (options.buckets.rows.empty()) {
      (void)buffers(0, sample_size(options), options.micro_batch);
    } else {
      start_buckets(num_threads);
    }
    try {
      for (int64_t i = 0; i < num_threads; ++i) {
        std::atomic<int64_t>& reading = reading_.emplace_back(-1);
        threads_.emplace_back([this, &reading] { run(reading); });
      }
    } catch (...) {
      stop();
      throw;
    }
  }

  ~Impl() { stop(); }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Batch next() {
    const Clock::time_point start = Clock::now();
    std::unique_lock<std::mutex> lock(mutex_);
    const auto is_ready = [this] { return taken_ < opened_ && slot(taken_).num_unfinished == 0; };
    is_awaited_ = true;
    ready_.wait(lock, [&] { return is_ready() || error_ != nullptr; });
    is_awaited_ = false;
    stats_.wait_seconds += seconds_since(start);
    if (!is_ready()) {
      std::rethrow_exception(error_);
    }
    Batch batch = std::exchange(slot(taken_).batch, Batch{});
    slowest_ = slot(taken_).slowest;
    ++taken_;
    ++stats_.num_batches;
    lock.unlock();
    work_.notify_all();
    return batch;
  }

  MixedStep next_step() {
    std::unique_lock<std::mutex> lock(mutex_);
    ready_.wait(lock, [this] { return !planned_.empty() || error_ != nullptr; });
    if (planned_.empty()) {
      std::rethrow_exception(error_);
    }
    MixedStep step = std::move(planned_.front());
    planned_.pop_front();
    lock.unlock();
    work_.notify_all();
    return step;
  }

  std::string waits_for() const {
    if (is_awaited_) {
      for (const std::atomic<int64_t>& index : reading_) {
        if (const int64_t value = index; value >= 0) {
          return source_.sample_name(value);
        }
      }
    }
    return {};
  }

  LoaderStats stats() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    LoaderStats stats = stats_;
    stats.num_bad = bad_.count();
    for (const auto& [bucket, buffers] : buffers_) {
      stats.num_buffers += buffers.num_allocated();
    }
    if (slowest_.index >= 0) {
      stats.slowest = {.seconds = slowest_.seconds, .name = source_.sample_name(slowest_.index)};
    }
    return stats;
  }

 private:
  struct TimedSample {
    double seconds = 0.0;
    int64_t index = -1;
  };

  struct Slot {
    Batch batch;
    TimedSample slowest;
    SampleSize size;
    int64_t bucket = -1;
    std::vector<int64_t> indices;  // of the samples in the source
    int64_t first_position = 0;    // of the first sample in the stream
    int64_t num_unclaimed = 0;
    int64_t num_unfinished = 0;
  };

  Slot& slot(int64_t number) { return slots_[static_cast<size_t>(number % options_.queue_depth)]; }

  void stop() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }

  [[nodiscard]] int64_t batches_per_step() const {
    return options_.bucket_batches > 0 ? options_.bucket_batches : options_.num_ranks;
  }

  void start_buckets(int64_t num_threads) {
    bucket_order_.emplace(
        source_, BucketOrderOptions{.table = options_.buckets,
                                    .batches_per_step = is_mixed() ? 1 : batches_per_step(),
                                    .seed = options_.seed,
                                    .num_threads = num_threads,
                                    .max_bad = options_.max_bad});
    if (!bucket_order_->seek(options_.first_position)) {
      log_warn("[loader] no step begins at sample ", options_.first_position,
               " of the stream: the set or its buckets have changed. The order goes on from the "
               "next one");
    }
  }

  /// For batches of one size; made when the first is opened.
  BatchBuffers& buffers(int64_t bucket, const SampleSize& size, int64_t batch) {
    return buffers_.try_emplace(bucket, source_, size, batch, options_.pinned).first->second;
  }

  // Where the stream position of this rank's batch `number` is.
  int64_t first_position(int64_t number) const {
    const int64_t rank_share = options_.global_batch / options_.num_ranks;
    const int64_t batches_per_step = rank_share / options_.micro_batch;
    return options_.first_position + (number / batches_per_step) * options_.global_batch +
           options_.rank * rank_share + (number % batches_per_step) * options_.micro_batch;
  }

  [[nodiscard]] bool is_mixed() const { return static_cast<bool>(options_.share_out); }

  bool has_unclaimed() { return taken_ < opened_ && slot(opened_ - 1).num_unclaimed > 0; }

  /// Of mixed steps the next one has to be planned, since all own batches of those before are
  /// opened. Steps of which none are own must not run away.
  bool must_plan() {
    return is_mixed() && own_.empty() && std::ssize(planned_) < options_.queue_depth;
  }

  bool has_room() { return opened_ < taken_ + options_.queue_depth; }
  bool can_open() { return has_room() && (!is_mixed() || !own_.empty()); }

  /// Draws a mixed step. Under the lock.
  void plan_step() {
    std::vector<BucketStep> batches;
    std::vector<Bucket> buckets;
    MixedStep step;
    for (int64_t i = 0; i < batches_per_step(); ++i) {
      batches.push_back(bucket_order_->next());
      buckets.push_back(bucket_of(batches.back()));
      step.num_samples += std::ssize(batches.back().indices);
    }
    step.num_batches = std::ssize(batches);
    step.own = options_.share_out(buckets);
    for (const OwnBatch& own : step.own) {
      own_.push_back(std::move(batches[own.batch]));
    }
    planned_.push_back(std::move(step));
    ready_.notify_one();
    work_.notify_all();
  }

  const Bucket& bucket_of(const BucketStep& step) const {
    return bucket_order_->table().buckets()[static_cast<size_t>(step.bucket)];
  }

  // Under the lock.
  void open_slot() {
    Slot& slot = this->slot(opened_);
    if (is_mixed()) {
      set_bucket(slot, own_.front());
      slot.first_position = own_.front().first_position;
      slot.indices = std::move(own_.front().indices);
      own_.pop_front();
    } else if (bucket_order_) {
      plan_of_bucket(slot);
    } else {
      slot.size = sample_size(options_);
      slot.first_position = first_position(opened_);
      slot.indices.clear();
      for (int64_t i = 0; i < options_.micro_batch; ++i) {
        slot.indices.push_back(order_.at(slot.first_position + i));
      }
    }
    slot.num_unclaimed = std::ssize(slot.indices);
    slot.num_unfinished = slot.num_unclaimed;
    slot.slowest = {};
    slot.batch = buffers(std::max<int64_t>(slot.bucket, 0), slot.size, slot.num_unclaimed).take();
    auto* positions = slot.batch.sample_index.mutable_data_ptr<int64_t>();
    std::iota(positions, positions + slot.num_unclaimed, slot.first_position);
    ++opened_;
  }

  // This rank's next batch of the step, or the first of the next step.
  void plan_of_bucket(Slot& slot) {
    const int64_t own = batches_per_step() / options_.num_ranks;
    if (opened_ % own == 0) {
      step_ = bucket_order_->next();
    }
    set_bucket(slot, step_);
    const int64_t batch = bucket_of(step_).batch;
    const int64_t first = (options_.rank * own + opened_ % own) * batch;
    slot.first_position = step_.first_position + first;
    slot.indices.assign(step_.indices.begin() + first, step_.indices.begin() + first + batch);
  }

  void set_bucket(Slot& slot, const BucketStep& step) {
    const Bucket& bucket = bucket_of(step);
    slot.bucket = step.bucket;
    slot.size = sample_size(options_);
    slot.size.height = bucket.height;
    slot.size.width = bucket.width;
    slot.size.frames = bucket.frames;
  }

  // What stands in for the sample of the slot; -1: this attempt finds none. Under the lock.
  int64_t replacement(const Slot& slot, int64_t i, int64_t attempt) {
    return bucket_order_ ? bucket_order_->replacement(slot.bucket,
                                                      slot.indices[static_cast<size_t>(i)], attempt)
                         : order_.replacement(slot.first_position + i, attempt);
  }

  /// `reading` shows the index of the sample that this thread is at.
  void run(std::atomic<int64_t>& reading) {
    SampleReader reader(source_, sample_size(options_));
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      work_.wait(lock, [this] {
        return stopping_ || has_unclaimed() || can_open() || (has_room() && must_plan());
      });
      if (stopping_) {
        return;
      }
      try {
        if (!has_unclaimed() && must_plan()) {
          plan_step();
          continue;
        }
        if (!has_unclaimed()) {
          open_slot();
        }
        Slot& slot = this->slot(opened_ - 1);
        const int64_t batch = std::ssize(slot.indices);
        const int64_t first = batch - slot.num_unclaimed;
        const int64_t count = std::min(std::max<int64_t>(1, batch / chunks_), slot.num_unclaimed);
        slot.num_unclaimed -= count;
        lock.unlock();
        reader.set_size(slot.size);
        TimedSample slowest;
        for (int64_t i = first; i < first + count; ++i) {
          reading = slot.indices[static_cast<size_t>(i)];
          const TimedSample sample = fill(slot, i, reader);
          slowest = sample.seconds > slowest.seconds ? sample : slowest;
        }
        reading = -1;
        lock.lock();
        slot.slowest = slowest.seconds > slot.slowest.seconds ? slowest : slot.slowest;
        slot.num_unfinished -= count;
        if (slot.num_unfinished == 0) {
          ready_.notify_one();
        }
      } catch (...) {
        if (!lock.owns_lock()) {
          lock.lock();
        }
        if (error_ == nullptr) {
          error_ = std::current_exception();
        }
        stopping_ = true;
        ready_.notify_one();
        work_.notify_all();
        return;
      }
    }
  }

  // Fills sample `i` of the slot; without the lock.
  TimedSample fill(Slot& slot, int64_t i, SampleReader& reader) {
    const Clock::time_point start = Clock::now();
    const int64_t position = slot.first_position + i;
    const RandomStream stream{options_.seed, static_cast<uint64_t>(position), 0,
                              RandomPurpose::kAugment};
    const Augmentation augmentation{
        .flip = options_.random_flip && random_uniform(stream, 0) < 0.5F,
        .start = random_uniform(stream, 1),
        .caption_draws = RandomStream{options_.seed, static_cast<uint64_t>(position), kCaptionStep,
                                      RandomPurpose::kAugment},
        .mask_draws =
            RandomStream{options_.seed, static_cast<uint64_t>(position), 0, RandomPurpose::kMask}};
    int64_t index = slot.indices[static_cast<size_t>(i)];
    std::string reason;
    for (int64_t attempt = 1;; ++attempt) {
      if (index >= 0 && !bad_.contains(index)) {
        try {
          reader.read(index, augmentation, slot.batch, i);
          break;
        } catch (const Error& error) {
          if (!is_bad_sample(error)) {
            throw;
          }
          reason = error.what();
          bad_.add(index, reason);
        }
      }
      const int64_t last = bucket_order_ ? bucket_order_->num_attempts() : source_.size();
      if (attempt >= last) {
        bad_.check();  // all of them, which another thread may be about to say
      }
      const std::lock_guard<std::mutex> lock(mutex_);
      // Throwing, since a slot must not seem whole; next() reports the first error only.
      KINORA_CHECK(!stopping_ && attempt < last, kIo,
                   "[data] no readable sample is left to take the place of ",
                   source_.sample_name(slot.indices[static_cast<size_t>(i)]),
                   reason.empty() ? "" : "; the last: ", reason);
      index = replacement(slot, i, attempt);
    }
    return {.seconds = seconds_since(start), .index = index};
  }

  const Source& source_;
  const LoaderOptions options_;
  EpochOrder order_;  // under the lock, like everything below but slots' samples
  std::optional<BucketOrder> bucket_order_;
  BucketStep step_;                          // of bucket_order_, the last one opened
  std::deque<MixedStep> planned_;            // that next_step() has not given
  std::deque<BucketStep> own_;               // batches of mixed steps to be opened
  std::map<int64_t, BatchBuffers> buffers_;  // by bucket
  BadSamples bad_;
  std::vector<Slot> slots_;
  int64_t chunks_ = 1;  // into which a batch is divided for the threads
  int64_t opened_ = 0;  // batches begun
  int64_t taken_ = 0;   // batches handed out
  bool stopping_ = false;
  std::exception_ptr error_;
  LoaderStats stats_;
  TimedSample slowest_;  // of the batch handed out last
  mutable std::mutex mutex_;
  std::condition_variable work_;              // there may be something to claim, or to stop for
  std::condition_variable ready_;             // a batch is whole, or an error is there
  std::deque<std::atomic<int64_t>> reading_;  // a thread each; never moved
  std::atomic<bool> is_awaited_ = false;      // next() is waiting
  std::vector<std::thread> threads_;
};

Loader::Loader(const Source& source, const LoaderOptions& options) {
  check(source, options);
  check_size(source.size(), "the training set");
  impl_ = std::make_unique<Impl>(source, options);
}

Loader::~Loader() = default;

std::string Loader::waits_for() const {
  return impl_->waits_for();
}

Batch Loader::next() {
  return impl_->next();
}

MixedStep Loader::next_step() {
  return impl_->next_step();
}

LoaderStats Loader::stats() const {
  return impl_->stats();
}

Batch load_samples(const Source& source, std::span<const int64_t> indices, const SampleSize& size,
                   int64_t max_bad) {
  BatchBuffers buffers(source, size, std::ssize(indices), /*pinned=*/false);
  const Batch batch = buffers.take();
  auto* numbers = batch.sample_index.mutable_data_ptr<int64_t>();
  BadSamples bad(source, max_bad);
  SampleReader reader(source, size);
  int64_t filled = 0;
  for (const int64_t index : indices) {
    try {
      reader.read(index, {}, batch, filled);
      numbers[filled] = index;
      ++filled;
    } catch (const Error& error) {
      if (!is_bad_sample(error)) {
        throw;
      }
      bad.add(index, error.what());
    }
  }
  return first_samples(batch, filled);
}

}  // namespace kinora::data
