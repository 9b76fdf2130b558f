#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <mutex>
#include <span>
#include <thread>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/data/index.h"
#include "kinora/io/file.h"

namespace kinora::data {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Samples that a thread takes at once.
constexpr int64_t kBlock = 64;

// What threads found of a sample, before the writer has it.
struct Found {
  std::string name;
  IndexEntry entry;
  std::string cause;  // entry.cause looks at it
  bool is_reused = false;
};

// Waits for the threads, which are told to stop.
struct Joiner {
  std::vector<std::thread>& threads;
  std::atomic<bool>& stop;

  ~Joiner() {
    stop = true;
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
};

class Updater {
 public:
  Updater(const Source& source, const fs::path& path, const IndexOptions& options)
      : source_(source), path_(path), options_(options), old_(Index::open_or_empty(path)) {}

  [[nodiscard]] IndexUpdate run() {
    const Joiner joiner{threads_, stop_};
    const auto num_cores = static_cast<int64_t>(std::max(1U, std::thread::hardware_concurrency()));
    const int64_t num_threads = options_.num_threads > 0 ? options_.num_threads : num_cores;
    num_running_ = num_threads;  // which falls from now on
    for (int64_t i = 0; i < num_threads; ++i) {
      threads_.emplace_back([this] { work(); });
    }
    collect();
    if (error_) {
      std::rethrow_exception(error_);
    }
    update_.is_complete = num_done_ == source_.size();
    save();
    update_.index = update_.is_kept ? Index::open(path_) : Index::of_bytes(writer_.bytes());
    return std::move(update_);
  }

 private:
  void work() {
    Sample scratch;
    std::vector<Found> block;
    std::exception_ptr error;
    try {
      for (;;) {
        const int64_t begin = next_.fetch_add(kBlock);
        if (begin >= source_.size() || stop_) {
          break;
        }
        block.clear();
        const int64_t end = std::min(begin + kBlock, source_.size());
        for (int64_t i = begin; i < end && !stop_; ++i) {
          block.push_back(look_at(i, scratch));
        }
        const std::lock_guard<std::mutex> lock(mutex_);
        std::move(block.begin(), block.end(), std::back_inserter(found_));
        changed_.notify_one();
      }
    } catch (...) {
      error = std::current_exception();
      stop_ = true;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    error_ = error_ ? error_ : error;
    --num_running_;
    changed_.notify_one();
  }

  // An Error makes a sample unusable; anything else (no memory, a bug) ends the work.
  [[nodiscard]] Found look_at(int64_t index, Sample& scratch) const {
    Found found{.name = source_.sample_name(index), .entry = {}, .cause = {}};
    const uint64_t stamp = source_.stamp(index);
    const std::optional<IndexEntry> old = old_.find(found.name);
    if (stamp != 0 && old && old->stamp == stamp && (old->is_checked || !options_.full)) {
      found.entry = *old;
      found.is_reused = true;
      return found;
    }
    found.entry.stamp = stamp;
    found.entry.is_checked = options_.full;
    try {
      found.entry.facts = options_.full ? source_.check(index, scratch) : source_.facts(index);
    } catch (const Error& error) {
      found.cause = error.what();
    }
    return found;
  }

  void collect() {
    last_save_ = Clock::now();
    for (bool is_running = true; is_running;) {
      std::vector<Found> found;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait_for(lock, std::chrono::milliseconds(100),
                          [this] { return !found_.empty() || num_running_ == 0; });
        found.swap(found_);
        is_running = num_running_ > 0;
      }
      for (Found& one : found) {
        if (!one.is_reused) {
          one.entry.cause = one.cause;
        }
        writer_.add(one.name, one.entry);
        ++(one.is_reused ? update_.num_reused : update_.num_read);
      }
      num_done_ += std::ssize(found);
      if (options_.on_progress && !found.empty()) {
        options_.on_progress(num_done_);
      }
      if (options_.wants_stop && options_.wants_stop()) {
        stop_ = true;
      }
      save_now_and_then();
    }
  }

  // Saving takes at most a tenth of the time.
  void save_now_and_then() {
    const auto now = Clock::now();
    const double since = std::chrono::duration<double>(now - last_save_).count();
    if (since > std::max(options_.save_interval, 10.0 * save_seconds_)) {
      save();
      last_save_ = Clock::now();
      save_seconds_ = std::chrono::duration<double>(last_save_ - now).count();
    }
  }

  // What the old index knows of samples that were not looked at yet stays.
  void save() {
    if (!update_.is_kept) {
      return;
    }
    try {
      KINORA_CHECK(
          !path_.empty(), kIo,
          "[index] a folder for it must be known from XDG_CACHE_HOME or HOME, got neither");
      const Index nothing;
      writer_.write(path_, num_done_ < source_.size() ? old_ : nothing);
    } catch (const Error& error) {
      update_.is_kept = false;
      log_warn(error.what(),
               "\n  What is found out is not kept. Hint: --index FILE, or data.index");
    }
  }

  const Source& source_;
  const fs::path& path_;
  const IndexOptions& options_;
  const Index old_;
  IndexWriter writer_;
  IndexUpdate update_;
  int64_t num_done_ = 0;
  Clock::time_point last_save_;
  double save_seconds_ = 0.0;
  std::atomic<int64_t> next_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Found> found_;
  int64_t num_running_ = 0;
  std::exception_ptr error_;
  std::vector<std::thread> threads_;
};

}  // namespace

IndexUpdate update_index(const Source& source, const fs::path& path, const IndexOptions& options) {
  return Updater(source, path, options).run();
}

fs::path default_index_path(const std::string& what) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if (cache == nullptr && home == nullptr) {
    return {};
  }
  const fs::path folder = cache != nullptr ? fs::path(cache) : fs::path(home) / ".cache";
  return folder / "kinora" / (io::checksum(std::as_bytes(std::span(what))) + ".index");
}

}  // namespace kinora::data
