#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kinora/data/media_set.h"
#include "kinora/data/source.h"
#include "kinora/io/video.h"

namespace kinora::data {

struct MediaOptions {
  bool is_video = false;       ///< samples are clips, a picture is one of one frame
  double default_fps = 8.0;    ///< of video files, where neither they nor the set say it
  PicturesBeside beside = {};  ///< what read() gives of them
};

/// Reads a set of pictures and clips with captions. Files and archives are opened when a sample is
/// read, and so are files with captions.
class MediaSource : public Source {
 public:
  /// Error (kConfig): fewer than 2 samples, with what was passed over, by cause; references that no
  /// sample has.
  explicit MediaSource(MediaSet set, const MediaOptions& options = {});

  [[nodiscard]] int64_t size() const override { return std::ssize(set_.items); }
  [[nodiscard]] const std::vector<std::string>& class_names() const override {
    return set_.class_names;
  }
  [[nodiscard]] std::string sample_name(int64_t index) const override;
  [[nodiscard]] bool is_video() const override { return options_.is_video; }
  [[nodiscard]] PicturesBeside beside() const override { return options_.beside; }
  void read(int64_t index, Sample& out) const override;
  [[nodiscard]] SampleFacts facts(int64_t index) const override;
  [[nodiscard]] SampleFacts check(int64_t index, Sample& scratch) const override;
  [[nodiscard]] uint64_t stamp(int64_t index) const override;
  [[nodiscard]] const std::vector<PassedOver>& passed_over() const override {
    return set_.passed_over;
  }

 private:
  [[nodiscard]] const MediaItem& item(int64_t index) const {
    return set_.items[static_cast<size_t>(index)];
  }
  [[nodiscard]] std::string caption(const MediaItem& item) const;
  /// kIo for a file of the item that links lead out of its folder.
  void check_place(const MediaItem& item, const std::string& path) const;
  /// The pictures beside one of this size, which they must have too.
  void read_beside(const MediaItem& item, const io::ImageSize& size, Sample& out) const;
  void read_references(const MediaItem& item, Sample& out) const;
  [[nodiscard]] io::VideoFile open_video(const MediaItem& item) const;
  [[nodiscard]] double default_fps(const MediaItem& item) const;

  MediaSet set_;
  MediaOptions options_;
  std::vector<std::filesystem::path> roots_;  // of the set, links followed
  std::vector<uint64_t> stamps_;              // of the archives
};

}  // namespace kinora::data
