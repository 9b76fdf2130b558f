// kinora bench train | ablate | buckets | sample | pipeline | simulate CONFIG [key=value ...],
// kinora bench decode | sequence

#include <filesystem>
#include <iostream>
#include <optional>
#include <utility>

#include "apps/kinora/bench_report.h"
#include "apps/kinora/commands.h"
#include "apps/kinora/error_report.h"
#include "apps/kinora/ranks.h"
#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/device/device.h"
#include "kinora/device/gpu_profile.h"
#include "kinora/inference/setup.h"
#include "kinora/io/file.h"

namespace kinora::apps {
namespace {

train::RunConfig config_of(const BenchArguments& arguments) {
  auto config = load_config<train::RunConfig>(arguments.config, arguments.overrides);
  // Before minutes are spent on the figures that come first.
  const std::filesystem::path folder = std::filesystem::path(arguments.trace).parent_path();
  KINORA_CHECK(folder.empty() || std::filesystem::is_directory(folder), kIo,
               "[bench] --trace wants a file in a folder that is there, got ", arguments.trace);
  if (arguments.profile) {
    train::check_can_trace(inference::choose_device(config.train.device));
  }
  return config;
}

/// With what the options say of sampling.
train::RunConfig sampling_config_of(const BenchArguments& arguments) {
  train::RunConfig config = config_of(arguments);
  if (arguments.sampling_steps > 0) {
    config.sample.sampling.steps = arguments.sampling_steps;
  }
  if (arguments.guidance >= 0.0) {
    config.sample.sampling.guidance = arguments.guidance;
  }
  return config;
}

/// The whole trace where --trace wants it.
void write_trace(const BenchArguments& arguments, const std::optional<device::GpuRecords>& trace) {
  if (!arguments.trace.empty() && trace) {
    io::write_file_atomic(arguments.trace, device::chrome_trace(*trace, /*rank=*/0));
    log_info("[bench] wrote ", arguments.trace);
  }
}

/// Not while a benchmark holds the device's memory.
train::DeviceCeilings ceilings_of(const train::RunConfig& config) {
  device::configure_computation(config.train.threads, config.deterministic);
  return train::measure_ceilings(inference::compute_type(config.precision),
                                 inference::choose_device(config.train.device));
}

int bench_train(const BenchArguments& arguments) {
  train::StepBenchmarkOptions options = arguments.step;
  options.profile = arguments.profile;
  const train::RunConfig config = config_of(arguments);
  const std::optional<comm::World> world = own_rank(arguments.ranks);
  if (!world) {
    return launch(arguments.ranks, config.train.device);
  }
  train::StepBenchmark result;
  on_rank(*world, config.train.device, [&](const comm::Group& group, at::Device /*device*/) {
    result = train::benchmark_step(config, options, group);
  });
  if (world->rank > 0) {
    return 0;
  }
  const train::DeviceCeilings ceilings = ceilings_of(config);
  if (arguments.json) {
    Json json = to_json(result, config.train.global_batch, ceilings);
    if (result.trace) {
      json["profile"] = to_json(device::profile_of(*result.trace), arguments.step.steps);
    }
    std::cout << json.dump() << '\n';
  } else {
    print(std::cout, result, arguments.step.steps, config.train.global_batch, ceilings);
    if (result.trace) {
      print(std::cout, device::profile_of(*result.trace), arguments.step.steps, "step");
      for (const std::string& product : result.products) {
        std::cout << "  " << product << '\n';
      }
    }
  }
  write_trace(arguments, result.trace);
  return 0;
}

int bench_ablate(const BenchArguments& arguments) {
  const train::RunConfig config = config_of(arguments);
  const train::DeviceCeilings ceilings = ceilings_of(config);
  const std::string device = device::describe(inference::choose_device(config.train.device));
  bool is_first = true;
  const std::vector<train::AblationRow> rows =
      train::ablate(config, arguments.step, [&](const train::AblationRow& row) {
        if (!arguments.json && std::exchange(is_first, false)) {
          print_ablation_head(std::cout, device, ceilings);
        }
        if (!arguments.json) {
          print(std::cout, row, ceilings.gemm_tflops);
        }
      });
  if (arguments.json) {
    std::cout << to_json(rows, device, config.train.global_batch, ceilings).dump() << '\n';
  } else {
    print_attention_share(std::cout, rows);
  }
  return 0;
}

int bench_buckets(const BenchArguments& arguments) {
  train::RunConfig config = config_of(arguments);
  KINORA_CHECK(!config.data.buckets.empty(), kConfig,
               "[bench] buckets times the sizes of data.buckets, and the recipe has none");
  config.dynamic_sequence = true;
  const std::optional<comm::World> world = own_rank(arguments.ranks);
  if (!world) {
    return launch(arguments.ranks, config.train.device);
  }
  train::SpreadBenchmark result;
  on_rank(*world, config.train.device, [&](const comm::Group& group, at::Device /*device*/) {
    result = train::StepTimer(config, group).time_spread(arguments.step);
  });
  if (world->rank > 0) {
    return 0;
  }
  if (arguments.json) {
    std::cout << to_json(result, world->size, arguments.step.steps).dump() << '\n';
  } else {
    print(std::cout, result, world->size, arguments.step.steps);
  }
  return 0;
}

int bench_sample(const BenchArguments& arguments) {
  set_memory_hint("a smaller --batch");
  train::SampleBenchmarkOptions options = arguments.sample;
  options.profile = arguments.profile;
  const train::RunConfig config = sampling_config_of(arguments);
  const std::optional<comm::World> world = own_rank(arguments.ranks);
  if (!world) {
    return launch(arguments.ranks, config.train.device);
  }
  train::SampleBenchmark result;
  on_rank(*world, config.train.device, [&](const comm::Group& group, at::Device /*device*/) {
    if (group.rank() == 0 && config.parallel.sp_size > 1) {
      log_warn("[bench] parallel.sequence is of training, --sequence of sampling");
    }
    result = train::benchmark_sample(config, options, group);
  });
  if (world->rank > 0) {
    return 0;
  }
  const train::DeviceCeilings ceilings = ceilings_of(config);
  if (arguments.json) {
    Json json = to_json(result, arguments.sample.batch, ceilings);
    if (result.trace) {
      json["profile"] = to_json(device::profile_of(*result.trace), 1);
    }
    std::cout << json.dump() << '\n';
  } else {
    print(std::cout, result, arguments.sample.batch, arguments.sample.repeats, ceilings);
    if (result.trace) {
      print(std::cout, device::profile_of(*result.trace), 1, "run");
    }
  }
  write_trace(arguments, result.trace);
  return 0;
}

int bench_pipeline(const BenchArguments& arguments) {
  train::PipelineBenchmarkOptions options = arguments.pipeline;
  options.profile = arguments.profile;
  const train::PipelineBenchmark result =
      train::benchmark_pipeline(sampling_config_of(arguments), options);
  if (arguments.json) {
    Json json = to_json(result, options);
    if (result.trace) {
      json["profile"] = to_json(device::profile_of(*result.trace), 1);
    }
    std::cout << json.dump() << '\n';
  } else {
    print(std::cout, result, options);
    if (result.trace) {
      print(std::cout, device::profile_of(*result.trace), 1, "run");
    }
  }
  write_trace(arguments, result.trace);
  return 0;
}

}  // namespace

int run(const BenchArguments& arguments) {
  switch (arguments.what) {
    case BenchArguments::What::kTrain:
      return bench_train(arguments);
    case BenchArguments::What::kAblate:
      return bench_ablate(arguments);
    case BenchArguments::What::kBuckets:
      return bench_buckets(arguments);
    case BenchArguments::What::kSample:
      return bench_sample(arguments);
    case BenchArguments::What::kPipeline:
      return bench_pipeline(arguments);
  }
  KINORA_UNREACHABLE("[bench] what is timed");
}

}  // namespace kinora::apps
