#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kinora/data/source.h"

namespace kinora::data {

/// Images in one folder a class: DIR/CLASS/FILE.{jpg,jpeg,png,webp}. Labels are the positions of
/// the class names in bytewise order, as torchvision's ImageFolder gives them; a class's images are
/// ordered bytewise too. Folders inside a class folder are not searched; the log says so. Symbolic
/// links are followed; hidden files and folders and files of other kinds are passed over.
class ClassFolder : public Source {
 public:
  /// Lists the folders; images are opened when read. Errors: no such folder, a folder that cannot
  /// be listed (kIo); images outside class folders only, a class folder without images, fewer than
  /// 2 images (kConfig).
  explicit ClassFolder(std::filesystem::path root);

  [[nodiscard]] int64_t size() const override { return static_cast<int64_t>(files_.size()); }
  [[nodiscard]] const std::vector<std::string>& class_names() const override { return names_; }
  [[nodiscard]] std::string sample_name(int64_t index) const override;
  void read(int64_t index, Sample& out) const override;

 private:
  struct File {
    int64_t label;
    std::string name;
  };

  void list_class(const std::string& name);

  std::filesystem::path root_;
  std::vector<std::string> names_;
  std::vector<File> files_;
};

}  // namespace kinora::data
