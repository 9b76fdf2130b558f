#include "kinora/eval/sample_set.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/data/data_config.h"
#include "kinora/data/guess_set.h"
#include "kinora/eval/sample_sources.h"
#include "kinora/inference/sample_metadata.h"
#include "kinora/io/file.h"

namespace kinora::eval {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxLabelsBytes = int64_t{1} << 28;
constexpr std::string_view kClassMark = "_class-";

/// Of `kinora sample`'s names; -1 of others.
int64_t label_in(const std::string& name) {
  const size_t mark = name.rfind(kClassMark);
  if (mark == std::string::npos) {
    return -1;
  }
  const char* const begin = name.data() + mark + kClassMark.size();
  int64_t label = 0;
  const auto result = std::from_chars(begin, name.data() + name.size(), label);
  return result.ec == std::errc() && label >= 0 ? label : -1;
}

std::map<std::string, int64_t> read_labels(const fs::path& path) {
  const nlohmann::json json =
      nlohmann::json::parse(io::read_text(path, kMaxLabelsBytes), nullptr, false);
  KINORA_CHECK(json.is_object(), kIo, "[eval] ", path.string(),
               " must be a JSON object of labels by file name");
  std::map<std::string, int64_t> labels;
  for (const auto& [name, value] : json.items()) {
    KINORA_CHECK(value.is_number_integer() && value.get<int64_t>() >= 0, kIo, "[eval] ",
                 path.string(), ": a label must be a number from 0 on, got ", value.dump(), " for ",
                 io::in_quotes(name));
    labels.emplace(name, value.get<int64_t>());
  }
  return labels;
}

std::unique_ptr<data::Source> open_source(const fs::path& path, bool is_video) {
  std::error_code ignored;
  if (is_video && fs::is_directory(path, ignored)) {
    std::vector<fs::path> folders = FrameFolders::find(path);
    if (!folders.empty()) {
      return std::make_unique<FrameFolders>(std::move(folders));
    }
  }
  data::DataConfig config = data::guess_set(path.string());
  config.frame_layout = is_video ? data::FrameLayout::kVideo : data::FrameLayout::kImage;
  return data::open_whole_source(config);
}

}  // namespace

SampleSet SampleSet::open(const fs::path& path, const SampleSetOptions& options) {
  SampleSet set;
  set.frames_ = options.frames;
  std::vector<int64_t> stored;
  if (path.extension() == ".npz") {
    KINORA_CHECK(options.frames == 0, kConfig, "[eval] clips must be files or folders, got ",
                 path.string());
    auto images = std::make_unique<NpzImages>(path);
    stored = images->labels();
    set.source_ = std::move(images);
  } else {
    set.source_ = open_source(path, options.frames > 0);
  }
  std::map<std::string, int64_t> labels;
  if (!options.labels.empty()) {
    labels = read_labels(options.labels);
  }
  for (int64_t i = 0; i < set.source_->size(); ++i) {
    const std::string file = fs::path(set.source_->sample_name(i)).filename().string();
    const auto named = labels.find(file);
    const int64_t label = named != labels.end() ? named->second : label_in(file);
    set.labels_.push_back(stored.empty() ? label : stored[static_cast<size_t>(i)]);
    const bool is_wanted = options.limit == 0 || set.size() < options.limit;
    if (is_wanted && file != kContactSheet) {
      set.indices_.push_back(i);
    }
  }
  KINORA_CHECK(set.size() >= 2, kConfig, "[eval] ", path.string(),
               " must hold at least 2 samples, got ", set.size());
  return set;
}

std::string SampleSet::name(int64_t index) const {
  return source_->sample_name(indices_[static_cast<size_t>(index)]);
}

std::string SampleSet::prompt(int64_t index) const {
  fs::path file = name(index);
  if (fs::is_directory(file)) {
    file += ".webp";
  }
  if (const auto metadata = inference::read_file_metadata(file)) {
    return metadata->prompt;
  }
  data::Sample sample;
  if (frames_ > 0) {
    sample.choice = data::FrameChoice{};  // one frame at most: only its caption counts
  }
  source_->read(indices_[static_cast<size_t>(index)], sample);
  return sample.caption;
}

JudgedSample SampleSet::read(int64_t index) const {
  const int64_t place = indices_[static_cast<size_t>(index)];
  data::Sample sample;
  if (frames_ > 0) {
    sample.choice = data::FrameChoice{.count = frames_};
  }
  source_->read(place, sample);
  const io::Image& image = sample.image;
  const int64_t num_frames = sample.num_frames;
  // [H, T, W, 3]: frames lie side by side; from_blob wants a pointer that is not const.
  const at::Tensor strip =
      at::from_blob(sample.image.pixels.data(),
                    {image.height, num_frames, image.width / num_frames, 3}, at::kByte)
          .permute({3, 1, 0, 2});  // [3, T, H, W]
  JudgedSample result{.pixels = {}, .label = labels_[static_cast<size_t>(place)]};
  if (result.label < 0 && source_->num_classes() > 1) {
    result.label = sample.label;
  }
  if (frames_ == 0) {
    result.pixels = strip.select(1, 0).clone(at::MemoryFormat::Contiguous);
    return result;
  }
  int64_t first = 0;
  if (!sample.is_chosen) {
    KINORA_CHECK(num_frames >= frames_, kIo, "[eval] ", name(index), " must have at least ",
                 frames_, " frames, got ", num_frames);
    first = sample.choice->first(num_frames, sample.fps);
  }
  result.pixels = strip.narrow(1, first, frames_).clone(at::MemoryFormat::Contiguous);
  return result;
}

}  // namespace kinora::eval
