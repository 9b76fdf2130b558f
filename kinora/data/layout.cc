#include "kinora/data/layout.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kinora/core/error.h"
#include "kinora/core/nearest_name.h"
#include "kinora/core/text.h"
#include "kinora/data/caption_tokens.h"

namespace kinora::data {
namespace {

using nlohmann::json;

constexpr double kDigits = 1e4;

Box box_of(const json& object, const std::string& phrase) {
  const auto found = object.find("box");
  const bool is_box =
      found != object.end() && found->is_array() && found->size() == 4 &&
      std::all_of(found->begin(), found->end(), [](const json& side) { return side.is_number(); });
  KINORA_CHECK(is_box, kConfig, "[layout] the box of ", quote(phrase),
               " must be [left, top, right, bottom] in shares of the picture's sides, got ",
               found == object.end() ? "none" : found->dump());
  const Box box{
      .left = (*found)[0], .top = (*found)[1], .right = (*found)[2], .bottom = (*found)[3]};
  const bool is_inside = box.left >= 0.0 && box.top >= 0.0 && box.right <= 1.0 && box.bottom <= 1.0;
  KINORA_CHECK(is_inside && box.left < box.right && box.top < box.bottom, kConfig,
               "[layout] the box of ", quote(phrase),
               " must lie in the picture, 0 <= left < right <= 1 and 0 <= top < bottom <= 1, got ",
               found->dump(), ". Hint: divide pixels by the picture's width and height");
  return box;
}

/// The places of a box's corners, shares of the grid rounded so.
template <typename Round>
CornerPlaces places_of(const Box& box, int64_t grid, const Round& round) {
  const auto place = [grid, &round](double x, double y) {
    const auto along = [grid, &round](double share) {
      return static_cast<int64_t>(round(share * static_cast<double>(grid - 1)));
    };
    return along(y) * grid + along(x);
  };
  return {.top_left = place(box.left, box.top), .bottom_right = place(box.right, box.bottom)};
}

// Of box_tokens().
constexpr int64_t kCornerTokens = 2;
constexpr int64_t kObjectTokens = 3;

int64_t class_number(const std::string& phrase, const BoxTokens& rules) {
  const auto found = std::ranges::find(rules.classes, phrase);
  if (found != rules.classes.end()) {
    return found - rules.classes.begin();
  }
  int64_t number = -1;
  const auto read = std::from_chars(phrase.data(), phrase.data() + phrase.size(), number);
  const bool is_number = read.ec == std::errc() && read.ptr == phrase.data() + phrase.size();
  const std::string range = "a number from 0 to " + std::to_string(rules.vocabulary - 2);
  const std::string nearest = nearest_name(phrase, rules.classes);
  KINORA_CHECK(is_number && number >= 0 && number < rules.vocabulary - 1, kConfig,
               "[layout] a phrase must be ",
               rules.classes.empty()
                   ? range
                   : "one of " + std::to_string(rules.classes.size()) + " classes or " + range,
               ", got ", quote(phrase), ". Hint: ",
               rules.classes.empty() ? "the names of classes, one a line, are a file of --tokenizer"
               : nearest.empty()     ? "names are written as in the list of classes"
                                     : nearest);
  return number;
}

}  // namespace

double intersection_over_union(const Box& a, const Box& b) {
  const auto area = [](const Box& box) {
    return std::max(box.right - box.left, 0.0) * std::max(box.bottom - box.top, 0.0);
  };
  const double both = area({.left = std::max(a.left, b.left),
                            .top = std::max(a.top, b.top),
                            .right = std::min(a.right, b.right),
                            .bottom = std::min(a.bottom, b.bottom)});
  return both / (area(a) + area(b) - both);
}

std::string to_text(const Layout& layout) {
  json list = json::array();
  for (const LayoutObject& object : layout) {
    json sides = json::array();
    for (const double side :
         {object.box.left, object.box.top, object.box.right, object.box.bottom}) {
      sides.push_back(std::round(side * kDigits) / kDigits);
    }
    list.push_back({{"box", sides}, {"phrase", object.phrase}});
  }
  return list.dump();
}

Layout parse_layout(std::string_view text) {
  const json list = json::parse(text, nullptr, /*allow_exceptions=*/false);
  KINORA_CHECK(list.is_array() && !list.empty(), kConfig,
               "[layout] a layout must be a list with an object or more, [{\"phrase\": \"a cat\", "
               "\"box\": [0.1, 0.2, 0.5, 0.9]}], got ",
               shortened(std::string(text)));
  Layout layout;
  for (const json& object : list) {
    KINORA_CHECK(object.is_object() && object.contains("phrase") && object["phrase"].is_string(),
                 kConfig, "[layout] each object of a layout must have a phrase, got ",
                 shortened(object.dump(-1, ' ', false, json::error_handler_t::replace)));
    for (const auto& [key, value] : object.items()) {
      KINORA_CHECK(key == "phrase" || key == "box", kConfig,
                   "[layout] an object has phrase and box, got ", quote(key));
    }
    const std::string phrase = object["phrase"];
    layout.push_back({.phrase = phrase, .box = box_of(object, phrase)});
  }
  return layout;
}

CornerPlaces corner_places(const Box& box, int64_t grid) {
  return places_of(box, grid, [](double value) { return std::llround(value); });
}

std::vector<int64_t> box_tokens(const Layout& layout, const BoxTokens& rules) {
  const auto grid =
      static_cast<int64_t>(std::floor(std::sqrt(static_cast<double>(rules.vocabulary))));
  const auto add_corners = [grid](const Box& box, std::vector<int64_t>& tokens) {
    // Python's round(): halves go to the even number.
    const CornerPlaces corners =
        places_of(box, grid, [](double value) { return std::llrint(value); });
    tokens.insert(tokens.end(), {corners.top_left, corners.bottom_right});
  };
  const int64_t most = (rules.places - kCornerTokens) / kObjectTokens;
  KINORA_CHECK(std::ssize(layout) <= most, kConfig, "[layout] this model reads ", most,
               " objects at most, got ", layout.size());
  std::vector<int64_t> tokens;
  for (const LayoutObject& object : layout) {
    tokens.push_back(class_number(object.phrase, rules));
    add_corners(object.box, tokens);
  }
  tokens.resize(static_cast<size_t>(rules.places - kCornerTokens), rules.vocabulary - 1);
  add_corners(Box{}, tokens);
  return tokens;
}

}  // namespace kinora::data
