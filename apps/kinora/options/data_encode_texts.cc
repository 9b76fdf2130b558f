#include <CLI/CLI.hpp>

#include <memory>

#include "apps/kinora/options/choices.h"
#include "apps/kinora/options/command.h"
#include "apps/kinora/options/numbers.h"

namespace kinora::apps {

void add_data_encode_texts(CLI::App& data, Chosen& chosen) {
  auto arguments = std::make_shared<EncodeTextsArguments>();
  CLI::App* command =
      data.add_subcommand("encode-texts",
                          "Embed the captions of a recipe's data by a text encoder, as a file for "
                          "data.text_embeddings. Goes on where it was stopped.");
  command->add_option("config", arguments->config, "The recipe, .yaml: its data's captions")
      ->required();
  command->add_option("overrides", arguments->overrides, "key=value, as in kinora train");
  command->add_option("--out", arguments->out, "The file, .safetensors")->required();
  command
      ->add_option("--text-encoder", arguments->text_encoder,
                   "A folder or file of T5, UMT5 or CLIP")
      ->required();
  command->add_option("--tokenizer", arguments->tokenizer,
                      "A folder or file; default: beside the text encoder");
  command->add_option("--captions-file", arguments->captions_file,
                      "Embed the lines of this file instead, in order, for kinora sample "
                      "--text-embeddings");
  add_choice(*command, "--clean", arguments->clean, {{"on", true}, {"off", false}},
             "on or off: clean captions as DeepFloyd IF; default: on for PixArt and STDiT");
  command
      ->add_option("--max-tokens", arguments->max_tokens,
                   "Where captions are cut off; default: model.text_tokens, and what the "
                   "tokenizer says")
      ->check(whole(1));
  command->add_option("--batch", arguments->batch, "Captions encoded at once (64)")
      ->check(whole(1));
  add_choice(*command, "--dtype", arguments->dtype, precisions(),
             "What is stored: bf16 (default), fp16 or fp32");
  add_choice(*command, "--precision", arguments->precision, precisions(),
             "What the encoder computes in: bf16 (default), fp16 or fp32");
  CLI::Option* eight_bits = command
                                ->add_option("--eight-bits", arguments->eight_bits,
                                             "int8 or fp8: keep the blocks' weights so")
                                ->check(CLI::IsMember({"int8", "fp8"}));
  command
      ->add_flag("--streamed", arguments->streamed,
                 "Read the blocks from the file as they are used: little memory")
      ->excludes(eight_bits);
  command
      ->add_option("--save-every", arguments->save_every,
                   "Seconds after which what is computed is on the disk at the latest (10)")
      ->check(real(0.0));
  add_device_option(*command, arguments->device);
  command->callback([arguments, &chosen] { chosen = *arguments; });
}

}  // namespace kinora::apps
