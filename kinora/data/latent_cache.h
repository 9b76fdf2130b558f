#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kinora/core/dtype.h"
#include "kinora/data/mapped_strings.h"
#include "kinora/data/source.h"
#include "kinora/io/safetensors.h"

/// Latents that `kinora data encode` computed of a set, in a folder:
///
///     manifest.json              committed last: the key, what a latent is, the parts
///     KEY/part-00000.safetensors "moments" [n, P, C, h, w], of clips [n, P, C, T, h, w]
///     KEY/part-00000.beside.safetensors  of a set with pictures beside its samples (before,
///                                masks, references): "beside" [n, Q, C, h, w], the means of these
///     KEY/part-00000.masks.safetensors   of a set with masks: "masks" U8 [n, 1, H, W]
///     KEY/part-00000.control.safetensors of one with control pictures: "control" U8 [n, 3, H, W]
///     KEY/part-00000.jsonl       a line for each block of it: whose latents they are, checksums
///     KEY/samples.safetensors    of all samples: names, captions, labels, frames a second
///     texts.safetensors          of all captions, where a text encoder embedded them
///
/// For a recipe with data.buckets a cache has latents of several sizes, each with parts of its own.
/// It then numbers samples as the set does, those too that could not be encoded, so that a run on
/// it draws what a run on the set would. samples.safetensors says of which size and where each
/// one's latents are, and how large the pictures were.
///
/// KEY is a checksum of the key. A cache with another key is made beside the old one, which stays
/// valid until the new manifest takes its place. Of a sample the P arrays lie side by side, and so
/// do the Q: the picture before, what the mask leaves of the sample's own, the references with
/// zeros for those that the sample lacks, and all of these of mirrored pictures.
namespace kinora::data {

/// What latents were made of and how, in words: caches of equal keys hold equal latents.
using CacheKey = std::map<std::string, std::string>;

/// The folder of a key: 16 hexadecimal digits.
[[nodiscard]] std::string folder_of(const CacheKey& key);

/// "dtype was BF16 and is now F32; ..."; empty for equal keys.
[[nodiscard]] std::string difference(const CacheKey& before, const CacheKey& now);

/// How latents are stored.
struct LatentLayout {
  DType dtype = DType::kBF16;
  std::vector<int64_t> shape;  ///< [C, h, w], of clips [C, T, h, w]
  LatentParts parts;           ///< P counts the mean, its deviation, and both of mirrored pictures
  PicturesBeside beside;       ///< Q counts these but `control`, and all of mirrored ones
  int64_t pixel_height = 0;
  int64_t pixel_width = 0;
  /// Frames of a clip that make one of [C, T, h, w]; above 1 the first frame differs from the
  /// others.
  int64_t frame_compression = 1;

  [[nodiscard]] int64_t num_parts() const;
  /// Of one of the P arrays, and of a sample.
  [[nodiscard]] int64_t array_bytes() const;
  [[nodiscard]] int64_t sample_bytes() const { return num_parts() * array_bytes(); }
  /// Of a sample: [P, C, h, w] or [P, C, T, h, w].
  [[nodiscard]] std::vector<int64_t> moments_shape() const;

  [[nodiscard]] bool has_beside() const { return num_beside() > 0; }
  /// Of one of the Q arrays, and of those of a sample.
  [[nodiscard]] int64_t picture_bytes() const;
  [[nodiscard]] int64_t beside_bytes() const { return num_beside() * picture_bytes(); }
  /// Of a sample: [Q, C, h, w].
  [[nodiscard]] std::vector<int64_t> beside_shape() const;
  [[nodiscard]] int64_t num_beside() const;
  [[nodiscard]] std::string beside_text() const;  ///< "before, masked, 2 references"
  /// Of a sample's mask: [1, H, W].
  [[nodiscard]] std::vector<int64_t> mask_shape() const { return {1, pixel_height, pixel_width}; }
  [[nodiscard]] int64_t mask_bytes() const { return beside.mask ? pixel_height * pixel_width : 0; }
  /// Of a sample's control picture: [3, H, W].
  [[nodiscard]] std::vector<int64_t> control_shape() const {
    return {3, pixel_height, pixel_width};
  }
  [[nodiscard]] int64_t control_bytes() const {
    return beside.control ? 3 * pixel_height * pixel_width : 0;
  }
};

/// A file of latents.
struct CachePartEntry {
  std::string file;
  int64_t samples = 0;
};

/// The latents of one size.
struct CacheSize {
  LatentLayout layout;
  int64_t pixel_frames = 1;
  std::vector<CachePartEntry> parts;

