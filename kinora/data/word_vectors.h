#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "kinora/data/wrapped_source.h"

namespace kinora::data {

/// A text as word vectors, for runs without a language model: each word has a fixed direction of
/// its own, drawn from Philox by the word's letters, and so has each place in the text. A token is
/// their sum, scaled to values of about 1. So texts differ by their words and their order, but
/// alike words have nothing in common: "red" is as far from "crimson" as from "square".
///
/// Words are runs of letters and digits, in any case ("jumping_jack" are two); bytes beyond ASCII
/// count as letters. Words beyond shape.length are cut off. `out.pooled` is the mean of the tokens,
/// shape.channels long, or empty where shape.pooled_channels is 0. A text without words has length
/// 0 and is zero throughout.
void embed_words(std::string_view text, const TextShape& shape, Text& out);

/// Gives the samples of another source the word vectors of their caption or, without one, of their
/// class name, and the mean of these as the pooled vector. A sample without any word is unreadable.
class WordVectorSource : public WrappedSource {
 public:
  /// `length` and `channels` at least 1.
  WordVectorSource(std::unique_ptr<Source> inner, int64_t length, int64_t channels);

  [[nodiscard]] std::optional<TextShape> text_shape() const override { return shape_; }
  void read(int64_t index, Sample& out) const override;
  [[nodiscard]] SampleFacts check(int64_t index, Sample& scratch) const override;

 private:
  /// Needs `sample` as the source inside fills it.
  void embed(int64_t index, Sample& sample) const;

  TextShape shape_;
};

}  // namespace kinora::data
