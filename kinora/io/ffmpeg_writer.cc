#include "kinora/io/ffmpeg_writer.h"

extern "C" {
#include <libavutil/dict.h>
#include <libavutil/opt.h>
}

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "kinora/core/rounding.h"
#include "kinora/io/ffmpeg_handles.h"

namespace kinora::io::ffmpeg {
namespace {

/// A file in memory.
struct Buffer {
  std::vector<uint8_t> bytes;
  size_t position = 0;
};

// FFmpeg 7 made `data` const.
#if LIBAVFORMAT_VERSION_MAJOR >= 61
using WrittenByte = const uint8_t;
#else
using WrittenByte = uint8_t;
#endif

int write(void* self, WrittenByte* data, int count) {
  auto& buffer = *static_cast<Buffer*>(self);
  const size_t end = buffer.position + static_cast<size_t>(count);
  try {
    buffer.bytes.resize(std::max(buffer.bytes.size(), end));
  } catch (const std::bad_alloc&) {
    return AVERROR(ENOMEM);
  }
  std::copy_n(data, count, buffer.bytes.data() + buffer.position);
  buffer.position = end;
  return count;
}

int64_t seek(void* self, int64_t offset, int whence) {
  auto& buffer = *static_cast<Buffer*>(self);
  if ((whence & AVSEEK_SIZE) != 0) {
    return static_cast<int64_t>(buffer.bytes.size());
  }
  if (whence != SEEK_SET || offset < 0) {
    return AVERROR(EINVAL);
  }
  buffer.position = static_cast<size_t>(offset);
  return offset;
}

Io open_buffer(Buffer& buffer) {
  constexpr int kBytes = 1 << 16;
  auto* memory = static_cast<uint8_t*>(av_malloc(kBytes));
  AVIOContext* io = avio_alloc_context(memory, kBytes, 1, &buffer, nullptr, write, seek);
  if (io == nullptr) {
    av_free(memory);
    throw std::bad_alloc();
  }
  return Io(io);
}

const AVCodec& find_encoder() {
  // The others that FFmpeg may have want a device.
  for (const char* name : {"libx264", "libopenh264"}) {
    if (const AVCodec* codec = avcodec_find_encoder_by_name(name)) {
      return *codec;
    }
  }
  throw Failure("this FFmpeg can encode no H.264: it has neither libx264 nor libopenh264", true);
}

Codec open_encoder(const FfmpegClip& clip) {
  const AVCodec& codec = find_encoder();
  Codec encoder = owned<Codec>(avcodec_alloc_context3(&codec));
  encoder->width = static_cast<int>(round_up(clip.width, 2));
  encoder->height = static_cast<int>(round_up(clip.height, 2));
  encoder->pix_fmt = AV_PIX_FMT_YUV420P;
  encoder->framerate = av_d2q(clip.fps, 100000);
  encoder->time_base = av_inv_q(encoder->framerate);
  encoder->color_range = AVCOL_RANGE_MPEG;
  encoder->colorspace = AVCOL_SPC_BT709;
  encoder->color_primaries = AVCOL_PRI_BT709;
  encoder->color_trc = AVCOL_TRC_BT709;
  encoder->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
  if (std::strcmp(codec.name, "libx264") == 0) {
    check(av_opt_set_double(encoder->priv_data, "crf", clip.rate_factor, 0), "cannot set crf");
  } else {
    // It wants a bit rate: 0.1 bit a pixel at 23, which H.264 doubles every 6 steps.
    const double bits = 0.1 * std::exp2((23.0 - clip.rate_factor) / 6.0);
    encoder->bit_rate = static_cast<int64_t>(bits * clip.fps * static_cast<double>(clip.width) *
                                             static_cast<double>(clip.height));
  }
  check(avcodec_open2(encoder.get(), &codec, nullptr), "the encoder cannot start");
  return encoder;
}

/// RGB to yuv420p.
class Converter {
 public:
  explicit Converter(const AVCodecContext& encoder)
      : rgb_(make_frame(encoder, AV_PIX_FMT_RGB24)), yuv_(make_frame(encoder, encoder.pix_fmt)) {
    scaler_ = owned<Scaler>(sws_getContext(
        encoder.width, encoder.height, AV_PIX_FMT_RGB24, encoder.width, encoder.height,
        encoder.pix_fmt, SWS_BICUBIC | SWS_ACCURATE_RND, nullptr, nullptr, nullptr));
    check(sws_setColorspaceDetails(scaler_.get(), sws_getCoefficients(SWS_CS_DEFAULT), 1,
                                   sws_getCoefficients(SWS_CS_ITU709), 0, 0, 1 << 16, 1 << 16),
          "cannot set the colours");
  }

