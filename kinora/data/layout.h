#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// Layouts: what lies where in a picture, as a caption that models of layouts read.
namespace kinora::data {

/// A box in shares of the picture's sides, from its left and its top.
struct Box {
  double left = 0.0;
  double top = 0.0;
  double right = 1.0;
  double bottom = 1.0;

  bool operator==(const Box&) const = default;
};

/// The area that both cover over the area that one of them covers.
[[nodiscard]] double intersection_over_union(const Box& a, const Box& b);

struct LayoutObject {
  std::string phrase;  ///< what lies there: the name of a class, or words
  Box box;
};

using Layout = std::vector<LayoutObject>;

/// A layout as it is written, without line ends:
/// [{"phrase": "a cat", "box": [left, top, right, bottom]}, ...]. Boxes get four digits.
[[nodiscard]] std::string to_text(const Layout& layout);

/// The inverse. kConfig for what is no such list or has no object, and for a box outside of the
/// picture or without an area; messages name the phrase and its box.
[[nodiscard]] Layout parse_layout(std::string_view text);

/// The place of a box's two corners on a grid of `grid` x `grid` points over the picture, row by
/// row: (top left, bottom right).
struct CornerPlaces {
  int64_t top_left = 0;
  int64_t bottom_right = 0;
};
[[nodiscard]] CornerPlaces corner_places(const Box& box, int64_t grid);

/// How latent diffusion's published models of layouts read them.
struct BoxTokens {
  std::vector<std::string> classes;  ///< names of what objects are, by number
  int64_t vocabulary = 8192;
  int64_t places = 92;  ///< tokens of every layout
};

/// The tokens of a layout as ObjectsBoundingBoxConditionalBuilder of taming-transformers makes
/// them, with encode_crop: of each object its class' number and the places of its corners on a grid
/// of floor(sqrt(vocabulary)) points a side; then the last token of the vocabulary for objects that
/// are not there; at the end the corners of the crop, which is the whole picture. A phrase is a
/// class or, in digits, the first token itself. kConfig for other phrases and for too many objects.
[[nodiscard]] std::vector<int64_t> box_tokens(const Layout& layout, const BoxTokens& rules);

}  // namespace kinora::data
