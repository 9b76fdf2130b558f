#include "kinora/data/caption_choice.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string_view>

#include "kinora/core/text.h"
#include "kinora/data/draws.h"

namespace kinora::data {
namespace {

std::vector<std::string_view> pieces(std::string_view text, char separator) {
  std::vector<std::string_view> kept;
  for (const std::string_view piece : kinora::split(text, separator)) {
    if (!trim(piece).empty()) {
      kept.push_back(trim(piece));
    }
  }
  return kept;
}

/// Of `count` lines, by their weights.
size_t drawn_line(size_t count, const std::vector<double>& weights, Draws& draws) {
  if (weights.empty()) {
    return draws.index(count);
  }
  const size_t known = std::min(count, weights.size());
  const auto end = weights.begin() + static_cast<std::ptrdiff_t>(known);
  double left = draws.uniform() * std::accumulate(weights.begin(), end, 0.0);
  size_t line = 0;
  while (line + 1 < known && left >= weights[line]) {
    left -= weights[line];
    ++line;
  }
  return line;
}

std::string with_tags(std::string_view caption, const CaptionChoice& choice, Draws& draws) {
  std::vector<std::string_view> tags = pieces(caption, ',');
  if (choice.shuffles_tags) {  // Fisher and Yates
    for (size_t i = tags.size(); i > 1; --i) {
      std::swap(tags[i - 1], tags[draws.index(i)]);
    }
  }
  std::string kept;
  for (size_t i = 0; i < tags.size(); ++i) {
    const bool is_last_chance = i + 1 == tags.size() && kept.empty();
    if (draws.uniform() >= choice.drop_tags || is_last_chance) {
      kept += (kept.empty() ? "" : ", ") + std::string(tags[i]);
    }
  }
  return kept;
}

}  // namespace

std::vector<std::string> possible_captions(const std::string& caption, CaptionLines lines) {
  if (lines != CaptionLines::kRandom) {
    CaptionChoice choice;
    choice.lines = lines;
    return {chosen_caption(caption, choice, std::nullopt)};
  }
  const std::vector<std::string_view> all = pieces(caption, '\n');
  return {all.begin(), all.end()};
}

std::string chosen_caption(const std::string& caption, const CaptionChoice& choice,
                           const std::optional<RandomStream>& draws) {
  std::string_view chosen = caption;
  std::optional<Draws> numbers;
  if (draws) {
    numbers.emplace(*draws);
  }
  if (choice.lines != CaptionLines::kWhole) {
    const std::vector<std::string_view> lines = pieces(caption, '\n');
    if (lines.empty()) {
      return "";
    }
    const bool draws_one = choice.lines == CaptionLines::kRandom && numbers;
    chosen = lines[draws_one ? drawn_line(lines.size(), choice.weights, *numbers) : 0];
  }
  const bool has_tags = numbers && (choice.shuffles_tags || choice.drop_tags > 0.0);
  return has_tags ? with_tags(chosen, choice, *numbers) : std::string(chosen);
}

}  // namespace kinora::data
