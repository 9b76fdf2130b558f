#include "kinora/data/ordered_reader.h"

#include <atomic>
#include <future>
#include <utility>

#include <ATen/ops/tensor.h>

#include "kinora/core/error.h"
#include "kinora/data/loader.h"

namespace kinora::data {

OrderedReader::OrderedReader(const Source& source, const SampleSize& size, int64_t batch,
                             int64_t threads, BadSamples& bad, bool pinned,
                             std::vector<int64_t> indices)
    : source_(source),
      indices_(std::move(indices)),
      buffers_(source, size, batch, pinned),
      bad_(bad) {
  const int64_t count = thread_count(threads);
  for (int64_t i = 0; i < count; ++i) {
    readers_.emplace_back(source, size);
  }
}

OrderedSamples OrderedReader::read(int64_t first, int64_t end) {
  const int64_t count = end - first;
  const Batch batch = buffers_.take();
  std::vector<CachedSample> samples(static_cast<size_t>(count));
  std::vector<std::string> reasons(static_cast<size_t>(count));
  std::atomic<int64_t> next = 0;
  const auto index_of = [&](int64_t i) {
    return indices_.empty() ? first + i : indices_[static_cast<size_t>(first + i)];
  };
  const auto work = [&](SampleReader& reader) {
    for (int64_t i = next++; i < count; i = next++) {
      CachedSample& sample = samples[static_cast<size_t>(i)];
      const int64_t index = index_of(i);
      sample.name = source_.sample_name(index);
      sample.number = indices_.empty() ? -1 : index;
      try {
        reader.read(index, {}, batch, i);
        sample.caption = reader.last().caption;
        sample.label = reader.last().label;
        sample.num_references = std::ssize(reader.last().references);
        if (batch.original_size.defined()) {
          const auto* const size = batch.original_size.const_data_ptr<float>() + i * 2;
          sample.pictured = {static_cast<int64_t>(size[0]), static_cast<int64_t>(size[1])};
        }
        sample.fps = batch.fps.defined() ? batch.fps.const_data_ptr<float>()[i] : 0.0F;
      } catch (const Error& error) {
        if (!is_bad_sample(error)) {
          throw;
        }
        reasons[static_cast<size_t>(i)] = error.what();
        bad_.add(index, error.what());
      }
    }
  };
  std::vector<std::future<void>> threads;
  for (SampleReader& reader : readers_) {
    threads.push_back(std::async(std::launch::async, [&work, &reader] { work(reader); }));
  }
  for (std::future<void>& thread : threads) {
    thread.wait();  // all of them, before one throws: they write into what lives here
  }
  for (std::future<void>& thread : threads) {
    thread.get();
  }
  OrderedSamples result{.first = first, .end = end, .batch = {}, .samples = {}, .left_out = {}};
  std::vector<int64_t> rows;
  auto* numbers = batch.sample_index.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    numbers[i] = index_of(i);
    if (reasons[at].empty()) {
      rows.push_back(i);
      result.samples.push_back(std::move(samples[at]));
    } else {
      result.left_out.push_back({std::move(samples[at].name), std::move(reasons[at])});
    }
  }
  result.batch = std::ssize(rows) == count ? first_samples(batch, count)
                                           : selected_samples(batch, at::tensor(rows, at::kLong));
  return result;
}

}  // namespace kinora::data
