#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// What class folders on disk and in archives have in common.
namespace kinora::data {

/// Whether a file name ends in .jpg, .jpeg, .png, .webp, .gif, .bmp, .tif or .tiff, in any case,
/// and is not hidden: names that begin with a dot are not images even so (macOS leaves ._photo.jpg
/// beside photo.jpg).
[[nodiscard]] bool is_image_name(std::string_view file_name);

/// The same of .mp4, .m4v, .mov, .mkv, .webm, .avi and .gif, which may be clips. So a GIF is a
/// picture, its first frame, among pictures and a clip among clips.
[[nodiscard]] bool is_video_name(std::string_view file_name);

/// Whether a file name that is not hidden ends in one of `suffixes`, which are in lower case, in
/// any case.
[[nodiscard]] bool has_suffix(std::string_view file_name,
                              std::span<const std::string_view> suffixes);

/// ".jpg, .jpeg, .png, .webp, .gif, .bmp, .tif or .tiff".
[[nodiscard]] std::string_view image_suffixes();

/// ".mp4, .m4v, .mov, .mkv, .webm, .avi or .gif".
[[nodiscard]] std::string_view video_suffixes();

/// Which files of class folders are samples.
struct WantedFiles {
  bool videos = false;       ///< else images
  double default_fps = 0.0;  ///< of videos that do not say it

  [[nodiscard]] bool match(std::string_view file_name) const {
    return videos ? is_video_name(file_name) : is_image_name(file_name);
  }
  [[nodiscard]] const char* plural() const { return videos ? "video files" : "images"; }
  [[nodiscard]] std::string_view suffixes() const {
    return videos ? video_suffixes() : image_suffixes();
  }
  /// Why others are passed over.
  [[nodiscard]] const char* others() const {
    return videos ? "not a video that Kinora reads" : "not a picture that Kinora reads";
  }
};

/// The position of `name` in `names`, which is sorted and holds it.
[[nodiscard]] int64_t find_class(const std::vector<std::string>& names, std::string_view name);

}  // namespace kinora::data
