#include "kinora/tokenizers/char_map.h"

#include <cstring>

#include "kinora/core/error.h"
#include "kinora/core/text.h"

namespace kinora::tokenizers {
namespace {

// The bits of a unit of Darts (darts-clone, DoubleArrayUnit).
bool unit_has_leaf(uint32_t unit) {
  return (unit >> 8 & 1) == 1;
}
uint32_t unit_value(uint32_t unit) {
  return unit & 0x7FFFFFFF;
}
uint32_t unit_label(uint32_t unit) {
  return unit & 0x800000FF;
}
uint32_t unit_offset(uint32_t unit) {
  return (unit >> 10) << ((unit & 0x200) >> 6);
}

bool continues_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

}  // namespace

CharMap::CharMap(std::string_view bytes, std::string_view where) {
  uint32_t size = 0;
  KINORA_CHECK(bytes.size() >= sizeof(size), kIo, where,
               ": a table of replacements must have 4 bytes at least, got ", bytes.size());
  std::memcpy(&size, bytes.data(), sizeof(size));
  bytes.remove_prefix(sizeof(size));
  KINORA_CHECK(
      size > 0 && size % sizeof(uint32_t) == 0 && size <= bytes.size(), kIo, where,
      ": the double array of a table of replacements must have 4 bytes a unit and at most ",
      bytes.size(), " bytes, got ", size);
  units_.resize(size / sizeof(uint32_t));
  std::memcpy(units_.data(), bytes.data(), size);
  replacements_ = bytes.substr(size);
  KINORA_CHECK(is_utf8(replacements_), kIo, where, ": replacements must be UTF-8");
}

template <typename Use>
void CharMap::each_prefix(std::string_view text, const Use& use) const {
  uint32_t at = unit_offset(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    at ^= byte;
    if (byte == 0 || at >= units_.size() || unit_label(units_[at]) != byte) {
      return;
    }
    const uint32_t unit = units_[at];
    at ^= unit_offset(unit);
    if (!unit_has_leaf(unit)) {
      continue;
    }
    if (at >= units_.size()) {
      return;
    }
    // A damaged table could end an entry within a character.
    const bool is_whole = i + 1 == text.size() || !continues_character(text[i + 1]);
    if (is_whole && !use(i + 1, unit_value(units_[at]))) {
      return;
    }
  }
}

std::string_view CharMap::replacement_at(uint32_t offset) const {
  if (offset >= replacements_.size() || continues_character(replacements_[offset])) {
    return {};
  }
  const std::string_view rest = std::string_view(replacements_).substr(offset);
  return rest.substr(0, rest.find('\0'));
}

std::optional<CharMap::Replacement> CharMap::longest(std::string_view text) const {
  std::optional<std::pair<size_t, uint32_t>> found;
  each_prefix(text, [&](size_t size, uint32_t offset) {
    found = {size, offset};
    return true;
  });
  if (!found) {
    return std::nullopt;
  }
  return Replacement{found->first, replacement_at(found->second)};
}

std::optional<CharMap::Replacement> CharMap::shortest(std::string_view text) const {
  std::optional<Replacement> found;
  each_prefix(text, [&](size_t size, uint32_t offset) {
    found = {size, replacement_at(offset)};
    return false;
  });
  return found;
}

}  // namespace kinora::tokenizers
