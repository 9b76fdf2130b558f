#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "kinora/data/class_names.h"
#include "kinora/data/source.h"
#include "kinora/io/tar.h"

namespace kinora::data {

/// Class folders inside one or several tar archives, read where they lie: entries
/// [PREFIX/]CLASS/FILE, images or video files. A file's class is the name of the folder right above
/// it, whatever the prefix; all archives share one table of classes in bytewise order, and a class
/// may be spread over several. Hidden files and folders are passed over. Images are ordered by
/// archive as given, then as in the archive.
class ClassTar : public Source {
 public:
  /// Errors: no archive given, no image in any, an image in no folder, fewer than 2 images
  /// (kConfig); an archive that cannot be read (kIo).
  explicit ClassTar(const std::vector<std::filesystem::path>& paths, WantedFiles wanted = {});

  [[nodiscard]] int64_t size() const override { return static_cast<int64_t>(files_.size()); }
  [[nodiscard]] const std::vector<std::string>& class_names() const override { return names_; }
  [[nodiscard]] std::string sample_name(int64_t index) const override;
  [[nodiscard]] bool is_video() const override { return wanted_.videos; }
  void read(int64_t index, Sample& out) const override;
  [[nodiscard]] SampleFacts facts(int64_t index) const override;
  [[nodiscard]] SampleFacts check(int64_t index, Sample& scratch) const override;
  [[nodiscard]] uint64_t stamp(int64_t index) const override;
  [[nodiscard]] const std::vector<PassedOver>& passed_over() const override { return passed_over_; }

 private:
  struct File {
    uint32_t archive;
    uint32_t entry;
    int64_t label;
  };

  [[nodiscard]] const io::TarEntry& entry(const File& file) const {
    return archives_[file.archive].entries()[file.entry];
  }

  [[nodiscard]] std::span<const std::byte> bytes(int64_t index) const;

  WantedFiles wanted_;
  std::vector<io::TarFile> archives_;
  std::vector<uint64_t> stamps_;  // of the archives
  std::vector<std::string> names_;
  std::vector<File> files_;
  std::vector<PassedOver> passed_over_;
};

}  // namespace kinora::data
