#include "kinora/io/ffmpeg_demuxer.h"

extern "C" {
#include <libavutil/dict.h>
}

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <string>
#include <string_view>

namespace kinora::io::ffmpeg {
namespace {

using namespace std::string_view_literals;

constexpr int kBufferBytes = 1 << 16;
// Without a packet for so long a file is given up.
constexpr std::chrono::seconds kPatience{60};
// The containers below hold no others than these few streams (sound, subtitles) in practice.
constexpr int kMaxStreams = 64;

/// FFmpeg's name of the container; the few that are let in are told apart here, not by its probing.
const char* container_of(std::string_view start) {
  if (start.empty()) {
    fail("must be a video, got an empty file");
  }
  if (start.starts_with("\x1a\x45\xdf\xa3"sv)) {
    return "matroska";
  }
  if (start.starts_with("GIF8"sv)) {
    return "gif";
  }
  if (start.size() >= 12 && start.starts_with("RIFF"sv) && start.substr(8, 4) == "AVI "sv) {
    return "avi";
  }
  for (const std::string_view box : {"ftyp"sv, "moov"sv, "mdat"sv, "wide"sv, "free"sv, "skip"sv}) {
    if (start.size() >= 8 && start.substr(4, 4) == box) {
      return "mov";
    }
  }
  fail("must be MP4, MOV, MKV, WebM, AVI or GIF, got a file that begins like none of them");
}

/// The number that `bytes` make, the most significant first.
uint64_t big_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (const char byte : bytes) {
    value = value << 8 | static_cast<uint8_t>(byte);
  }
  return value;
}

/// A size of variable length as Matroska writes it (RFC 8794, 4), taken off `bytes`; -1: unknown.
int64_t take_size(std::string_view& bytes) {
  const auto first = static_cast<uint8_t>(bytes.empty() ? 0 : bytes.front());
  const int length = std::countl_zero(first) + 1;
  if (length > 8 || static_cast<size_t>(length) > bytes.size()) {
    bytes = {};
    return -1;
  }
  const uint64_t mask = (uint64_t{1} << 7 * length) - 1;
  const uint64_t value = big_endian(bytes.substr(0, static_cast<size_t>(length))) & mask;
  bytes.remove_prefix(static_cast<size_t>(length));
  return value == mask ? -1 : static_cast<int64_t>(value);
}

std::string bytes_at(const FfmpegBytes& bytes, int64_t place, int64_t count) {
  std::string text(static_cast<size_t>(std::min(count, bytes.size - place)), '\0');
  if (!bytes.read_at(bytes.self, place, reinterpret_cast<uint8_t*>(text.data()),
                     std::ssize(text))) {
    fail("cannot be read");
  }
  return text;
}

/// MP4 is a row of boxes (ISO 14496-12, 4.2).
int64_t declared_size_of_boxes(const FfmpegBytes& bytes) {
  constexpr int kMaxBoxes = 1 << 16;
  int64_t place = 0;
  for (int i = 0; i < kMaxBoxes && place < bytes.size; ++i) {
    const std::string head = bytes_at(bytes, place, 16);
    if (head.size() < 8) {
      return 0;  // rubbish, which some writers leave
    }
    const std::string_view kind = std::string_view(head).substr(4, 4);
    uint64_t size = big_endian(std::string_view(head).substr(0, 4));
    if (size == 1 && head.size() == 16) {
      size = big_endian(std::string_view(head).substr(8));
    }
    // 0: up to the end. Others below 8, and unknown ones beyond the end, are rubbish, too.
    if (size < 8 || size > static_cast<uint64_t>(INT64_MAX - place)) {
      return 0;
    }
    if (static_cast<int64_t>(size) > bytes.size - place && kind != "mdat"sv && kind != "moof"sv &&
        kind != "moov"sv) {
      return 0;
    }
    place += static_cast<int64_t>(size);
  }
  return place;
}

int64_t declared_size_of_matroska(std::string_view head) {
  const size_t before = head.size();
  head.remove_prefix(4);
  const int64_t header = take_size(head);
  if (header < 0 || static_cast<size_t>(header) > head.size()) {
    return 0;
  }
  head.remove_prefix(static_cast<size_t>(header));
  if (!head.starts_with("\x18\x53\x80\x67"sv)) {  // the segment, which holds the rest
    return 0;
  }
  head.remove_prefix(4);
  const int64_t segment = take_size(head);
  return segment < 0 ? 0 : static_cast<int64_t>(before - head.size()) + segment;
}

/// The least size of the file by its own word; 0: it says none.
int64_t declared_size(const FfmpegBytes& bytes) {
  const std::string start = bytes_at(bytes, 0, 256);
  const std::string_view container = container_of(start);
  if (container == "mov") {
    return declared_size_of_boxes(bytes);
  }
  if (container == "matroska") {
    return declared_size_of_matroska(start);
  }
  if (container == "avi") {
    uint32_t size = 0;
    std::memcpy(&size, start.data() + 4, sizeof(size));  // little-endian, as all our machines
    return int64_t{size} + 8;
  }
  // The last byte of a GIF is a semicolon; some writers fill up behind it.
  const std::string end = bytes_at(bytes, std::max<int64_t>(bytes.size - 4096, 0), 4096);
  const size_t last = end.find_last_not_of("\0\r\n "sv);
  return last != std::string::npos && end[last] == ';' ? 0 : bytes.size + 1;
}

/// No container may open another file.
int open_nothing(AVFormatContext* /*format*/, AVIOContext** /*io*/, const char* /*url*/,
                 int /*flags*/, AVDictionary** /*options*/) {
  return AVERROR(EPERM);
}

/// VP8 has frames that are only referred to; other codecs pack them with one that is shown.
bool is_hidden(const AVStream& stream, const AVPacket& packet) {
  constexpr uint8_t kShowFrame = 0x10;  // RFC 6386, 9.1
  return stream.codecpar->codec_id == AV_CODEC_ID_VP8 && (packet.data[0] & kShowFrame) == 0;
}

}  // namespace

