#include "kinora/train/bench/benchmark_text.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <utility>
#include <vector>

#include "kinora/checkpoint/weights_output.h"
#include "kinora/core/seconds.h"
#include "kinora/device/device.h"
#include "kinora/inference/setup.h"
#include "kinora/models/text_encoders/t5_encoder.h"
#include "kinora/pipelines/text_encoder_file.h"
#include "kinora/train/bench/benchmark.h"
#include "kinora/train/bench/random_encoders.h"

namespace kinora::train {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kCopiedBytes = int64_t{256} << 20;

/// Numbers that bench/peers/t5_encoder.py draws, too (Knuth's MMIX).
class Sequence {
 public:
  /// From 0 to `below` - 1.
  int64_t next(int64_t below) {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<int64_t>((state_ >> 33U) % static_cast<uint64_t>(below));
  }

 private:
  uint64_t state_ = kBenchmarkSeed;
};

models::TextTokens random_captions(const TextBenchmarkOptions& options, int64_t vocab_size) {
  Sequence sequence;
  models::TextTokens tokens;
  for (int64_t i = 0; i < options.captions; ++i) {
    std::vector<int32_t> text(static_cast<size_t>(
        options.least_tokens + sequence.next(options.most_tokens - options.least_tokens + 1)));
    for (int32_t& id : text) {
      id = static_cast<int32_t>(sequence.next(vocab_size));
    }
    tokens.add(text);
  }
  return tokens;
}

void to_eight_bits(models::TextEncoder& encoder, models::EightBit format, at::ScalarType type) {
  for (models::TextLinear* linear : encoder.linears()) {
    linear->set_eight_bits(models::to_eight_bits(linear->weight.value, format), type);
  }
}

void write_folder(const fs::path& folder, const TextBenchmarkOptions& options, at::Device device,
                  at::ScalarType type) {
  fs::create_directories(folder);
  const models::T5Config config = t5_xxl(options.layers);
  std::ofstream(folder / "config.json")
      << R"({"model_type": "t5", "feed_forward_proj": "gated-gelu", "d_model": )" << config.d_model
      << R"(, "d_kv": )" << config.d_kv << R"(, "d_ff": )" << config.d_ff << R"(, "num_layers": )"
      << config.num_layers << R"(, "num_heads": )" << config.num_heads << R"(, "vocab_size": )"
      << config.vocab_size << "}\n";
  const std::unique_ptr<models::T5Encoder> encoder =
      random_t5(t5_xxl(options.layers), device, type);
  checkpoint::LateTensors tensors;
  for (const auto& [path, parameter] : encoder->named_parameters()) {
    tensors.emplace(path, checkpoint::late_tensor(parameter->value.to(at::kCPU)));
    parameter->value = at::Tensor();
  }
  checkpoint::write_weights(folder / "model.safetensors", tensors);
}

std::unique_ptr<models::TextEncoder> make_encoder(const TextBenchmarkOptions& options,
                                                  at::Device device, at::ScalarType type) {
  if (!options.stream_folder.empty()) {
    if (!fs::exists(fs::path(options.stream_folder) / "model.safetensors")) {
      write_folder(options.stream_folder, options, device, type);
    }
    return pipelines::open_text_encoder(options.stream_folder,
                                        {.device = device, .type = type, .streamed = true});
  }
  std::unique_ptr<models::T5Encoder> encoder = random_t5(t5_xxl(options.layers), device, type);
  if (options.eight_bits) {
    to_eight_bits(*encoder, *options.eight_bits, type);
  }
  return encoder;
}

double copy_bytes_per_second(at::Device device) {
  const at::Tensor source =
      at::empty({kCopiedBytes}, at::TensorOptions(at::kByte).pinned_memory(true));
  const at::Tensor target = at::empty({kCopiedBytes}, at::TensorOptions(at::kByte).device(device));
  return static_cast<double>(kCopiedBytes) / median_call_seconds(device, 4, [&](int64_t /*call*/) {
           target.copy_(source, /*non_blocking=*/true);
         });
}

std::string checksum_of(const models::TextStates& states) {
  constexpr int64_t kShown = 4;
  std::ostringstream text;
  text.precision(4);
  text << states.states.abs().mean().item<double>();
  const at::Tensor row = states.states[states.lengths.front() - 1];
  for (int64_t i = 0; i < kShown; ++i) {
    text << ' ' << row[i].item<double>();
  }
  return text.str();
}

}  // namespace

TextBenchmark benchmark_text(const TextBenchmarkOptions& options) {
  device::configure_computation(0, false);
  const at::Device device = inference::choose_device(options.device);
  const at::ScalarType type = inference::compute_type(options.precision);
  const at::NoGradGuard no_grad;
  const models::T5Config config = t5_xxl(options.layers);
  const models::TextTokens tokens = random_captions(options, config.vocab_size);
  const std::unique_ptr<models::TextEncoder> encoder = make_encoder(options, device, type);
  start_memory_anew(device);
  const auto run = [&](int64_t /*call*/) { (void)encoder->encode(tokens); };

  TextBenchmark result;
  result.device = device::describe(device);
  result.tokens = static_cast<int64_t>(tokens.ids.size());
  const auto begin = std::chrono::steady_clock::now();
  result.checksum = checksum_of(encoder->encode(tokens));
  result.first_seconds = seconds_since(begin);
  start_memory_anew(device);  // without what was measured once
  for (int64_t i = 0; i < options.warmup; ++i) {
    run(i);
  }
  result.seconds = median_call_seconds(device, options.repeats, run);
  result.peak_memory = device::peak_memory(device);
  result.tokens_per_s = static_cast<double>(result.tokens) / result.seconds;
  const auto block_weights =
      static_cast<double>(config.num_layers * (4 * config.d_model * config.num_heads * config.d_kv +
                                               3 * config.d_model * config.d_ff));
  result.tflops = 2.0 * block_weights * result.tokens_per_s / 1e12;
  if (!options.stream_folder.empty() && device.is_cuda()) {
    result.copy_bytes_per_s = copy_bytes_per_second(device);
    result.stream_bytes_per_s =
        block_weights * static_cast<double>(c10::elementSize(type)) / result.seconds;
  }
  if (options.profile) {
    result.trace = trace_calls(device, 1, run);
  }
  return result;
}

}  // namespace kinora::train
