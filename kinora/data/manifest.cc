#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/data/class_names.h"
#include "kinora/data/media_set.h"
#include "kinora/data/table_rows.h"

namespace kinora::data {
namespace {

namespace fs = std::filesystem;

enum Column : size_t { kPath, kText, kLabel, kNumFrames, kFps, kReference };

const std::vector<TableColumn>& columns() {
  static const std::vector<TableColumn> kColumns = {
      {{"path", "file_name", "image", "video", "file"}, true},
      {{"text", "caption", "prompt"}},
      {{"label"}},
      {{"num_frames"}},
      {{"fps"}},
      {{"reference"}}};
  return kColumns;
}

// Blank, "nan" and the like are 0: the table does not say.
double number(const std::string& text) {
  double value = 0.0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_known = parsed.ec == std::errc() && std::isfinite(value) && value > 0.0;
  return is_known ? value : 0.0;
}

// Whether `path`, without dots, lies in `folder` or below.
bool lies_in(const fs::path& path, const fs::path& folder) {
  const fs::path relative = path.lexically_relative(folder);
  return !relative.empty() && *relative.begin() != "..";
}

class Lister {
 public:
  explicit Lister(const ManifestOptions& options) : options_(options) {}

  void add(const fs::path& manifest) {
    manifest_ = manifest.string();
    folder_ = fs::absolute(manifest).parent_path().lexically_normal();
    shown_folder_ = manifest.parent_path();
    set_.origins.push_back(manifest_);
    if (!options_.allow_outside) {
      set_.roots.push_back(folder_);
    }
    read_table(manifest, columns(),
               {.on_row = [this](int64_t row, const auto& values) { add_row(row, values); },
                .on_bad_row = [this](int64_t row, const auto& cause) { reject(row, cause); }});
  }

  [[nodiscard]] MediaSet finish() {
    set_labels(set_, std::move(labels_));
    return std::move(set_);
  }

 private:
  [[nodiscard]] bool leads_out(const std::string& name) const {
    return !options_.allow_outside && !lies_in((folder_ / name).lexically_normal(), folder_);
  }

  void reject(int64_t row, std::string cause) {
    set_.passed_over.push_back({manifest_ + ":" + std::to_string(row), std::move(cause), true});
  }

  void add_row(int64_t row, const std::vector<std::string>& values) {
    const std::string& name = values[kPath];
    if (name.empty() || name.find('\0') != std::string::npos) {
      return reject(row, "a row without a path");
    }
    if (name.find("://") != std::string::npos) {
      return reject(row, "an address in the net, not a file");
    }
    const fs::path path = (shown_folder_ / name).lexically_normal();
    if (leads_out(name)) {
      return reject(row, "a path that leads out of the manifest's folder (data.allow_outside)");
    }
    const std::string file = path.filename().string();
    const bool is_video = is_video_name(file);
    if (!is_video && !is_image_name(file)) {
      return reject(row, "not a picture or clip that Kinora reads");
    }
    MediaItem item{.path = path.string(), .is_video = is_video};
    if (!values[kText].empty()) {
      item.caption = values[kText];
      item.caption_form = CaptionForm::kInline;
    }
    if (options_.references > 0) {
      for (const std::string_view line : kinora::split(values[kReference], '\n')) {
        const std::string reference(trim(line));
        if (reference.empty()) {
          continue;
        }
        if (leads_out(reference)) {
          return reject(row,
                        "a reference that leads out of the manifest's folder (data.allow_outside)");
        }
        item.references.push_back((shown_folder_ / reference).lexically_normal().string());
      }
      if (std::ssize(item.references) > options_.references) {
        return reject(row, "a sample with more than data.references");
      }
    }
    item.place = static_cast<uint32_t>(set_.origins.size() - 1);
    item.num_frames = static_cast<int64_t>(std::min(number(values[kNumFrames]), 1e9));
    item.fps = static_cast<float>(std::min(number(values[kFps]), 1e6));
    set_.items.push_back(std::move(item));
    labels_.emplace_back(trim(values[kLabel]));
  }

  ManifestOptions options_;
  std::string manifest_;
  fs::path folder_;        // absolute
  fs::path shown_folder_;  // as it was given
  std::vector<std::string> labels_;
  MediaSet set_;
};

}  // namespace

MediaSet list_manifests(const std::vector<fs::path>& paths, const ManifestOptions& options) {
  Lister lister(options);
  for (const fs::path& path : paths) {
    lister.add(path);
  }
  return lister.finish();
}

}  // namespace kinora::data
