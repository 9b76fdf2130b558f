#include "kinora/data/latent_cache.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <nlohmann/json.hpp>

#include "kinora/core/error.h"
#include "kinora/data/float_values.h"
#include "kinora/io/file.h"

namespace kinora::data {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kManifestFile = "manifest.json";
constexpr const char* kFormat = "kinora latents";
constexpr int64_t kCacheVersion = 1;
constexpr int64_t kMaxManifestBytes = int64_t{1} << 28;

CacheManifest parse_manifest(const Json& json) {
  CacheManifest manifest;
  manifest.key = json.at("key").get<CacheKey>();
  LatentLayout& layout = manifest.layout;
  const auto dtype = parse_dtype(json.at("dtype").get<std::string>());
  KINORA_CHECK(dtype && is_float(*dtype), kIo, "dtype must be F32, F16 or BF16, got ",
               json.at("dtype").dump());
  layout.dtype = *dtype;
  layout.shape = json.at("shape").get<std::vector<int64_t>>();
  constexpr int64_t kMaxDim = int64_t{1} << 20;
  KINORA_CHECK(
      (layout.shape.size() == 3 || layout.shape.size() == 4) &&
          std::ranges::all_of(layout.shape, [](int64_t dim) { return dim > 0 && dim < kMaxDim; }),
      kIo, "shape must be [C, h, w] or [C, T, h, w], got ", shape_text(layout.shape));
  layout.parts.std = json.at("std").get<bool>();
  layout.parts.mirrored = json.at("mirrored").get<bool>();
  layout.pixel_height = json.at("height").get<int64_t>();
  layout.pixel_width = json.at("width").get<int64_t>();
  layout.frame_compression = json.at("frame_compression").get<int64_t>();
  manifest.class_names = json.at("class_names").get<std::vector<std::string>>();
  for (const Json& part : json.at("parts")) {
    manifest.parts.push_back(
        {part.at("file").get<std::string>(), part.at("samples").get<int64_t>()});
    const CachePartEntry& entry = manifest.parts.back();
    KINORA_CHECK(entry.samples > 0 && std::filesystem::path(entry.file).filename() == entry.file,
                 kIo, "parts must be names of files with at least 1 sample, got ", part.dump());
  }
  return manifest;
}

}  // namespace

std::string folder_of(const CacheKey& key) {
  const std::string text = Json(key).dump();
  return io::checksum(std::as_bytes(std::span(text)));
}

std::string difference(const CacheKey& before, const CacheKey& now) {
  std::string text;
  const auto add = [&text](const std::string& words) {
    text += (text.empty() ? "" : "; ") + words;
  };
  for (const auto& [name, value] : now) {
    const auto old = before.find(name);
    if (old == before.end()) {
      add(name + " is new");
    } else if (old->second != value) {
      add(name + " was " + old->second + " and is now " + value);
    }
  }
  for (const auto& [name, value] : before) {
    if (!now.contains(name)) {
      add(name + " is gone");
    }
  }
  return text;
}

int64_t LatentLayout::num_parts() const {
  return (parts.std ? 2 : 1) * (parts.mirrored ? 2 : 1);
}

int64_t LatentLayout::array_bytes() const {
  return std::accumulate(shape.begin(), shape.end(), static_cast<int64_t>(size_of(dtype)),
                         std::multiplies<>());
}

std::vector<int64_t> LatentLayout::stored_shape(int64_t count) const {
  std::vector<int64_t> stored = {count, num_parts()};
  stored.insert(stored.end(), shape.begin(), shape.end());
  return stored;
}

std::optional<CacheManifest> read_manifest(const std::filesystem::path& cache) {
  const std::filesystem::path path = cache / kManifestFile;
  if (!std::filesystem::exists(path)) {
    return std::nullopt;
  }
  const Json json = Json::parse(io::read_text(path, kMaxManifestBytes), nullptr,
                                /*allow_exceptions=*/false);
  KINORA_CHECK(json.is_object() && json.value("format", "") == kFormat, kIo, "[cache] ",
               path.string(),
               " must be the manifest of a cache of latents. Hint: kinora data "
               "encode makes one");
  KINORA_CHECK(json.value("version", int64_t{0}) == kCacheVersion, kIo, "[cache] ", path.string(),
               " must be of version ", kCacheVersion, ", got ", json.value("version", int64_t{0}),
               ". Hint: make the cache anew by kinora data encode");
  try {
    return parse_manifest(json);
  } catch (const std::exception& error) {
    throw_error(ErrorKind::kIo, "[cache] ", path.string(), ": ", error.what());
  }
}

