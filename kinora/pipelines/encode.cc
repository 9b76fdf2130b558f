#include "kinora/pipelines/encode.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <future>
#include <optional>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/rounding.h"
#include "kinora/core/seconds.h"
#include "kinora/core/text.h"
#include "kinora/data/bucket.h"
#include "kinora/data/cache_part.h"
#include "kinora/data/epoch_order.h"
#include "kinora/data/header_scan.h"
#include "kinora/data/loader.h"
#include "kinora/data/normalise.h"
#include "kinora/data/ordered_reader.h"
#include "kinora/io/file.h"
#include "kinora/io/file_lock.h"

namespace kinora::pipelines {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Large enough that there are few files, small enough that many ranks share them evenly.
constexpr int64_t kPartBytes = int64_t{256} << 20;
constexpr int64_t kMinParts = 16;
constexpr int64_t kBlockBytes = int64_t{16} << 20;

at::ScalarType tensor_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return at::kFloat;
    case DType::kF16:
      return at::kHalf;
    case DType::kBF16:
      return at::kBFloat16;
    default:
      throw_error(ErrorKind::kConfig, "[encode] latents must be stored as F32, F16 or BF16, got ",
                  to_string(dtype));
  }
}

template <typename Values>
std::string joined(const Values& values) {
  std::ostringstream text;
  text.precision(17);
  for (const auto& value : values) {
    text << (text.tellp() > 0 ? " " : "") << value;
  }
  return text.str();
}

/// Keys of the data that change nothing in the latents of a sample.
bool is_about_training(const std::string& name) {
  // Those that choose samples show in the samples' names.
  static const std::set<std::string> kNames = {"allow_outside", "flip",  "index",   "max_bad",
                                               "quarantine",    "queue", "threads", "validation"};
  return kNames.contains(name) || name.starts_with("text");
}

/// The samples that are encoded at one size, and their parts.
struct Section {
  data::CacheSize size;          // its parts are found when all is there
  std::vector<int64_t> indices;  // of the samples; empty: all of them
  int64_t samples = 0;
  int64_t first_part = 0;  // number of it, over all sections
  int64_t num_parts = 0;
};

/// Which samples are encoded at which sizes.
std::string sizes_text(const std::vector<Section>& sections) {
  io::Checksum checksum;
  for (const Section& section : sections) {
    const data::PixelSize pixels = section.size.pixels();
    const std::array<int64_t, 4> head = {pixels.height, pixels.width, pixels.frames,
                                         section.samples};
    checksum.update(std::as_bytes(std::span(head)));
    checksum.update(std::as_bytes(std::span(section.indices)));
  }
  return std::to_string(sections.size()) + " of data.buckets, with checksum " + checksum.hex();
}

data::CacheKey key_of(const data::Source& source, const LatentEncoder& encoder,
                      const EncodeOptions& options, const std::vector<Section>& sections) {
  const data::LatentLayout& layout = sections.front().size.layout;
  data::CacheKey key;
  for (const auto& [name, value] : flatten_config(options.data)) {
    const std::string own = name.substr(name.find('.') + 1);
    const bool chooses_sizes = own.starts_with("bucket") && !options.data.buckets.empty();
    if (!is_about_training(own) && !chooses_sizes && (own != "seed" || options.data.path.empty())) {
      key[name] = value;
    }
  }
  io::Checksum files;
  for (int64_t i = 0; i < source.size(); ++i) {
    const std::string file = source.sample_name(i) + "\n" + std::to_string(source.stamp(i)) + "\n";
    files.update(std::as_bytes(std::span(file)));
  }
  key["samples"] =
      std::to_string(source.size()) + ", names and times of change with checksum " + files.hex();
  key["autoencoder"] = options.autoencoder;
  key["scale"] = joined(encoder.space().scale);
  key["shift"] = joined(encoder.space().shift);
  key["crop"] = "from the centre, as ADM; of clips the middle frames";
  key["dtype"] = to_string(layout.dtype);
  key["latent"] = joined(layout.shape);
  if (!options.data.buckets.empty()) {
    key["sizes"] = sizes_text(sections);
  }
  key["parts"] = std::string(layout.parts.std ? "mean and deviation" : "mean") +
                 (layout.parts.mirrored ? ", also of mirrored pictures" : "");
  if (layout.has_beside()) {
    key["beside"] = "means of " + layout.beside_text();
  }
  if (layout.beside.control) {  // data.control was in the keys of caches that held none
    key["control"] = "pixels";
  }
  return key;
}

