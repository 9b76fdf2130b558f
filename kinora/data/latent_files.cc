#include "kinora/data/latent_files.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include <nlohmann/json.hpp>

#include "kinora/core/error.h"
#include "kinora/data/float_values.h"

namespace kinora::data {
namespace {

constexpr const char* kNamesKey = "class_names";
constexpr double kMaxFps = 1000.0;

const io::SafetensorsTensor& tensor_of(const io::SafetensorsFile& file, const char* name) {
  const io::SafetensorsTensor* tensor = file.find(name);
  std::string others;
  constexpr size_t kNumNamed = 4;
  for (size_t i = 0; tensor == nullptr && i < std::min(kNumNamed, file.tensors().size()); ++i) {
    others += (i == 0 ? "" : ", ") + io::in_quotes(file.tensors()[i].name);
  }
  KINORA_CHECK(tensor != nullptr, kIo, "[latents] ", file.path().string(),
               " must hold the tensors latents, [n, C, h, w] or [n, C, T, h, w], and labels [n]; "
               "there is no ",
               name, ", got ", file.tensors().size(), " tensors", others.empty() ? "" : ": ",
               others);
  return *tensor;
}

// The names in `text`. Nested lists are refused while they are read, so that a hostile file cannot
// make a tree of them.
std::vector<std::string> parse_names(const std::string& text, const std::string& file) {
  using Json = nlohmann::json;
  const auto refuse = [&file] {
    throw_error(ErrorKind::kIo, "[latents] ", file, ": the metadata ", kNamesKey,
                R"( must be a JSON list of strings, such as ["cat", "dog"])");
  };
  const auto visit = [&refuse](int depth, Json::parse_event_t event, const Json& /*value*/) {
    const bool opens =
        event == Json::parse_event_t::array_start || event == Json::parse_event_t::object_start;
    if (depth > 0 && opens) {
      refuse();
    }
    return true;
  };
  const Json list = Json::parse(text, visit, /*allow_exceptions=*/false);
  if (!list.is_array()) {
    refuse();
  }
  std::vector<std::string> names;
  for (const Json& name : list) {
    if (!name.is_string()) {
      refuse();
    }
    names.push_back(name.get<std::string>());
  }
  return names;
}

// The number that a file's metadata say; nothing if they do not.
std::optional<double> number_in(const io::SafetensorsFile& file, const char* key, double max) {
  const auto entry = file.metadata().find(key);
  if (entry == file.metadata().end()) {
    return std::nullopt;
  }
  const std::string& text = entry->second;
  double value = 0.0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  KINORA_CHECK(parsed.ec == std::errc() && parsed.ptr == text.data() + text.size() && value > 0.0 &&
                   value <= max,
               kIo, "[latents] ", file.path().string(), ": the metadata ", key,
               " must be a number above 0, at most ", max, ", got ", io::in_quotes(text));
  return value;
}

int64_t pixels_in(const io::SafetensorsFile& file, const char* key) {
  constexpr double kMaxPixels = 1 << 20;
  return static_cast<int64_t>(number_in(file, key, kMaxPixels).value_or(0.0));
}

const io::SafetensorsTensor& checked_latents(const io::SafetensorsFile& file) {
  const io::SafetensorsTensor& latents = tensor_of(file, "latents");
  const std::string name = file.path().string();
  KINORA_CHECK(is_float(latents.dtype), kIo, "[latents] ", name,
               ": latents must be of type F32, F16 or BF16, got ", to_string(latents.dtype));
  const size_t num_dims = latents.shape.size();
  const auto is_empty = [](int64_t size) { return size == 0; };
  KINORA_CHECK((num_dims == 4 || num_dims == 5) && std::ranges::none_of(latents.shape, is_empty),
               kIo, "[latents] ", name,
               ": latents must have shape [n, C, h, w], or of clips [n, C, T, h, w], all of them "
               "at least 1, got ",
               shape_text(latents.shape));
  return latents;
}

}  // namespace

LatentFiles::LatentFiles(const std::vector<std::filesystem::path>& paths,
                         const LatentFilesOptions& options) {
  KINORA_CHECK(!paths.empty(), kConfig,
               "[latents] data.path must name at least one .safetensors file, got none");
  for (const std::filesystem::path& path : paths) {
    add(path, options);
  }
  check_size(size_, paths.front().string() + (paths.size() > 1 ? " and others" : ""));
  const auto num_named = static_cast<int64_t>(names_.size());
  KINORA_CHECK(num_named == 0 || num_named > max_label_, kIo, "[latents] the metadata ", kNamesKey,
               " must name every class; the greatest label is ", max_label_, ", got ", num_named,
               " names");
  for (int64_t label = num_named; label <= max_label_; ++label) {
    names_.push_back(std::to_string(label));
  }
}

void LatentFiles::add(const std::filesystem::path& path, const LatentFilesOptions& options) {
  io::SafetensorsFile mapped = io::SafetensorsFile::open(path);
  const std::string name = path.string();
  const io::SafetensorsTensor& latents = checked_latents(mapped);
  const std::vector<int64_t>& dims = latents.shape;
  const bool is_video = dims.size() == 5;
  const int64_t num_frames = is_video ? dims[2] : 1;
  KINORA_CHECK(num_frames >= options.min_frames, kConfig, "[latents] ", name,
               ": latents must be of clips of at least ", options.min_frames,
               " frames for data.frames and data.frame_stride, got ", shape_text(dims));
  const SampleShape shape{.channels = dims[1],
                          .height = dims[dims.size() - 2],
                          .width = dims.back(),
                          .pixel_height = pixels_in(mapped, "height"),
                          .pixel_width = pixels_in(mapped, "width")};
  KINORA_CHECK((shape.pixel_height > 0) == (shape.pixel_width > 0), kIo, "[latents] ", name,
               ": the metadata must say height and width or neither, got one of them");
  KINORA_CHECK(
      files_.empty() || (shape == shape_ && is_video == is_video_), kConfig,
      "[latents] all files must hold latents of one size, of images or of clips; those of ",
      files_.empty() ? "" : files_.front().mapped.path().string(), " are ", shape_.text(),
      is_video_ ? " of clips" : " of images", ", got ", shape.text(),
      is_video ? " of clips" : " of images", " in ", name);
  const int64_t count = dims[0];
  std::span<const std::byte> label_bytes;
  if (options.needs_labels || mapped.find("labels") != nullptr) {
    label_bytes = checked_labels(mapped, count);
  }
  add_names(mapped);
  shape_ = shape;
  is_video_ = is_video;
  const auto fps = static_cast<float>(number_in(mapped, "fps", kMaxFps).value_or(options.fps));
  // The spans stay right when the mapping moves.
  const DType dtype = latents.dtype;
  const std::span<const std::byte> latent_bytes = latents.data;
  files_.push_back({.mapped = std::move(mapped),
                    .dtype = dtype,
                    .latents = latent_bytes,
                    .labels = label_bytes,
                    .first = size_,
                    .count = count,
                    .num_frames = num_frames,
                    .fps = fps});
  size_ += count;
}

std::span<const std::byte> LatentFiles::checked_labels(const io::SafetensorsFile& file,
                                                       int64_t count) {
  const io::SafetensorsTensor& labels = tensor_of(file, "labels");
  const std::string name = file.path().string();
  KINORA_CHECK(labels.dtype == DType::kI64, kIo, "[latents] ", name,
               ": labels must be of type I64, got ", to_string(labels.dtype));
  KINORA_CHECK(labels.shape == std::vector<int64_t>{count}, kIo, "[latents] ", name,
               ": labels must have shape [", count, "], one for each of the latents, got ",
               shape_text(labels.shape));
  for (int64_t i = 0; i < count; ++i) {
    const auto label = value_at<int64_t>(labels.data.data(), i);
    KINORA_CHECK(label >= 0 && label < kMaxClasses, kIo, "[latents] ", name,
                 ": labels must be class numbers from 0 to ", kMaxClasses - 1, ", got ", label,
                 " for latent ", i);
    max_label_ = std::max(max_label_, label);
  }
  return labels.data;
}

void LatentFiles::add_names(const io::SafetensorsFile& file) {
  const auto entry = file.metadata().find(kNamesKey);
  if (entry == file.metadata().end()) {
    return;
  }
  const std::vector<std::string> names = parse_names(entry->second, file.path().string());
  KINORA_CHECK(names_.empty() || names == names_, kIo, "[latents] ", file.path().string(),
               ": the metadata ", kNamesKey,
               " must be the same in all files that have it, got other names than before");
  names_ = names;
}

const LatentFiles::File& LatentFiles::file_of(int64_t index) const {
  const auto after = std::ranges::upper_bound(files_, index, {}, &File::first);
  return *std::prev(after);
}

std::string LatentFiles::sample_name(int64_t index) const {
  const File& file = file_of(index);
  return "latent " + std::to_string(index - file.first) + " of " + file.mapped.path().string();
}

void LatentFiles::read(int64_t index, Sample& out) const {
  const File& file = file_of(index);
  const int64_t local = index - file.first;
  const int64_t count = shape_.num_values() * file.num_frames;
  out.label = file.labels.empty() ? 0 : value_at<int64_t>(file.labels.data(), local);
  out.num_frames = file.num_frames;
  out.fps = file.fps;
  out.pictured = {shape_.pixel_height, shape_.pixel_width};
  const size_t bytes = static_cast<size_t>(count) * size_of(file.dtype);
  out.latent.mean = {file.dtype, file.latents.subspan(static_cast<size_t>(local) * bytes, bytes)};
}

}  // namespace kinora::data
