#include "kinora/data/media_set.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "kinora/core/error.h"
#include "kinora/data/class_names.h"
#include "kinora/data/json_lines.h"
#include "kinora/io/file.h"

namespace kinora::data {
namespace {

namespace fs = std::filesystem;

// "7" is class 7; "07" and "7a" are names.
std::optional<int64_t> class_number(const std::string& label) {
  constexpr int64_t kMaxClasses = 65536;
  int64_t number = -1;
  const char* end = label.data() + label.size();
  const auto parsed = std::from_chars(label.data(), end, number);
  const bool is_number = parsed.ec == std::errc() && parsed.ptr == end && number >= 0 &&
                         number < kMaxClasses && std::to_string(number) == label;
  return is_number ? std::optional(number) : std::nullopt;
}

void reject_unlabelled(MediaSet& set, std::vector<std::string>& labels) {
  size_t kept = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i].empty()) {
      set.passed_over.push_back(
          {item_name(set, set.items[i]), "no class, where others have one", true});
    } else if (kept++ != i) {
      set.items[kept - 1] = std::move(set.items[i]);
      labels[kept - 1] = std::move(labels[i]);
    }
  }
  set.items.resize(kept);
  labels.resize(kept);
}

}  // namespace

std::string json_caption(std::string_view json, const std::string& name) {
  const nlohmann::json value = nlohmann::json::parse(json, nullptr, false);
  KINORA_CHECK(value.is_object(), kIo, "[data] ", name,
               " must hold a JSON object, got something else");
  for (const char* key : {"caption", "text", "prompt"}) {
    const auto found = value.find(key);
    if (found != value.end() && found->is_string()) {
      return found->get<std::string>();
    }
    std::optional<std::string> lines = found == value.end() ? std::nullopt : lines_of_list(*found);
    if (lines) {
      return *std::move(lines);
    }
  }
  return "";
}

std::string item_name(const MediaSet& set, const MediaItem& item) {
  if (set.archives.empty()) {
    return item.path;
  }
  const io::TarFile& archive = set.archives[item.place];
  return archive.path().string() + ":" + io::in_quotes(archive.entries()[item.entry].name);
}

void set_labels(MediaSet& set, std::vector<std::string> labels) {
  if (std::all_of(labels.begin(), labels.end(), [](const auto& label) { return label.empty(); })) {
    return;
  }
  reject_unlabelled(set, labels);
  std::vector<std::string> names = labels;
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  const bool are_numbers = std::all_of(names.begin(), names.end(), [](const std::string& name) {
    return class_number(name).has_value();
  });
  int64_t greatest = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    int64_t& label = set.items[i].label;
    label = are_numbers ? *class_number(labels[i]) : find_class(names, labels[i]);
    greatest = std::max(greatest, label);
  }
  if (are_numbers) {
    names.clear();
    for (int64_t number = 0; number <= greatest; ++number) {
      names.push_back(std::to_string(number));
    }
  }
  set.class_names = std::move(names);
}

Tree walk(const fs::path& folder) {
  Tree tree;
  std::error_code error;
  fs::recursive_directory_iterator entries(folder, error);
  for (; !error && entries != fs::recursive_directory_iterator(); entries.increment(error)) {
    std::error_code ignored;
    const bool is_folder = entries->is_directory(ignored);
    if (entries->path().filename().native().front() == '.') {
      entries.disable_recursion_pending();
      continue;
    }
    std::string name = entries->path().lexically_relative(folder).string();
    if (!is_folder) {
      tree.files.push_back(std::move(name));
    } else if (entries->is_symlink(ignored)) {
      tree.links.push_back(std::move(name));
    }
  }
  KINORA_CHECK(!error, kIo, "[data] must be a folder that can be listed, got ", folder.string(),
               ": ", error.message(), ". Hint: check data.path");
  std::sort(tree.files.begin(), tree.files.end());
  std::sort(tree.links.begin(), tree.links.end());
  return tree;
}

}  // namespace kinora::data
