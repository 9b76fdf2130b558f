// kinora convert CHECKPOINT --to model.safetensors

#include <CLI/CLI.hpp>

#include <filesystem>
#include <iostream>
#include <memory>
#include <string>

#include "apps/kinora/commands.h"
#include "kinora/checkpoint/checkpoint.h"
#include "kinora/checkpoint/weights_file.h"
#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/models/model.h"
#include "kinora/train/run_config.h"
#include "kinora/train/setup.h"

namespace kinora::apps {
namespace {

namespace fs = std::filesystem;

struct Arguments {
  std::string checkpoint;
  std::string to;
  std::string dtype = "fp32";
  int64_t ema = 0;
  bool raw = false;
};

train::Precision precision_of(const std::string& dtype) {
  if (dtype == "bf16") {
    return train::Precision::kBf16;
  }
  return dtype == "fp16" ? train::Precision::kFp16 : train::Precision::kFp32;
}

int convert(const Arguments& arguments) {
  fs::path checkpoint = arguments.checkpoint;
  if (const auto of_run = checkpoint::list_checkpoints(checkpoint / "checkpoints");
      !of_run.empty()) {
    checkpoint = of_run.back();
  }
  const std::string text = checkpoint::load_state(checkpoint).config;
  auto config = parse_config<train::RunConfig>(
      {.text = text, .origin = "configuration in " + checkpoint.string()});
  const auto model = models::make_model(train::resolved_model(config, config.model.num_classes));
  const bool raw = arguments.raw || config.ema_decays.empty();
  checkpoint::convert_checkpoint(
      checkpoint, arguments.to, *model,
      raw ? optim::Role::master() : optim::Role::average(static_cast<size_t>(arguments.ema)),
      train::compute_type(precision_of(arguments.dtype)));
  std::cout << (raw ? "raw" : "averaged") << " weights of " << checkpoint.string() << " in "
            << arguments.to << '\n';
  return 0;
}

}  // namespace

void add_convert(CLI::App& app, Action& run) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      app.add_subcommand("convert", "Write the weights of a checkpoint as one file.");
  command
      ->add_option("checkpoint", arguments->checkpoint,
                   "A checkpoint's folder, or a run directory: its newest one")
      ->required();
  command->add_option("--to", arguments->to, "The file to write, .safetensors")->required();
  CLI::Option* ema =
      command->add_option("--ema", arguments->ema, "Which average, counted from 0; default: 0")
          ->check(CLI::NonNegativeNumber);
  command->add_flag("--raw", arguments->raw, "The weights that are trained, not an average")
      ->excludes(ema);
  command->add_option("--dtype", arguments->dtype, "fp32, bf16 or fp16")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  command->callback([arguments, &run] { run = [arguments] { return convert(*arguments); }; });
}

}  // namespace kinora::apps