/// Computes the latents of samples that were read.
class Encoding {
 public:
  Encoding(const LatentEncoder& encoder, DType dtype)
      : encoder_(encoder), type_(tensor_type(dtype)) {}

  /// Puts them into `block` of a part of that layout, which they continue.
  void append(data::OrderedSamples&& samples, const data::LatentLayout& layout,
              data::CacheBlock& block) const {
    std::ranges::move(samples.left_out, std::back_inserter(block.left_out));
    block.end = samples.end;
    if (samples.samples.empty()) {
      return;
    }
    const at::Tensor moments = as_stored(moments_of(samples.batch, layout), layout.moments_shape());
    at::Tensor finite = at::isfinite(moments).flatten(1).all(1);
    at::Tensor beside;
    if (layout.has_beside()) {
      beside = as_stored(pictures_beside(samples.batch, layout), layout.beside_shape());
      finite = finite.logical_and(at::isfinite(beside).flatten(1).all(1));
    }
    for (int64_t i = 0; i < std::ssize(samples.samples); ++i) {
      data::CachedSample& sample = samples.samples[static_cast<size_t>(i)];
      if (finite.const_data_ptr<bool>()[i]) {
        append_row(moments, i, block.moments);
        if (beside.defined()) {
          append_row(beside, i, block.beside);
        }
        if (layout.beside.mask) {
          append_row(samples.batch.mask, i, block.masks);
        }
        if (layout.beside.control) {
          append_row(samples.batch.control, i, block.control);
        }
        block.samples.push_back(std::move(sample));
      } else {
        log_warn("[encode] left out ", sample.name, ": its latent is not finite as ",
                 to_string(layout.dtype));
        block.left_out.push_back({std::move(sample.name), "its latent is not finite"});
      }
    }
  }

 private:
  /// [n, P, C, h, w] or [n, P, C, T, h, w].
  [[nodiscard]] at::Tensor moments_of(const data::Batch& batch,
                                      const data::LatentLayout& layout) const {
    std::vector<at::Tensor> arrays;
    for (const bool mirrored : both_ways(layout)) {
      const models::LatentMoments moments = encoder_.encode(batch.images, mirrored);
      arrays.push_back(moments.mean);
      if (layout.parts.std) {
        arrays.push_back(moments.std);
      }
    }
    return at::stack(arrays, 1);
  }

  /// [n, Q, C, h, w].
  [[nodiscard]] at::Tensor pictures_beside(const data::Batch& batch,
                                           const data::LatentLayout& layout) const {
    std::vector<at::Tensor> arrays;
    for (const bool mirrored : both_ways(layout)) {
      if (layout.beside.before) {
        arrays.push_back(encoder_.encode(batch.before, mirrored).mean.unsqueeze(1));
      }
      if (layout.beside.mask) {
        const at::Tensor masks = data::to_mask(batch.mask, encoder_.device());
        const at::Tensor left = data::to_float(batch.images, encoder_.device()) * (1.0 - masks);
        arrays.push_back(encoder_.encode(left, mirrored).mean.unsqueeze(1));
      }
      if (layout.beside.references > 0) {
        arrays.push_back(references_of(batch, mirrored, layout.beside_shape()));
      }
    }
    return at::cat(arrays, 1);
  }

  /// [n, N, C, h, w], zeros behind those that a sample has. picture: [..., C, h, w].
  [[nodiscard]] at::Tensor references_of(const data::Batch& batch, bool mirrored,
                                         std::vector<int64_t> picture) const {
    const at::Tensor pictures = batch.references.transpose(1, 2).flatten(0, 1);  // [n N, 3, H, W]
    const int64_t most = batch.references.size(2);
    const at::Tensor places =
        at::nonzero((at::arange(most) < batch.num_references.unsqueeze(1)).flatten()).squeeze(1);
    picture.front() = pictures.size(0);
    const at::Tensor latents = at::zeros(picture, at::device(encoder_.device()).dtype(at::kFloat));
    if (places.numel() > 0) {
      latents.index_copy_(0, places.to(encoder_.device()),
                          encoder_.encode(pictures.index_select(0, places), mirrored).mean);
    }
    return latents.unflatten(0, {-1, most});
  }

