#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kinora/core/stop_signal.h"
#include "kinora/data/caption_choice.h"
#include "kinora/data/source.h"

namespace kinora::data {

struct CaptionOptions {
  CaptionLines lines = CaptionLines::kWhole;  ///< of kRandom all of them count
  int64_t threads = 0;                        ///< as data.threads
  int64_t max_bad = -1;                       ///< as data.max_bad
  /// Called by the calling thread: samples done, samples in all. May be empty.
  std::function<void(int64_t done, int64_t total)> progress = {};
};

struct SetCaptions {
  std::vector<std::string> all;  ///< each once, in bytewise order
  int64_t left_out = 0;          ///< samples that cannot be read
  bool complete = false;         ///< else a signal stopped it
};

/// What the samples of a set are called by a file of texts that is keyed by caption: their
/// captions, or the names of their classes where there is none. Of pictures as little is decoded as
/// their format allows, of clips one frame. `stop` may be null. kIo: too many samples that cannot
/// be read; those that are left out are named in the log.
[[nodiscard]] SetCaptions captions_of(const Source& source, const CaptionOptions& options,
                                      const StopSignal* stop = nullptr);

}  // namespace kinora::data