int Demuxer::read(void* self, uint8_t* out, int count) {
  auto& demuxer = *static_cast<Demuxer*>(self);
  const int64_t left = demuxer.bytes_.size - demuxer.position_;
  const int64_t size = std::min<int64_t>(count, left);
  if (size <= 0) {
    return AVERROR_EOF;
  }
  if (is_late(self) != 0) {
    return AVERROR_EXIT;
  }
  if (!demuxer.bytes_.read_at(demuxer.bytes_.self, demuxer.position_, out, size)) {
    return AVERROR(EIO);
  }
  demuxer.position_ += size;
  return static_cast<int>(size);
}

int64_t Demuxer::seek_bytes(void* self, int64_t offset, int whence) {
  auto& demuxer = *static_cast<Demuxer*>(self);
  if ((whence & AVSEEK_SIZE) != 0) {
    return demuxer.bytes_.size;
  }
  if (whence == SEEK_CUR) {
    offset += demuxer.position_;
  } else if (whence == SEEK_END) {
    offset += demuxer.bytes_.size;
  }
  if (offset < 0 || offset > demuxer.bytes_.size) {
    return AVERROR(EINVAL);
  }
  demuxer.position_ = offset;
  return offset;
}

int Demuxer::is_late(void* self) {
  const auto& demuxer = *static_cast<const Demuxer*>(self);
  return std::chrono::steady_clock::now() - demuxer.last_progress_ > kPatience ? 1 : 0;
}

Demuxer::Demuxer(const FfmpegBytes& bytes, const FfmpegLimits& limits)
    : bytes_(bytes), limits_(limits) {
  open();
}

void Demuxer::open() {
  format_.reset();
  position_ = 0;
  is_held_ = false;
  touch();
  const AVInputFormat* container = av_find_input_format(container_of(bytes_at(bytes_, 0, 16)));
  if (container == nullptr) {
    fail("is of a kind that this FFmpeg was built without");
  }
  auto* buffer = static_cast<uint8_t*>(av_malloc(kBufferBytes));
  AVIOContext* io = avio_alloc_context(buffer, kBufferBytes, 0, this, read, nullptr, seek_bytes);
  if (io == nullptr) {
    av_free(buffer);
    throw std::bad_alloc();
  }
  io_.reset(io);
  AVFormatContext* format = owned<Output>(avformat_alloc_context()).release();
  format->pb = io;
  format->flags |= AVFMT_FLAG_CUSTOM_IO;
  format->io_open = open_nothing;
  format->interrupt_callback = {.callback = is_late, .opaque = this};
  format->max_streams = kMaxStreams;
  // On failure it frees `format`.
  check(avformat_open_input(&format, "", container, nullptr), "cannot be opened");
  format_.reset(format);
  const int best = av_find_best_stream(format, AVMEDIA_TYPE_VIDEO, -1, -1, nullptr, 0);
  if (best < 0 || (format->streams[best]->disposition & AV_DISPOSITION_ATTACHED_PIC) != 0) {
    fail("holds no video");
  }
  for (unsigned i = 0; i < format->nb_streams; ++i) {
    format->streams[i]->discard = static_cast<int>(i) == best ? AVDISCARD_DEFAULT : AVDISCARD_ALL;
  }
  stream_ = format->streams[best];
  const AVCodecParameters& parameters = *stream_->codecpar;
  // MP4 says it in the header; then nothing needs to be decoded to find out.
  if (parameters.width == 0 || parameters.height == 0 || stream_->avg_frame_rate.num == 0) {
    check(avformat_find_stream_info(format, nullptr), "says too little of its video");
  }
  check_parameters();
}

void Demuxer::check_parameters() const {
  const int64_t width = stream_->codecpar->width;
  const int64_t height = stream_->codecpar->height;
  if (width <= 0 || height <= 0 || width > limits_.max_side || height > limits_.max_side ||
      width * height > limits_.max_pixels) {
    fail("must have frames of at least 1 and at most ", limits_.max_pixels,
         " pixels and sides of at most ", limits_.max_side, ", got ", width, " x ", height);
  }
}

