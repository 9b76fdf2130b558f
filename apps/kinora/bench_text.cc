// kinora bench text-encoder: T5-XXL's encoder alone.

#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/kinora/bench_report.h"
#include "apps/kinora/commands.h"
#include "kinora/core/build_info.h"
#include "kinora/core/text.h"
#include "kinora/train/bench/benchmark_text.h"

namespace kinora::apps {
namespace {

std::string form_of(const train::TextBenchmarkOptions& options) {
  if (!options.stream_folder.empty()) {
    return "streamed";
  }
  if (!options.eight_bits) {
    return "resident";
  }
  return *options.eight_bits == models::EightBit::kInt8 ? "int8" : "fp8";
}

}  // namespace

int run(const BenchTextArguments& arguments) {
  const train::TextBenchmarkOptions& options = arguments.options;
  const train::TextBenchmark result = train::benchmark_text(options);
  if (arguments.json) {
    Json json;
    json["kinora"] = build_info().commit;
    json["device"] = result.device;
    json["weights"] = form_of(options);
    json["layers"] = options.layers;
    json["captions"] = options.captions;
    json["tokens"] = result.tokens;
    json["first_ms"] = result.first_seconds * 1e3;
    json["ms"] = result.seconds * 1e3;
    json["tokens_per_s"] = result.tokens_per_s;
    json["tflops"] = result.tflops;
    json["peak_memory_gib"] = static_cast<double>(result.peak_memory) / kGiB;
    if (result.copy_bytes_per_s > 0.0) {
      json["copy_bytes_per_s"] = result.copy_bytes_per_s;
      json["stream_bytes_per_s"] = result.stream_bytes_per_s;
    }
    json["checksum"] = result.checksum;
    if (result.trace) {
      json["profile"] = to_json(device::profile_of(*result.trace), 1);
    }
    std::cout << json.dump() << '\n';
    return 0;
  }
  std::cout << result.device << '\n'
            << options.captions << " captions, " << result.tokens << " tokens, " << options.layers
            << " layers, weights " << form_of(options) << ": " << std::fixed << std::setprecision(1)
            << result.seconds * 1e3 << " ms (the first time " << result.first_seconds * 1e3 << "), "
            << human_rate(result.tokens_per_s) << " tokens/s, " << result.tflops
            << " TFLOP/s, peak memory " << human_bytes(result.peak_memory) << '\n';
  if (result.copy_bytes_per_s > 0.0) {
    std::cout << "weights " << result.stream_bytes_per_s / 1e9 << " GB/s, "
              << 100.0 * result.stream_bytes_per_s / result.copy_bytes_per_s << " % of a copy's "
              << result.copy_bytes_per_s / 1e9 << " GB/s\n";
  }
  std::cout << "checksum " << result.checksum << '\n';
  if (result.trace) {
    print(std::cout, device::profile_of(*result.trace), 1, "run");
  }
  return 0;
}

}  // namespace kinora::apps