  AVFrame* convert(const FfmpegClip& clip, int64_t number) {
    check(av_frame_make_writable(yuv_.get()), "no memory for a frame");
    const uint8_t* pixels = clip.frames[number];
    for (int64_t y = 0; y < rgb_->height; ++y) {
      const uint8_t* row = pixels + std::min(y, clip.height - 1) * clip.width * 3;
      uint8_t* out = std::copy_n(row, clip.width * 3, rgb_->data[0] + y * rgb_->linesize[0]);
      if (rgb_->width > clip.width) {
        std::copy_n(row + (clip.width - 1) * 3, 3, out);
      }
    }
    check(sws_scale(scaler_.get(), rgb_->data, rgb_->linesize, 0, rgb_->height, yuv_->data,
                    yuv_->linesize),
          "a frame cannot become YUV");
    yuv_->pts = number;
    return yuv_.get();
  }

 private:
  static Frame make_frame(const AVCodecContext& encoder, AVPixelFormat format) {
    Frame frame = owned<Frame>(av_frame_alloc());
    frame->width = encoder.width;
    frame->height = encoder.height;
    frame->format = format;
    frame->color_range = encoder.color_range;
    frame->colorspace = encoder.colorspace;
    check(av_frame_get_buffer(frame.get(), 0), "no memory for a frame");
    return frame;
  }

  Frame rgb_;
  Frame yuv_;
  Scaler scaler_;
};

/// Moves what the encoder has into the file.
void drain(AVCodecContext& encoder, AVFormatContext& format, AVPacket& packet) {
  while (true) {
    const int result = avcodec_receive_packet(&encoder, &packet);
    if (result == AVERROR(EAGAIN) || result == AVERROR_EOF) {
      return;
    }
    check(result, "a frame cannot be encoded");
    packet.duration = 1;
    av_packet_rescale_ts(&packet, encoder.time_base, format.streams[0]->time_base);
    packet.stream_index = 0;
    check(av_interleaved_write_frame(&format, &packet), "a frame cannot be written");
  }
}

}  // namespace

std::vector<uint8_t> write_clip(const FfmpegClip& clip) {
  clear_log();
  Buffer buffer;
  const Codec encoder = open_encoder(clip);
  const Io io = open_buffer(buffer);
  AVFormatContext* allocated = nullptr;
  check(avformat_alloc_output_context2(&allocated, nullptr, "mp4", nullptr), "no MP4 here");
  const Output format(allocated);
  format->pb = io.get();
  format->flags |= AVFMT_FLAG_CUSTOM_IO | AVFMT_FLAG_BITEXACT;
  AVStream* stream = avformat_new_stream(format.get(), nullptr);
  if (stream == nullptr) {
    throw std::bad_alloc();
  }
  check(avcodec_parameters_from_context(stream->codecpar, encoder.get()), "no parameters");
  stream->time_base = encoder->time_base;
  stream->avg_frame_rate = encoder->framerate;
  // Room for the index in front of the frames, as players of streams want it: about 40 bytes a
  // frame (size, place, times of decoding and showing), the texts, and what is there once.
  int64_t text_bytes = 0;
  for (int64_t i = 0; i < clip.num_tags; ++i) {
    const FfmpegTag& tag = clip.tags[i];
    check(av_dict_set(&format->metadata, tag.key, tag.value, 0), "no memory for a text");
    text_bytes += 64 + static_cast<int64_t>(std::strlen(tag.value));
  }
  AVDictionary* options = nullptr;
  av_dict_set_int(&options, "moov_size", 8192 + 48 * clip.num_frames + text_bytes, 0);
  const int result = avformat_write_header(format.get(), &options);
  av_dict_free(&options);
  check(result, "the header cannot be written");
  Converter converter(*encoder);
  const Packet packet = owned<Packet>(av_packet_alloc());
  for (int64_t i = 0; i < clip.num_frames; ++i) {
    check(avcodec_send_frame(encoder.get(), converter.convert(clip, i)),
          "a frame cannot be encoded");
    drain(*encoder, *format, *packet);
  }
  check(avcodec_send_frame(encoder.get(), nullptr), "the end cannot be encoded");
  drain(*encoder, *format, *packet);
  check(av_write_trailer(format.get()), "the end cannot be written");
  avio_flush(io.get());
  return std::move(buffer.bytes);
}

}  // namespace kinora::io::ffmpeg
