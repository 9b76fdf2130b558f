#include "kinora/inference/class_words.h"

#include <string_view>

#include "kinora/core/error.h"
#include "kinora/core/nearest_name.h"
#include "kinora/core/text.h"

namespace kinora::inference {

int64_t class_of(const std::string& word, const std::vector<std::string>& names) {
  constexpr size_t kNamesInMessage = 8;
  int64_t found = -1;
  std::vector<std::string> known;
  for (size_t number = 0; number < names.size(); ++number) {
    for (const std::string_view part : split(names[number], ',')) {
      const std::string_view synonym = trim(part);
      if (synonym.empty()) {
        continue;
      }
      known.emplace_back(synonym);
      if (synonym == word || names[number] == word) {
        found = static_cast<int64_t>(number);
      }
    }
  }
  if (found < 0) {
    const std::string nearest = nearest_name(word, known);
    throw_error(ErrorKind::kConfig,
                "[sample] classes must be numbers or names of the model's "
                "classes, got ",
                quote(word), ". Hint: ",
                nearest.empty() ? "they are " + list_names(known, kNamesInMessage)
                                : "did you mean " + nearest + "?");
  }
  return found;
}

}  // namespace kinora::inference
