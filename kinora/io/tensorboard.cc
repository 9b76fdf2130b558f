#include "kinora/io/tensorboard.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstring>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/io/append_file.h"
#include "kinora/io/crc32c.h"

// The messages are few and small, so they are encoded by hand. Field numbers are those of
// tensorflow/core/util/event.proto and tensorflow/core/framework/summary.proto.

namespace kinora::io {
namespace {

constexpr size_t kFlushBytes = 1 << 20;
constexpr std::string_view kFilePrefix = "events.out.tfevents.";

template <typename T>
void append_little_endian(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    out.push_back(static_cast<char>((value >> (8 * i)) & 0xffU));
  }
}

// The wire format of protocol buffers.
class Message {
 public:
  void add_varint(uint32_t field, int64_t value) {
    key(field, 0);
    varint(static_cast<uint64_t>(value));
  }
  void add_double(uint32_t field, double value) {
    key(field, 1);
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    append_little_endian(bytes_, bits);
  }
  void add_bytes(uint32_t field, std::string_view value) {
    key(field, 2);
    varint(value.size());
    bytes_.append(value);
  }
  void add_float(uint32_t field, float value) {
    key(field, 5);
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    append_little_endian(bytes_, bits);
  }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  void key(uint32_t field, uint32_t wire_type) { varint((field << 3) | wire_type); }
  void varint(uint64_t value) {
    for (; value >= 0x80U; value >>= 7) {
      bytes_.push_back(static_cast<char>((value & 0x7fU) | 0x80U));
    }
    bytes_.push_back(static_cast<char>(value));
  }

  std::string bytes_;
};

// Of the message Event.
constexpr uint32_t kWallTime = 1;
constexpr uint32_t kStep = 2;
constexpr uint32_t kFileVersion = 3;
constexpr uint32_t kSummary = 5;
constexpr uint32_t kSessionLog = 7;

Message start_event(double wall_time, int64_t step) {
  Message event;
  event.add_double(kWallTime, wall_time);
  event.add_varint(kStep, step);
  return event;
}

// An event whose summary holds the one `value`.
std::string summary_event(double wall_time, int64_t step, const Message& value) {
  Message summary;
  summary.add_bytes(1, value.bytes());
  Message event = start_event(wall_time, step);
  event.add_bytes(kSummary, summary.bytes());
  return event.bytes();
}

// TFRecord's masked checksum: CRCs of data that hold CRCs would be weak.
uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

double system_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') {
    return "localhost";
  }
  return name.data();
}

// `seconds`, or one more than the newest event file in `folder` says if that is later.
int64_t sorted_seconds(const std::filesystem::path& folder, int64_t seconds) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kFilePrefix)) {
      continue;
    }
    int64_t taken = 0;
    std::from_chars(name.data() + kFilePrefix.size(), name.data() + name.size(), taken);
    if (taken < INT32_MAX) {  // else not a time
      seconds = std::max(seconds, taken + 1);
    }
  }
  return seconds;
}

}  // namespace

EventWriter::EventWriter(const std::filesystem::path& folder, Clock clock)
    : clock_(clock ? std::move(clock) : system_seconds) {
  const double now = clock_();
  std::string seconds = std::to_string(sorted_seconds(folder, static_cast<int64_t>(now)));
  seconds.insert(0, 10 - std::min<size_t>(10, seconds.size()), '0');  // sorts as text
  const std::string name =
      std::string(kFilePrefix) + seconds + "." + host_name() + "." + std::to_string(::getpid());
  file_ = std::make_unique<AppendFile>(folder / name, AppendFile::Create::kNew);
  Message event;
  event.add_double(kWallTime, now);
  event.add_bytes(kFileVersion, "brain.Event:2");
  add_event(event.bytes());
  flush();
}

EventWriter::~EventWriter() {
  try {
    flush();
  } catch (const Error&) {  // as documented
  }
}

void EventWriter::add_scalar(std::string_view tag, int64_t step, double value) {
  Message message;
  message.add_bytes(1, tag);
  message.add_float(2, static_cast<float>(value));
  add_event(summary_event(clock_(), step, message));
}

void EventWriter::add_image(std::string_view tag, int64_t step, const Image& image) {
  constexpr int64_t kRgb = 3;
  const std::vector<std::byte> png = encode_png(image);
  Message picture;
  picture.add_varint(1, image.height);
  picture.add_varint(2, image.width);
  picture.add_varint(3, kRgb);
  picture.add_bytes(4, {reinterpret_cast<const char*>(png.data()), png.size()});
  Message value;
  value.add_bytes(1, tag);
  value.add_bytes(4, picture.bytes());
  add_event(summary_event(clock_(), step, value));
}

void EventWriter::purge_from(int64_t step) {
  constexpr int64_t kStart = 1;
  Message log;
  log.add_varint(1, kStart);
  Message event = start_event(clock_(), step);
  event.add_bytes(kSessionLog, log.bytes());
  add_event(event.bytes());
}

void EventWriter::add_event(const std::string& event) {
  std::string length;
  append_little_endian(length, static_cast<uint64_t>(event.size()));
  waiting_ += length;
  append_little_endian(waiting_, masked_crc(length));
  waiting_ += event;
  append_little_endian(waiting_, masked_crc(event));
  if (waiting_.size() >= kFlushBytes) {
    flush();
  }
}

void EventWriter::flush() {
  // Emptied first: after a failed write, repeating a part of it would break the file's framing.
  const std::string bytes = std::exchange(waiting_, {});
  file_->append(bytes);
}

const std::filesystem::path& EventWriter::path() const {
  return file_->path();
}

}  // namespace kinora::io
