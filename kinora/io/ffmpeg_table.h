#pragma once

#include <cstdint>

/// What the program and the module kinora_ffmpeg.so share (kinora/core/module_file.h): raise
/// kFfmpegVersion, and the name of the function in ffmpeg_module.cc, with every change.
namespace kinora::io {

inline constexpr int64_t kFfmpegVersion = 2;

/// The bytes of a file, which the caller keeps open.
struct FfmpegBytes {
  const void* self;
  int64_t size;
  /// Fills `out` with bytes that lie inside the file; whether it could.
  bool (*read_at)(const void* self, int64_t offset, uint8_t* out, int64_t count);
};

/// See VideoInfo.
struct FfmpegInfo {
  int64_t height;
  int64_t width;
  int64_t declared_frames;
  double fps;
  char codec[32];
};

struct FfmpegLimits {
  int64_t max_side;
  int64_t max_pixels;  ///< of a frame
  int64_t max_frames;
};

/// A text of a file, by FFmpeg's name of it; both end with a zero.
struct FfmpegTag {
  const char* key;
  const char* value;
};

/// Frames to encode: RGB without gaps, all of one size.
struct FfmpegClip {
  int64_t height;
  int64_t width;
  int64_t num_frames;
  const uint8_t* const* frames;
  double fps;
  double rate_factor;  ///< of H.264, 0 (lossless) to 51
  const FfmpegTag* tags;
  int64_t num_tags;
};

/// Why a function returned false or -1.
struct FfmpegError {
  bool lacks_encoder;  ///< of encode_mp4: this FFmpeg cannot
  char text[480];
};

/// A reader is one thread's, for one file at a time. It is used again for the next file, also after
/// an error.
struct FfmpegTable {
  void* (*new_reader)();  ///< null: no memory
  void (*delete_reader)(void* reader);
  bool (*open)(void* reader, const FfmpegBytes* bytes, const FfmpegLimits* limits, FfmpegInfo* info,
               FfmpegError* error);
  void (*close)(void* reader);  ///< of the file: `bytes` are not touched again
  int64_t (*num_frames)(void* reader, FfmpegError* error);
  /// Frame first + i * stride goes to the columns from i * width on of rows of `row_bytes` bytes.
  bool (*read_frames)(void* reader, int64_t first, int64_t count, int64_t stride, uint8_t* out,
                      int64_t row_bytes, FfmpegError* error);
  int64_t (*check_frames)(void* reader, FfmpegError* error);
  /// Hands out the texts of the open file, one by one.
  void (*read_tags)(void* reader, void* self, void (*take)(void* self, const FfmpegTag* tag));
  /// Hands the file to `take` at once.
  bool (*encode_mp4)(const FfmpegClip* clip, void* self,
                     void (*take)(void* self, const uint8_t* bytes, int64_t count),
                     FfmpegError* error);
};

}  // namespace kinora::io
