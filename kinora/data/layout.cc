#include "kinora/data/layout.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kinora/core/error.h"
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
  const auto place = [grid](double x, double y) {
    const auto along = [grid](double share) {
      return std::llround(share * static_cast<double>(grid - 1));
    };
    return along(y) * grid + along(x);
  };
  return {.top_left = place(box.left, box.top), .bottom_right = place(box.right, box.bottom)};
}

}  // namespace kinora::data
