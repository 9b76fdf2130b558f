// kinora bench train | ablate | sample | simulate CONFIG [key=value ...],
// kinora bench decode | sequence

#include <CLI/CLI.hpp>

#include <iostream>
#include <memory>
#include <utility>

#include "apps/kinora/bench_decode.h"
#include "apps/kinora/bench_report.h"
#include "apps/kinora/bench_sequence.h"
#include "apps/kinora/bench_simulate.h"
#include "apps/kinora/commands.h"
#include "apps/kinora/ranks.h"
#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/ops/device.h"
#include "kinora/train/setup.h"

namespace kinora::apps {
namespace {

struct Arguments {
  std::string config;
  std::vector<std::string> overrides;
  train::StepBenchmarkOptions step;
  train::SampleBenchmarkOptions sample;
  int64_t sampling_steps = 0;
  double guidance = -1.0;
  RankArguments ranks;
  bool profile = false;
  bool json = false;

  [[nodiscard]] train::RunConfig run_config() const {
    auto result = load_config<train::RunConfig>(config, overrides);
    // Before minutes are spent on the figures that come first.
    KINORA_CHECK(!profile || train::choose_device(result.train.device).is_cuda(), kConfig,
                 "[bench] --profile traces a GPU, but this recipe computes on the CPU");
    return result;
  }
};

/// Not while a benchmark holds the device's memory.
train::DeviceCeilings ceilings_of(const train::RunConfig& config) {
  ops::configure_computation(config.train.threads, config.train.deterministic);
  return train::measure_ceilings(train::compute_type(config.train.precision),
                                 train::choose_device(config.train.device));
}

int bench_train(Arguments arguments) {
  arguments.step.profile = arguments.profile;
  const train::RunConfig config = arguments.run_config();
  const std::optional<comm::World> world = own_rank(arguments.ranks);
  if (!world) {
    return launch(arguments.ranks, config.train.device);
  }
  train::StepBenchmark result;
  on_rank(*world, config.train.device, [&](const comm::Group& group, at::Device /*device*/) {
    result = train::benchmark_step(config, arguments.step, group);
  });
  if (world->rank > 0) {
    return 0;
  }
  const train::DeviceCeilings ceilings = ceilings_of(config);
  if (arguments.json) {
    Json json = to_json(result, config.train.global_batch, ceilings);
    if (result.profile) {
      json["profile"] = to_json(*result.profile, arguments.step.steps);
    }
    std::cout << json.dump() << '\n';
    return 0;
  }
  print(std::cout, result, arguments.step.steps, config.train.global_batch, ceilings);
  if (result.profile) {
    print(std::cout, *result.profile, arguments.step.steps, "step");
    for (const std::string& product : result.products) {
      std::cout << "  " << product << '\n';
    }
  }
  return 0;
}

int bench_ablate(const Arguments& arguments) {
  const train::RunConfig config = arguments.run_config();
  const train::DeviceCeilings ceilings = ceilings_of(config);
  const std::string device = ops::describe(train::choose_device(config.train.device));
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

int bench_sample(Arguments arguments) {
  arguments.sample.profile = arguments.profile;
  train::RunConfig config = arguments.run_config();
  if (arguments.sampling_steps > 0) {
    config.sample.sampling.steps = arguments.sampling_steps;
  }
  if (arguments.guidance >= 0.0) {
    config.sample.sampling.guidance = arguments.guidance;
  }
  const std::optional<comm::World> world = own_rank(arguments.ranks);
  if (!world) {
    return launch(arguments.ranks, config.train.device);
  }
  train::SampleBenchmark result;
  on_rank(*world, config.train.device, [&](const comm::Group& group, at::Device /*device*/) {
    if (group.rank() == 0 && config.parallel.sp_size > 1) {
      log_warn("[bench] parallel.sequence is of training, --sequence of sampling");
    }
    result = train::benchmark_sample(config, arguments.sample, group);
  });
  if (world->rank > 0) {
    return 0;
  }
  const train::DeviceCeilings ceilings = ceilings_of(config);
  if (arguments.json) {
    Json json = to_json(result, arguments.sample.batch, ceilings);
    if (result.profile) {
      json["profile"] = to_json(*result.profile, 1);
    }
    std::cout << json.dump() << '\n';
    return 0;
  }
  print(std::cout, result, arguments.sample.batch, arguments.sample.repeats, ceilings);
  if (result.profile) {
    print(std::cout, *result.profile, 1, "run");
  }
  return 0;
}

CLI::App* add_command(CLI::App& bench, const char* name, const char* description,
                      const std::shared_ptr<Arguments>& arguments) {
  CLI::App* command = bench.add_subcommand(name, description);
  command->add_option("config", arguments->config, "The recipe")->required();
  command->add_option("overrides", arguments->overrides, "key.path=value, each over the recipe");
  command->add_flag("--json", arguments->json, "One JSON object instead of text");
  return command;
}

void add_step_options(CLI::App* command, const std::shared_ptr<Arguments>& arguments) {
  command
      ->add_option("--warmup", arguments->step.warmup,
                   "Steps before timing; at least four where CUDA graphs are recorded")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--steps", arguments->step.steps, "Timed steps")->check(CLI::PositiveNumber);
}

}  // namespace

void add_bench(CLI::App& app, Action& run) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* bench = app.add_subcommand("bench", "Measure speed.");
  bench->require_subcommand(1);
  const auto add = [&](const char* name, const char* description) {
    return add_command(*bench, name, description, arguments);
  };

  CLI::App* train = add("train", "Time the training step of a recipe on random inputs in memory.");
  add_step_options(train, arguments);
  train->add_flag("--profile", arguments->profile,
                  "Then trace as many steps: time by kernel, and what the host waits for");
  add_rank_options(*train, arguments->ranks);
  train->callback([arguments, &run] { run = [arguments] { return bench_train(*arguments); }; });

  CLI::App* ablate = add("ablate", "What each switch of the fast path is worth in the same step.");
  add_step_options(ablate, arguments);
  ablate->callback([arguments, &run] { run = [arguments] { return bench_ablate(*arguments); }; });

  CLI::App* sample = add("sample", "Time drawing samples with a recipe's model of random weights.");
  sample
      ->add_option("--batch", arguments->sample.batch,
                   "Images or clips drawn at once, on all ranks together")
      ->check(CLI::PositiveNumber);
  sample->add_option("--steps", arguments->sampling_steps, "Sampling steps; default: the recipe's")
      ->check(CLI::PositiveNumber);
  sample->add_option("--guidance", arguments->guidance, "Guidance scale; default: the recipe's")
      ->check(CLI::NonNegativeNumber);
  sample
      ->add_option("--warmup", arguments->sample.warmup,
                   "Runs before timing; at least two where CUDA graphs are recorded")
      ->check(CLI::NonNegativeNumber);
  sample->add_option("--repeats", arguments->sample.repeats, "Timed runs")
      ->check(CLI::PositiveNumber);
  sample->add_flag("--profile", arguments->profile,
                   "Then trace a run: time by kernel, and what the host waits for");
  add_rank_options(*sample, arguments->ranks);
  add_sharing_options(*sample, arguments->sample.ranks);
  sample->callback([arguments, &run] { run = [arguments] { return bench_sample(*arguments); }; });

  add_bench_decode(*bench, run);
  add_bench_sequence(*bench, run);
  add_bench_simulate(*bench, run);
}

}  // namespace kinora::apps
