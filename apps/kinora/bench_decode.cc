// kinora bench decode: an autoencoder alone.

#include <iomanip>
#include <iostream>
#include <string>

#include "apps/kinora/bench_report.h"
#include "apps/kinora/commands.h"
#include "apps/kinora/error_report.h"
#include "apps/kinora/options/choices.h"
#include "apps/kinora/ranks.h"
#include "kinora/core/build_info.h"
#include "kinora/core/text.h"
#include "kinora/device/gpu_profile.h"
#include "kinora/inference/setup.h"
#include "kinora/train/bench/benchmark.h"
#include "kinora/train/bench/benchmark_decode.h"

namespace kinora::apps {
namespace {

std::string name_of(Precision precision) {
  for (const auto& [name, value] : precisions()) {
    if (value == precision) {
      return name;
    }
  }
  return "";
}

}  // namespace

int run(const BenchDecodeArguments& arguments) {
  set_memory_hint("--memory-budget GIB, within which the same numbers are computed in pieces");
  train::DecodeBenchmarkOptions options = arguments.options;
  options.memory_budget = static_cast<int64_t>(arguments.memory_gib * kGiB);
  if (options.profile) {
    train::check_can_trace(inference::choose_device(options.device));
  }
  const std::optional<comm::World> world = own_rank(arguments.ranks);
  if (!world) {
    return launch(arguments.ranks, options.device);
  }
  train::DecodeBenchmark result;
  on_rank(*world, options.device, [&](const comm::Group& group, at::Device /*device*/) {
    result = train::benchmark_decode(options, group);
  });
  if (world->rank > 0) {
    return 0;
  }
  if (arguments.json) {
    Json json;
    json["kinora"] = build_info().commit;
    json["device"] = result.device;
    json["ranks"] = world->size;
    json["work"] = options.encode ? "encode" : "decode";
    json["weights"] = name_of(options.precision);
    json["batch"] = options.batch;
    json["height"] = options.height;
    json["width"] = options.width;
    json["memory_budget_gib"] = arguments.memory_gib;
    json["ms"] = result.seconds * 1e3;
    json["images_per_s"] = result.images_per_s;
    json["peak_memory_gib"] = static_cast<double>(result.peak_memory) / kGiB;
    if (result.trace) {
      json["profile"] = to_json(device::profile_of(*result.trace), 1);
    }
    std::cout << json.dump() << '\n';
    return 0;
  }
  std::cout << result.device << "\n"
            << (options.encode ? "encode " : "decode ") << options.batch << " x " << options.height
            << " x " << options.width << ": " << std::fixed << std::setprecision(2)
            << result.seconds * 1e3 << " ms, " << human_rate(result.images_per_s)
            << " images/s, peak memory " << human_bytes(result.peak_memory) << '\n';
  if (result.trace) {
    print(std::cout, device::profile_of(*result.trace), 1, "run");
  }
  return 0;
}

}  // namespace kinora::apps
