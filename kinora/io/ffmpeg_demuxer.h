#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "kinora/io/ffmpeg_handles.h"
#include "kinora/io/ffmpeg_table.h"

namespace kinora::io::ffmpeg {

/// A packet of the video, as it lies in the file.
struct PacketEntry {
  int64_t pts;
  int64_t dts;
  int64_t number;  ///< of its frame in the order of showing; -1: it shows none
  bool is_key;
};

/// Takes the packets of a file's video out of its container. Only the bytes that it is given are
/// read; whatever a file refers to, nothing else is opened.
class Demuxer {
 public:
  /// Reads the header.
  Demuxer(const FfmpegBytes& bytes, const FfmpegLimits& limits);
  Demuxer(const Demuxer&) = delete;
  Demuxer& operator=(const Demuxer&) = delete;
  ~Demuxer() = default;

  [[nodiscard]] const AVStream& stream() const { return *stream_; }
  /// The texts of the file; null: none.
  [[nodiscard]] const AVDictionary* tags() const { return format_->metadata; }

  /// The next packet of the video; false at the end. Fails at damage.
  [[nodiscard]] bool next(AVPacket& packet);

  /// Goes through the whole file once. Afterwards the position is unspecified.
  void index();

  /// Of an indexed file. Without numbers (`has_numbers` false) frames can only be counted as they
  /// are decoded from the start.
  [[nodiscard]] bool has_numbers() const { return has_numbers_; }
  [[nodiscard]] int64_t num_frames() const { return num_frames_; }
  /// How many frames a decoder must hold back to give them in the order of showing.
  [[nodiscard]] int64_t delay() const { return delay_; }
  [[nodiscard]] const std::vector<PacketEntry>& entries() const { return entries_; }

  /// Where decoding may start for frame `number`: a key frame that is shown no later.
  [[nodiscard]] size_t start_of(int64_t number) const;

  /// Makes next() give entries()[start]. Works always; costs more where the container cannot seek.
  void seek(size_t start);

 private:
  static int read(void* self, uint8_t* out, int count);
  static int64_t seek_bytes(void* self, int64_t offset, int whence);
  static int is_late(void* self);

  void open();
  void check_parameters() const;
  void check_is_whole() const;
  void number_entries();
  [[nodiscard]] bool try_seek(size_t start);
  [[nodiscard]] bool skip_to(size_t start);
  void touch() { last_progress_ = std::chrono::steady_clock::now(); }

  FfmpegBytes bytes_;
  FfmpegLimits limits_;
  int64_t position_ = 0;  // in bytes
  std::chrono::steady_clock::time_point last_progress_;
  Io io_;  // outlives format_
  Input format_;
  AVStream* stream_ = nullptr;  // of format_
  std::vector<PacketEntry> entries_;
  bool has_numbers_ = false;
  int64_t num_frames_ = 0;
  int64_t delay_ = 0;
  Packet held_ = owned<Packet>(av_packet_alloc());
  bool is_held_ = false;  // held_ comes next
};

}  // namespace kinora::io::ffmpeg
