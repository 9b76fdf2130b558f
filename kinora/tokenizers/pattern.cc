#include "kinora/tokenizers/pattern.h"

namespace kinora::tokenizers {

void Pattern::find(std::string_view text, std::vector<TextRange>& matches) const {
  if (const auto* regex = std::get_if<Regex>(&what_)) {
    regex->find(text, matches);
    return;
  }
  matches.clear();
  const auto& wanted = std::get<std::string>(what_);
  if (wanted.empty()) {
    return;
  }
  for (size_t at = text.find(wanted); at != std::string_view::npos;
       at = text.find(wanted, at + wanted.size())) {
    matches.push_back({at, at + wanted.size()});
  }
}

}  // namespace kinora::tokenizers