  /// Whether pictures are mirrored, for each way in which they are encoded.
  static std::vector<bool> both_ways(const data::LatentLayout& layout) {
    return layout.parts.mirrored ? std::vector<bool>{false, true} : std::vector<bool>{false};
  }

  [[nodiscard]] at::Tensor as_stored(const at::Tensor& latents,
                                     const std::vector<int64_t>& row) const {
    KINORA_CHECK(latents.sizes().slice(1) == row, kInternal, "[encode] latents of ",
                 latents.sizes(), " do not fit the cache's rows of ", at::IntArrayRef(row));
    return latents.to(type_).to(at::kCPU).contiguous();
  }

  static void append_row(const at::Tensor& rows, int64_t i, std::vector<std::byte>& to) {
    const auto size = static_cast<int64_t>(rows.nbytes()) / rows.size(0);
    const auto* const row = static_cast<const std::byte*>(rows.const_data_ptr()) + i * size;
    to.insert(to.end(), row, row + size);
  }

  const LatentEncoder& encoder_;
  at::ScalarType type_;
};

/// Bytes of a sample in the cache.
int64_t bytes_of_sample(const data::LatentLayout& layout) {
  return layout.sample_bytes() + layout.beside_bytes() + layout.mask_bytes() +
         layout.control_bytes();
}

int64_t bytes_of(const data::CacheBlock& block) {
  return std::ssize(block.moments) + std::ssize(block.beside) + std::ssize(block.masks) +
         std::ssize(block.control);
}

/// A part of this rank.
struct OwnPart {
  size_t section;
  data::CachePart part;
};

/// Some samples of a part.
struct Piece {
  OwnPart* own;
  int64_t first;
  int64_t end;
};

/// What this rank still has to compute, in order.
std::vector<Piece> pieces_of(std::deque<OwnPart>& parts, int64_t batch) {
  std::vector<Piece> pieces;
  for (OwnPart& own : parts) {
    for (int64_t first = own.part.next(); first < own.part.end(); first += batch) {
      pieces.push_back({&own, first, std::min(first + batch, own.part.end())});
    }
  }
  return pieces;
}

