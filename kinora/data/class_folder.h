#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kinora/data/class_names.h"
#include "kinora/data/source.h"

namespace kinora::data {

/// Images, or video files, in one folder a class: DIR/CLASS/FILE. Labels are the positions of
/// the class names in bytewise order, as torchvision's ImageFolder gives them; a class's images are
/// ordered bytewise too. Symbolic links are followed. Passed over are hidden files and folders,
/// files of other kinds and those outside of class folders; folders inside a class folder are not
/// searched.
class ClassFolder : public Source {
 public:
  /// Lists the folders; images are opened when read. Errors: no such folder, a folder that cannot
  /// be listed (kIo); images outside class folders only, a class folder without images, fewer than
  /// 2 images (kConfig).
  explicit ClassFolder(std::filesystem::path root, WantedFiles wanted = {});

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
    int64_t label;
    std::string name;
  };

  void list_class(const std::string& name);

  std::filesystem::path root_;
  WantedFiles wanted_;
  std::vector<std::string> names_;
  std::vector<File> files_;
  std::vector<PassedOver> passed_over_;
};

}  // namespace kinora::data
