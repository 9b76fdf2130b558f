#include "kinora/data/class_tar.h"

#include <cstddef>
#include <set>
#include <string_view>

#include "kinora/core/error.h"
#include "kinora/data/class_names.h"
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

ClassTar::ClassTar(const std::vector<std::filesystem::path>& paths) {
  KINORA_CHECK(
      !paths.empty(), kConfig,
      "[data] a set must come from at least one tar archive, got none. Hint: set data.path.");
  size_t num_other = 0;
  std::string first_other;
  std::set<std::string, std::less<>> names;
  for (const std::filesystem::path& path : paths) {
    const auto archive = static_cast<uint32_t>(archives_.size());
    archives_.push_back(io::TarFile::open(path));
    const std::vector<io::TarEntry>& entries = archives_.back().entries();
    for (size_t i = 0; i < entries.size(); ++i) {
      const std::string_view name = entries[i].name;
      const std::string_view folder = folder_name(name);
      if (!is_image_name(file_name(name)) || folder.starts_with('.')) {
        if (num_other++ == 0) {
          first_other = path.string() + ":" + io::in_quotes(name);
        }
        continue;
      }
      KINORA_CHECK(
          !folder.empty(), kConfig,
          "[data] an image in a tar archive must lie in a folder named like its class, got ",
          path.string(), ":", io::in_quotes(name),
          ". Hint: for a set without classes put all images into one folder.");
      names.emplace(folder);
      files_.push_back({archive, static_cast<uint32_t>(i), 0});
    }
  }
  KINORA_CHECK(!files_.empty(), kConfig, "[data] a set must hold images (", image_suffixes(),
               "), got ", num_other, " files of other kinds",
               num_other == 0 ? std::string() : ", the first of them " + first_other,
               ", and no image in ", paths.front().string(),
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
  const File& file = files_[static_cast<size_t>(index)];
  io::decode_image_into(archives_[file.archive].bytes(entry(file)), sample_name(index), out.image);
  out.label = file.label;
}

}  // namespace kinora::data