/// Whether the folder may be thrown away: the name is that of a key.
bool is_key_folder(const fs::directory_entry& entry) {
  constexpr size_t kDigits = 16;
  const std::string name = entry.path().filename().string();
  return entry.is_directory() && name.size() == kDigits &&
         name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

/// Reading the next samples, computing these and writing the ones before go on at once.
class Encoder {
 public:
  Encoder(const data::Source& source, const LatentEncoder& encoder, const EncodeOptions& options,
          const comm::Group& world)
      : source_(source), encoder_(encoder), options_(options), world_(world) {
    (void)tensor_type(options.dtype);
    add_section(data::sample_size(options.data).pixels());
    if (options.data.buckets.empty()) {
      sections_.front().samples = source.size();
    } else {
      fill_sections();
    }
    layout_ = sections_.front().size.layout;
    key_ = key_of(source, encoder, options, sections_);
    folder_ = options.out / data::folder_of(key_);
    for (const Section& section : sections_) {
      num_samples_ += section.samples;
    }
    KINORA_CHECK(num_samples_ > 0, kConfig, "[encode] none of the ", source.size(),
                 " samples suits one of data.buckets. Hint: kinora data check");
    for (Section& section : sections_) {
      section.first_part = num_parts_;
      section.num_parts = ceil_div(section.samples, part_samples(section));
      num_parts_ += section.num_parts;
    }
  }

  EncodeResult run(const StopSignal* stop) {
    std::optional<io::FileLock> lock;
    if (world_.rank() == 0) {
      lock = open();
    }
    world_.barrier();
    for (int64_t number = world_.rank(); number < num_parts_; number += world_.size()) {
      const auto next = std::ranges::upper_bound(sections_, number, {}, &Section::first_part);
      const auto at = static_cast<size_t>(std::prev(next) - sections_.begin());
      const Section& section = sections_[at];
      const int64_t first = (number - section.first_part) * part_samples(section);
      parts_.push_back(
          {at, data::CachePart(folder_, number, first,
                               std::min(first + part_samples(section), section.samples),
                               section.size.layout)});
    }
    EncodeResult result;
    result.complete = compute(stop, result);
    for (OwnPart& own : parts_) {
      if (own.part.next() == own.part.end()) {
        own.part.finish();
      }
    }
    const at::Tensor open_ranks =
        at::full({1}, result.complete ? 0 : 1, at::kLong).to(encoder_.device());
    world_.all_reduce(open_ranks);
    result.complete = open_ranks.item<int64_t>() == 0;
    if (result.complete && world_.rank() == 0) {
      commit(result);
    }
    return result;
  }

 private:
  Section& add_section(const data::PixelSize& pixels) {
    const LatentEncoder::Shape shape =
        encoder_.shape_of(pixels.frames, pixels.height, pixels.width);
    sections_.push_back(
        {.size = {.layout = {.dtype = options_.dtype,
                             .shape = shape.latent,
                             .parts = {.std = shape.std && options_.std,
                                       .mirrored = options_.mirrored},
                             .beside = {.control = source_.beside().control,
                                        .before = source_.beside().before,
                                        .mask = options_.data.mask == data::MaskKind::kFile,
                                        .references = source_.beside().references},
                             .pixel_height = pixels.height,
                             .pixel_width = pixels.width,
                             .frame_compression = encoder_.space().frame_compression},
                  .pixel_frames = pixels.frames,
                  .parts = {}},
         .indices = {}});
    return sections_.back();
  }

  /// With buckets: each sample to every bucket that may take it, those that are held out to the
  /// size of validation.
  void fill_sections() {
    const data::DataConfig& config = options_.data;
    facts_.resize(static_cast<size_t>(source_.size()));
    data::scan_headers(source_, data::thread_count(config.threads), config.max_bad,
                       [this](int64_t index, const data::SampleFacts& facts) {
                         facts_[static_cast<size_t>(index)] = facts;
                       });
    const data::BucketTable table(data::loader_options(config).buckets);
    data::Split parts =
        data::split(source_.size(), config.validation, static_cast<uint64_t>(config.seed));
    std::ranges::sort(parts.train);
    std::vector<std::vector<int64_t>> by_bucket(table.buckets().size());
    for (const int64_t index : parts.train) {
      const data::SampleFacts& facts = facts_[static_cast<size_t>(index)];
      if (facts.height > 0) {
        for (const int64_t bucket : table.possible(facts)) {
          by_bucket[static_cast<size_t>(bucket)].push_back(index);
        }
      }
    }
    sections_.front().indices = std::move(parts.validation);
    for (size_t i = 0; i < by_bucket.size(); ++i) {
      if (by_bucket[i].empty()) {
        continue;
      }
      const data::PixelSize pixels = table.buckets()[i].pixels();
      const auto same = std::ranges::find(
          sections_, pixels, [](const Section& section) { return section.size.pixels(); });
      std::vector<int64_t>& indices =
          same == sections_.end() ? add_section(pixels).indices : same->indices;
      indices.insert(indices.end(), by_bucket[i].begin(), by_bucket[i].end());
    }
    for (Section& section : sections_) {
      std::ranges::sort(section.indices);
      section.indices.erase(std::unique(section.indices.begin(), section.indices.end()),
                            section.indices.end());
      section.samples = std::ssize(section.indices);
    }
  }

  [[nodiscard]] int64_t part_samples(const Section& section) const {
    const int64_t fitting = std::max<int64_t>(kPartBytes / bytes_of_sample(section.size.layout), 1);
    return std::min(fitting, ceil_div(num_samples_, kMinParts));
  }

  [[nodiscard]] data::SampleSize sample_size(const Section& section) const {
    data::SampleSize size = data::sample_size(options_.data);
    const data::PixelSize pixels = section.size.pixels();
    size.height = pixels.height;
    size.width = pixels.width;
    size.frames = pixels.frames;
    return size;
  }

  /// Of rank 0, before the others look at the folder.
  io::FileLock open() {
    std::error_code failure;
    fs::create_directories(folder_, failure);
    KINORA_CHECK(!failure, kIo, "[encode] cannot create ", folder_.string(), ": ",
                 failure.message());
    std::optional<io::FileLock> lock = io::FileLock::take(options_.out / ".lock");
    KINORA_CHECK(lock, kIo, "[encode] another process encodes into ", options_.out.string(),
                 ". Hint: stop it, or give another --out");
    try {
      if (const auto before = data::read_manifest(options_.out); before && before->key != key_) {
        log_info("[encode] ", options_.out.string(),
                 " holds latents of another kind: ", data::difference(before->key, key_),
                 "; they are computed anew, and stay valid until that is done");
      }
    } catch (const Error& error) {
      log_warn("[encode] ", error.what(), "; latents are computed anew");
    }
    return std::move(*lock);
  }

  /// Whether all of this rank's is there; false after a signal.
  bool compute(const StopSignal* stop, EncodeResult& result) {
    const std::vector<Piece> pieces = pieces_of(parts_, encoder_.micro_batch());
    if (pieces.empty()) {
      return true;
    }
    int64_t left = 0;
    int64_t bytes = 0;
    for (const OwnPart& own : parts_) {
      const int64_t samples = own.part.end() - own.part.next();
      left += samples;
      bytes += samples * bytes_of_sample(layout_of(own));
    }
    check_room(bytes);
    const Encoding encoding(encoder_, options_.dtype);
    data::BadSamples bad(source_, options_.data.max_bad);
    std::optional<data::OrderedReader> reader;  // of the section of the last piece that was read
    const auto read = [&](size_t i) {
      return std::async(std::launch::async, [&, i] {
        const Piece& piece = pieces[i];
        if (!reader || piece.own->section != pieces[i - 1].own->section) {
          const Section& section = sections_[piece.own->section];
          reader.emplace(source_, sample_size(section), encoder_.micro_batch(),
                         options_.data.threads, bad, encoder_.device().is_cuda(), section.indices);
        }
        return reader->read(piece.first, piece.end);
      });
    };
    data::CacheBlock block;
    Clock::time_point begun = Clock::now();
    std::future<void> written;  // these two end before what they use
    std::future<data::OrderedSamples> next = read(0);
    const auto flush = [&](data::CachePart& part) {
      if (written.valid()) {
        written.get();
      }
      written = std::async(std::launch::async,
                           [&part, whole = std::exchange(block, {})] { part.add(whole); });
      begun = Clock::now();
    };
    report(0, left);
    for (size_t i = 0; i < pieces.size(); ++i) {
      data::OrderedSamples samples = next.get();
      if (i + 1 < pieces.size()) {
        next = read(i + 1);
      }
      if (block.end == block.first) {
        block.first = samples.first;
      }
      result.computed += samples.end - samples.first;
      encoding.append(std::move(samples), layout_of(*pieces[i].own), block);
      const bool stopped = stop != nullptr && stop->requested();
      if (stopped || block.end == pieces[i].own->part.end() || bytes_of(block) >= kBlockBytes ||
          seconds_since(begun) >= options_.block_seconds) {
        flush(pieces[i].own->part);
      }
      report(result.computed, left);
      if (stopped && i + 1 < pieces.size()) {
        written.get();
        log_info("[encode] stopped by ", stop->name(), ": ", left - result.computed, " of the ",
                 world_.size() > 1 ? "samples of this rank" : "samples",
                 " are left; the same command goes on with them");
        return false;
      }
    }
    written.get();
    return true;
  }

  /// Rank 0 sees its own part and takes it for the whole.
  void report(int64_t computed, int64_t left) const {
    if (world_.rank() != 0 || !options_.progress) {
      return;
    }
    const int64_t total = num_samples_;
    const int64_t whole_left = std::min(total, left * world_.size());
    const int64_t before = total - whole_left;
    options_.progress(before + std::min(computed * world_.size(), whole_left), total, before);
  }

  void check_room(int64_t own_bytes) const {
    const int64_t wanted = own_bytes * world_.size();
    const int64_t room = io::free_space(options_.out);
    KINORA_CHECK(world_.rank() != 0 || wanted <= room, kIo, "[encode] ", options_.out.string(),
                 " needs about ", human_bytes(wanted), " more, but only ", human_bytes(room),
                 " are free. Hint: --dtype bf16, --mean-only, or another --out");
  }

  [[nodiscard]] const data::LatentLayout& layout_of(const OwnPart& own) const {
    return sections_[own.section].size.layout;
  }

  /// By rank 0, once all parts are there.
  void commit(EncodeResult& result) {
    data::CacheManifest manifest{.key = key_,
                                 .layout = layout_,
                                 .class_names = source_.class_names(),
                                 .parts = {},
                                 .sizes = {},
                                 .is_video = source_.is_video()};
    std::vector<data::CachedSample> samples;  // of the section, one behind the other
    std::vector<data::CachedSample> all(facts_.size());
    std::vector<data::SizedSample> sized(facts_.size());
    for (size_t at = 0; at < sections_.size(); ++at) {
      Section& section = sections_[at];
      samples.clear();
      for (int64_t number = section.first_part; number < section.first_part + section.num_parts;
           ++number) {
        data::CachePartRecord record = data::CachePart::read(folder_, number);
        if (!record.samples.empty()) {
          section.size.parts.push_back(
              {data::CachePart::file_name(number), std::ssize(record.samples)});
        }
        std::ranges::move(record.samples, std::back_inserter(samples));
        result.left_out += std::ssize(record.left_out);
      }
      result.samples += std::ssize(samples);
      if (!facts_.empty()) {
        place(static_cast<int64_t>(at), samples, all, sized);
      }
    }
    const bool with_references = layout_.beside.references > 0;
    if (facts_.empty()) {
      manifest.parts = sections_.front().size.parts;
      data::write_samples(folder_ / data::kCachedSamplesFile, samples, with_references);
    } else {
      for (const Section& section : sections_) {
        manifest.sizes.push_back(section.size);
      }
      for (size_t i = 0; i < all.size(); ++i) {
        all[i].name = source_.sample_name(static_cast<int64_t>(i));
        all[i].fps = facts_[i].fps;
        sized[i].facts = facts_[i];
      }
      data::write_samples(folder_ / data::kCachedSamplesFile, all, sized, with_references);
    }
    data::write_manifest(options_.out, manifest);
    for (const fs::directory_entry& entry : fs::directory_iterator(options_.out)) {
      if (is_key_folder(entry) && entry.path() != folder_) {
        fs::remove_all(entry.path());
      }
    }
  }

  /// Notes where the latents of a section's samples are; the others of it could not be encoded.
  void place(int64_t section, const std::vector<data::CachedSample>& samples,
             std::vector<data::CachedSample>& all, std::vector<data::SizedSample>& sized) const {
    int64_t row = 0;
    for (const int64_t index : sections_[static_cast<size_t>(section)].indices) {
      const auto at = static_cast<size_t>(index);
      const bool is_there =
          row < std::ssize(samples) && samples[static_cast<size_t>(row)].number == index;
      sized[at].latents.push_back({.size = section, .row = is_there ? row : -1});
      if (is_there) {
        all[at] = samples[static_cast<size_t>(row++)];
      }
    }
  }

  const data::Source& source_;
  const LatentEncoder& encoder_;
  const EncodeOptions& options_;
  const comm::Group& world_;
  data::LatentLayout layout_;
  data::CacheKey key_;
  fs::path folder_;
  std::vector<Section> sections_;         // the first is that of data.height, width and frames
  std::vector<data::SampleFacts> facts_;  // of all samples, with buckets
  int64_t num_samples_ = 0;               // of all sections
  int64_t num_parts_ = 0;
  std::deque<OwnPart> parts_;  // of this rank
};

}  // namespace

EncodeResult encode(const data::Source& source, const LatentEncoder& encoder,
                    const EncodeOptions& options, const comm::Group& world,
                    const StopSignal* stop) {
  KINORA_CHECK(!source.latent_shape(), kConfig,
               "[encode] data.source must be of pictures or clips, got latents");
  return Encoder(source, encoder, options, world).run(stop);
}

}  // namespace kinora::pipelines
