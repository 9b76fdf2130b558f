#include "kinora/data/latent_cache.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <nlohmann/json.hpp>

#include "kinora/core/counted.h"
#include "kinora/core/error.h"
#include "kinora/data/float_values.h"
#include "kinora/io/file.h"
#include "kinora/io/image.h"

namespace kinora::data {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kManifestFile = "manifest.json";
constexpr const char* kFormat = "kinora latents";
constexpr int64_t kCacheVersion = 1;
constexpr int64_t kSizedVersion = 2;  // of several sizes
constexpr const char* kReferencesColumn = "num_references";
constexpr int64_t kMaxManifestBytes = int64_t{1} << 28;
constexpr int64_t kMostReferences = 16;  // data.references

std::vector<int64_t> parse_shape(const Json& json) {
  auto shape = json.get<std::vector<int64_t>>();
  constexpr int64_t kMaxDim = int64_t{1} << 20;
  KINORA_CHECK((shape.size() == 3 || shape.size() == 4) &&
                   std::ranges::all_of(shape, [](int64_t dim) { return dim > 0 && dim < kMaxDim; }),
               kIo, "shape must be [C, h, w] or [C, T, h, w], got ", shape_text(shape));
  return shape;
}

std::vector<CachePartEntry> parse_parts(const Json& json) {
  std::vector<CachePartEntry> parts;
  for (const Json& part : json) {
    parts.push_back({part.at("file").get<std::string>(), part.at("samples").get<int64_t>()});
    const CachePartEntry& entry = parts.back();
    KINORA_CHECK(entry.samples > 0 && std::filesystem::path(entry.file).filename() == entry.file,
                 kIo, "parts must be names of files with at least 1 sample, got ", part.dump());
  }
  return parts;
}

CacheManifest parse_manifest(const Json& json) {
  CacheManifest manifest;
  manifest.key = json.at("key").get<CacheKey>();
  LatentLayout& layout = manifest.layout;
  const auto dtype = parse_dtype(json.at("dtype").get<std::string>());
  KINORA_CHECK(dtype && is_float(*dtype), kIo, "dtype must be F32, F16 or BF16, got ",
               json.at("dtype").dump());
  layout.dtype = *dtype;
  layout.parts.std = json.at("std").get<bool>();
  layout.parts.mirrored = json.at("mirrored").get<bool>();
  layout.beside.control = json.value("control", false);
  layout.beside.before = json.value("before", false);
  layout.beside.mask = json.value("mask", false);
  layout.beside.references = json.value("references", int64_t{0});
  KINORA_CHECK(layout.beside.references >= 0 && layout.beside.references <= kMostReferences, kIo,
               "references must be from 0 to ", kMostReferences, ", got ",
               layout.beside.references);
  layout.frame_compression = json.at("frame_compression").get<int64_t>();
  manifest.class_names = json.at("class_names").get<std::vector<std::string>>();
  const auto layout_of = [&layout](const Json& size) {
    LatentLayout own = layout;
    own.shape = parse_shape(size.at("shape"));
    own.pixel_height = size.at("height").get<int64_t>();
    own.pixel_width = size.at("width").get<int64_t>();
    return own;
  };
  if (!json.contains("sizes")) {
    layout = layout_of(json);
    manifest.parts = parse_parts(json.at("parts"));
    manifest.is_video = layout.shape.size() == 4;
    return manifest;
  }
  manifest.is_video = json.at("is_video").get<bool>();
  for (const Json& size : json.at("sizes")) {
    manifest.sizes.push_back({.layout = layout_of(size),
                              .pixel_frames = size.at("frames").get<int64_t>(),
                              .parts = parse_parts(size.at("parts"))});
    const int64_t channels = manifest.sizes.back().layout.shape.front();
    KINORA_CHECK(channels == manifest.sizes.front().layout.shape.front(), kIo,
                 "latents of all sizes must have as many channels, got ",
                 manifest.sizes.front().layout.shape.front(), " and ", channels);
  }
  KINORA_CHECK(!manifest.sizes.empty(), kIo, "there must be at least one size");
  layout = manifest.sizes.front().layout;
  return manifest;
}

Json to_json(const std::vector<CachePartEntry>& parts) {
  Json json = Json::array();
  for (const CachePartEntry& part : parts) {
    json.push_back({{"file", part.file}, {"samples", part.samples}});
  }
  return json;
}

/// The columns of samples.safetensors that every cache has, and what they point to.
struct SampleColumns {
  SampleColumns(const std::vector<CachedSample>& samples, bool with_references) {
    for (const CachedSample& sample : samples) {
      if (with_references) {
        num_references.push_back(sample.num_references);
      }
      labels.push_back(sample.label);
      fps.push_back(sample.fps);
      names += sample.name;
      captions += sample.caption;
      name_ends.push_back(std::ssize(names));
      caption_ends.push_back(std::ssize(captions));
    }
  }
  [[nodiscard]] std::vector<io::SafetensorsTensor> tensors() const {
    const std::vector<int64_t> count = {std::ssize(labels)};
    std::vector<io::SafetensorsTensor> all = {
        {"labels", DType::kI64, count, std::as_bytes(std::span(labels))},
        {"name_ends", DType::kI64, count, std::as_bytes(std::span(name_ends))},
        {"caption_ends", DType::kI64, count, std::as_bytes(std::span(caption_ends))},
        {"fps", DType::kF32, count, std::as_bytes(std::span(fps))},
        {"names", DType::kU8, {std::ssize(names)}, std::as_bytes(std::span(names))},
        {"captions", DType::kU8, {std::ssize(captions)}, std::as_bytes(std::span(captions))}};
    if (!num_references.empty()) {
      all.insert(all.begin(),
                 {kReferencesColumn, DType::kI64, count, std::as_bytes(std::span(num_references))});
    }
    return all;
  }

