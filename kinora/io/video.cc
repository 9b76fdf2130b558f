#include "kinora/io/video.h"

#include <algorithm>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/module_file.h"
#include "kinora/core/text.h"
#include "kinora/io/ffmpeg_table.h"
#include "kinora/io/file.h"
#include "kinora/io/image_codecs.h"

namespace kinora::io {
namespace {

ModuleInfo ffmpeg_module() {
  return {.name = "ffmpeg",
          .version = kFfmpegVersion,
          .what = "video",
          .needed_for = "reads and writes video files with FFmpeg",
          .how_to_have = "scripts/setup.sh --video, then build again"};
}

const FfmpegTable& ffmpeg() {
  static const FfmpegTable* const table = &load_module<FfmpegTable>(ffmpeg_module());
  return *table;
}

struct DeleteReader {
  void operator()(void* reader) const { ffmpeg().delete_reader(reader); }
};
using ModuleReader = std::unique_ptr<void, DeleteReader>;

// The reader that this thread's last file has left.
ModuleReader& idle_reader() {
  thread_local ModuleReader reader;
  return reader;
}

ModuleReader take_reader() {
  ModuleReader reader = std::move(idle_reader());
  if (reader == nullptr) {
    reader.reset(ffmpeg().new_reader());
    KINORA_CHECK(reader != nullptr, kIo, "[video] no memory for a reader");
  }
  return reader;
}

/// A key of PictureText and FFmpeg's name for what MP4 keeps.
struct TextName {
  const char* key;
  const char* tag;
};
constexpr TextName kTextNames[] = {{"parameters", "comment"}, {"kinora", "description"}};

/// What MP4 keeps of `texts`, which are borrowed.
std::vector<FfmpegTag> tags_of(const std::vector<PictureText>& texts) {
  check_texts(texts);
  std::vector<FfmpegTag> tags;
  for (const PictureText& text : texts) {
    const auto* const found = std::ranges::find_if(
        kTextNames, [&](const TextName& name) { return text.key == name.key; });
    KINORA_CHECK(found != std::end(kTextNames), kShape,
                 "[video] a text of an MP4 must be \"parameters\" or \"kinora\", got ",
                 quote(text.key));
    tags.push_back({.key = found->tag, .value = text.value.c_str()});
  }
  return tags;
}

/// The texts of a file, as they come.
struct TakenTexts {
  std::vector<PictureText> texts;
  size_t bytes = 0;
};

void take_text(void* self, const FfmpegTag* tag) {
  const auto* const found = std::ranges::find_if(
      kTextNames, [&](const TextName& name) { return std::string_view(tag->key) == name.tag; });
  if (found == std::end(kTextNames)) {
    return;
  }
  const std::string_view value = tag->value;
  auto& taken = *static_cast<TakenTexts*>(self);
  taken.bytes += value.size();
  if (taken.bytes <= kMostTextBytes) {
    taken.texts.push_back({.key = found->key, .value = std::string(value)});
  }
}

bool read_file_at(const void* self, int64_t offset, uint8_t* out, int64_t count) {
  try {
    static_cast<const FileReader*>(self)->read_at(
        offset, std::as_writable_bytes(std::span(out, static_cast<size_t>(count))));
    return true;
  } catch (const Error&) {
    return false;  // FFmpeg tells of it
  }
}

bool read_memory_at(const void* self, int64_t offset, uint8_t* out, int64_t count) {
  const auto* bytes = static_cast<const uint8_t*>(self) + offset;
  std::copy(bytes, bytes + count, out);
  return true;
}

}  // namespace

std::optional<std::string> why_no_video() {
  try {
    (void)ffmpeg();
    return std::nullopt;
  } catch (const Error& error) {
    return error.what();
  }
}

class VideoFile::Impl {
 public:
  /// `bytes` are of `file` where there is one.
  Impl(std::string name, FfmpegBytes bytes, std::unique_ptr<FileReader> file)
      : name_(std::move(name)), file_(std::move(file)), reader_(take_reader()) {
    const FfmpegLimits limits{
        .max_side = kMaxImageSide, .max_pixels = kMaxImagePixels, .max_frames = kMaxFrames};
    FfmpegInfo info{};
    FfmpegError error{};
    if (!ffmpeg().open(reader_.get(), &bytes, &limits, &info, &error)) {
      fail(error);
    }
    info_ = {.height = info.height,
             .width = info.width,
             .declared_frames = info.declared_frames,
             .fps = info.fps,
             .codec = info.codec};
  }

