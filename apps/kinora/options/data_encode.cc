#include <CLI/CLI.hpp>

#include <memory>

#include "apps/kinora/options/command.h"
#include "apps/kinora/options/numbers.h"

namespace kinora::apps {

void add_data_encode(CLI::App& data, Chosen& chosen) {
  auto arguments = std::make_shared<EncodeArguments>();
  CLI::App* command = data.add_subcommand(
      "encode",
      "Compute the latents of a recipe's data once, and with text.encoder the embeddings of its "
      "captions, as a cache to train on. Goes on where it was stopped.");
  command->add_option("config", arguments->config, "The recipe, .yaml: its data are encoded")
      ->required();
  command->add_option("overrides", arguments->overrides, "key=value, as in kinora train");
  command->add_option("--out", arguments->out, "The folder of the cache")->required();
  command->add_option("--autoencoder", arguments->autoencoder,
                      "A folder or file; default: autoencoder.path of the recipe");
  command
      ->add_option("--batch", arguments->batch,
                   "Samples encoded at once; default: autoencoder.micro_batch")
      ->check(whole(1));
  command
      ->add_option("--memory-budget", arguments->memory_budget,
                   "GiB that activations may take; default: autoencoder.memory_gib")
      ->check(real(0.0));
  command
      ->add_option("--dtype", arguments->dtype,
                   "What is stored: bf16 (default), fp16, or fp32, which is computed in fp32 too")
      ->check(CLI::IsMember({"bf16", "fp16", "fp32"}));
  command->add_flag("--mean-only", arguments->mean_only,
                    "Store no standard deviations: half the room, always the same latent");
  command->add_flag("--mirrored", arguments->mirrored,
                    "Also latents of the mirrored pictures, for data.flip: twice the room");
  command
      ->add_option("--save-every", arguments->save_every,
                   "Seconds after which what is computed is on the disk at the latest (10)")
      ->check(real(0.0));
  add_rank_options(*command, arguments->ranks);
  command->callback([arguments, &chosen] { chosen = *arguments; });
}

}  // namespace kinora::apps
