#include "kinora/pipelines/encode.h"

#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>

#include <algorithm>
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
#include "kinora/core/text.h"
#include "kinora/data/cache_part.h"
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

data::CacheKey key_of(const data::Source& source, const LatentEncoder& encoder,
                      const EncodeOptions& options, const data::LatentLayout& layout) {
  data::CacheKey key;
  for (const auto& [name, value] : flatten_config(options.data)) {
    const std::string own = name.substr(name.find('.') + 1);
    if (!is_about_training(own) && (own != "seed" || options.data.path.empty())) {
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
  key["parts"] = std::string(layout.parts.std ? "mean and deviation" : "mean") +
                 (layout.parts.mirrored ? ", also of mirrored pictures" : "");
  return key;
}

/// Computes the latents of samples that were read.
class Encoding {
 public:
  Encoding(const LatentEncoder& encoder, const data::LatentLayout& layout)
      : encoder_(encoder), layout_(layout), type_(tensor_type(layout.dtype)) {}

  /// Puts them into `block`, which they continue.
  void append(data::OrderedSamples&& samples, data::CacheBlock& block) const {
    std::ranges::move(samples.left_out, std::back_inserter(block.left_out));
    block.end = samples.end;
    if (samples.samples.empty()) {
      return;
    }
    std::vector<at::Tensor> arrays;
    for (const bool mirrored : {false, true}) {
      if (mirrored && !layout_.parts.mirrored) {
        break;
      }
      const models::LatentMoments moments = encoder_.encode(samples.batch.images, mirrored);
      arrays.push_back(moments.mean);
      if (layout_.parts.std) {
        arrays.push_back(moments.std);
      }
    }
    // [n, P, C, h, w] or [n, P, C, T, h, w]
    const at::Tensor stored = at::stack(arrays, 1).to(type_).to(at::kCPU).contiguous();
    const at::Tensor finite = at::isfinite(stored).flatten(1).all(1);
    const auto* bytes = static_cast<const std::byte*>(stored.const_data_ptr());
    const int64_t size = layout_.sample_bytes();
    KINORA_CHECK(static_cast<int64_t>(stored.nbytes()) == size * std::ssize(samples.samples),
                 kInternal, "[encode] latents of ", stored.sizes(), " do not fit the cache's");
    for (int64_t i = 0; i < std::ssize(samples.samples); ++i) {
      data::CachedSample& sample = samples.samples[static_cast<size_t>(i)];
      if (finite.const_data_ptr<bool>()[i]) {
        block.moments.insert(block.moments.end(), bytes + i * size, bytes + (i + 1) * size);
        block.samples.push_back(std::move(sample));
      } else {
        log_warn("[encode] left out ", sample.name, ": its latent is not finite as ",
                 to_string(layout_.dtype));
        block.left_out.push_back({std::move(sample.name), "its latent is not finite"});
      }
    }
  }

 private:
  const LatentEncoder& encoder_;
  const data::LatentLayout& layout_;
  at::ScalarType type_;
};

/// Some samples of a part.
struct Piece {
  data::CachePart* part;
  int64_t first;
  int64_t end;
};

/// What this rank still has to compute, in order.
std::vector<Piece> pieces_of(std::deque<data::CachePart>& parts, int64_t batch) {
  std::vector<Piece> pieces;
  for (data::CachePart& part : parts) {
    for (int64_t first = part.next(); first < part.end(); first += batch) {
      pieces.push_back({&part, first, std::min(first + batch, part.end())});
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
    layout_.dtype = options.dtype;
    (void)tensor_type(options.dtype);
    const data::SampleSize size = data::sample_size(options.data);
    const LatentEncoder::Shape shape = encoder.shape_of(size.frames, size.height, size.width);
    layout_.shape = shape.latent;
    layout_.parts = {.std = shape.std && options.std, .mirrored = options.mirrored};
    layout_.pixel_height = size.height;
    layout_.pixel_width = size.width;
    layout_.frame_compression = encoder.space().frame_compression;
    key_ = key_of(source, encoder, options, layout_);
    folder_ = options.out / data::folder_of(key_);
    const int64_t fitting = std::max<int64_t>(kPartBytes / layout_.sample_bytes(), 1);
    part_samples_ = std::min(fitting, (source.size() + kMinParts - 1) / kMinParts);
    num_parts_ = (source.size() + part_samples_ - 1) / part_samples_;
  }

  EncodeResult run(const StopSignal* stop) {
    std::optional<io::FileLock> lock;
    if (world_.rank() == 0) {
      lock = open();
    }
    world_.barrier();
    for (int64_t number = world_.rank(); number < num_parts_; number += world_.size()) {
      const int64_t first = number * part_samples_;
      parts_.emplace_back(folder_, number, first, std::min(first + part_samples_, source_.size()),
                          layout_);
    }
    EncodeResult result;
    result.complete = compute(stop, result);
    for (data::CachePart& part : parts_) {
      if (part.next() == part.end()) {
        part.finish();
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
    for (const data::CachePart& part : parts_) {
      left += part.end() - part.next();
    }
    check_room(left * layout_.sample_bytes());
    data::OrderedReader reader(source_, data::sample_size(options_.data), encoder_.micro_batch(),
                               options_.data.threads, options_.data.max_bad,
                               encoder_.device().is_cuda());
    const Encoding encoding(encoder_, layout_);
    const auto read = [&](size_t i) {
      return std::async(std::launch::async,
                        [&, i] { return reader.read(pieces[i].first, pieces[i].end); });
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
      encoding.append(std::move(samples), block);
      const bool stopped = stop != nullptr && stop->requested();
      const double seconds = std::chrono::duration<double>(Clock::now() - begun).count();
      if (stopped || block.end == pieces[i].part->end() ||
          std::ssize(block.moments) >= kBlockBytes || seconds >= options_.block_seconds) {
        flush(*pieces[i].part);
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
    const int64_t total = source_.size();
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

  /// By rank 0, once all parts are there.
  void commit(EncodeResult& result) const {
    data::CacheManifest manifest{
        .key = key_, .layout = layout_, .class_names = source_.class_names(), .parts = {}};
    std::vector<data::CachedSample> samples;
    for (int64_t number = 0; number < num_parts_; ++number) {
      data::CachePartRecord record = data::CachePart::read(folder_, number);
      if (!record.samples.empty()) {
        manifest.parts.push_back({data::CachePart::file_name(number), std::ssize(record.samples)});
      }
      std::ranges::move(record.samples, std::back_inserter(samples));
      result.left_out += std::ssize(record.left_out);
    }
    result.samples = std::ssize(samples);
    data::write_samples(folder_ / data::kCachedSamplesFile, samples);
    data::write_manifest(options_.out, manifest);
    for (const fs::directory_entry& entry : fs::directory_iterator(options_.out)) {
      if (is_key_folder(entry) && entry.path() != folder_) {
        fs::remove_all(entry.path());
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
  int64_t part_samples_ = 1;
  int64_t num_parts_ = 0;
  std::deque<data::CachePart> parts_;  // of this rank
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
