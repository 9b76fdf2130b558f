#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kinora/core/philox.h"
#include "kinora/data/wrapped_source.h"

namespace kinora::data {

/// What of a sample's caption is a caption.
enum class CaptionLines : uint8_t {
  kWhole,   ///< all of it
  kFirst,   ///< its first line
  kRandom,  ///< one of its lines, drawn anew each time
};

/// How a sample's caption is varied each time that it is read.
struct CaptionChoice {
  CaptionLines lines = CaptionLines::kWhole;
  std::vector<double> weights;  ///< of the lines by place, further ones have none; empty: equal
  bool shuffles_tags = false;   ///< tags are what stands between commas
  double drop_tags = 0.0;       ///< probability of each; one stays always

  [[nodiscard]] bool changes() const {
    return lines != CaptionLines::kWhole || shuffles_tags || drop_tags > 0.0;
  }
};

/// The captions that `lines` may make of one: with kRandom its lines that are not empty.
[[nodiscard]] std::vector<std::string> possible_captions(const std::string& caption,
                                                         CaptionLines lines);

/// `caption` as `choice` varies it, by these random numbers: elements 0 and up of the stream.
/// Without them: its first line (where a line is wanted), unchanged. Empty lines are none.
[[nodiscard]] std::string chosen_caption(const std::string& caption, const CaptionChoice& choice,
                                         const std::optional<RandomStream>& draws);

/// Gives the samples of another source that have no caption one and the same.
class CaptionForAllSource : public WrappedSource {
 public:
  CaptionForAllSource(std::unique_ptr<Source> inner, std::string caption)
      : WrappedSource(std::move(inner)), caption_(std::move(caption)) {}

  void read(int64_t index, Sample& out) const override {
    WrappedSource::read(index, out);
    if (out.caption.empty()) {
      out.caption = caption_;
    }
  }

 private:
  std::string caption_;
};

/// Gives the samples of another source captions chosen so, by Sample::caption_draws.
class CaptionChoiceSource : public WrappedSource {
 public:
  CaptionChoiceSource(std::unique_ptr<Source> inner, CaptionChoice choice)
      : WrappedSource(std::move(inner)), choice_(std::move(choice)) {}

  void read(int64_t index, Sample& out) const override {
    WrappedSource::read(index, out);
    out.caption = chosen_caption(out.caption, choice_, out.caption_draws);
  }

 private:
  CaptionChoice choice_;
};

}  // namespace kinora::data