  ~Impl() {
    ffmpeg().close(reader_.get());
    idle_reader() = std::move(reader_);
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  [[nodiscard]] const VideoInfo& info() const { return info_; }

  [[nodiscard]] std::vector<PictureText> texts() const {
    TakenTexts taken;
    ffmpeg().read_tags(reader_.get(), &taken, take_text);
    KINORA_CHECK(taken.bytes <= kMostTextBytes, kIo, "[video] ", name_, " must hold at most ",
                 human_bytes(kMostTextBytes), " of texts");
    return taken.texts;
  }

  int64_t num_frames() {
    FfmpegError error{};
    const int64_t count = ffmpeg().num_frames(reader_.get(), &error);
    if (count < 0) {
      fail(error);
    }
    return count;
  }

  int64_t check_frames() {
    FfmpegError error{};
    const int64_t count = ffmpeg().check_frames(reader_.get(), &error);
    if (count < 0) {
      fail(error);
    }
    return count;
  }

  void read_frames(int64_t first, int64_t count, int64_t stride, Image& strip) {
    const int64_t total = num_frames();
    KINORA_CHECK(count > 0 && stride > 0 && first >= 0 && first < total &&
                     count - 1 <= (total - 1 - first) / stride,
                 kShape, "[video] ", name_, " has the frames 0 to ", total - 1,
                 ", got the wish for ", count, " frames from ", first, " on with stride ", stride);
    set_size(strip, info_.height, count * info_.width);
    FfmpegError error{};
    if (!ffmpeg().read_frames(reader_.get(), first, count, stride, strip.pixels.data(),
                              strip.width * 3, &error)) {
      fail(error);
    }
  }

 private:
  [[noreturn]] void fail(const FfmpegError& error) const {
    throw_error(ErrorKind::kIo, "[video] ", name_, " ", error.text);
  }

  std::string name_;
  std::unique_ptr<FileReader> file_;
  ModuleReader reader_;
  VideoInfo info_;
};

VideoFile::VideoFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
VideoFile::VideoFile(VideoFile&&) noexcept = default;
VideoFile& VideoFile::operator=(VideoFile&&) noexcept = default;
VideoFile::~VideoFile() = default;

VideoFile VideoFile::open(const std::filesystem::path& path) {
  auto file = std::make_unique<FileReader>(path);
  const FfmpegBytes bytes{.self = file.get(), .size = file->size(), .read_at = read_file_at};
  return VideoFile(std::make_unique<Impl>(path.string(), bytes, std::move(file)));
}

VideoFile VideoFile::open(std::span<const std::byte> bytes, std::string name) {
  const FfmpegBytes source{
      .self = bytes.data(), .size = static_cast<int64_t>(bytes.size()), .read_at = read_memory_at};
  return VideoFile(std::make_unique<Impl>(std::move(name), source, nullptr));
}

const VideoInfo& VideoFile::info() const {
  return impl_->info();
}

std::vector<PictureText> VideoFile::texts() const {
  return impl_->texts();
}

int64_t VideoFile::num_frames() {
  return impl_->num_frames();
}

void VideoFile::read_frames(int64_t first, int64_t count, int64_t stride, Image& strip) {
  impl_->read_frames(first, count, stride, strip);
}

int64_t VideoFile::check_frames() {
  return impl_->check_frames();
}

std::vector<std::byte> encode_mp4(std::span<const Image> frames, const Mp4Options& options) {
  constexpr int64_t kMaxSide = 16384;  // of H.264's highest level, about
  check_clip("MP4", frames, {.max_side = kMaxSide, .fps = options.fps, .max_fps = 1000.0});
  KINORA_CHECK(options.quality >= 1 && options.quality <= 100, kShape,
               "[video] the quality must be in 1..100, got ", options.quality);
  std::vector<const uint8_t*> pixels;
  for (const Image& frame : frames) {
    pixels.push_back(frame.pixels.data());
  }
  const std::vector<FfmpegTag> tags = tags_of(options.texts);
  const FfmpegClip clip{.height = frames.front().height,
                        .width = frames.front().width,
                        .num_frames = static_cast<int64_t>(frames.size()),
                        .frames = pixels.data(),
                        .fps = options.fps,
                        .rate_factor = static_cast<double>(100 - options.quality) / 2.0,
                        .tags = tags.data(),
                        .num_tags = static_cast<int64_t>(tags.size())};
  std::vector<std::byte> file;
  const auto take = [](void* self, const uint8_t* bytes, int64_t count) {
    const std::span<const std::byte> all =
        std::as_bytes(std::span(bytes, static_cast<size_t>(count)));
    static_cast<std::vector<std::byte>*>(self)->assign(all.begin(), all.end());
  };
  FfmpegError error{};
  if (!ffmpeg().encode_mp4(&clip, &file, take, &error)) {
    throw_error(error.lacks_encoder ? ErrorKind::kConfig : ErrorKind::kIo, "[video] ", error.text,
                error.lacks_encoder ? ". Hint: write webp or gif, or install libx264" : "");
  }
  return file;
}

void write_mp4(const std::filesystem::path& path, std::span<const Image> frames,
               const Mp4Options& options) {
  write_file_atomic(path, encode_mp4(frames, options));
}

}  // namespace kinora::io
