#include "kinora/core/glob.h"

#include <algorithm>
#include <map>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/text.h"

namespace kinora {
namespace {

constexpr size_t kNamesInHint = 3;

/// "blocks.3.attn" as "blocks.*.attn": what stands for all blocks.
std::string without_numbers(std::string_view name) {
  std::string result;
  for (const std::string_view word : split(name, '.')) {
    const bool is_number =
        !word.empty() && word.find_first_not_of("0123456789") == std::string_view::npos;
    result += result.empty() ? "" : ".";
    result += is_number ? "*" : word;
  }
  return result;
}

/// How much a name must change word by word for a pattern: a word `*` costs nothing, nor does what
/// is behind one at the end.
int64_t distance(std::string_view pattern, std::string_view name) {
  const std::vector<std::string_view> wanted = split(pattern, '.');
  const std::vector<std::string_view> words = split(name, '.');
  int64_t sum = 0;
  for (size_t i = 0; i < std::max(wanted.size(), words.size()); ++i) {
    if (i >= words.size()) {
      sum += static_cast<int64_t>(wanted[i].size());
    } else if (i >= wanted.size()) {
      sum += wanted.back() == "*" ? 0 : static_cast<int64_t>(words[i].size());
    } else if (wanted[i] != "*") {
      sum += edit_distance(wanted[i], words[i]);
    }
  }
  return sum;
}

}  // namespace

bool glob_matches(std::string_view pattern, std::string_view text) {
  size_t p = 0;
  size_t t = 0;
  size_t star = std::string_view::npos;  // the last one, which takes text up to `taken`
  size_t taken = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++taken;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

std::vector<bool> match_globs(const std::vector<std::string>& patterns,
                              const std::vector<std::string>& names, std::string_view key) {
  std::vector<bool> matched(names.size(), false);
  for (const std::string& pattern : patterns) {
    bool found = false;
    for (size_t i = 0; i < names.size(); ++i) {
      if (glob_matches(pattern, names[i])) {
        matched[i] = true;
        found = true;
      }
    }
    KINORA_CHECK(found, kConfig, "[config] ", key, ": nothing is called ", quote(pattern),
                 ". Hint: the most like it are ",
                 list_names(near_names(pattern, names, kNamesInHint), kNamesInHint));
  }
  return matched;
}

std::vector<std::string> near_names(std::string_view name, const std::vector<std::string>& names,
                                    size_t most) {
  std::map<std::string, int64_t> distances;
  const std::string wanted = without_numbers(name);
  for (const std::string& candidate : names) {
    const std::string plain = without_numbers(candidate);
    distances.emplace(plain, distance(wanted, plain));
  }
  std::vector<std::pair<std::string, int64_t>> sorted(distances.begin(), distances.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second < b.second; });
  std::vector<std::string> near;
  for (size_t i = 0; i < std::min(most, sorted.size()); ++i) {
    near.push_back(sorted[i].first);
  }
  return near;
}

}  // namespace kinora