  [[nodiscard]] PixelSize pixels() const {
    return {.height = layout.pixel_height, .width = layout.pixel_width, .frames = pixel_frames};
  }
};

struct CacheManifest {
  CacheKey key;
  LatentLayout layout;  ///< with several sizes: that of data.height, width and frames
  std::vector<std::string> class_names;
  std::vector<CachePartEntry> parts;  ///< of the only size
  std::vector<CacheSize> sizes;       ///< where there are several, the first with `layout`
  bool is_video = false;              ///< the set is one of clips, though latents may be of images
};

/// The manifest of a folder; none if it has none. kIo where it cannot be read or understood.
[[nodiscard]] std::optional<CacheManifest> read_manifest(const std::filesystem::path& cache);
/// Atomically. kIo.
void write_manifest(const std::filesystem::path& cache, const CacheManifest& manifest);

/// What a cache knows of a sample beside its latent.
struct CachedSample {
  std::string name;
  std::string caption;
  int64_t label = 0;
  float fps = 0.0F;
  int64_t number = -1;       ///< in the set; -1: not known
  io::ImageSize pictured{};  ///< Sample::pictured
  int64_t num_references = 0;
};

/// Where a latent of a sample is, in a cache of several sizes.
struct CachedLatent {
  int64_t size = 0;  ///< number of CacheManifest::sizes
  int64_t row = -1;  ///< among that size's; -1: could not be encoded
};

/// What a cache of several sizes knows of a sample beside that.
struct SizedSample {
  SampleFacts facts;  ///< height 0: its header could not be read
  std::vector<CachedLatent> latents;
};

/// In a cache's folder: the embeddings of the samples' captions (data/text_file.h), keyed by them.
inline constexpr const char* kCachedTextsFile = "texts.safetensors";

/// The files beside "part-00000.safetensors", "part-00000.beside.safetensors" and so on, and the
/// names of their tensors.
inline constexpr const char* kBesideTensor = "beside";
inline constexpr const char* kMasksTensor = "masks";
inline constexpr const char* kControlTensor = "control";
[[nodiscard]] std::string file_beside(const std::string& part, const std::string& tensor);

/// The file of them.
inline constexpr const char* kCachedSamplesFile = "samples.safetensors";
/// with_references: says how many references each has. kIo.
void write_samples(const std::filesystem::path& path, const std::vector<CachedSample>& samples,
                   bool with_references = false);
/// Of a cache of several sizes. kIo.
void write_samples(const std::filesystem::path& path, const std::vector<CachedSample>& samples,
                   const std::vector<SizedSample>& sized, bool with_references = false);

/// A cache as samples to train on. Its files stay mapped.
class LatentCache : public Source {
 public:
  /// beside: which pictures beside its samples it gives; what else it has of them is not read. kIo
  /// for what is missing or damaged in its form; the blocks' checksums are compared by `kinora data
  /// encode`. kConfig where it has no such pictures, or of other numbers.
  explicit LatentCache(const std::filesystem::path& path, const PicturesBeside& beside = {});

  [[nodiscard]] const CacheManifest& manifest() const { return manifest_; }

  [[nodiscard]] int64_t size() const override { return size_; }
  [[nodiscard]] const std::vector<std::string>& class_names() const override {
    return manifest_.class_names;
  }
  [[nodiscard]] std::optional<SampleShape> latent_shape() const override;
  [[nodiscard]] LatentParts latent_parts() const override { return manifest_.layout.parts; }
  [[nodiscard]] bool is_video() const override { return manifest_.is_video; }
  [[nodiscard]] PicturesBeside beside() const override { return beside_; }
  [[nodiscard]] bool has_several_sizes() const { return !manifest_.sizes.empty(); }
  [[nodiscard]] std::optional<LatentShape> latent_shape_at(const PixelSize& size) const override;
  [[nodiscard]] bool has_latent_at(int64_t index, const PixelSize& size) const override;
  /// Of a cache of several sizes: those of the pictures. kIo for one whose header was not readable.
  [[nodiscard]] SampleFacts facts(int64_t index) const override;
  [[nodiscard]] std::string sample_name(int64_t index) const override;
  void read(int64_t index, Sample& out) const override;

 private:
  /// A file of a part and the rows that it is for; none where they are not given.
  struct PartFile {
    std::optional<io::SafetensorsFile> mapped;
    std::span<const std::byte> rows;
  };
  struct Part {
    int64_t first;  // row of its first latent
    PartFile moments;
    PartFile beside;
    PartFile masks;
    PartFile control;
  };
  /// The latents of a size, or of all samples.
  struct Rows {
    std::vector<Part> parts;
    int64_t count = 0;
  };
  [[nodiscard]] Rows open_rows(const std::filesystem::path& folder, const LatentLayout& layout,
                               const std::vector<CachePartEntry>& parts) const;
  void open_sizes(const std::filesystem::path& folder);
  [[nodiscard]] std::span<const std::byte> column(const char* name, DType dtype,
                                                  int64_t count) const;
  [[nodiscard]] MappedStrings strings(const char* name) const;
  void check_beside(const std::filesystem::path& path) const;
  void check_labels() const;
  void read_num_references();
  /// Where the sample's latents of that size are; nothing if it was not encoded so.
  [[nodiscard]] std::optional<CachedLatent> find(int64_t index, const PixelSize& size) const;
  /// What lies in that row, of a sample with so many references.
  void read_row(const Rows& rows, const LatentLayout& layout, int64_t row, int64_t num_references,
                Sample& out) const;

  CacheManifest manifest_;
  PicturesBeside beside_;
  std::vector<Rows> rows_;  // of each size
  int64_t size_ = 0;
  // Of several sizes: of each sample where its latents end in the list of them, and how large it
  // was.
  std::span<const std::byte> latent_ends_;
  std::span<const std::byte> latent_size_;
  std::span<const std::byte> latent_row_;
  // Also of one size, but not in caches of before they were kept:
  std::span<const std::byte> heights_;
  std::span<const std::byte> widths_;
  std::span<const std::byte> frames_;
  std::optional<io::SafetensorsFile> samples_;
  std::span<const std::byte> labels_;
  std::span<const std::byte> fps_;
  std::span<const std::byte> num_references_;  // empty: none are given
  MappedStrings names_;
  MappedStrings captions_;
};

}  // namespace kinora::data
