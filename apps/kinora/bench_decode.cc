// kinora bench decode: an autoencoder alone.

#include "apps/kinora/bench_decode.h"

#include <CLI/CLI.hpp>

#include <iomanip>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "kinora/core/build_info.h"
#include "kinora/core/text.h"
#include "kinora/train/benchmark_decode.h"

namespace kinora::apps {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

struct Arguments {
  train::DecodeBenchmarkOptions options;
  double memory_gib = 0.0;
  bool json = false;
};

const std::map<std::string, train::DeviceChoice> kDevices = {{"auto", train::DeviceChoice::kAuto},
                                                             {"cpu", train::DeviceChoice::kCpu},
                                                             {"cuda", train::DeviceChoice::kCuda}};
const std::map<std::string, train::Precision> kPrecisions = {{"fp32", train::Precision::kFp32},
                                                             {"bf16", train::Precision::kBf16},
                                                             {"fp16", train::Precision::kFp16}};

std::string name_of(train::Precision precision) {
  for (const auto& [name, value] : kPrecisions) {
    if (value == precision) {
      return name;
    }
  }
  return "";
}

int bench_decode(Arguments arguments) {
  train::DecodeBenchmarkOptions& options = arguments.options;
  options.memory_budget = static_cast<int64_t>(arguments.memory_gib * kGib);
  const train::DecodeBenchmark result = train::benchmark_decode(options);
  if (arguments.json) {
    Json json;
    json["kinora"] = build_info().commit;
    json["device"] = result.device;
    json["work"] = options.encode ? "encode" : "decode";
    json["weights"] = name_of(options.precision);
    json["batch"] = options.batch;
    json["height"] = options.height;
    json["width"] = options.width;
    json["memory_budget_gib"] = arguments.memory_gib;
    json["ms"] = result.seconds * 1e3;
    json["images_per_s"] = result.images_per_s;
    json["peak_memory_gib"] = static_cast<double>(result.peak_memory) / kGib;
    std::cout << json.dump() << '\n';
    return 0;
  }
  std::cout << result.device << "\n"
            << (options.encode ? "encode " : "decode ") << options.batch << " x " << options.height
            << " x " << options.width << ": " << std::fixed << std::setprecision(2)
            << result.seconds * 1e3 << " ms, " << human_rate(result.images_per_s)
            << " images/s, peak memory " << human_bytes(result.peak_memory) << '\n';
  return 0;
}

}  // namespace

void add_bench_decode(CLI::App& bench, Action& run) {
  auto arguments = std::make_shared<Arguments>();
  train::DecodeBenchmarkOptions& options = arguments->options;
  CLI::App* command = bench.add_subcommand(
      "decode", "Time an autoencoder's decoder (or encoder) on random latents (or pixels).");
  command->add_option("--autoencoder", options.autoencoder,
                      "File or folder; default: Stable Diffusion's, with random weights");
  command->add_flag("--encode", options.encode, "Encode instead");
  command->add_option("--batch", options.batch, "Images or clips at once")
      ->check(CLI::PositiveNumber);
  command->add_option("--height", options.height, "In pixels")->check(CLI::PositiveNumber);
  command->add_option("--width", options.width, "In pixels")->check(CLI::PositiveNumber);
  command
      ->add_option("--frames", options.frames, "Frames of clips, latent ones to decode; 1: images")
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--memory-budget", arguments->memory_gib,
                   "GiB that activations may take; 0 = no limit")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--precision", options.precision, "fp32, bf16 or fp16")
      ->transform(CLI::CheckedTransformer(kPrecisions));
  command->add_option("--device", options.device, "auto, cpu or cuda")
      ->transform(CLI::CheckedTransformer(kDevices));
  command->add_option("--warmup", options.warmup, "Runs before timing")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--repeats", options.repeats, "Timed runs a block")
      ->check(CLI::PositiveNumber);
  command->add_flag("--json", arguments->json, "One JSON object instead of text");
  command->callback([arguments, &run] { run = [arguments] { return bench_decode(*arguments); }; });
}

}  // namespace kinora::apps