bool Demuxer::next(AVPacket& packet) {
  if (is_held_) {
    is_held_ = false;
    av_packet_unref(&packet);
    av_packet_move_ref(&packet, held_.get());
    return true;
  }
  while (true) {
    av_packet_unref(&packet);
    const int result = av_read_frame(format_.get(), &packet);
    touch();
    if (result == AVERROR_EOF && (io_->error == 0 || io_->error == AVERROR_EOF)) {
      return false;
    }
    check(result == AVERROR_EOF ? io_->error : result, "is damaged or ends too early");
    if (packet.stream_index != stream_->index) {
      continue;
    }
    if ((packet.flags & AV_PKT_FLAG_CORRUPT) != 0) {
      fail("is damaged or ends too early: ", reason_of(AVERROR_INVALIDDATA));
    }
    return true;
  }
}

void Demuxer::index() {
  if (!entries_.empty()) {  // of an attempt that failed
    entries_.clear();
    open();
  }
  const Packet packet = owned<Packet>(av_packet_alloc());
  try {
    while (next(*packet)) {
      const bool is_shown = packet->size > 0 && (packet->flags & AV_PKT_FLAG_DISCARD) == 0 &&
                            !is_hidden(*stream_, *packet);
      entries_.push_back({.pts = packet->pts,
                          .dts = packet->dts,
                          .number = is_shown ? 0 : -1,
                          .is_key = (packet->flags & AV_PKT_FLAG_KEY) != 0});
      if (static_cast<int64_t>(entries_.size()) > limits_.max_frames) {
        fail("must have at most ", limits_.max_frames, " frames, got more");
      }
    }
    check_is_whole();
  } catch (const Failure& failure) {
    fail(failure.what(), "; ", entries_.size(), " frames lie before that",
         stream_->nb_frames > 0 ? ", of " + std::to_string(stream_->nb_frames) : std::string());
  }
  if (entries_.empty()) {
    fail("must have at least one frame, got none");
  }
  number_entries();
}

void Demuxer::check_is_whole() const {
  // FFmpeg itself ends without a word where the bytes end.
  if (declared_size(bytes_) > bytes_.size) {
    fail("ends too early");
  }
}

void Demuxer::number_entries() {
  if (stream_->codecpar->codec_id == AV_CODEC_ID_GIF) {
    // Every frame is drawn over those before it.
    for (size_t i = 1; i < entries_.size(); ++i) {
      entries_[i].is_key = false;
    }
  }
  // Frames shown before the first key frame refer to others that were cut away: nothing shows them.
  const int64_t first_pts = entries_.front().pts;
  std::vector<size_t> by_time(entries_.size());
  std::iota(by_time.begin(), by_time.end(), size_t{0});
  std::stable_sort(by_time.begin(), by_time.end(),
                   [this](size_t a, size_t b) { return entries_[a].pts < entries_[b].pts; });
  has_numbers_ = entries_.front().is_key;
  num_frames_ = 0;
  delay_ = 0;
  for (size_t rank = 0; rank < by_time.size(); ++rank) {
    PacketEntry& entry = entries_[by_time[rank]];
    has_numbers_ = has_numbers_ && entry.pts != AV_NOPTS_VALUE &&
                   (rank == 0 || entries_[by_time[rank - 1]].pts != entry.pts);
    delay_ = std::max(delay_, static_cast<int64_t>(by_time[rank]) - static_cast<int64_t>(rank));
    if (entry.number >= 0) {
      entry.number = entry.pts >= first_pts ? num_frames_++ : -1;
    }
  }
}

size_t Demuxer::start_of(int64_t number) const {
  if (!has_numbers_) {
    return 0;
  }
  size_t place = 0;
  while (entries_[place].number != number) {
    ++place;
  }
  const int64_t pts = entries_[place].pts;
  while (place > 0 && (!entries_[place].is_key || entries_[place].pts > pts)) {
    --place;
  }
  return place;
}

void Demuxer::seek(size_t start) {
  if (!try_seek(start)) {
    open();
    if (!skip_to(start)) {
      fail("gives other packets when it is read again");
    }
  }
}

bool Demuxer::try_seek(size_t start) {
  const PacketEntry& entry = entries_[start];
  if (!has_numbers_ || std::strcmp(format_->iformat->name, "gif") == 0) {
    return false;
  }
  // Indices hold the times of decoding, but those of Matroska the times of showing.
  const bool by_pts = entry.dts == AV_NOPTS_VALUE ||
                      std::string_view(format_->iformat->name).starts_with("matroska");
  is_held_ = false;
  return av_seek_frame(format_.get(), stream_->index, by_pts ? entry.pts : entry.dts,
                       AVSEEK_FLAG_BACKWARD) >= 0 &&
         skip_to(start);
}

bool Demuxer::skip_to(size_t start) {
  if (!next(*held_)) {
    return false;
  }
  size_t at = has_numbers_ ? start : 0;
  while (at > 0 && entries_[at].pts != held_->pts) {
    --at;
  }
  for (; at < start; ++at) {
    if (entries_[at].pts != held_->pts || !next(*held_)) {
      return false;
    }
  }
  is_held_ = entries_[start].pts == held_->pts;
  return is_held_;
}

}  // namespace kinora::io::ffmpeg
