#include "kinora/data/loader.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/philox.h"
#include "kinora/data/epoch_order.h"
#include "kinora/data/sample_reader.h"

namespace kinora::data {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

SampleSize sample_size(const LoaderOptions& options) {
  return {options.height, options.width, options.frames, options.frame_stride};
}

void check(const Source& source, const LoaderOptions& options) {
  KINORA_CHECK(!options.random_flip || !source.latent_shape(), kConfig,
               "[loader] latents cannot be flipped: a mirrored latent is not the latent of the "
               "mirrored image. Hint: compute latents of mirrored images too");
  KINORA_CHECK(options.num_ranks > 0 && options.rank >= 0 && options.rank < options.num_ranks,
               kConfig, "[loader] the rank must be in [0, ", options.num_ranks, "), got ",
               options.rank);
  KINORA_CHECK(options.micro_batch > 0 && options.global_batch > 0 &&
                   options.global_batch % (options.micro_batch * options.num_ranks) == 0,
               kConfig, "[loader] the global batch must be a multiple of micro batch (",
               options.micro_batch, ") x ranks (", options.num_ranks, "), got ",
               options.global_batch);
  KINORA_CHECK(options.first_position >= 0, kConfig,
               "[loader] the first position must not be negative, got ", options.first_position);
  KINORA_CHECK(options.queue_depth > 0, kConfig,
               "[loader] the queue must hold at least 1 batch, got ", options.queue_depth);
  KINORA_CHECK(options.num_threads >= 0, kConfig,
               "[loader] the number of threads must not be negative, got ", options.num_threads);
}

int64_t thread_count(int64_t asked) {
  if (asked > 0) {
    return asked;
  }
  return std::clamp<int64_t>(std::thread::hardware_concurrency() / 2, 1, 16);
}

// Whether an error means that a sample is bad, rather than the program or its settings.
bool is_bad_sample(const Error& error) {
  return error.kind() == ErrorKind::kIo || error.kind() == ErrorKind::kShape;
}

}  // namespace

// Batches are made in a ring of slots. Threads claim chunks of the newest slot's samples and open
// the next slot when all are claimed, at most queue_depth ahead of what next() has handed out.
class Loader::Impl {
 public:
  Impl(const Source& source, const LoaderOptions& options)
      : source_(source),
        options_(options),
        order_(source.size(), options.seed),
        buffers_(source, sample_size(options), options.micro_batch, options.pinned),
        bad_(source, options.max_bad),
        slots_(static_cast<size_t>(options.queue_depth)) {
    const int64_t num_threads = thread_count(options.num_threads);
    chunk_ = std::max<int64_t>(1, options.micro_batch / (4 * num_threads));
    for (Slot& slot : slots_) {
      slot.indices.resize(static_cast<size_t>(options.micro_batch));
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
    ++taken_;
    ++stats_.num_batches;
    lock.unlock();
    work_.notify_all();
    return batch;
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
    stats.num_buffers = buffers_.num_allocated();
    if (slowest_index_ >= 0) {
      stats.slowest_name = source_.sample_name(slowest_index_);
    }
    return stats;
  }

 private:
  struct Slot {
    Batch batch;
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

  // Where the stream position of this rank's batch `number` is.
  int64_t first_position(int64_t number) const {
    const int64_t rank_share = options_.global_batch / options_.num_ranks;
    const int64_t batches_per_step = rank_share / options_.micro_batch;
    return options_.first_position + (number / batches_per_step) * options_.global_batch +
           options_.rank * rank_share + (number % batches_per_step) * options_.micro_batch;
  }

  bool has_unclaimed() { return taken_ < opened_ && slot(opened_ - 1).num_unclaimed > 0; }

  // Under the lock.
  void open_slot() {
    Slot& slot = this->slot(opened_);
    slot.batch = buffers_.take();
    slot.first_position = first_position(opened_);
    auto* positions = slot.batch.sample_index.mutable_data_ptr<int64_t>();
    for (int64_t i = 0; i < options_.micro_batch; ++i) {
      positions[i] = slot.first_position + i;
      slot.indices[static_cast<size_t>(i)] = order_.at(positions[i]);
    }
    slot.num_unclaimed = options_.micro_batch;
    slot.num_unfinished = options_.micro_batch;
    ++opened_;
  }

  /// `reading` shows the index of the sample that this thread is at.
  void run(std::atomic<int64_t>& reading) {
    SampleReader reader(source_, sample_size(options_));
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      work_.wait(lock, [this] {
        return stopping_ || has_unclaimed() || opened_ < taken_ + options_.queue_depth;
      });
      if (stopping_) {
        return;
      }
      try {
        if (!has_unclaimed()) {
          open_slot();
        }
        Slot& slot = this->slot(opened_ - 1);
        const int64_t first = options_.micro_batch - slot.num_unclaimed;
        const int64_t count = std::min(chunk_, slot.num_unclaimed);
        slot.num_unclaimed -= count;
        lock.unlock();
        for (int64_t i = first; i < first + count; ++i) {
          reading = slot.indices[static_cast<size_t>(i)];
          fill(slot, i, reader);
        }
        reading = -1;
        lock.lock();
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
  void fill(Slot& slot, int64_t i, SampleReader& reader) {
    const Clock::time_point start = Clock::now();
    const int64_t position = slot.first_position + i;
    const RandomStream stream{options_.seed, static_cast<uint64_t>(position), 0,
                              RandomPurpose::kAugment};
    const Augmentation augmentation{
        .flip = options_.random_flip && random_uniform(stream, 0) < 0.5F,
        .start = random_uniform(stream, 1)};
    int64_t index = slot.indices[static_cast<size_t>(i)];
    std::string reason;
    for (int64_t attempt = 1;; ++attempt) {
      if (!bad_.contains(index)) {
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
      if (attempt >= source_.size()) {
        bad_.check();  // all of them, which another thread may be about to say
      }
      const std::lock_guard<std::mutex> lock(mutex_);
      // Throwing, since a slot must not seem whole; next() reports the first error only.
      KINORA_CHECK(!stopping_ && attempt < source_.size(), kIo,
                   "[data] no readable sample is left to take the place of ",
                   source_.sample_name(index), reason.empty() ? "" : "; the last: ", reason);
      index = order_.replacement(position, attempt);
    }
    const double seconds = seconds_since(start);
    if (seconds > slowest_seconds_.load(std::memory_order_relaxed)) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (seconds > stats_.slowest_seconds) {
        stats_.slowest_seconds = seconds;
        slowest_seconds_.store(seconds, std::memory_order_relaxed);
        slowest_index_ = index;
      }
    }
  }

  const Source& source_;
  const LoaderOptions options_;
  EpochOrder order_;  // under the lock, like everything below but slots' samples
  BatchBuffers buffers_;
  BadSamples bad_;
  std::vector<Slot> slots_;
  int64_t chunk_ = 1;
  int64_t opened_ = 0;  // batches begun
  int64_t taken_ = 0;   // batches handed out
  bool stopping_ = false;
  std::exception_ptr error_;
  LoaderStats stats_;
  std::atomic<double> slowest_seconds_{0.0};
  int64_t slowest_index_ = -1;
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
