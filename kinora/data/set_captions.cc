#include "kinora/data/set_captions.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <set>
#include <unordered_set>

#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/data/loader.h"

namespace kinora::data {
namespace {

/// What the threads share.
struct CaptionScan {
  const Source& source;
  CaptionLines lines;
  const StopSignal* stop;
  int64_t most_bad;
  std::atomic<int64_t> next = 0;
  std::atomic<int64_t> bad = 0;
  std::atomic<bool> is_over = false;
};

/// The captions of the samples that one thread takes.
std::unordered_set<std::string> scan_captions(CaptionScan& scan) {
  std::unordered_set<std::string> captions;
  Sample sample;
  sample.choice = FrameChoice{};
  sample.crop = {.height = 1, .width = 1, .may_scale = true};
  for (int64_t i = scan.next++; i < scan.source.size() && !scan.is_over; i = scan.next++) {
    try {
      scan.source.read(i, sample);
    } catch (const Error& error) {
      if (++scan.bad > scan.most_bad) {
        scan.is_over = true;
        throw_error(ErrorKind::kIo, "[captions] more than ", scan.most_bad,
                    " samples cannot be read, the last: ", error.what(),
                    ". Hint: kinora data check names all of them, data.max_bad allows more");
      }
      log_warn("[captions] left out: ", error.what());
      continue;
    }
    std::vector<std::string> own = possible_captions(sample.caption, scan.lines);
    if (own.empty() || own.front().empty()) {
      own = {scan.source.class_names()[static_cast<size_t>(sample.label)]};
    }
    captions.insert(own.begin(), own.end());
    if (scan.stop != nullptr && scan.stop->requested()) {
      scan.is_over = true;
    }
  }
  return captions;
}

}  // namespace

SetCaptions captions_of(const Source& source, const CaptionOptions& options,
                        const StopSignal* stop) {
  constexpr auto kReportInterval = std::chrono::milliseconds(100);
  CaptionScan scan{.source = source,
                   .lines = options.lines,
                   .stop = stop,
                   .most_bad = allowed_bad(source.size(), options.max_bad)};
  std::vector<std::future<std::unordered_set<std::string>>> threads;
  for (int64_t i = 0; i < thread_count(options.threads); ++i) {
    threads.push_back(std::async(std::launch::async, [&scan] { return scan_captions(scan); }));
  }
  std::set<std::string> unique;
  for (auto& thread : threads) {
    while (thread.wait_for(kReportInterval) != std::future_status::ready) {
      if (options.progress) {
        options.progress(std::min(scan.next.load(), source.size()), source.size());
      }
    }
    for (const std::string& caption : thread.get()) {
      unique.insert(caption);
    }
  }
  return {.all = std::vector<std::string>(unique.begin(), unique.end()),
          .left_out = scan.bad,
          .complete = !scan.is_over};
}

}  // namespace kinora::data
