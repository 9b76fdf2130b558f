#include <CLI/CLI.hpp>

#include <memory>
#include <string>

#include "apps/kinora/options/choices.h"
#include "apps/kinora/options/command.h"
#include "apps/kinora/options/numbers.h"
#include "kinora/models/text_encoders/text_encoder.h"

namespace kinora::apps {

void add_bench_text(CLI::App& bench, Chosen& chosen) {
  auto arguments = std::make_shared<BenchTextArguments>();
  train::TextBenchmarkOptions& options = arguments->options;
  CLI::App* command = bench.add_subcommand(
      "text-encoder", "Time T5-XXL's encoder with random weights on captions of random lengths.");
  command->add_option("--captions", options.captions, "How many")->check(whole(1, kMany));
  command->add_option("--least-tokens", options.least_tokens, "Of a caption")
      ->check(whole(1, models::kMostTokens));
  command->add_option("--most-tokens", options.most_tokens, "Of a caption")
      ->check(whole(1, models::kMostTokens));
  command->add_option("--layers", options.layers, "Blocks; T5-XXL has 24")->check(whole(1, kMany));
  add_choice(*command, "--precision", options.precision, precisions(), "fp32, bf16 or fp16");
  CLI::Option* eight_bits =
      add_choice(*command, "--weights", options.eight_bits,
                 {{"int8", models::EightBit::kInt8}, {"fp8", models::EightBit::kFp8}},
                 "int8 or fp8: linears are kept in 8 bits, and widened at each use");
  command
      ->add_option(
          "--streamed", options.stream_folder,
          "Read the blocks from a file in this folder, which is written unless it is there")
      ->excludes(eight_bits);
  add_device_option(*command, options.device);
  command->add_option("--warmup", options.warmup, "Runs before timing")->check(whole(0, kMany));
  command->add_option("--repeats", options.repeats, "Timed runs")->check(whole(1, kMany));
  command->add_flag("--profile", options.profile,
                    "Then trace a run: time by kernel, and what the host waits for");
  command->add_flag("--json", arguments->json, "One JSON object instead of text");
  command->callback([arguments, &chosen] { chosen = *arguments; });
}

}  // namespace kinora::apps
