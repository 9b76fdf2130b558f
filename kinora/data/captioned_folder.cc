#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
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
bool is_grid_of_samples(std::string_view path, const std::vector<std::string>& files) {
  constexpr std::string_view kGrid = "grid.png";
  const std::string folder(path.substr(0, path.rfind('/') + 1));
  return path.substr(folder.size()) == kGrid &&
         std::ranges::any_of(files, [first = folder + "image-00000"](const std::string& other) {
           return other.starts_with(first);
         });
}

struct Caption {
  std::string_view path;
  CaptionForm form = CaptionForm::kNone;
  bool is_used = false;
};

// What a picture beside another is, by the end of its stem.
constexpr std::string_view kControlEnd = ".control";
constexpr std::string_view kBeforeEnd = ".before";
constexpr std::string_view kMaskEnd = ".mask";
constexpr std::string_view kReferenceEnd = ".reference";  // and from the second on a number

/// "a/b.control" of "a/b.control.png" where "a/b" is the stem of a picture, else nothing.
class StemsBeside {
 public:
  explicit StemsBeside(const Tree& tree) {
    for (const std::string& path : tree.files) {
      const std::string name = path.substr(path.rfind('/') + 1);
      if (is_image_name(name)) {
        pictures_.emplace(stem_of(path), path);
      } else if (is_video_name(name)) {
        clips_.insert(stem_of(path));
      }
    }
  }

  /// Whether this is a picture beside another.
  [[nodiscard]] bool has(std::string_view path) const {
    const std::string_view stem = stem_of(path);
    const std::string_view named = stem.substr(0, stem.find_last_not_of("0123456789") + 1);
    if (named.ends_with(kReferenceEnd)) {
      const std::string_view of = named.substr(0, named.size() - kReferenceEnd.size());
      return pictures_.contains(of) || clips_.contains(of);
    }
    return std::ranges::any_of(
        std::array{kControlEnd, kBeforeEnd, kMaskEnd}, [&](std::string_view end) {
          return stem.ends_with(end) &&
                 pictures_.contains(stem.substr(0, stem.size() - end.size()));
        });
  }
  /// The picture beside `path`; empty: there is none.
  [[nodiscard]] std::string_view find(std::string_view path, std::string_view end) const {
    const auto found = pictures_.find(std::string(stem_of(path)) + std::string(end));
    return found == pictures_.end() ? std::string_view() : found->second;
  }

  /// The pictures of what is to be seen in `path`, up to the first number that there is not.
  [[nodiscard]] std::vector<std::string_view> references(std::string_view path) const {
    std::vector<std::string_view> found;
    std::string end(kReferenceEnd);
    for (std::string_view next = find(path, end); !next.empty(); next = find(path, end)) {
      found.push_back(next);
      end = std::string(kReferenceEnd) + std::to_string(found.size() + 1);
    }
    return found;
  }

 private:
  std::map<std::string, std::string_view, std::less<>> pictures_;  // paths by stem
  std::set<std::string_view, std::less<>> clips_;                  // stems
};

}  // namespace

MediaSet list_captioned_folder(const fs::path& folder, const PicturesBeside& beside) {
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
  const StemsBeside stems(tree);
  const std::array<std::tuple<bool, std::string_view, std::string MediaItem::*, const char*>, 3>
      kinds = {{{beside.control, kControlEnd, &MediaItem::control,
                 "a picture without NAME.control.png beside it (data.control)"},
                {beside.before, kBeforeEnd, &MediaItem::before,
                 "a picture without NAME.before.png beside it (data.before)"},
                {beside.mask, kMaskEnd, &MediaItem::mask,
                 "a picture without NAME.mask.png beside it (data.mask)"}}};
  for (const std::string& path : tree.files) {
    const std::string name = fs::path(path).filename().string();
    if (caption_form(path)) {
      continue;
    }
    if (is_image_name(name) && stems.has(path)) {
      continue;
    }
    if (!is_image_name(name) && !is_video_name(name)) {
      set.passed_over.push_back({full(path), "not a picture, clip or caption that Kinora reads"});
      continue;
    }
    if (is_grid_of_samples(path, tree.files)) {
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
    bool is_whole = true;
    for (const auto& [wanted, end, member, cause] : kinds) {
      const std::string_view other = stems.find(path, end);
      item.*member = other.empty() ? "" : full(other);
      if (wanted && other.empty()) {
        set.passed_over.push_back({full(path), cause, /*is_rejected=*/true});
        is_whole = false;
      }
    }
    if (beside.references > 0) {
      for (const std::string_view other : stems.references(path)) {
        item.references.push_back(full(other));
      }
      if (std::ssize(item.references) > beside.references) {
        set.passed_over.push_back(
            {full(path), "a sample with more than data.references", /*is_rejected=*/true});
        is_whole = false;
      }
    }
    if (is_whole) {
      set.items.push_back(std::move(item));
    }
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
