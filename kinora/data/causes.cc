#include "kinora/data/causes.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <utility>

#include "kinora/core/counted.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/printable.h"

namespace kinora::data {
namespace {

// ".avif" of "a/b.avif"; a file without one says so.
std::string_view suffix_of(std::string_view name) {
  const std::string_view file = name.substr(name.rfind('/') + 1);
  const size_t dot = file.rfind('.');
  return dot == std::string_view::npos || dot == 0 ? "no suffix" : file.substr(dot);
}

// "(.avif: 30, .txt: 7)", the most frequent first.
std::string suffix_counts(const std::vector<std::string_view>& names) {
  constexpr size_t kMost = 8;
  std::map<std::string_view, int64_t> counts;
  for (const std::string_view name : names) {
    ++counts[suffix_of(name)];
  }
  std::vector<std::pair<std::string_view, int64_t>> sorted(counts.begin(), counts.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (size_t i = 0; i < std::min(kMost, sorted.size()); ++i) {
    text += (i == 0 ? "" : ", ") + std::string(sorted[i].first) + ": " +
            std::to_string(sorted[i].second);
  }
  return "(" + text + (sorted.size() > kMost ? ", and others)" : ")");
}

// Of what headers show.
void announce_unreadable(const Source& source) {
  constexpr int64_t kMostLookedAt = 4096;  // some tenths of a second
  // Sets that are no files have no stamps.
  if (source.size() > kMostLookedAt || source.is_video() || source.stamp(0) == 0) {
    return;
  }
  std::deque<std::string> names;
  NamesByCause groups;
  for (int64_t i = 0; i < source.size(); ++i) {
    try {
      (void)source.facts(i);
    } catch (const Error& error) {
      names.push_back(source.sample_name(i));
      groups[cause_kind(error.what(), names.back())].push_back(names.back());
    }
  }
  if (!groups.empty()) {
    log_warn("[data] ", names.size(), " of ", source.size(),
             " samples cannot be read and will be replaced:", lines_of(groups));
  }
}

}  // namespace

std::string cause_kind(std::string_view cause, std::string_view name) {
  std::string text(cause.substr(0, std::min(cause.find(" Hint: "), cause.size())));
  for (size_t at = text.find(name); !name.empty() && at != std::string::npos;
       at = text.find(name, at)) {
    text.replace(at, name.size(), "");
  }
  std::string kind;
  for (const char c : text) {
    const bool is_digit = c >= '0' && c <= '9';
    if (is_digit && kind.ends_with('#')) {
      continue;
    }
    if (c == ' ' && kind.ends_with(' ')) {
      continue;  // where the name stood
    }
    kind += is_digit ? '#' : (c == '\n' ? ' ' : c);
  }
  return kind;
}

NamesByCause group_by_cause(const std::vector<PassedOver>& all) {
  NamesByCause groups;
  for (const PassedOver& one : all) {
    groups[one.cause].push_back(one.name);
  }
  return groups;
}

std::string count_of(std::string_view cause, const std::vector<std::string_view>& names) {
  std::string text = std::string(cause) + ": " + std::to_string(names.size());
  return cause.ends_with(kNotRead) ? text + " " + suffix_counts(names) : text;
}

std::string lines_of(const NamesByCause& groups) {
  std::string lines;
  for (const auto& [cause, names] : groups) {
    lines += "\n  " + count_of(cause, names) + ", such as " + printable_line(names.front());
  }
  return lines;
}

void announce_unusable(const Source& source) {
  const std::vector<PassedOver>& beside = source.passed_over();
  if (!beside.empty()) {
    log_warn("[data] ", "passed over ", counted(std::ssize(beside), "file or row", "files or rows"),
             " of the set:", lines_of(group_by_cause(beside)),
             "\n  kinora data check --all names all of them.");
  }
  announce_unreadable(source);
}

}  // namespace kinora::data
