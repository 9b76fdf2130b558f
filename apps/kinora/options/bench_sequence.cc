#include <CLI/CLI.hpp>

#include <memory>

#include "apps/kinora/options/choices.h"
#include "apps/kinora/options/command.h"
#include "apps/kinora/options/numbers.h"

namespace kinora::apps {
namespace {

void add_number(CLI::App& command, const char* name, int64_t& value, const char* description) {
  command.add_option(name, value, description)->check(whole(1, kMany))->capture_default_str();
}

}  // namespace

void add_bench_sequence(CLI::App& bench, Chosen& chosen) {
  auto arguments = std::make_shared<BenchSequenceArguments>();
  CLI::App* command = bench.add_subcommand(
      "sequence", "Time attention layers whose tokens are divided among ranks, by every scheme.");
  command->add_option("--tokens", arguments->tokens, "Tokens a frame: one or several numbers")
      ->delimiter(',')
      ->check(whole(1, kMany))
      ->capture_default_str();
  command
      ->add_option("--schemes", arguments->schemes,
                   "What to time; one: a rank alone, ulysses4: a baseline with four all-to-alls")
      ->delimiter(',')
      ->check(CLI::IsMember(train::sequence_benchmark_schemes()))
      ->capture_default_str();
  train::SequenceWork& work = arguments->work;
  add_number(*command, "--frames", work.num_frames,
             "Of the clip; several: layers attend within frames and through time in turn");
  add_number(*command, "--hidden", work.hidden, "Width of a token");
  add_number(*command, "--heads", work.heads, "Heads of attention");
  add_number(*command, "--depth", work.depth, "Layers");
  add_number(*command, "--warmup", work.warmup, "Steps before timing");
  add_number(*command, "--steps", work.steps, "Timed steps, three times");
  add_device_option(*command, arguments->device);
  command->add_flag("--json", arguments->json, "One JSON object instead of text");
  add_rank_options(*command, arguments->ranks);
  command->callback([arguments, &chosen] { chosen = *arguments; });
}

}  // namespace kinora::apps
