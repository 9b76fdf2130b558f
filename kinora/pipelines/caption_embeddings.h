#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "kinora/comm/group.h"
#include "kinora/core/dtype.h"
#include "kinora/core/stop_signal.h"
#include "kinora/data/caption_tokens.h"
#include "kinora/models/text_encoders/text_encoder.h"

/// From captions to a file of their embeddings (data/text_file.h).
namespace kinora::pipelines {

struct CaptionEmbeddingOptions {
  std::filesystem::path out;
  DType dtype = DType::kBF16;  ///< of what is stored: F32, F16 or BF16
  bool keyed = true;           ///< store the captions as keys; they are unique then
  int64_t batch = 64;          ///< captions computed at once
  double save_seconds = 10.0;  ///< what is computed is on the disk after this time at the latest
  std::map<std::string, std::string> metadata = {};  ///< of the file: what computed it
  comm::Group ranks = {};        ///< that embed a part each, of the same captions
  at::Device device = at::kCPU;  ///< by which these talk
  /// Captions done, captions in all, and how many were done before. May be empty.
  std::function<void(int64_t done, int64_t total, int64_t before)> progress = {};
};

struct CaptionEmbeddingResult {
  bool complete = false;  ///< else a signal stopped it, and the next call goes on
  int64_t computed = 0;   ///< captions, in this call, by all ranks
  int64_t cut = 0;        ///< captions that were cut off
  int64_t length = 0;     ///< L: tokens of the longest
  int64_t num_bytes = 0;  ///< of the file
};

/// Writes a file with a row a caption, in their order: the last normed states of its tokens,
/// special ones too, and of encoders that have one the pooled vector. Nothing is stored for
/// padding that does not count (data::CaptionTokens::pads). The longest are computed first, texts
/// of like length together.
///
/// Of several ranks, which all make the same call and see the same files, each computes every so
/// manieth batch; the file and what is noted of it are the same as those of one.
///
/// The file grows beside `out`, as OUT.partial with OUT.partial.json, and takes its name when it is
/// whole. A call with the same captions, tokens and options goes on with what an earlier one left,
/// or finds `out` whole. Captions that are cut off are told of in one warning.
///
/// kConfig: no caption, one that the tokenizer or the cleaning refuses, states that are not finite
/// in `dtype`, a tokenizer of more tokens than the encoder has. kIo: files that cannot be written,
/// no room, another process that writes the same file. `stop` may be null.
CaptionEmbeddingResult encode_captions(std::span<const std::string> captions,
                                       models::TextEncoder& encoder, const data::CaptionTokens& how,
                                       const CaptionEmbeddingOptions& options,
                                       const StopSignal* stop = nullptr);

}  // namespace kinora::pipelines
