#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "kinora/core/error.h"
#include "kinora/data/class_names.h"
#include "kinora/data/media_set.h"

namespace kinora::data {
namespace {

namespace fs = std::filesystem;

// "a/b.c" of "a/b.c.jpg".
std::string_view stem_of(std::string_view path) {
  return path.substr(0, path.rfind('.'));
}

std::optional<CaptionForm> caption_form(std::string_view path) {
  if (path.ends_with(".txt")) {
    return CaptionForm::kTextFile;
  }
  return path.ends_with(".json") ? std::optional(CaptionForm::kJsonFile) : std::nullopt;
}

/// kinora sample shows what it drew at once, beside the pictures.
bool is_grid_of_samples(std::string_view name, const std::vector<std::string>& files) {
  return name == "grid.png" && std::any_of(files.begin(), files.end(), [](const auto& path) {
           return fs::path(path).filename().string().starts_with("image-00000");
         });
}

struct Caption {
  std::string_view path;
  CaptionForm form = CaptionForm::kNone;
  bool is_used = false;
};

}  // namespace

MediaSet list_captioned_folder(const fs::path& folder) {
  const Tree tree = walk(folder);
  MediaSet set;
  set.origins = {folder.string()};
  const auto full = [&folder](std::string_view path) { return (folder / path).string(); };
  for (const std::string& link : tree.links) {
    set.passed_over.push_back({full(link), "a link to a folder, which is not followed"});
  }
  std::unordered_map<std::string_view, Caption> captions;  // by stem
  for (const std::string& path : tree.files) {
    if (const std::optional<CaptionForm> form = caption_form(path)) {
      Caption& caption = captions[stem_of(path)];
      if (caption.form != CaptionForm::kTextFile) {
        caption = {path, *form};
      }
    }
  }
  for (const std::string& path : tree.files) {
    const std::string name = fs::path(path).filename().string();
    if (caption_form(path)) {
      continue;
    }
    if (!is_image_name(name) && !is_video_name(name)) {
      set.passed_over.push_back({full(path), "not a picture, clip or caption that Kinora reads"});
      continue;
    }
    if (is_grid_of_samples(name, tree.files)) {
      set.passed_over.push_back({full(path), "the grid of a folder of kinora sample"});
      continue;
    }
    MediaItem item{.path = full(path), .is_video = is_video_name(name)};
    const auto caption = captions.find(stem_of(path));
    if (caption != captions.end()) {
      caption->second.is_used = true;
      item.caption = full(caption->second.path);
      item.caption_form = caption->second.form;
    }
    set.items.push_back(std::move(item));
  }
  for (const std::string& path : tree.files) {
    const bool is_orphan = caption_form(path) && !captions.at(stem_of(path)).is_used;
    if (is_orphan) {
      set.passed_over.push_back({full(path), "a caption without a picture or clip"});
    }
  }
  return set;
}

}  // namespace kinora::data
