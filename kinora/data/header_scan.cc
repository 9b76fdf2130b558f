#include "kinora/data/header_scan.h"

#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "kinora/data/sample_reader.h"

namespace kinora::data {

// A part of the samples in each thread, since files of headers are read here and there.
void scan_headers(const Source& source, int64_t num_threads, int64_t max_bad,
                  const std::function<void(int64_t, const SampleFacts&)>& see) {
  BadSamples bad(source, max_bad);
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;
  const auto run = [&] {
    try {
      for (int64_t i = next++; i < source.size(); i = next++) {
        try {
          see(i, source.facts(i));
        } catch (const Error& reason) {
          if (!is_bad_sample(reason)) {
            throw;
          }
          bad.add(i, reason.what());
        }
      }
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex);
      error = std::current_exception();
      next = source.size();
    }
  };
  std::vector<std::thread> threads;
  for (int64_t i = 1; i < num_threads; ++i) {
    threads.emplace_back(run);
  }
  run();
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (error) {
    std::rethrow_exception(error);
  }
}

}  // namespace kinora::data
