#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kinora/io/image.h"
#include "kinora/io/picture_texts.h"

/// Video files: MP4 and MOV, MKV and WebM, AVI, and animated GIF in; MP4 out. FFmpeg does it, in
/// the module kinora_ffmpeg.so, which is loaded at the first use. Where it is missing, everything
/// here throws Error (kConfig) that says how to get it.
namespace kinora::io {

/// Why video files cannot be read or written here; nothing if they can.
[[nodiscard]] std::optional<std::string> why_no_video();

/// What a file's header says.
struct VideoInfo {
  int64_t height = 0;  ///< of a frame as shown: rotation is applied; pixels stay as they are stored
  int64_t width = 0;   ///< where they are not square
  int64_t declared_frames = 0;  ///< 0: the header does not say; may be wrong
  double fps = 0.0;             ///< mean frames a second; 0: not known
  std::string codec;            ///< as FFmpeg calls it: "h264"
};

/// A video file that is read by frame numbers: frame k is the k-th that a player shows. This holds
/// with B-frames, variable frame rates and edit lists, and where the header counts no frames. Not
/// for several threads at once; each thread uses its decoder and buffers again for its next file.
///
/// Errors are Error (kIo) with the name of the file. Files are told apart by their first bytes, and
/// nothing but their bytes is ever opened. Frames have the limits of images (image.h).
class VideoFile {
 public:
  /// A file with more frames is refused.
  static constexpr int64_t kMaxFrames = int64_t{1} << 22;

  /// Reads the header. Errors: no such file, another format, no video in it, a codec that this
  /// FFmpeg lacks, damage.
  [[nodiscard]] static VideoFile open(const std::filesystem::path& path);

  /// The same of `bytes`, which must outlive the file; `name` is what messages call it.
  [[nodiscard]] static VideoFile open(std::span<const std::byte> bytes, std::string name);

  VideoFile(VideoFile&&) noexcept;
  VideoFile& operator=(VideoFile&&) noexcept;
  ~VideoFile();

  [[nodiscard]] const VideoInfo& info() const;

  /// What Mp4Options::texts had, where the file keeps them. kIo for more than kMostTextBytes.
  [[nodiscard]] std::vector<PictureText> texts() const;

  /// The true number of frames, at least 1. The first call of this or of read_frames goes through
  /// the file once; nothing is decoded, but of files without times (some AVI) all frames are.
  /// Errors: a file that ends too early or is damaged, with the number of frames found.
  [[nodiscard]] int64_t num_frames();

  /// Fills `strip` with the frames first, first + stride, ..., `count` of them, side by side from
  /// the left as RGB [height, count * width, 3]; its memory is reused. Decodes from the key frame
  /// before the first one to the last one. Errors: frames that there are not (kShape); damage, with
  /// the number of frames decoded.
  void read_frames(int64_t first, int64_t count, int64_t stride, Image& strip);

  /// Decodes all frames; returns their number. Errors: the first one that cannot be.
  [[nodiscard]] int64_t check_frames();

 private:
  class Impl;
  explicit VideoFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct Mp4Options {
  double fps = 8.0;  ///< above 0, at most 1000
  /// 1 (smallest) to 100 (best); of H.264 the constant rate factor (100 - quality) / 2.
  int64_t quality = 64;
  /// Beside the frames. MP4 has names of its own: "parameters", for people, becomes the comment,
  /// which players show, and "kinora" the description. Other keys are kShape.
  std::vector<PictureText> texts = {};
};

/// The MP4 file of `frames`, all of one size: H.264, yuv420p, which every player takes, with its
/// index in front. Odd sides are padded to even ones by repeating the last row or column. Errors:
/// as encode_webp (kShape); no encoder for H.264 in this FFmpeg (kConfig).
[[nodiscard]] std::vector<std::byte> encode_mp4(std::span<const Image> frames,
                                                const Mp4Options& options = {});

/// Writes encode_mp4(frames, options) to `path` atomically.
void write_mp4(const std::filesystem::path& path, std::span<const Image> frames,
               const Mp4Options& options = {});

}  // namespace kinora::io