  std::vector<int64_t> num_references;  // empty: not said
  std::vector<int64_t> labels;
  std::vector<int64_t> name_ends;
  std::vector<int64_t> caption_ends;
  std::vector<float> fps;
  std::string names;
  std::string captions;
};

/// A picture of `planes` [3, H, W], or of [1, H, W], which is each of its channels.
void set_picture(std::span<const std::byte> planes, int64_t height, int64_t width, io::Image& out) {
  io::set_size(out, height, width);
  const auto size = static_cast<size_t>(height * width);
  for (size_t channel = 0; channel < 3; ++channel) {
    const auto plane = planes.subspan(planes.size() > size ? channel * size : 0, size);
    for (size_t i = 0; i < size; ++i) {
      out.pixels[3 * i + channel] = std::to_integer<uint8_t>(plane[i]);
    }
  }
}

/// The values of the tensor that a file of a cache is for. kIo for other ones than the manifest
/// says.
std::span<const std::byte> rows_of(const io::SafetensorsFile& file, const char* name, DType dtype,
                                   int64_t count, const std::vector<int64_t>& row) {
  std::vector<int64_t> wanted = {count};
  wanted.insert(wanted.end(), row.begin(), row.end());
  const io::SafetensorsTensor* tensor = file.find(name);
  KINORA_CHECK(tensor != nullptr && tensor->dtype == dtype && tensor->shape == wanted, kIo,
               "[cache] ", file.path().string(), " must hold ", name, " ", to_string(dtype), " ",
               shape_text(wanted), " as the manifest says, got ",
               tensor == nullptr ? "none" : shape_text(tensor->shape));
  return tensor->data;
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

std::vector<int64_t> LatentLayout::moments_shape() const {
  std::vector<int64_t> stored = {num_parts()};
  stored.insert(stored.end(), shape.begin(), shape.end());
  return stored;
}

int64_t LatentLayout::picture_bytes() const {
  return shape.size() == 4 ? array_bytes() / shape[1] : array_bytes();
}

int64_t LatentLayout::num_beside() const {
  return ((beside.before ? 1 : 0) + (beside.mask ? 1 : 0) + beside.references) *
         (parts.mirrored ? 2 : 1);
}

std::vector<int64_t> LatentLayout::beside_shape() const {
  return {num_beside(), shape.front(), shape[shape.size() - 2], shape.back()};
}

std::string LatentLayout::beside_text() const {
  std::string text;
  for (const auto& [is_there, name] :
       {std::pair{beside.before, std::string("before")},
        {beside.mask, "masked"},
        {beside.references > 0, counted(beside.references, "reference")}}) {
    text += !is_there ? "" : text.empty() ? name : ", " + name;
  }
  return text;
}

std::string file_beside(const std::string& part, const std::string& tensor) {
  return std::filesystem::path(part).replace_extension(tensor + ".safetensors").string();
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
  const int64_t version = json.value("version", int64_t{0});
  KINORA_CHECK(version == kCacheVersion || version == kSizedVersion, kIo, "[cache] ", path.string(),
               " must be of version ", kCacheVersion, " or ", kSizedVersion, ", got ", version,
               ". Hint: make the cache anew by kinora data encode");
  try {
    return parse_manifest(json);
  } catch (const std::exception& error) {
    throw_error(ErrorKind::kIo, "[cache] ", path.string(), ": ", error.what());
  }
}

void write_manifest(const std::filesystem::path& cache, const CacheManifest& manifest) {
  const LatentLayout& layout = manifest.layout;
  const bool is_sized = !manifest.sizes.empty();
  Json json = {{"format", kFormat},
               {"version", is_sized ? kSizedVersion : kCacheVersion},
               {"folder", folder_of(manifest.key)},
               {"key", manifest.key},
               {"dtype", to_string(layout.dtype)},
               {"shape", layout.shape},
               {"std", layout.parts.std},
               {"mirrored", layout.parts.mirrored},
               {"height", layout.pixel_height},
               {"width", layout.pixel_width},
               {"frame_compression", layout.frame_compression},
               {"class_names", manifest.class_names}};
  if (layout.beside.control) {
    json["control"] = true;
  }
  if (layout.beside.before) {
    json["before"] = true;
  }
  if (layout.beside.mask) {
    json["mask"] = true;
  }
  if (layout.beside.references > 0) {
    json["references"] = layout.beside.references;
  }
  if (is_sized) {
    json["is_video"] = manifest.is_video;
    json["sizes"] = Json::array();
    for (const CacheSize& size : manifest.sizes) {
      json["sizes"].push_back({{"height", size.layout.pixel_height},
                               {"width", size.layout.pixel_width},
                               {"frames", size.pixel_frames},
                               {"shape", size.layout.shape},
                               {"parts", to_json(size.parts)}});
    }
  } else {
    json["parts"] = to_json(manifest.parts);
  }
  io::write_file_atomic(cache / kManifestFile,
                        json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

void write_samples(const std::filesystem::path& path, const std::vector<CachedSample>& samples,
                   bool with_references) {
  const SampleColumns columns(samples, with_references);
  std::vector<int64_t> heights;
  std::vector<int64_t> widths;
  for (const CachedSample& sample : samples) {
    heights.push_back(sample.pictured.height);
    widths.push_back(sample.pictured.width);
  }
  std::vector<io::SafetensorsTensor> tensors = columns.tensors();
  const auto count = std::ssize(samples);
  tensors.insert(tensors.begin(),
                 {{"heights", DType::kI64, {count}, std::as_bytes(std::span(heights))},
                  {"widths", DType::kI64, {count}, std::as_bytes(std::span(widths))}});
  io::write_safetensors(path, tensors);
}

void write_samples(const std::filesystem::path& path, const std::vector<CachedSample>& samples,
                   const std::vector<SizedSample>& sized, bool with_references) {
  const SampleColumns columns(samples, with_references);
  std::vector<int64_t> heights;
  std::vector<int64_t> widths;
  std::vector<int64_t> frames;
  std::vector<int64_t> ends;
  std::vector<int64_t> sizes;
  std::vector<int64_t> rows;
  for (const SizedSample& sample : sized) {
    heights.push_back(sample.facts.height);
    widths.push_back(sample.facts.width);
    frames.push_back(sample.facts.num_frames);
    for (const CachedLatent& latent : sample.latents) {
      sizes.push_back(latent.size);
      rows.push_back(latent.row);
    }
    ends.push_back(std::ssize(rows));
  }
  std::vector<io::SafetensorsTensor> tensors = columns.tensors();
  const auto add = [&tensors](const char* name, const std::vector<int64_t>& values) {
    tensors.insert(tensors.begin(),
                   io::SafetensorsTensor{
                       name, DType::kI64, {std::ssize(values)}, std::as_bytes(std::span(values))});
  };
  add("heights", heights);
  add("widths", widths);
  add("frames", frames);
  add("latent_ends", ends);
  add("latent_size", sizes);
  add("latent_row", rows);
  io::write_safetensors(path, tensors);
}

LatentCache::LatentCache(const std::filesystem::path& path, const PicturesBeside& beside)
    : beside_(beside) {
  std::optional<CacheManifest> manifest = read_manifest(path);
  KINORA_CHECK(manifest, kIo, "[cache] ", path.string(), " must hold a ", kManifestFile,
               ", got none. Hint: kinora data encode makes it, and goes on where it was stopped");
  manifest_ = std::move(*manifest);
  check_beside(path);
  const std::filesystem::path folder = path / folder_of(manifest_.key);
  samples_ = io::SafetensorsFile::open(folder / kCachedSamplesFile);
  if (has_several_sizes()) {
    open_sizes(folder);
  } else {
    rows_.push_back(open_rows(folder, manifest_.layout, manifest_.parts));
    size_ = rows_.front().count;
    if (samples_->find("heights") != nullptr) {  // else it was made before they were kept
      heights_ = column("heights", DType::kI64, size_);
      widths_ = column("widths", DType::kI64, size_);
    }
  }
  check_size(size_, path.string());
  labels_ = column("labels", DType::kI64, size_);
  fps_ = column("fps", DType::kF32, size_);
  names_ = strings("name");
  captions_ = strings("caption");
  check_labels();
  if (beside_.references > 0) {
    read_num_references();
  }
}

void LatentCache::check_beside(const std::filesystem::path& path) const {
  const PicturesBeside& stored = manifest_.layout.beside;
  KINORA_CHECK(!beside_.control || stored.control, kConfig, "[data] ", path.string(),
               " holds no control pictures (data.control). Hint: kinora data encode with "
               "data.control=true");
  KINORA_CHECK(!beside_.before || stored.before, kConfig, "[data] ", path.string(),
               " holds no latents of pictures before they were changed (data.before). Hint: kinora "
               "data encode with data.before=true");
  KINORA_CHECK(!beside_.mask || stored.mask, kConfig, "[data] ", path.string(),
               " holds no masks (data.mask). Hint: kinora data encode with data.mask=true");
  KINORA_CHECK(beside_.references == 0 || beside_.references == stored.references, kConfig,
               "[data] ", path.string(), " holds latents of ",
               stored.references == 0 ? "no" : "up to " + std::to_string(stored.references),
               " references a sample, and data.references is ", beside_.references,
               ". Hint: kinora data encode with data.references=", beside_.references);
}

void LatentCache::read_num_references() {
  num_references_ = column(kReferencesColumn, DType::kI64, size_);
  for (int64_t i = 0; i < size_; ++i) {
    const auto count = value_at<int64_t>(num_references_.data(), i);
    KINORA_CHECK(count >= 0 && count <= beside_.references, kIo, "[cache] ",
                 samples_->path().string(), ": ", kReferencesColumn, " must be from 0 to ",
                 beside_.references, ", got ", count, " at ", i);
  }
}

LatentCache::Rows LatentCache::open_rows(const std::filesystem::path& folder,
                                         const LatentLayout& layout,
                                         const std::vector<CachePartEntry>& parts) const {
  Rows rows;
  for (const CachePartEntry& entry : parts) {
    const auto open = [&](const std::string& file, const char* tensor, DType dtype,
                          const std::vector<int64_t>& row) {
      PartFile opened{.mapped = io::SafetensorsFile::open(folder / file), .rows = {}};
      opened.rows = rows_of(*opened.mapped, tensor, dtype, entry.samples, row);
      return opened;
    };
    const auto open_beside = [&](const char* tensor, DType dtype, const std::vector<int64_t>& row) {
      return open(file_beside(entry.file, tensor), tensor, dtype, row);
    };
    Part part{.first = rows.count,
              .moments = open(entry.file, "moments", layout.dtype, layout.moments_shape()),
              .beside = {},
              .masks = {},
              .control = {}};
    if (beside_.before || beside_.mask || beside_.references > 0) {
      part.beside = open_beside(kBesideTensor, layout.dtype, layout.beside_shape());
    }
    if (beside_.mask) {
      part.masks = open_beside(kMasksTensor, DType::kU8, layout.mask_shape());
    }
    if (beside_.control) {
      part.control = open_beside(kControlTensor, DType::kU8, layout.control_shape());
    }
    rows.parts.push_back(std::move(part));
    rows.count += entry.samples;
  }
  return rows;
}

void LatentCache::open_sizes(const std::filesystem::path& folder) {
  for (const CacheSize& size : manifest_.sizes) {
    rows_.push_back(open_rows(folder, size.layout, size.parts));
  }
  const auto length_of = [this](const char* name) {
    const io::SafetensorsTensor* tensor = samples_->find(name);
    return tensor == nullptr || tensor->shape.size() != 1 ? int64_t{0} : tensor->shape[0];
  };
  size_ = length_of("labels");
  heights_ = column("heights", DType::kI64, size_);
  widths_ = column("widths", DType::kI64, size_);
  frames_ = column("frames", DType::kI64, size_);
  latent_ends_ = column("latent_ends", DType::kI64, size_);
  const int64_t latents = length_of("latent_row");
  latent_size_ = column("latent_size", DType::kI64, latents);
  latent_row_ = column("latent_row", DType::kI64, latents);
  int64_t before = 0;
  for (int64_t i = 0; i < size_; ++i) {
    const auto end = value_at<int64_t>(latent_ends_.data(), i);
    KINORA_CHECK(end >= before && end <= latents, kIo, "[cache] ", samples_->path().string(),
                 ": latent_ends must rise to at most ", latents, ", got ", end, " at ", i);
    before = end;
  }
  for (int64_t i = 0; i < latents; ++i) {
    const auto size = value_at<int64_t>(latent_size_.data(), i);
    const auto row = value_at<int64_t>(latent_row_.data(), i);
    KINORA_CHECK(size >= 0 && size < std::ssize(rows_) && row >= -1 &&
                     row < rows_[static_cast<size_t>(size)].count,
                 kIo, "[cache] ", samples_->path().string(), ": latent ", i,
                 " must be one of a size's, got row ", row, " of size ", size);
  }
}

std::span<const std::byte> LatentCache::column(const char* name, DType dtype, int64_t count) const {
  const io::SafetensorsTensor* tensor = samples_->find(name);
  KINORA_CHECK(
      tensor != nullptr && tensor->dtype == dtype && tensor->shape == std::vector<int64_t>{count},
      kIo, "[cache] ", samples_->path().string(), " must hold ", name, " ", to_string(dtype), " [",
      count, "]");
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

std::optional<LatentShape> LatentCache::latent_shape_at(const PixelSize& size) const {
  const auto found = std::ranges::find(manifest_.sizes, size, &CacheSize::pixels);
  if (found == manifest_.sizes.end()) {
    return std::nullopt;
  }
  const std::vector<int64_t>& shape = found->layout.shape;
  return LatentShape{.frame = {.channels = shape.front(),
                               .height = shape[shape.size() - 2],
                               .width = shape.back(),
                               .pixel_height = size.height,
                               .pixel_width = size.width},
                     .frames = shape.size() == 4 ? shape[1] : 1};
}

std::optional<CachedLatent> LatentCache::find(int64_t index, const PixelSize& size) const {
  const int64_t end = value_at<int64_t>(latent_ends_.data(), index);
  for (int64_t i = index == 0 ? 0 : value_at<int64_t>(latent_ends_.data(), index - 1); i < end;
       ++i) {
    const CachedLatent latent{.size = value_at<int64_t>(latent_size_.data(), i),
                              .row = value_at<int64_t>(latent_row_.data(), i)};
    if (manifest_.sizes[static_cast<size_t>(latent.size)].pixels() == size) {
      return latent;
    }
  }
  return std::nullopt;
}

bool LatentCache::has_latent_at(int64_t index, const PixelSize& size) const {
  return has_several_sizes() && find(index, size).has_value();
}

SampleFacts LatentCache::facts(int64_t index) const {
  if (!has_several_sizes()) {
    return Source::facts(index);
  }
  const SampleFacts facts{.height = value_at<int64_t>(heights_.data(), index),
                          .width = value_at<int64_t>(widths_.data(), index),
                          .num_frames = value_at<int64_t>(frames_.data(), index),
                          .fps = value_at<float>(fps_.data(), index),
                          .caption_length = std::ssize(captions_.at(index))};
  KINORA_CHECK(facts.height > 0 && facts.width > 0 && facts.num_frames > 0, kIo, "[cache] ",
               sample_name(index), " could not be read when latents were encoded");
  return facts;
}

void LatentCache::read_row(const Rows& rows, const LatentLayout& layout, int64_t row,
                           int64_t num_references, Sample& out) const {
  const Part& part = *std::prev(std::ranges::upper_bound(rows.parts, row, {}, &Part::first));
  const auto row_of = [&](std::span<const std::byte> all, int64_t bytes) {
    return all.subspan(static_cast<size_t>((row - part.first) * bytes), static_cast<size_t>(bytes));
  };
  std::span<const std::byte> moments = row_of(part.moments.rows, layout.sample_bytes());
  std::span<const std::byte> beside;
  if (part.beside.mapped) {
    beside = row_of(part.beside.rows, layout.beside_bytes());
  }
  const auto next = [&layout](std::span<const std::byte>& rest, int64_t bytes) {
    const StoredValues values{layout.dtype, rest.first(static_cast<size_t>(bytes))};
    rest = rest.subspan(static_cast<size_t>(bytes));
    return values;
  };
  const auto next_latent = [&] {
    Latent latent;
    latent.mean = next(moments, layout.array_bytes());
    if (layout.parts.std) {
      latent.std = next(moments, layout.array_bytes());
    }
    if (!beside.empty()) {
      if (layout.beside.before) {
        latent.before = next(beside, layout.picture_bytes());
      }
      if (layout.beside.mask) {
        latent.masked = next(beside, layout.picture_bytes());
      }
      const int64_t bytes = layout.picture_bytes();
      latent.references = next(beside, layout.beside.references * bytes);
      latent.references.bytes =
          latent.references.bytes.first(static_cast<size_t>(num_references * bytes));
    }
    return latent;
  };
  out.latent = next_latent();
  if (layout.parts.mirrored) {
    out.mirrored = next_latent();
  }
  out.num_frames = layout.shape.size() == 4 ? layout.shape[1] : 1;
  if (part.masks.mapped) {
    set_picture(row_of(part.masks.rows, layout.mask_bytes()), layout.pixel_height,
                layout.pixel_width, out.mask);
  }
  if (part.control.mapped) {
    set_picture(row_of(part.control.rows, layout.control_bytes()), layout.pixel_height,
                layout.pixel_width, out.control);
  }
}

void LatentCache::read(int64_t index, Sample& out) const {
  out.fps = value_at<float>(fps_.data(), index);
  out.label = value_at<int64_t>(labels_.data(), index);
  out.caption.assign(captions_.at(index));
  out.pictured = {};
  if (!heights_.empty()) {
    out.pictured = {value_at<int64_t>(heights_.data(), index),
                    value_at<int64_t>(widths_.data(), index)};
  }
  const auto num_references =
      num_references_.empty() ? int64_t{0} : value_at<int64_t>(num_references_.data(), index);
  if (!has_several_sizes()) {
    read_row(rows_.front(), manifest_.layout, index, num_references, out);
    return;
  }
  out.latent = {};
  out.mirrored = {};
  out.num_frames = 1;
  out.is_chosen = true;  // the frames are those that were encoded
  const auto latent = find(index, {.height = out.crop.height,
                                   .width = out.crop.width,
                                   .frames = out.choice ? out.choice->count : 1});
  if (latent && latent->row >= 0) {
    const auto size = static_cast<size_t>(latent->size);
    read_row(rows_[size], manifest_.sizes[size].layout, latent->row, num_references, out);
  }
}

}  // namespace kinora::data
