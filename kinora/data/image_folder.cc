#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>
#include <unordered_set>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/data/class_names.h"
#include "kinora/data/media_set.h"

namespace kinora::data {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 3> kMetadata = {"metadata.csv", "metadata.jsonl",
                                                       "metadata.parquet"};
constexpr std::array<std::string_view, 8> kOtherSplits = {
    "validation", "valid", "val", "dev", "test", "testing", "eval", "evaluation"};

// Empty: there is none.
fs::path metadata_of(const fs::path& folder) {
  std::error_code ignored;
  for (const std::string_view name : kMetadata) {
    if (fs::is_regular_file(folder / name, ignored)) {
      return folder / name;
    }
  }
  return {};
}

// The folder of the split to train on.
fs::path training_split(const fs::path& folder) {
  std::error_code ignored;
  if (metadata_of(folder).empty()) {
    for (const std::string_view name : {"train", "training"}) {
      if (fs::is_directory(folder / name, ignored)) {
        return folder / name;
      }
    }
  }
  return folder;
}

MediaSet list_by_metadata(const fs::path& folder, const fs::path& metadata) {
  MediaSet set = list_manifests({metadata}, {.allow_outside = false});
  std::unordered_set<std::string_view> named;
  for (const MediaItem& item : set.items) {
    named.insert(item.path);
  }
  for (const std::string& path : walk(folder).files) {
    const std::string full = (folder / path).lexically_normal().string();
    const bool is_media = is_image_name(fs::path(path).filename().string()) ||
                          is_video_name(fs::path(path).filename().string());
    if (!named.contains(full) && full != metadata.lexically_normal().string()) {
      set.passed_over.push_back({full, is_media ? "a picture or clip that the metadata do not name"
                                                : "not a picture or clip that Kinora reads"});
    }
  }
  return set;
}

MediaSet list_by_class(const fs::path& folder) {
  const Tree tree = walk(folder);
  MediaSet set;
  std::vector<std::string> labels;
  for (const std::string& link : tree.links) {
    set.passed_over.push_back(
        {(folder / link).string(), "a link to a folder, which is not followed"});
  }
  for (const std::string& path : tree.files) {
    const std::string name = fs::path(path).filename().string();
    if (is_image_name(name) || is_video_name(name)) {
      set.items.push_back({.path = (folder / path).string(), .is_video = is_video_name(name)});
      labels.push_back(fs::path(path).parent_path().filename().string());
    } else {
      set.passed_over.push_back(
          {(folder / path).string(), "not a picture or clip that Kinora reads"});
    }
  }
  set_labels(set, std::move(labels));
  return set;
}

}  // namespace

MediaSet list_image_folder(const fs::path& folder) {
  const fs::path split = training_split(folder);
  const fs::path metadata = metadata_of(split);
  MediaSet set = metadata.empty() ? list_by_class(split) : list_by_metadata(split, metadata);
  set.origins = {split.string()};
  std::error_code ignored;
  for (const std::string_view name : kOtherSplits) {
    if (split != folder && fs::is_directory(folder / name, ignored)) {
      set.passed_over.push_back({(folder / name).string(), "another split than the training one"});
    }
  }
  return set;
}

}  // namespace kinora::data
