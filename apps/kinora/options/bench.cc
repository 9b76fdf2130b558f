#include <CLI/CLI.hpp>

#include <memory>

#include "apps/kinora/options/command.h"
#include "apps/kinora/options/numbers.h"
#include "kinora/models/text_encoders/text_encoder.h"
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

void add_profile_options(CLI::App* command, const std::shared_ptr<BenchArguments>& arguments,
                         const std::string& description) {
  CLI::Option* profile = command->add_flag("--profile", arguments->profile, description);
  command
      ->add_option("--trace", arguments->trace,
                   "Write every kernel and copy of --profile to this file, for chrome://tracing or "
                   "Perfetto")
      ->needs(profile);
}

void add_sampling_options(CLI::App* command, const std::shared_ptr<BenchArguments>& arguments,
                          int64_t& warmup, int64_t& repeats) {
  command->add_option("--steps", arguments->sampling_steps, "Sampling steps; default: the recipe's")
      ->check(whole(1, kMany));
  command->add_option("--guidance", arguments->guidance, "Guidance scale; default: the recipe's")
      ->check(real(0.0, pipelines::kMostGuidance));
  command
      ->add_option("--warmup", warmup,
                   "Runs before timing; at least two where CUDA graphs are recorded")
      ->check(whole(0, kMany));
  command->add_option("--repeats", repeats, "Timed runs")->check(whole(1, kMany));
  add_profile_options(command, arguments,
                      "Then trace a run: time by kernel, and what the host waits for");
}

void add_pipeline_options(CLI::App* command, const std::shared_ptr<BenchArguments>& arguments) {
  train::PipelineBenchmarkOptions& options = arguments->pipeline;
  command->add_option("--batch", options.batch, "Pictures at once")->check(whole(1, kMany));
  command->add_option("--caption-tokens", options.caption_tokens, "Of each caption")
      ->check(whole(1, models::kMostTokens));
  command->add_option("--text-layers", options.text_layers, "Blocks of T5-XXL, which has 24")
      ->check(whole(1, kMany));
  add_sampling_options(command, arguments, options.warmup, options.repeats);
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
  train
      ->add_option(
          "--encode-texts", arguments->step.encoded_tokens,
          "T5-XXL with random weights encodes captions of so many tokens in each step, and "
          "the step is compared with one on cached texts")
      ->check(whole(1, models::kMostTokens));
  train
      ->add_option("--text-layers", arguments->step.text_layers,
                   "Of --encode-texts: blocks of T5-XXL, which has 24")
      ->check(whole(1, kMany));
  add_profile_options(train, arguments,
                      "Then trace as many steps: time by kernel, and what the host waits for");
  add_rank_options(*train, arguments->ranks);
  choose(train, BenchArguments::What::kTrain);

  CLI::App* ablate = add("ablate", "What each switch of the fast path is worth in the same step.");
  add_step_options(ablate, arguments);
  choose(ablate, BenchArguments::What::kAblate);

  CLI::App* buckets =
      add("buckets",
          "Time training steps of mixed sizes, with numbers of sequence ranks that follow the size "
          "(parallel.dynamic_sequence) and with fixed ones.");
  add_step_options(buckets, arguments);
  add_rank_options(*buckets, arguments->ranks);
  choose(buckets, BenchArguments::What::kBuckets);

  CLI::App* sample =
      add("sample",
          "Time drawing samples with a recipe's model, of random weights or those of "
          "checkpoint.init_from.");
  sample
      ->add_option("--batch", arguments->sample.batch,
                   "Images or clips drawn at once, on all ranks together")
      ->check(whole(1, kMany));
  add_sampling_options(sample, arguments, arguments->sample.warmup, arguments->sample.repeats);
  add_rank_options(*sample, arguments->ranks);
  add_sharing_options(*sample, arguments->sample.ranks);
  choose(sample, BenchArguments::What::kSample);

  CLI::App* pipeline = add("pipeline",
                           "Time drawing pictures from captions to pixels: T5-XXL, a recipe's "
                           "model and Stable Diffusion's autoencoder, of random weights.");
  add_pipeline_options(pipeline, arguments);
  choose(pipeline, BenchArguments::What::kPipeline);

  add_bench_decode(*bench, chosen);
  add_bench_load(*bench, chosen);
  add_bench_sequence(*bench, chosen);
  add_bench_simulate(*bench, chosen);
  add_bench_text(*bench, chosen);
}

}  // namespace kinora::apps
