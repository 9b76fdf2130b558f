#include <CLI/CLI.hpp>

#include <memory>

#include "apps/kinora/options/command.h"

namespace kinora::apps {

void add_convert(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<ConvertArguments>();
  inference::ConvertOptions& options = arguments->options;
  CLI::App* command = app.add_subcommand(
      "convert", "Write weights as another kind of file: ours, safetensors, of diffusers.");
  command
      ->add_option("from", options.from,
                   "A run directory (its newest checkpoint), a checkpoint, a file of weights "
                   "(.safetensors, .pt, an index of shards) or a folder of Hugging Face")
      ->required();
  command
      ->add_option("--to", options.to,
                   "What to write: FILE.safetensors, or a new folder for diffusers")
      ->required();
  CLI::Option* ema =
      command->add_option("--ema", options.ema, "Which average, counted from 0; default: 0");
  command->add_flag("--raw", options.raw, "The weights that are trained, not an average")
      ->excludes(ema);
  command
      ->add_option("--dtype", arguments->dtype,
                   "fp32, bf16 or fp16 for all floating tensors; default: as they are")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  command
      ->add_option("--max-shard-size", arguments->max_shard_bytes,
                   "Several files with an index where one would be larger: 5GB, 800MB")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true));
  command
      ->add_option_function<std::string>(
          "--layout",
          [&options](const std::string& name) {
            using Layout = inference::ConvertOptions::Layout;
            options.layout = name == "compvis"   ? Layout::kCompvis
                             : name == "authors" ? Layout::kAuthors
                                                 : Layout::kOwn;
          },
          "Names in a file: own; compvis, those of Stable Diffusion's U-Nets and autoencoders in "
          "single files; "
          "authors, those of Stable Diffusion 3, Flux and Open-Sora 2 in theirs; default: own")
      ->check(CLI::IsMember({"own", "compvis", "authors"}));
  command->add_option("--config", options.config_file,
                      "The recipe of the model, for files that do not say what they are of");
  command->add_flag("--allow-missing", options.allow_missing,
                    "Go on where the model has tensors that the file lacks");
  command->add_flag("--allow-unexpected", options.allow_unexpected,
                    "Leave out what the model lacks");
  command->add_option("--autoencoder", options.autoencoder,
                      "The autoencoder of images for vae/ in a folder for diffusers");
  command->add_option(
      "--lora", options.adapters,
      "An adapter to merge, FILE or FILE:WEIGHT (1 = as it was trained): safetensors, or a folder "
      "of PEFT; several by giving it again. What it changes becomes fp32 unless --dtype is given");
  command
      ->add_option("--adapter", arguments->updates,
                   "Of a run with finetune.lora, or of any model with the one --lora: write not "
                   "merged weights but the adapter, a folder of PEFT with our names of linears "
                   "(own) or those of diffusers, or a file of kohya's names")
      ->check(CLI::IsMember({"own", "diffusers", "kohya"}));
  command->callback([arguments, &chosen] { chosen = *arguments; });
}

}  // namespace kinora::apps
