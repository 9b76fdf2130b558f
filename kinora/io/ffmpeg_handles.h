#pragma once

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libswscale/swscale.h>
}

#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>

/// What the files of the module kinora_ffmpeg.so have in common: FFmpeg's objects with owners, and
/// failures. FFmpeg 5.1 to 7.
namespace kinora::io::ffmpeg {

/// Ends up as FfmpegError at the module's border.
class Failure : public std::runtime_error {
 public:
  explicit Failure(const std::string& text, bool lacks_encoder = false)
      : std::runtime_error(text), lacks_encoder_(lacks_encoder) {}
  [[nodiscard]] bool lacks_encoder() const { return lacks_encoder_; }

 private:
  bool lacks_encoder_;
};

template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw Failure(text.str());
}

/// Takes FFmpeg's log to itself: nothing is printed, the last error of each thread is kept.
void keep_log();

/// Forgets this thread's last error.
void clear_log();

/// What this thread's log said last, else the meaning of `result`.
[[nodiscard]] std::string reason_of(int result);

/// Fails with `what` and the reason where `result` is an error; returns it.
int check(int result, const char* what);

struct FreePacket {
  void operator()(AVPacket* packet) const { av_packet_free(&packet); }
};
struct FreeFrame {
  void operator()(AVFrame* frame) const { av_frame_free(&frame); }
};
struct FreeCodec {
  void operator()(AVCodecContext* codec) const { avcodec_free_context(&codec); }
};
struct FreeScaler {
  void operator()(SwsContext* scaler) const { sws_freeContext(scaler); }
};
struct FreeIo {
  void operator()(AVIOContext* io) const {
    av_freep(&io->buffer);
    avio_context_free(&io);
  }
};
struct FreeInput {
  void operator()(AVFormatContext* format) const { avformat_close_input(&format); }
};
struct FreeOutput {
  void operator()(AVFormatContext* format) const { avformat_free_context(format); }
};

using Packet = std::unique_ptr<AVPacket, FreePacket>;
using Frame = std::unique_ptr<AVFrame, FreeFrame>;
using Codec = std::unique_ptr<AVCodecContext, FreeCodec>;
using Scaler = std::unique_ptr<SwsContext, FreeScaler>;
using Io = std::unique_ptr<AVIOContext, FreeIo>;
using Input = std::unique_ptr<AVFormatContext, FreeInput>;
using Output = std::unique_ptr<AVFormatContext, FreeOutput>;

/// The object that an allocation of FFmpeg gave, in its owner; no memory is std::bad_alloc.
template <typename Owner>
[[nodiscard]] Owner owned(typename Owner::pointer object) {
  if (object == nullptr) {
    throw std::bad_alloc();
  }
  return Owner(object);
}

}  // namespace kinora::io::ffmpeg
