#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kinora/io/ffmpeg_demuxer.h"
#include "kinora/io/ffmpeg_handles.h"
#include "kinora/io/ffmpeg_table.h"

namespace kinora::io::ffmpeg {

/// See VideoFile, whose work this is. Everything fails by Failure.
class Reader {
 public:
  [[nodiscard]] FfmpegInfo open(const FfmpegBytes& bytes, const FfmpegLimits& limits);
  void close();

  [[nodiscard]] int64_t num_frames();
  void read_frames(int64_t first, int64_t count, int64_t stride, uint8_t* out, int64_t row_bytes);
  [[nodiscard]] int64_t check_frames();
  void read_tags(void* self, void (*take)(void* self, const FfmpegTag* tag)) const;

 private:
  /// Takes frame `number`; false: no more are wanted.
  using Take = std::function<bool(int64_t number, AVFrame& frame)>;

  void index();
  void make_decoder();
  /// Decodes from the packet at `start` on; hands out frames in order.
  void decode(size_t start, const Take& take);
  /// Sends the packet at `place`; whether it was one to send.
  [[nodiscard]] bool send(const PacketEntry& start, const PacketEntry& entry);
  /// Hands out what the decoder has; false as Take.
  [[nodiscard]] bool receive(const Take& take);
  void convert(const AVFrame& frame);
  void copy_upright(uint8_t* out, int64_t row_bytes) const;

  FfmpegLimits limits_{};
  std::unique_ptr<Demuxer> demuxer_;
  bool is_indexed_ = false;
  int64_t num_frames_ = 0;
  int64_t num_decoded_ = 0;  // since decode() began
  // Used again for the next file.
  Codec decoder_;
  std::unique_ptr<AVCodecParameters, void (*)(AVCodecParameters*)> decoder_is_for_{nullptr,
                                                                                   nullptr};
  Packet packet_ = owned<Packet>(av_packet_alloc());
  Frame frame_ = owned<Frame>(av_frame_alloc());
  Frame rgb_ = owned<Frame>(av_frame_alloc());
  Scaler scaler_;
};

}  // namespace kinora::io::ffmpeg