void write_manifest(const std::filesystem::path& cache, const CacheManifest& manifest) {
  const LatentLayout& layout = manifest.layout;
  Json parts = Json::array();
  for (const CachePartEntry& part : manifest.parts) {
    parts.push_back({{"file", part.file}, {"samples", part.samples}});
  }
  const Json json = {{"format", kFormat},
                     {"version", kCacheVersion},
                     {"folder", folder_of(manifest.key)},
                     {"key", manifest.key},
                     {"dtype", to_string(layout.dtype)},
                     {"shape", layout.shape},
                     {"std", layout.parts.std},
                     {"mirrored", layout.parts.mirrored},
                     {"height", layout.pixel_height},
                     {"width", layout.pixel_width},
                     {"frame_compression", layout.frame_compression},
                     {"class_names", manifest.class_names},
                     {"parts", parts}};
  io::write_file_atomic(cache / kManifestFile,
                        json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

void write_samples(const std::filesystem::path& path, const std::vector<CachedSample>& samples) {
  std::vector<int64_t> labels;
  std::vector<int64_t> name_ends;
  std::vector<int64_t> caption_ends;
  std::vector<float> fps;
  std::string names;
  std::string captions;
  for (const CachedSample& sample : samples) {
    labels.push_back(sample.label);
    fps.push_back(sample.fps);
    names += sample.name;
    captions += sample.caption;
    name_ends.push_back(std::ssize(names));
    caption_ends.push_back(std::ssize(captions));
  }
  const std::vector<int64_t> count = {std::ssize(samples)};
  const std::vector<io::SafetensorsTensor> tensors = {
      {"labels", DType::kI64, count, std::as_bytes(std::span(labels))},
      {"name_ends", DType::kI64, count, std::as_bytes(std::span(name_ends))},
      {"caption_ends", DType::kI64, count, std::as_bytes(std::span(caption_ends))},
      {"fps", DType::kF32, count, std::as_bytes(std::span(fps))},
      {"names", DType::kU8, {std::ssize(names)}, std::as_bytes(std::span(names))},
      {"captions", DType::kU8, {std::ssize(captions)}, std::as_bytes(std::span(captions))}};
  io::write_safetensors(path, tensors);
}

LatentCache::LatentCache(const std::filesystem::path& path) {
  std::optional<CacheManifest> manifest = read_manifest(path);
  KINORA_CHECK(manifest, kIo, "[cache] ", path.string(), " must hold a ", kManifestFile,
               ", got none. Hint: kinora data encode makes it, and goes on where it was stopped");
  manifest_ = std::move(*manifest);
  const std::filesystem::path folder = path / folder_of(manifest_.key);
  for (const CachePartEntry& part : manifest_.parts) {
    add_part(folder / part.file, part.samples);
  }
  check_size(size_, path.string());
  samples_ = io::SafetensorsFile::open(folder / kCachedSamplesFile);
  labels_ = column("labels", DType::kI64);
  fps_ = column("fps", DType::kF32);
  names_ = strings("name");
  captions_ = strings("caption");
  check_labels();
}

void LatentCache::add_part(const std::filesystem::path& path, int64_t samples) {
  Part part{.mapped = io::SafetensorsFile::open(path), .moments = {}, .first = size_};
  const io::SafetensorsTensor* moments = part.mapped.find("moments");
  const std::vector<int64_t> wanted = manifest_.layout.stored_shape(samples);
  KINORA_CHECK(
      moments != nullptr && moments->dtype == manifest_.layout.dtype && moments->shape == wanted,
      kIo, "[cache] ", path.string(), " must hold moments ", to_string(manifest_.layout.dtype), " ",
      shape_text(wanted), " as the manifest says, got ",
      moments == nullptr ? "none" : shape_text(moments->shape));
  part.moments = moments->data;
  parts_.push_back(std::move(part));
  size_ += samples;
}

std::span<const std::byte> LatentCache::column(const char* name, DType dtype) const {
  const io::SafetensorsTensor* tensor = samples_->find(name);
  KINORA_CHECK(
      tensor != nullptr && tensor->dtype == dtype && tensor->shape == std::vector<int64_t>{size_},
      kIo, "[cache] ", samples_->path().string(), " must hold ", name, " ", to_string(dtype), " [",
      size_, "]");
  return tensor->data;
}

MappedStrings LatentCache::strings(const char* name) const {
  MappedStrings result(*samples_, name);
  KINORA_CHECK(result.size() == size_, kIo, "[cache] ", samples_->path().string(), " must have ",
               size_, " ", name, "s, got ", result.size());
  return result;
}

void LatentCache::check_labels() const {
  for (int64_t i = 0; i < size_; ++i) {
    const auto label = value_at<int64_t>(labels_.data(), i);
    KINORA_CHECK(label >= 0 && label < num_classes(), kIo, "[cache] ", samples_->path().string(),
                 ": labels must be from 0 to ", num_classes() - 1, ", got ", label, " at ", i);
  }
}

std::optional<SampleShape> LatentCache::latent_shape() const {
  const LatentLayout& layout = manifest_.layout;
  return SampleShape{.channels = layout.shape.front(),
                     .height = layout.shape[layout.shape.size() - 2],
                     .width = layout.shape.back(),
                     .pixel_height = layout.pixel_height,
                     .pixel_width = layout.pixel_width};
}

std::string LatentCache::sample_name(int64_t index) const {
  return std::string(names_.at(index));
}

void LatentCache::read(int64_t index, Sample& out) const {
  const LatentLayout& layout = manifest_.layout;
  const Part& part = *std::prev(std::ranges::upper_bound(parts_, index, {}, &Part::first));
  const auto array_bytes = static_cast<size_t>(layout.array_bytes());
  const auto sample_bytes = static_cast<size_t>(layout.sample_bytes());
  std::span<const std::byte> rest =
      part.moments.subspan(static_cast<size_t>(index - part.first) * sample_bytes, sample_bytes);
  const auto next = [&] {
    const StoredValues values{layout.dtype, rest.first(array_bytes)};
    rest = rest.subspan(array_bytes);
    return values;
  };
  const auto next_latent = [&] {
    Latent latent;
    latent.mean = next();
    if (layout.parts.std) {
      latent.std = next();
    }
    return latent;
  };
  out.latent = next_latent();
  if (layout.parts.mirrored) {
    out.mirrored = next_latent();
  }
  out.num_frames = is_video() ? layout.shape[1] : 1;
  out.fps = value_at<float>(fps_.data(), index);
  out.label = value_at<int64_t>(labels_.data(), index);
  out.caption.assign(captions_.at(index));
}

}  // namespace kinora::data
