#include "kinora/data/word_vectors.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/philox.h"

namespace kinora::data {
namespace {

// Fixed for ever: models are trained on what these streams give.
constexpr uint64_t kSeed = 20260101;
enum Step : uint32_t { kWord = 2, kPlace = 3 };  // generated pictures draw from 0 and 1

// Adds to `out` the direction of `sample`, a vector with the squared length out.size() / 2: two of
// them, nearly at right angles, sum to values of about 1.
void add_direction(Step step, uint64_t sample, std::span<float> out) {
  const RandomStream stream{kSeed, sample, step, RandomPurpose::kGenerate};
  const auto count = static_cast<int64_t>(out.size());
  const auto visit = [&](const auto& use) {
    for (int64_t first = 0; first < count; first += 4) {
      float normals[4];
      philox_normal(philox(stream, static_cast<uint32_t>(first / 4)), normals);
      for (int64_t i = first; i < std::min(first + 4, count); ++i) {
        use(out[static_cast<size_t>(i)], normals[i - first]);
      }
    }
  };
  float squares = 0.0F;
  visit([&squares](const float& /*value*/, float normal) { squares += normal * normal; });
  const float scale = std::sqrt(0.5F * static_cast<float>(count) / squares);
  visit([scale](float& value, float normal) { value += scale * normal; });
}

bool is_letter(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 0x80 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

char to_lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

}  // namespace

void embed_words(std::string_view text, const TextShape& shape, Text& out) {
  const auto channels = static_cast<size_t>(shape.channels);
  out.tokens.assign(static_cast<size_t>(shape.length) * channels, 0.0F);
  out.pooled.assign(static_cast<size_t>(shape.pooled_channels), 0.0F);
  out.length = 0;
  std::string word;
  for (size_t i = 0; i <= text.size() && out.length < shape.length; ++i) {
    if (i < text.size() && is_letter(text[i])) {
      word += to_lower(text[i]);
      continue;
    }
    if (word.empty()) {
      continue;
    }
    const std::span<float> token =
        std::span(out.tokens).subspan(static_cast<size_t>(out.length) * channels, channels);
    add_direction(kWord, random_name(word.c_str()), token);
    add_direction(kPlace, static_cast<uint64_t>(out.length), token);
    ++out.length;
    word.clear();
  }
  for (size_t i = 0; out.length > 0 && i < out.pooled.size(); ++i) {
    float sum = 0.0F;
    for (size_t token = 0; token < static_cast<size_t>(out.length); ++token) {
      sum += out.tokens[token * channels + i];
    }
    out.pooled[i] = sum / static_cast<float>(out.length);
  }
}

WordVectorSource::WordVectorSource(std::unique_ptr<Source> inner, int64_t length, int64_t channels)
    : WrappedSource(std::move(inner)), shape_{length, channels, channels} {}

void WordVectorSource::read(int64_t index, Sample& out) const {
  WrappedSource::read(index, out);
  embed(index, out);
}

SampleFacts WordVectorSource::check(int64_t index, Sample& scratch) const {
  const SampleFacts facts = WrappedSource::check(index, scratch);
  embed(index, scratch);
  return facts;
}

void WordVectorSource::embed(int64_t index, Sample& sample) const {
  const std::string& text =
      sample.caption.empty() ? class_names()[static_cast<size_t>(sample.label)] : sample.caption;
  embed_words(text, shape_, sample.text);
  KINORA_CHECK(sample.text.length > 0, kIo, "[data] ", sample_name(index),
               " must have a caption or a class name with a word in it, got \"", text, "\"");
}

}  // namespace kinora::data
