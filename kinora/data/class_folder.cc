#include "kinora/data/class_folder.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <system_error>
#include <utility>

#include "kinora/core/counted.h"
#include "kinora/core/error.h"
#include "kinora/data/class_names.h"
#include "kinora/data/file_stamp.h"
#include "kinora/data/video_clip.h"
#include "kinora/io/file.h"

namespace kinora::data {
namespace {

namespace fs = std::filesystem;

// Far above any photo; keeps a wrong file from filling the memory.
constexpr int64_t kMaxFileBytes = int64_t{1} << 30;

// The names of a folder's files and folders, hidden ones left out, in bytewise order.
struct Listing {
  std::vector<std::string> files;
  std::vector<std::string> folders;
};

Listing list(const fs::path& folder) {
  Listing listing;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    std::string name = entries->path().filename().string();
    if (name.front() == '.') {
      continue;
    }
    // A link to nothing counts as a file here, so that reading names it.
    std::error_code ignored;
    (entries->is_directory(ignored) ? listing.folders : listing.files).push_back(std::move(name));
  }
  KINORA_CHECK(!error, kIo, "[data] must be a folder that can be listed, got ", folder.string(),
               ": ", error.message(),
               ". Hint: check data.path; for an archive, set data.source to tar.");
  std::sort(listing.files.begin(), listing.files.end());
  std::sort(listing.folders.begin(), listing.folders.end());
  return listing;
}

}  // namespace

ClassFolder::ClassFolder(std::filesystem::path root, WantedFiles wanted)
    : root_(std::move(root)), wanted_(wanted) {
  const Listing listing = list(root_);
  KINORA_CHECK(!listing.folders.empty(), kConfig,
               "[data] a set must hold one folder for each class, got ", root_.string(), " with ",
               counted(std::ssize(listing.files), "file"),
               listing.files.empty() ? std::string() : " (first: " + listing.files.front() + ")",
               " and no folder. Hint: for a set without classes put all ", wanted_.plural(),
               " into one folder inside it.");
  names_ = listing.folders;
  for (const std::string& name : names_) {
    list_class(name);
  }
  for (const std::string& file : listing.files) {
    passed_over_.push_back({(root_ / file).string(), wanted_.match(file)
                                                         ? "outside of the class folders"
                                                         : wanted_.others()});
  }
  check_size(size(), root_.string());
}

void ClassFolder::list_class(const std::string& name) {
  const fs::path folder = root_ / name;
  Listing listing = list(folder);
  const size_t num_before = files_.size();
  const int64_t label = find_class(names_, name);
  for (std::string& file : listing.files) {
    if (wanted_.match(file)) {
      files_.push_back({label, std::move(file)});
    } else {
      passed_over_.push_back({(folder / file).string(), wanted_.others()});
    }
  }
  for (const std::string& inner : listing.folders) {
    passed_over_.push_back(
        {(folder / inner).string(), "a folder inside a class folder, which is not searched"});
  }
  const bool found = files_.size() > num_before;
  std::string hint = std::string("put ") + wanted_.plural() + " into it, or remove it.";
  if (!listing.folders.empty()) {
    hint = "it holds folders (first: " + listing.folders.front() +
           "); if they are the classes, set data.path to " + folder.string() + ".";
  }
  KINORA_CHECK(found, kConfig, "[data] every class folder must hold ", wanted_.plural(), " (",
               wanted_.suffixes(), "), got ", folder.string(), " with ",
               counted(std::ssize(listing.files), "other file"),
               listing.files.empty() ? std::string() : " (first: " + listing.files.front() + ")",
               ". Hint: ", hint);
}

std::string ClassFolder::sample_name(int64_t index) const {
  const File& file = files_[static_cast<size_t>(index)];
  return (root_ / names_[static_cast<size_t>(file.label)] / file.name).string();
}

void ClassFolder::read(int64_t index, Sample& out) const {
  const std::string path = sample_name(index);
  out.label = files_[static_cast<size_t>(index)].label;
  if (wanted_.videos) {
    io::VideoFile file = io::VideoFile::open(std::filesystem::path(path));
    read_clip(file, path, wanted_.default_fps, out);
    return;
  }
  const std::vector<std::byte> bytes = io::read_file(path, kMaxFileBytes);
  io::decode_image_into(bytes, path, out.image, out.crop);
}

SampleFacts ClassFolder::facts(int64_t index) const {
  const std::string path = sample_name(index);
  if (wanted_.videos) {
    return clip_facts(io::VideoFile::open(std::filesystem::path(path)), wanted_.default_fps);
  }
  const io::MappedFile file(path);  // of a large file only the header is read
  const io::ImageSize size = io::image_size(file.bytes(), path);
  return {.height = size.height, .width = size.width};
}

SampleFacts ClassFolder::check(int64_t index, Sample& scratch) const {
  if (!wanted_.videos) {
    return Source::check(index, scratch);
  }
  scratch.label = files_[static_cast<size_t>(index)].label;
  io::VideoFile file = io::VideoFile::open(std::filesystem::path(sample_name(index)));
  return check_clip(file, wanted_.default_fps);
}

uint64_t ClassFolder::stamp(int64_t index) const {
  return file_stamp(sample_name(index));
}

}  // namespace kinora::data
