// kinora bench train CONFIG [key=value ...]

#include <CLI/CLI.hpp>

#include <iomanip>
#include <iostream>
#include <memory>

#include "apps/kinora/commands.h"
#include "kinora/core/build_info.h"
#include "kinora/core/config.h"
#include "kinora/core/text.h"
#include "kinora/io/jsonl.h"
#include "kinora/train/benchmark.h"

namespace kinora::apps {
namespace {

struct Arguments {
  std::string config;
  std::vector<std::string> overrides;
  int64_t warmup = 5;
  int64_t steps = 20;
  bool json = false;
};

int bench_train(const Arguments& arguments) {
  const auto config = load_config<train::RunConfig>(arguments.config, arguments.overrides);
  const train::StepBenchmark result =
      train::benchmark_step(config, arguments.warmup, arguments.steps);
  const double share = result.gemm_tflops > 0 ? result.model_tflops / result.gemm_tflops : 0.0;
  if (arguments.json) {
    io::JsonObject line;
    line.add("device", result.device)
        .add("kernels", result.kernels)
        .add("commit", build_info().commit)
        .add("global_batch", config.train.global_batch)
        .add("ms", result.step_seconds * 1e3)
        .add("samples_per_s", result.samples_per_s)
        .add("tflops", result.model_tflops)
        .add("gemm_tflops", result.gemm_tflops)
        .add("peak_memory", result.peak_memory)
        .add("last_loss", result.last_loss);
    std::cout << line.text() << '\n';
    return 0;
  }
  std::cout << std::setprecision(4) << "device         " << result.device << "\nkernels        "
            << result.kernels << "\nstep           " << result.step_seconds * 1e3
            << " ms (median of " << arguments.steps << ", " << config.train.global_batch
            << " samples)\nsamples/s      " << result.samples_per_s << "\nmodel TFLOP/s  "
            << result.model_tflops << ", " << share * 100
            << " % of what a large matrix product reaches here (" << result.gemm_tflops
            << ")\npeak memory    "
            << (result.peak_memory > 0 ? human_bytes(result.peak_memory)
                                       : std::string("not measured on the CPU"))
            << '\n';
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, Action& run) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* bench = app.add_subcommand("bench", "Measure speed.");
  bench->require_subcommand(1);
  CLI::App* command = bench->add_subcommand(
      "train", "Time the training step of a recipe on random inputs in memory.");
  command->add_option("config", arguments->config, "The recipe")->required();
  command->add_option("overrides", arguments->overrides, "key.path=value, each over the recipe");
  command->add_option("--warmup", arguments->warmup, "Steps before timing")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--steps", arguments->steps, "Timed steps")->check(CLI::PositiveNumber);
  command->add_flag("--json", arguments->json, "One JSON object instead of text");
  command->callback([arguments, &run] { run = [arguments] { return bench_train(*arguments); }; });
}

}  // namespace kinora::apps
