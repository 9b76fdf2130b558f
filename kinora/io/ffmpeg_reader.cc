#include "kinora/io/ffmpeg_reader.h"

extern "C" {
#include <libavutil/dict.h>
#include <libavutil/display.h>
#include <libavutil/pixdesc.h>
}

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace kinora::io::ffmpeg {
namespace {

/// How a stored frame becomes the one shown, up to multiples of a quarter turn: first transposed,
/// then mirrored.
struct Turn {
  bool transposed = false;
  bool flip_x = false;
  bool flip_y = false;
};

const int32_t* display_matrix(const AVStream& stream) {
#if LIBAVCODEC_VERSION_INT >= AV_VERSION_INT(60, 26, 100)
  const AVCodecParameters& parameters = *stream.codecpar;
  const AVPacketSideData* found = av_packet_side_data_get(
      parameters.coded_side_data, parameters.nb_coded_side_data, AV_PKT_DATA_DISPLAYMATRIX);
  return found != nullptr && found->size >= 9 * sizeof(int32_t)
             ? reinterpret_cast<const int32_t*>(found->data)
             : nullptr;
#else
  size_t size = 0;
  const uint8_t* data = av_stream_get_side_data(&stream, AV_PKT_DATA_DISPLAYMATRIX, &size);
  return data != nullptr && size >= 9 * sizeof(int32_t) ? reinterpret_cast<const int32_t*>(data)
                                                        : nullptr;
#endif
}

Turn turn_of(const AVStream& stream) {
  const int32_t* matrix = display_matrix(stream);
  if (matrix == nullptr) {
    return {};
  }
  // (x, y) is shown at (m[0] x + m[3] y, m[1] x + m[4] y).
  const auto size = [matrix](int i) { return std::abs(static_cast<int64_t>(matrix[i])); };
  if (size(1) + size(3) > size(0) + size(4)) {
    return {.transposed = true, .flip_x = matrix[3] < 0, .flip_y = matrix[1] < 0};
  }
  return {.transposed = false, .flip_x = matrix[0] < 0, .flip_y = matrix[4] < 0};
}

/// Whether a decoder made for `a` may go on with `b` once it is flushed.
bool fits(const AVCodecParameters* a, const AVCodecParameters& b) {
  if (a == nullptr || a->codec_id != b.codec_id || a->width != b.width || a->height != b.height ||
      a->codec_tag != b.codec_tag || a->extradata_size != b.extradata_size) {
    return false;
  }
  switch (b.codec_id) {
    case AV_CODEC_ID_H264:
    case AV_CODEC_ID_HEVC:
    case AV_CODEC_ID_VP9:
    case AV_CODEC_ID_AV1:
      return b.extradata_size == 0 ||
             std::memcmp(a->extradata, b.extradata, static_cast<size_t>(b.extradata_size)) == 0;
    default:
      return false;
  }
}

/// Streams need not say how far their frames are reordered; guessing, the decoder would drop some.
void hold_back(AVCodecContext& decoder, int64_t delay) {
  constexpr int64_t kMostOfAnyCodec = 16;
  decoder.has_b_frames =
      std::max(decoder.has_b_frames, static_cast<int>(std::min(delay, kMostOfAnyCodec)));
}

/// 0: not known.
double frames_per_second(const AVStream& stream) {
  // Frames of a GIF take as long as they like, and newer versions say the rate of the first ones.
  if (stream.codecpar->codec_id == AV_CODEC_ID_GIF && stream.nb_frames > 0 && stream.duration > 0) {
    return static_cast<double>(stream.nb_frames) /
           (static_cast<double>(stream.duration) * av_q2d(stream.time_base));
  }
  const AVRational rate =
      stream.avg_frame_rate.num > 0 ? stream.avg_frame_rate : stream.r_frame_rate;
  return rate.num > 0 && rate.den > 0 ? av_q2d(rate) : 0.0;
}

}  // namespace

FfmpegInfo Reader::open(const FfmpegBytes& bytes, const FfmpegLimits& limits) {
  close();
  clear_log();
  limits_ = limits;
  demuxer_ = std::make_unique<Demuxer>(bytes, limits);
  const AVStream& stream = demuxer_->stream();
  const AVCodecParameters& parameters = *stream.codecpar;
  if (avcodec_find_decoder(parameters.codec_id) == nullptr) {
    fail("holds ", avcodec_get_name(parameters.codec_id), ", for which this FFmpeg has no decoder");
  }
  const bool transposed = turn_of(stream).transposed;
  FfmpegInfo info{};
  info.height = transposed ? parameters.width : parameters.height;
  info.width = transposed ? parameters.height : parameters.width;
  info.declared_frames = std::max<int64_t>(stream.nb_frames, 0);
  info.fps = frames_per_second(stream);
  std::strncpy(info.codec, avcodec_get_name(parameters.codec_id), sizeof(info.codec) - 1);
  return info;
}

void Reader::close() {
  demuxer_.reset();
  is_indexed_ = false;
}

void Reader::index() {
  if (is_indexed_) {
    return;
  }
  clear_log();
  demuxer_->index();
  num_frames_ = demuxer_->num_frames();
  if (!demuxer_->has_numbers()) {
    num_frames_ = 0;
    decode(0, [this](int64_t number, AVFrame& /*frame*/) {
      num_frames_ = number + 1;
      return true;
    });
  }
  if (num_frames_ == 0) {
    fail("must have at least one frame that is shown, got none");
  }
  is_indexed_ = true;
}

int64_t Reader::num_frames() {
  index();
  return num_frames_;
}

void Reader::make_decoder() {
  const AVCodecParameters& parameters = *demuxer_->stream().codecpar;
  if (decoder_ != nullptr && fits(decoder_is_for_.get(), parameters)) {
    avcodec_flush_buffers(decoder_.get());
    hold_back(*decoder_, demuxer_->delay());
    return;
  }
  decoder_.reset();
  const AVCodec* codec = avcodec_find_decoder(parameters.codec_id);
  Codec decoder = owned<Codec>(avcodec_alloc_context3(codec));
  check(avcodec_parameters_to_context(decoder.get(), &parameters), "cannot be decoded");
  decoder->thread_count = 1;  // whoever loads files has threads of its own
  decoder->err_recognition = AV_EF_CRCCHECK | AV_EF_EXPLODE;
  decoder->max_pixels = limits_.max_pixels;
  hold_back(*decoder, demuxer_->delay());
  check(avcodec_open2(decoder.get(), codec, nullptr), "cannot be decoded");
  decoder_is_for_ = {avcodec_parameters_alloc(),
                     [](AVCodecParameters* p) { avcodec_parameters_free(&p); }};
  check(avcodec_parameters_copy(decoder_is_for_.get(), &parameters), "cannot be decoded");
  decoder_ = std::move(decoder);
}

void Reader::decode(size_t start, const Take& take) {
  make_decoder();
  const std::vector<PacketEntry>& entries = demuxer_->entries();
  demuxer_->seek(start);
  num_decoded_ = 0;
  try {
    for (size_t place = start; place < entries.size(); ++place) {
      if (!demuxer_->next(*packet_) || packet_->pts != entries[place].pts) {
        fail("gives other packets when it is read again");
      }
      if (send(entries[start], entries[place]) && !receive(take)) {
        return;
      }
    }
    check(avcodec_send_packet(decoder_.get(), nullptr), "the end cannot be decoded");
    (void)receive(take);
  } catch (const Failure& failure) {
    decoder_.reset();
    fail(failure.what(), "; ", num_decoded_, " frames before that were decoded");
  }
}

bool Reader::send(const PacketEntry& start, const PacketEntry& entry) {
  // Frames shown before the key frame refer to others before it: they are not wanted here.
  if (packet_->size == 0 || (demuxer_->has_numbers() && entry.pts < start.pts)) {
    return false;
  }
  packet_->pts = entry.number;  // comes back with the frame
  packet_->dts = AV_NOPTS_VALUE;
  const int result = avcodec_send_packet(decoder_.get(), packet_.get());
  if (result < 0) {
    fail("frame ", entry.number, " cannot be decoded: ", reason_of(result));
  }
  return true;
}

bool Reader::receive(const Take& take) {
  while (true) {
    const int result = avcodec_receive_frame(decoder_.get(), frame_.get());
    if (result == AVERROR(EAGAIN) || result == AVERROR_EOF) {
      return true;
    }
    check(result, "a frame cannot be decoded");
    const int64_t number = demuxer_->has_numbers() ? frame_->pts : num_decoded_;
    if (frame_->decode_error_flags != 0 || (frame_->flags & AV_FRAME_FLAG_CORRUPT) != 0) {
      fail("frame ", number, " is damaged: ", reason_of(AVERROR_INVALIDDATA));
    }
    ++num_decoded_;
    if (number >= 0 && !take(number, *frame_)) {
      return false;
    }
  }
}

void Reader::read_frames(int64_t first, int64_t count, int64_t stride, uint8_t* out,
                         int64_t row_bytes) {
  index();
  const AVCodecParameters& stored = *demuxer_->stream().codecpar;
  const int64_t width = turn_of(demuxer_->stream()).transposed ? stored.height : stored.width;
  int64_t num_taken = 0;
  const auto take_from = [&](size_t start) {
    num_taken = 0;
    decode(start, [&](int64_t number, AVFrame& frame) {
      const int64_t place = (number - first) / stride;
      if (number >= first && place < count && (number - first) % stride == 0) {
        convert(frame);
        copy_upright(out + place * width * 3, row_bytes);
        ++num_taken;
      }
      return num_taken < count;
    });
    return num_taken == count;
  };
  const size_t start = demuxer_->start_of(first);
  if (start > 0) {
    // Not every decoder takes every frame that is marked as a key frame for one.
    try {
      if (take_from(start)) {
        return;
      }
    } catch (const Failure&) {
      clear_log();
    }
  }
  if (!take_from(0)) {
    fail("gave ", num_taken, " of the ", count, " frames from ", first, " on with stride ", stride);
  }
}

int64_t Reader::check_frames() {
  index();
  int64_t expected = 0;
  decode(0, [&](int64_t number, AVFrame& /*frame*/) {
    if (number != expected) {
      fail("gives frame ", number, " after ", expected - 1);
    }
    ++expected;
    return true;
  });
  if (expected != num_frames_) {
    fail("has ", num_frames_, " frames, of which ", expected, " could be decoded");
  }
  return expected;
}

void Reader::convert(const AVFrame& frame) {
  const AVCodecParameters& stored = *demuxer_->stream().codecpar;
  if (frame.width != stored.width || frame.height != stored.height) {
    fail("must have frames of one size, ", stored.width, " x ", stored.height, ", got one of ",
         frame.width, " x ", frame.height);
  }
  if (rgb_->width != frame.width || rgb_->height != frame.height) {
    av_frame_unref(rgb_.get());
    rgb_->width = frame.width;
    rgb_->height = frame.height;
    rgb_->format = AV_PIX_FMT_RGB24;
    // Scalers write whole vectors, beyond the end of a row: this has room for that.
    check(av_frame_get_buffer(rgb_.get(), 0), "no memory for a frame");
  }
  const auto format = static_cast<AVPixelFormat>(frame.format);
  SwsContext* scaler =
      sws_getCachedContext(scaler_.release(), frame.width, frame.height, format, frame.width,
                           frame.height, AV_PIX_FMT_RGB24, SWS_BILINEAR, nullptr, nullptr, nullptr);
  if (scaler == nullptr) {
    const char* name = av_get_pix_fmt_name(format);
    fail("holds pixels of kind ", name == nullptr ? "unknown" : name,
         ", which cannot become RGB here");
  }
  scaler_.reset(scaler);
  const bool is_full = frame.color_range == AVCOL_RANGE_JPEG;
  const int* matrix = sws_getCoefficients(frame.colorspace);
  // Of frames that are RGB already it can do nothing, and says so.
  (void)sws_setColorspaceDetails(scaler, matrix, is_full ? 1 : 0,
                                 sws_getCoefficients(SWS_CS_DEFAULT), 1, 0, 1 << 16, 1 << 16);
  check(sws_scale(scaler, frame.data, frame.linesize, 0, frame.height, rgb_->data, rgb_->linesize),
        "a frame cannot become RGB");
}

void Reader::copy_upright(uint8_t* out, int64_t row_bytes) const {
  const Turn turn = turn_of(demuxer_->stream());
  const int64_t height = rgb_->height;
  const int64_t width = rgb_->width;
  for (int64_t y = 0; y < height; ++y) {
    const uint8_t* row = rgb_->data[0] + y * rgb_->linesize[0];
    if (!turn.transposed && !turn.flip_x) {
      std::memcpy(out + (turn.flip_y ? height - 1 - y : y) * row_bytes, row,
                  static_cast<size_t>(width * 3));
      continue;
    }
    for (int64_t x = 0; x < width; ++x) {
      const int64_t columns = turn.transposed ? height : width;
      const int64_t rows = turn.transposed ? width : height;
      const int64_t column = turn.transposed ? y : x;
      const int64_t to_row = turn.transposed ? x : y;
      uint8_t* pixel = out + (turn.flip_y ? rows - 1 - to_row : to_row) * row_bytes +
                       (turn.flip_x ? columns - 1 - column : column) * 3;
      std::copy_n(row + x * 3, 3, pixel);
    }
  }
}

void Reader::read_tags(void* self, void (*take)(void* self, const FfmpegTag* tag)) const {
  const AVDictionaryEntry* entry = nullptr;
  while ((entry = av_dict_get(demuxer_->tags(), "", entry, AV_DICT_IGNORE_SUFFIX)) != nullptr) {
    const FfmpegTag tag{.key = entry->key, .value = entry->value};
    take(self, &tag);
  }
}

}  // namespace kinora::io::ffmpeg
