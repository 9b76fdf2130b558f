#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kinora/data/source.h"
#include "kinora/io/npz.h"

/// What SampleSet reads beside the sources of data/. Not for use outside eval/.
namespace kinora::eval {

/// The images of ADM's .npz: arr_0, uint8 [N, H, W, 3].
class NpzImages : public data::Source {
 public:
  /// kIo for an arr_0 of another form.
  explicit NpzImages(const std::filesystem::path& path);

  [[nodiscard]] int64_t size() const override { return images_.shape().front(); }
  [[nodiscard]] const std::vector<std::string>& class_names() const override { return classes_; }
  [[nodiscard]] std::string sample_name(int64_t index) const override;
  void read(int64_t index, data::Sample& out) const override;

  /// arr_1; empty where there is none.
  [[nodiscard]] std::vector<int64_t> labels() const;

 private:
  io::NpzFile file_;
  io::NpyArray images_;
  std::vector<std::string> classes_ = {""};
};

/// Clips as folders of frames, frame_0000.png and on, in the order of their names.
class FrameFolders : public data::Source {
 public:
  /// The folders below `folder` that hold frames, at any depth.
  [[nodiscard]] static std::vector<std::filesystem::path> find(const std::filesystem::path& folder);

  explicit FrameFolders(std::vector<std::filesystem::path> folders);

  [[nodiscard]] int64_t size() const override { return std::ssize(folders_); }
  [[nodiscard]] const std::vector<std::string>& class_names() const override { return classes_; }
  [[nodiscard]] std::string sample_name(int64_t index) const override;
  [[nodiscard]] bool is_video() const override { return true; }
  void read(int64_t index, data::Sample& out) const override;

 private:
  std::vector<std::filesystem::path> folders_;
  std::vector<std::string> classes_ = {""};
};

}  // namespace kinora::eval
