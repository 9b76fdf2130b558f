// kinora bench load: a pipeline's folder, beside what reading it takes at least.

#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/kinora/bench_report.h"
#include "apps/kinora/commands.h"
#include "kinora/core/build_info.h"
#include "kinora/core/text.h"
#include "kinora/train/bench/benchmark_load.h"

namespace kinora::apps {

int run(const BenchLoadArguments& arguments) {
  const train::LoadBenchmark result = train::benchmark_load(arguments.options);
  if (arguments.json) {
    Json json;
    json["kinora"] = build_info().commit;
    json["device"] = result.device;
    json["bytes"] = result.bytes;
    json["read_s"] = result.read_seconds;
    json["load_s"] = result.seconds;
    json["text_encoder_s"] = result.text_seconds;
    json["transformer_s"] = result.transformer_seconds;
    json["autoencoder_s"] = result.autoencoder_seconds;
    json["peak_memory_gib"] = static_cast<double>(result.peak_memory) / kGiB;
    std::cout << json.dump() << '\n';
    return 0;
  }
  std::cout << result.device << '\n'
            << human_bytes(result.bytes) << " of weights: " << std::fixed << std::setprecision(2)
            << "read and copied alone in " << result.read_seconds << " s ("
            << static_cast<double>(result.bytes) / result.read_seconds / 1e9 << " GB/s), loaded in "
            << result.seconds << " s: text encoder " << result.text_seconds << ", transformer "
            << result.transformer_seconds << ", autoencoder " << result.autoencoder_seconds
            << "; peak memory " << human_bytes(result.peak_memory) << '\n';
  return 0;
}

}  // namespace kinora::apps
