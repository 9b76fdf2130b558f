#include <cstddef>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/data/class_names.h"
#include "kinora/data/media_set.h"
#include "kinora/io/file.h"

namespace kinora::data {
namespace {

namespace fs = std::filesystem;

// What is found of one key.
struct Parts {
  std::optional<uint32_t> media;
  std::optional<uint32_t> text;
  std::optional<uint32_t> json;
  std::optional<uint32_t> label;
  std::vector<uint32_t> others;
};

// "a/b.seg" lies in `key` "a/b" as `kind` "seg".
struct EntryName {
  std::string_view key;
  std::string_view kind;
};

EntryName split_name(std::string_view name) {
  const size_t base = name.rfind('/') + 1;  // npos + 1 is 0
  const size_t dot = name.find('.', base);
  return dot == std::string_view::npos ? EntryName{name, ""}
                                       : EntryName{name.substr(0, dot), name.substr(dot + 1)};
}

class ShardLister {
 public:
  ShardLister(MediaSet& set, size_t place, std::vector<std::string>& labels)
      : set_(set),
        labels_(labels),
        place_(static_cast<uint32_t>(place)),
        archive_(set.archives[place]) {}

  void list() {
    for (size_t i = 0; i < archive_.entries().size(); ++i) {
      sort_in(static_cast<uint32_t>(i));
    }
    for (const std::string_view key : keys_) {
      add(parts_.at(key));
    }
  }

 private:
  void pass_over(uint32_t entry, std::string cause, bool is_sample = false) {
    set_.passed_over.push_back(
        {archive_.path().string() + ":" + io::in_quotes(archive_.entries()[entry].name),
         std::move(cause), is_sample});
  }

  void sort_in(uint32_t entry) {
    const std::string_view name = archive_.entries()[entry].name;
    const auto [key, kind] = split_name(name);
    const std::string_view base = name.substr(name.rfind('/') + 1);
    if (base.starts_with('.')) {
      return;  // hidden
    }
    const auto [found, is_new] = parts_.try_emplace(key);
    if (is_new) {
      keys_.push_back(key);
    }
    Parts& parts = found->second;
    const bool is_plain = kind.find('.') == std::string_view::npos;  // not "seg.png"
    if (is_plain && (is_image_name(base) || is_video_name(base))) {
      take(parts.media, entry, "another picture or clip of the same key");
    } else if (kind == "txt" || kind == "caption" || kind == "text") {
      take(parts.text, entry, "another caption of the same key");
    } else if (kind == "json") {
      take(parts.json, entry, "another caption of the same key");
    } else if (kind == "cls") {
      take(parts.label, entry, "another class of the same key");
    } else {
      parts.others.push_back(entry);
    }
  }

  void take(std::optional<uint32_t>& part, uint32_t entry, const char* cause) {
    if (part) {
      pass_over(entry, cause);
    } else {
      part = entry;
    }
  }

  void add(const Parts& parts) {
    if (!parts.media) {
      for (const std::optional<uint32_t>& part : {parts.text, parts.json, parts.label}) {
        if (part) {
          pass_over(*part, "a caption or class without a picture or clip");
        }
      }
      for (const uint32_t entry : parts.others) {
        pass_over(entry, "not a picture or clip that Kinora reads");
      }
      return;
    }
    MediaItem item{.place = place_, .entry = *parts.media};
    item.is_video = is_video_name(file_name(*parts.media));
    if (parts.text) {
      item.caption_form = CaptionForm::kTextFile;
      item.caption_entry = *parts.text;
    } else if (parts.json) {
      item.caption_form = CaptionForm::kJsonFile;
      item.caption_entry = *parts.json;
    }
    std::string label;
    if (parts.label) {
      const auto bytes = archive_.bytes(archive_.entries()[*parts.label]);
      constexpr size_t kMaxBytes = 256;
      if (bytes.empty() || bytes.size() > kMaxBytes) {
        pass_over(*parts.media, "a class of no or more than 256 bytes", true);
        return;
      }
      label = trim({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    }
    set_.items.push_back(std::move(item));
    labels_.push_back(std::move(label));
  }

  [[nodiscard]] std::string_view file_name(uint32_t entry) const {
    const std::string_view name = archive_.entries()[entry].name;
    return name.substr(name.rfind('/') + 1);
  }

  MediaSet& set_;
  std::vector<std::string>& labels_;
  uint32_t place_;
  const io::TarFile& archive_;
  std::unordered_map<std::string_view, Parts> parts_;
  std::vector<std::string_view> keys_;  // in the order of the archive
};

}  // namespace

MediaSet list_webdataset(const std::vector<fs::path>& paths) {
  MediaSet set;
  std::string problems;
  for (const fs::path& path : paths) {
    set.origins.push_back(path.string());
    try {
      set.archives.push_back(io::TarFile::open(path));
    } catch (const Error& error) {
      problems += std::string("\n  ") + error.what();
    }
  }
  KINORA_CHECK(problems.empty(), kIo, "[data] all archives must be readable, got:", problems);
  std::vector<std::string> labels;
  for (size_t place = 0; place < set.archives.size(); ++place) {
    ShardLister(set, place, labels).list();
  }
  set_labels(set, std::move(labels));
  return set;
}

}  // namespace kinora::data
