#include "kinora/train/bench/benchmark_load.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/core/seconds.h"
#include "kinora/device/device.h"
#include "kinora/inference/decoder.h"
#include "kinora/inference/setup.h"
#include "kinora/inference/trained_model.h"
#include "kinora/io/file.h"
#include "kinora/models/autoencoders/autoencoder.h"
#include "kinora/models/text_encoders/text_encoder.h"
#include "kinora/pipelines/pipeline.h"
#include "kinora/pipelines/text_encoder_file.h"
#include "kinora/train/bench/benchmark.h"

namespace kinora::train {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPieceBytes = int64_t{4} << 20;
constexpr int kMostThreads = 16;

/// A part of a file.
struct Piece {
  const io::FileReader* file = nullptr;
  int64_t begin = 0;
  int64_t bytes = 0;
  int64_t target = 0;  ///< where it goes
};

/// The files of weights in a folder, open.
class WeightFiles {
 public:
  explicit WeightFiles(const fs::path& folder) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
      const fs::path extension = entry.path().extension();
      if (entry.is_regular_file() && (extension == ".safetensors" || extension == ".bin")) {
        add(files_.emplace_back(entry.path()));
      }
    }
  }
  [[nodiscard]] int64_t bytes() const { return bytes_; }

  /// Reads all of them by several threads, each through two buffers, into `target`.
  void read(const at::Tensor& target) const {
    std::atomic<size_t> next = 0;
    std::vector<std::future<void>> threads;
    for (int i = 0; i < std::clamp(at::get_num_threads(), 1, kMostThreads); ++i) {
      threads.push_back(std::async(std::launch::async, [&] { read_pieces(next, target); }));
    }
    for (std::future<void>& thread : threads) {
      thread.get();
    }
  }

 private:
  void add(const io::FileReader& file) {
    for (int64_t begin = 0; begin < file.size(); begin += kPieceBytes) {
      const int64_t bytes = std::min(kPieceBytes, file.size() - begin);
      pieces_.push_back({.file = &file, .begin = begin, .bytes = bytes, .target = bytes_ + begin});
    }
    bytes_ += file.size();
  }

  void read_pieces(std::atomic<size_t>& next, const at::Tensor& target) const {
    const at::Device device = target.device();
    struct Buffer {
      at::Tensor bytes;
      std::optional<c10::Event> copied;
    };
    std::array<Buffer, 2> buffers;
    std::optional<c10::Stream> stream;
    if (device.is_cuda()) {
      stream = c10::impl::VirtualGuardImpl(device.type()).getNewStream(device, /*priority=*/0);
    }
    const c10::OptionalStreamGuard guard(stream);
    for (Buffer& buffer : buffers) {
      buffer.bytes =
          at::empty({kPieceBytes}, at::TensorOptions(at::kByte).pinned_memory(device.is_cuda()));
      if (stream) {
        buffer.copied.emplace(device.type());
      }
    }
    size_t turn = 0;
    for (size_t i = next++; i < pieces_.size(); i = next++, ++turn) {
      Buffer& buffer = buffers[turn % buffers.size()];
      if (stream) {
        buffer.copied->synchronize();
      }
      const Piece& piece = pieces_[i];
      const std::span<std::byte> bytes(static_cast<std::byte*>(buffer.bytes.mutable_data_ptr()),
                                       static_cast<size_t>(piece.bytes));
      piece.file->read_at(piece.begin, bytes);
      target.narrow(0, piece.target, piece.bytes)
          .copy_(buffer.bytes.narrow(0, 0, piece.bytes), /*non_blocking=*/true);
      if (stream) {
        buffer.copied->record(*stream);
      }
    }
    for (const Buffer& buffer : buffers) {
      if (stream) {
        buffer.copied->synchronize();
      }
    }
  }

  std::deque<io::FileReader> files_;
  std::vector<Piece> pieces_;
  int64_t bytes_ = 0;
};

/// Seconds of `work`, the device's included.
template <typename Work>
double seconds_of(at::Device device, const Work& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  device::synchronize(device);
  return seconds_since(begin);
}

struct LoadTimes {
  double text = 0.0;
  double transformer = 0.0;
  double autoencoder = 0.0;

  [[nodiscard]] double all() const { return text + transformer + autoencoder; }
};

LoadTimes load(const pipelines::Pipeline& pipeline, const LoadBenchmarkOptions& options,
               at::Device device) {
  LoadTimes times;
  std::unique_ptr<models::TextEncoder> encoder;
  std::optional<inference::TrainedModel> trained;
  std::unique_ptr<models::Autoencoder> decoder;
  const inference::LoadOptions load_options{.device = options.device, .says = false};
  times.transformer = seconds_of(
      device, [&] { trained.emplace(inference::load_trained(pipeline.folder, load_options)); });
  if (pipeline.text) {
    const at::ScalarType type = inference::compute_type(trained->recipe.precision);
    times.text = seconds_of(device, [&] {
      encoder = pipelines::open_text_encoder(pipeline.part(pipeline.text->encoder),
                                             {.device = device, .type = type});
    });
  }
  times.autoencoder =
      seconds_of(device, [&] { decoder = inference::open_decoder(trained->recipe, {}, device); });
  return times;
}

}  // namespace

LoadBenchmark benchmark_load(const LoadBenchmarkOptions& options) {
  device::configure_computation(0, false);
  const at::Device device = inference::choose_device(options.device);
  const auto pipeline = pipelines::find_pipeline(options.folder);
  KINORA_CHECK(pipeline.has_value(), kConfig, "[bench] ", options.folder,
               " has no pipeline. Hint: a folder with model_index.json");
  const WeightFiles files(options.folder);
  LoadBenchmark result{.device = device::describe(device), .bytes = files.bytes()};
  std::vector<double> reads;
  std::vector<LoadTimes> loads;
  // The first of each warms up: the page cache, and what a process does once.
  for (int64_t i = 0; i <= options.repeats; ++i) {
    start_memory_anew(device);
    {
      const at::Tensor target =
          at::empty({files.bytes()}, at::TensorOptions(at::kByte).device(device));
      reads.push_back(seconds_of(device, [&] { files.read(target); }));
    }
    start_memory_anew(device);
    loads.push_back(load(*pipeline, options, device));
    result.peak_memory = device::peak_memory(device);
  }
  reads.erase(reads.begin());
  loads.erase(loads.begin());
  result.read_seconds = median(std::move(reads));
  std::ranges::sort(loads, {}, &LoadTimes::all);
  const LoadTimes& middle = loads[loads.size() / 2];
  result.seconds = middle.all();
  result.text_seconds = middle.text;
  result.transformer_seconds = middle.transformer;
  result.autoencoder_seconds = middle.autoencoder;
  return result;
}

}  // namespace kinora::train
