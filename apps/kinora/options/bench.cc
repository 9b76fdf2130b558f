#include <CLI/CLI.hpp>

#include <memory>

#include "apps/kinora/options/command.h"
#include "apps/kinora/options/numbers.h"
#include "kinora/pipelines/sampling_config.h"

namespace kinora::apps {
namespace {

CLI::App* add_bench_command(CLI::App& bench, const char* name, const char* description,
                            const std::shared_ptr<BenchArguments>& arguments) {
  CLI::App* command = bench.add_subcommand(name, description);
  command->add_option("config", arguments->config, "The recipe")->required();
  command->add_option("overrides", arguments->overrides, "key.path=value, each over the recipe");
  command->add_flag("--json", arguments->json, "One JSON object instead of text");
  return command;
}

void add_step_options(CLI::App* command, const std::shared_ptr<BenchArguments>& arguments) {
  command
      ->add_option("--warmup", arguments->step.warmup,
                   "Steps before timing; at least four where CUDA graphs are recorded")
      ->check(whole(0, kMany));
  command->add_option("--steps", arguments->step.steps, "Timed steps")->check(whole(1, kMany));
}

}  // namespace

void add_bench(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<BenchArguments>();
  CLI::App* bench = app.add_subcommand("bench", "Measure speed.");
  bench->require_subcommand(1);
  const auto add = [&](const char* name, const char* description) {
    return add_bench_command(*bench, name, description, arguments);
  };
  const auto choose = [&](CLI::App* command, BenchArguments::What what) {
    command->callback([arguments, what, &chosen] {
      arguments->what = what;
      chosen = *arguments;
    });
  };

  CLI::App* train = add("train", "Time the training step of a recipe on random inputs in memory.");
  add_step_options(train, arguments);
  train->add_flag("--profile", arguments->profile,
                  "Then trace as many steps: time by kernel, and what the host waits for");
  add_rank_options(*train, arguments->ranks);
  choose(train, BenchArguments::What::kTrain);

  CLI::App* ablate = add("ablate", "What each switch of the fast path is worth in the same step.");
  add_step_options(ablate, arguments);
  choose(ablate, BenchArguments::What::kAblate);

  CLI::App* sample = add("sample", "Time drawing samples with a recipe's model of random weights.");
  sample
      ->add_option("--batch", arguments->sample.batch,
                   "Images or clips drawn at once, on all ranks together")
      ->check(whole(1, kMany));
  sample->add_option("--steps", arguments->sampling_steps, "Sampling steps; default: the recipe's")
      ->check(whole(1, kMany));
  sample->add_option("--guidance", arguments->guidance, "Guidance scale; default: the recipe's")
      ->check(real(0.0, pipelines::kMostGuidance));
  sample
      ->add_option("--warmup", arguments->sample.warmup,
                   "Runs before timing; at least two where CUDA graphs are recorded")
      ->check(whole(0, kMany));
  sample->add_option("--repeats", arguments->sample.repeats, "Timed runs")->check(whole(1, kMany));
  sample->add_flag("--profile", arguments->profile,
                   "Then trace a run: time by kernel, and what the host waits for");
  add_rank_options(*sample, arguments->ranks);
  add_sharing_options(*sample, arguments->sample.ranks);
  choose(sample, BenchArguments::What::kSample);

  add_bench_decode(*bench, chosen);
  add_bench_sequence(*bench, chosen);
  add_bench_simulate(*bench, chosen);
  add_bench_text(*bench, chosen);
}

}  // namespace kinora::apps
