#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kinora/data/batch.h"
#include "kinora/data/cache_part.h"
#include "kinora/data/sample_reader.h"
#include "kinora/data/source.h"

namespace kinora::data {

/// Samples [first, end) of a source, without those that cannot be read.
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
  /// At most `batch` samples at once. `threads` 0: as Loader. `max_bad`: as LoaderOptions.
  /// `source` must outlive the reader. Errors as BatchBuffers.
  OrderedReader(const Source& source, const SampleSize& size, int64_t batch, int64_t threads,
                int64_t max_bad, bool pinned);

  /// Samples that cannot be read are named in the log; kIo when there are too many of them in all.
  [[nodiscard]] OrderedSamples read(int64_t first, int64_t end);

 private:
  const Source& source_;
  BatchBuffers buffers_;
  BadSamples bad_;
  std::vector<SampleReader> readers_;  // one a thread
};

}  // namespace kinora::data
