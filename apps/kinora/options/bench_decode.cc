#include <CLI/CLI.hpp>

#include <memory>

#include "apps/kinora/options/choices.h"
#include "apps/kinora/options/command.h"
#include "apps/kinora/options/numbers.h"
#include "apps/kinora/options/ranks.h"

namespace kinora::apps {

void add_bench_decode(CLI::App& bench, Chosen& chosen) {
  auto arguments = std::make_shared<BenchDecodeArguments>();
  train::DecodeBenchmarkOptions& options = arguments->options;
  CLI::App* command = bench.add_subcommand(
      "decode", "Time an autoencoder's decoder (or encoder) on random latents (or pixels).");
  command->add_option("--autoencoder", options.autoencoder,
                      "File or folder; default: Stable Diffusion's, with random weights");
  command->add_flag("--encode", options.encode, "Encode instead");
  command->add_option("--batch", options.batch, "Images or clips at once")->check(whole(1, kMany));
  command->add_option("--height", options.height, "In pixels")->check(whole(1, kMany));
  command->add_option("--width", options.width, "In pixels")->check(whole(1, kMany));
  command
      ->add_option("--frames", options.frames, "Frames of clips, latent ones to decode; 1: images")
      ->check(whole(1, kMany));
  command
      ->add_option("--memory-budget", arguments->memory_gib,
                   "GiB that activations may take; 0 = no limit")
      ->check(real(0.0));
  add_choice(*command, "--precision", options.precision, precisions(), "fp32, bf16 or fp16");
  add_device_option(*command, options.device);
  add_rank_options(*command, arguments->ranks);
  command->add_option("--warmup", options.warmup, "Runs before timing")->check(whole(0, kMany));
  command->add_option("--repeats", options.repeats, "Timed runs a block")->check(whole(1, kMany));
  command->add_flag("--profile", options.profile,
                    "Then trace a run: time by kernel, and what the host waits for");
  command->add_flag("--json", arguments->json, "One JSON object instead of text");
  command->callback([arguments, &chosen] { chosen = *arguments; });
}

}  // namespace kinora::apps
