#include "kinora/data/media_source.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/data/causes.h"
#include "kinora/data/class_names.h"
#include "kinora/data/file_stamp.h"
#include "kinora/data/video_clip.h"
#include "kinora/io/file.h"
#include "kinora/io/image.h"

namespace kinora::data {
namespace {

namespace fs = std::filesystem;

// Far above any photo and any caption; keeps a wrong file from filling the memory.
constexpr int64_t kMaxFileBytes = int64_t{1} << 30;
constexpr int64_t kMaxCaptionBytes = int64_t{1} << 20;

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// kIo for colours.
void check_grey(const io::Image& mask, const std::string& path) {
  for (size_t i = 0; i < mask.pixels.size(); i += 3) {
    KINORA_CHECK(mask.pixels[i] == mask.pixels[i + 1] && mask.pixels[i] == mask.pixels[i + 2], kIo,
                 "[data] mask ", path, " must be grey, white where a place counts, got colours");
  }
}

std::string_view file_name_of(const MediaSet& set, const MediaItem& item) {
  const std::string_view path =
      set.archives.empty() ? item.path : set.archives[item.place].entries()[item.entry].name;
  return path.substr(path.rfind('/') + 1);
}

}  // namespace

MediaSource::MediaSource(MediaSet set, const MediaOptions& options)
    : set_(std::move(set)), options_(options) {
  for (MediaItem& item : set_.items) {
    // Among pictures a GIF is one.
    item.is_video =
        item.is_video && (options_.is_video || !is_image_name(file_name_of(set_, item)));
  }
  for (const fs::path& root : set_.roots) {
    roots_.push_back(fs::canonical(root));
  }
  for (const io::TarFile& archive : set_.archives) {
    stamps_.push_back(file_stamp(archive.path()));
  }
  KINORA_CHECK(
      size() >= 2, kConfig, "[data] a set must hold at least 2 pictures or clips, got ", size(),
      " in ", list_names(set_.origins, 3),
      set_.passed_over.empty() ? "" : "; passed over:", lines_of(group_by_cause(set_.passed_over)),
      "\nHint: to fit a single picture on purpose, put a copy of it beside it.");
  KINORA_CHECK(options_.beside.references == 0 ||
                   std::ranges::any_of(
                       set_.items, [](const MediaItem& item) { return !item.references.empty(); }),
               kConfig, "[data] no sample in ", list_names(set_.origins, 3),
               " has a reference (data.references). Hint: NAME.reference.png beside NAME.jpg or "
               "NAME.mp4, or a column reference of a manifest");
}

std::string MediaSource::sample_name(int64_t index) const {
  return item_name(set_, item(index));
}

void MediaSource::check_place(const MediaItem& item, const std::string& path) const {
  if (roots_.empty()) {
    return;
  }
  std::error_code error;
  const fs::path real = fs::canonical(path, error);  // an error is one of reading, then
  const fs::path& root = roots_[item.place];
  KINORA_CHECK(error || real.native().starts_with(root.native() + "/"), kIo, "[data] ", path,
               " must lie in ", root.string(), ", got a link to ", real.string(),
               ". Hint: set data.allow_outside to true");
}

std::string MediaSource::caption(const MediaItem& item) const {
  if (item.caption_form == CaptionForm::kNone) {
    return "";
  }
  if (item.caption_form == CaptionForm::kInline) {
    return item.caption;
  }
  std::string name = item.caption;
  std::string text;
  if (set_.archives.empty()) {
    text = io::read_text(item.caption, kMaxCaptionBytes);
  } else {
    const io::TarFile& archive = set_.archives[item.place];
    const io::TarEntry& entry = archive.entries()[item.caption_entry];
    name = archive.path().string() + ":" + io::in_quotes(entry.name);
    KINORA_CHECK(entry.size <= kMaxCaptionBytes, kIo, "[data] ", name,
                 " must be a caption of at most ", kMaxCaptionBytes, " bytes, got ", entry.size);
    text = as_text(archive.bytes(entry));
  }
  if (item.caption_form == CaptionForm::kJsonFile) {
    text = json_caption(text, name);
  }
  return std::string(trim(text));
}

io::VideoFile MediaSource::open_video(const MediaItem& item) const {
  if (set_.archives.empty()) {
    check_place(item, item.path);
    return io::VideoFile::open(fs::path(item.path));
  }
  const io::TarFile& archive = set_.archives[item.place];
  return io::VideoFile::open(archive.bytes(archive.entries()[item.entry]), item_name(set_, item));
}

double MediaSource::default_fps(const MediaItem& item) const {
  return item.fps > 0.0F ? item.fps : options_.default_fps;
}

void MediaSource::read_beside(const MediaItem& item, const io::ImageSize& size, Sample& out) const {
  const auto read = [&](const std::string& path, const char* kind, io::Image& picture) {
    io::decode_image_into(io::read_file(path, kMaxFileBytes), path, picture);
    KINORA_CHECK(picture.height == size.height && picture.width == size.width, kIo, "[data] ", kind,
                 " ", path, " must have the size of its picture, ", size.width, " x ", size.height,
                 ", got ", picture.width, " x ", picture.height);
  };
  if (options_.beside.control) {
    read(item.control, "control picture", out.control);
  }
  if (options_.beside.before) {
    read(item.before, "the picture before", out.before);
  }
  if (options_.beside.mask) {
    read(item.mask, "mask", out.mask);
    check_grey(out.mask, item.mask);
  }
}

void MediaSource::read_references(const MediaItem& item, Sample& out) const {
  out.references.resize(item.references.size());
  for (size_t i = 0; i < item.references.size(); ++i) {
    const std::string& path = item.references[i];
    check_place(item, path);
    io::decode_image_into(io::read_file(path, kMaxFileBytes), path, out.references[i]);
  }
}

void MediaSource::read(int64_t index, Sample& out) const {
  const MediaItem& from = item(index);
  const std::string name = sample_name(index);
  out.caption = caption(from);
  out.label = from.label;
  read_references(from, out);
  if (from.is_video) {
    io::VideoFile file = open_video(from);
    read_clip(file, name, default_fps(from), out);
    return;
  }
  out.num_frames = 1;
  out.fps = 0.0F;
  if (set_.archives.empty()) {
    check_place(from, from.path);
    const std::vector<std::byte> bytes = io::read_file(from.path, kMaxFileBytes);
    io::decode_image_into(bytes, name, out.image, out.crop);
    if (options_.beside.any_of_its_size()) {
      read_beside(from, io::image_size(bytes, name), out);
    }
  } else {
    const io::TarFile& archive = set_.archives[from.place];
    io::decode_image_into(archive.bytes(archive.entries()[from.entry]), name, out.image, out.crop);
  }
}

SampleFacts MediaSource::facts(int64_t index) const {
  const MediaItem& from = item(index);
  const std::string name = sample_name(index);
  if (from.is_video) {
    SampleFacts facts = clip_facts(open_video(from), default_fps(from));
    facts.num_frames = facts.num_frames > 0 ? facts.num_frames : from.num_frames;
    facts.caption_length = std::ssize(caption(from));
    return facts;
  }
  io::ImageSize size;
  if (set_.archives.empty()) {
    check_place(from, from.path);
    size = io::image_size(io::MappedFile(from.path).bytes(), name);
  } else {
    const io::TarFile& archive = set_.archives[from.place];
    size = io::image_size(archive.bytes(archive.entries()[from.entry]), name);
  }
  return {.height = size.height, .width = size.width, .caption_length = std::ssize(caption(from))};
}

SampleFacts MediaSource::check(int64_t index, Sample& scratch) const {
  const MediaItem& from = item(index);
  if (!from.is_video) {
    return Source::check(index, scratch);
  }
  scratch.caption = caption(from);
  scratch.label = from.label;
  read_references(from, scratch);
  io::VideoFile file = open_video(from);
  SampleFacts facts = check_clip(file, default_fps(from));
  facts.caption_length = std::ssize(scratch.caption);
  return facts;
}

uint64_t MediaSource::stamp(int64_t index) const {
  const MediaItem& from = item(index);
  if (!set_.archives.empty()) {
    return mix_stamps({stamps_[from.place], from.entry, from.caption_entry});
  }
  uint64_t file = file_stamp(from.path);
  for (const auto& [reads, path] : {std::pair{options_.beside.control, from.control},
                                    std::pair{options_.beside.before, from.before},
                                    std::pair{options_.beside.mask, from.mask}}) {
    file = reads ? mix_stamps({file, file_stamp(path)}) : file;
  }
  for (const std::string& path : from.references) {
    file = mix_stamps({file, file_stamp(path)});
  }
  switch (from.caption_form) {
    case CaptionForm::kNone:
      return file;
    case CaptionForm::kInline:
      return mix_stamps({file, io::checksum_value(std::as_bytes(std::span(from.caption)))});
    case CaptionForm::kTextFile:
    case CaptionForm::kJsonFile:
      return mix_stamps({file, file_stamp(from.caption)});
  }
  KINORA_UNREACHABLE("[data] unknown form of caption");
}

}  // namespace kinora::data
