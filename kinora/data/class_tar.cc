#include "kinora/data/class_tar.h"

#include <cstddef>
#include <set>
#include <string_view>

#include "kinora/core/counted.h"
#include "kinora/core/error.h"
#include "kinora/data/class_names.h"
#include "kinora/data/file_stamp.h"
#include "kinora/data/video_clip.h"
#include "kinora/io/file.h"

namespace kinora::data {
namespace {

std::string_view file_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);  // npos + 1 is 0
}

// The name of the folder right above the file; empty if there is none.
std::string_view folder_name(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? std::string_view() : file_name(path.substr(0, slash));
}

}  // namespace

ClassTar::ClassTar(const std::vector<std::filesystem::path>& paths, WantedFiles wanted)
    : wanted_(wanted) {
  KINORA_CHECK(
      !paths.empty(), kConfig,
      "[data] a set must come from at least one tar archive, got none. Hint: set data.path.");
  std::set<std::string, std::less<>> names;
  for (const std::filesystem::path& path : paths) {
    const auto archive = static_cast<uint32_t>(archives_.size());
    stamps_.push_back(file_stamp(path));
    archives_.push_back(io::TarFile::open(path));
    const std::vector<io::TarEntry>& entries = archives_.back().entries();
    for (size_t i = 0; i < entries.size(); ++i) {
      const std::string_view name = entries[i].name;
      const std::string_view folder = folder_name(name);
      if (!wanted_.match(file_name(name)) || folder.starts_with('.')) {
        passed_over_.push_back({path.string() + ":" + io::in_quotes(name), wanted_.others()});
        continue;
      }
      KINORA_CHECK(
          !folder.empty(), kConfig,
          "[data] a sample in a tar archive must lie in a folder named like its class, got ",
          path.string(), ":", io::in_quotes(name), ". Hint: for a set without classes put all ",
          wanted_.plural(), " into one folder.");
      names.emplace(folder);
      files_.push_back({archive, static_cast<uint32_t>(i), 0});
    }
  }
  KINORA_CHECK(!files_.empty(), kConfig, "[data] a set must hold ", wanted_.plural(), " (",
               wanted_.suffixes(), "), got ", counted(std::ssize(passed_over_), "file"),
               " of other kinds",
               passed_over_.empty() ? "" : ", the first of them " + passed_over_.front().name,
               ", and none of these in ", paths.front().string(),
               paths.size() > 1 ? " and the other archives." : ".");
  names_.assign(names.begin(), names.end());
  for (File& file : files_) {
    file.label = find_class(names_, folder_name(entry(file).name));
  }
  check_size(size(), paths.front().string());
}

std::string ClassTar::sample_name(int64_t index) const {
  const File& file = files_[static_cast<size_t>(index)];
  return archives_[file.archive].path().string() + ":" + io::in_quotes(entry(file).name);
}

void ClassTar::read(int64_t index, Sample& out) const {
  const std::string name = sample_name(index);
  out.label = files_[static_cast<size_t>(index)].label;
  if (wanted_.videos) {
    io::VideoFile file = io::VideoFile::open(bytes(index), name);
    read_clip(file, name, wanted_.default_fps, out);
    return;
  }
  io::decode_image_into(bytes(index), name, out.image, out.crop);
}

SampleFacts ClassTar::facts(int64_t index) const {
  const std::string name = sample_name(index);
  if (wanted_.videos) {
    return clip_facts(io::VideoFile::open(bytes(index), name), wanted_.default_fps);
  }
  const io::ImageSize size = io::image_size(bytes(index), name);
  return {.height = size.height, .width = size.width};
}

SampleFacts ClassTar::check(int64_t index, Sample& scratch) const {
  if (!wanted_.videos) {
    return Source::check(index, scratch);
  }
  scratch.label = files_[static_cast<size_t>(index)].label;
  io::VideoFile file = io::VideoFile::open(bytes(index), sample_name(index));
  return check_clip(file, wanted_.default_fps);
}

std::span<const std::byte> ClassTar::bytes(int64_t index) const {
  const File& file = files_[static_cast<size_t>(index)];
  return archives_[file.archive].bytes(entry(file));
}

uint64_t ClassTar::stamp(int64_t index) const {
  const File& file = files_[static_cast<size_t>(index)];
  return mix_stamps({stamps_[file.archive], static_cast<uint64_t>(entry(file).offset)});
}

}  // namespace kinora::data
