#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kinora/data/batch.h"
#include "kinora/data/cache_part.h"
#include "kinora/data/sample_reader.h"
#include "kinora/data/source.h"

namespace kinora::data {

/// Samples [first, end) of those that are read, without those that cannot be read.
struct OrderedSamples {
  int64_t first = 0;
  int64_t end = 0;
  Batch batch;                        ///< sample_index: their numbers in the source
  std::vector<CachedSample> samples;  ///< as many
  std::vector<LeftOut> left_out;
};

/// Reads a source once, in order, by several threads: images cropped but not flipped, of clips the
/// middle frames.
class OrderedReader {
 public:
  /// At most `batch` samples at once. `threads` 0: as Loader. `source` and `bad`, which notes
  /// samples that cannot be read, must outlive the reader. Errors as BatchBuffers. `indices`: the
  /// samples that are read, which they then know as CachedSample::number; empty: all of them.
  OrderedReader(const Source& source, const SampleSize& size, int64_t batch, int64_t threads,
                BadSamples& bad, bool pinned, std::vector<int64_t> indices = {});

  /// Samples that cannot be read are named in the log. Throws what BadSamples::add throws.
  [[nodiscard]] OrderedSamples read(int64_t first, int64_t end);

 private:
  const Source& source_;
  std::vector<int64_t> indices_;
  BatchBuffers buffers_;
  BadSamples& bad_;
  std::vector<SampleReader> readers_;  // one a thread
};

}  // namespace kinora::data
