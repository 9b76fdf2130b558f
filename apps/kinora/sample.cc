// kinora sample --run DIR | --checkpoint FILE_OR_DIR

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>

#include "apps/kinora/commands.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/progress.h"
#include "kinora/io/image_grid.h"
#include "kinora/io/safetensors.h"
#include "kinora/ops/device.h"
#include "kinora/ops/host_bytes.h"
#include "kinora/pipelines/class_to_image.h"
#include "kinora/train/trained_model.h"

namespace kinora::apps {
namespace {

struct Arguments {
  std::string run;
  std::string checkpoint;
  std::string config;
  std::string out = "samples";
  std::string weights = "ema";
  std::string device = "auto";
  std::string precision;
  std::vector<int64_t> classes;
  std::vector<std::string> overrides;
  int64_t count = 0;
  int64_t batch = 64;
  int64_t steps = 0;
  int64_t seed = 0;
  int64_t threads = 0;
  double guidance = -1.0;
  bool deterministic = false;
};

train::LoadOptions load_options(const Arguments& arguments) {
  train::LoadOptions options{.ema = arguments.weights == "ema",
                             .overrides = arguments.overrides,
                             .config_file = arguments.config};
  if (arguments.device != "auto") {
    options.device =
        arguments.device == "cpu" ? train::DeviceChoice::kCpu : train::DeviceChoice::kCuda;
  }
  if (arguments.precision == "fp32") {
    options.precision = train::Precision::kFp32;
  } else if (arguments.precision == "bf16") {
    options.precision = train::Precision::kBf16;
  } else if (arguments.precision == "fp16") {
    options.precision = train::Precision::kFp16;
  }
  return options;
}

std::string image_name(int64_t index, int64_t label) {
  char name[64];
  std::snprintf(name, sizeof(name), "image-%05ld_class-%ld.png", static_cast<long>(index),
                static_cast<long>(label));
  return name;
}

/// Latents cannot be shown yet, so they are kept as they are, with their labels.
void write_latents(const std::filesystem::path& path, const at::Tensor& latents,
                   std::vector<int64_t> labels) {
  const std::vector<io::SafetensorsTensor> tensors = {
      {.name = "labels",
       .dtype = DType::kI64,
       .shape = {static_cast<int64_t>(labels.size())},
       .data = std::as_bytes(std::span(labels))},
      {.name = "latents",
       .dtype = DType::kF32,
       .shape = latents.sizes().vec(),
       .data = ops::bytes_of(latents)}};
  io::write_safetensors(path, tensors);
}

int sample(const Arguments& arguments) {
  KINORA_CHECK(arguments.run.empty() != arguments.checkpoint.empty(), kConfig,
               "[sample] give one of --run DIR and --checkpoint FILE_OR_DIR");
  ops::configure_computation(arguments.threads, arguments.deterministic);
  train::TrainedModel trained = train::load_trained(
      arguments.run.empty() ? arguments.checkpoint : arguments.run, load_options(arguments));
  pipelines::SamplingConfig sampling = trained.config.sample.sampling;
  if (arguments.steps > 0) {
    sampling.steps = arguments.steps;
  }
  if (arguments.guidance >= 0.0) {
    sampling.guidance = arguments.guidance;
  }
  pipelines::ClassToImageRequest request{.classes = arguments.classes,
                                         .count = arguments.count,
                                         .first_index = 0,
                                         .batch = arguments.batch,
                                         .seed = static_cast<uint64_t>(arguments.seed),
                                         .graphs = trained.graphs};
  const models::DiTConfig& model = trained.config.model;
  if (request.classes.empty()) {
    for (int64_t label = 0; label < std::min<int64_t>(model.num_classes, 64); ++label) {
      request.classes.push_back(label);
    }
  }
  const auto num_classes = static_cast<int64_t>(request.classes.size());
  if (request.count == 0) {
    request.count = num_classes;
  }
  const std::filesystem::path out = arguments.out;
  std::filesystem::create_directories(out);
  Progress progress(request.count, "images");
  const at::Tensor pixels = pipelines::sample_classes(
      *trained.model, pipelines::make_sampler(sampling, trained.objective), sampling, request,
      {model.in_channels, model.height, model.width}, model.num_classes, trained.device,
      [&progress](double done) { progress.update(static_cast<int64_t>(done)); });
  progress.finish();
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < request.count; ++i) {
    labels.push_back(request.classes[static_cast<size_t>(i % num_classes)]);
  }
  if (model.in_channels != 3 && model.in_channels != 1) {
    write_latents(out / "latents.safetensors", pixels, labels);
    std::cout << (out / "latents.safetensors").string() << '\n';
    return 0;
  }
  const std::vector<io::Image> images = pipelines::to_images(pixels);
  for (size_t i = 0; i < images.size(); ++i) {
    io::write_png(out / image_name(static_cast<int64_t>(i), labels[i]), images[i]);
  }
  io::write_png(out / "grid.png", io::make_grid(images));
  std::cout << images.size() << " images in " << out.string() << ", all together in "
            << (out / "grid.png").string() << '\n';
  return 0;
}

}  // namespace

void add_sample(CLI::App& app, Action& run) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("sample", "Draw images from a trained model.");
  command->add_option("--run", arguments->run, "A run directory; its newest checkpoint is used");
  command->add_option("--checkpoint", arguments->checkpoint,
                      "A checkpoint's folder, or a file of weights (.safetensors, .pt)");
  command->add_option("--config", arguments->config,
                      "Recipe of the model, for files that do not hold it");
  command->add_option("--set", arguments->overrides, "key.path=value over the run's configuration");
  command->add_option("--classes", arguments->classes, "Classes by number: 0,1,2; default: all")
      ->delimiter(',');
  command->add_option("--count", arguments->count, "Images in all; the classes take turns")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--batch", arguments->batch, "Images computed at once; does not change them")
      ->check(CLI::PositiveNumber);
  command->add_option("--steps", arguments->steps, "Sampling steps; default: the run's")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--guidance", arguments->guidance, "Guidance scale; default: the run's");
  command->add_option("--seed", arguments->seed, "Seed of the noise")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--out", arguments->out, "Folder for the images");
  command->add_option("--weights", arguments->weights, "ema (averaged) or raw")
      ->check(CLI::IsMember({"ema", "raw"}));
  command->add_option("--device", arguments->device, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  command->add_option("--precision", arguments->precision, "fp32, bf16, fp16; default: the run's")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  command->add_option("--threads", arguments->threads, "CPU threads; 0 = as many as cores");
  command->add_flag("--deterministic", arguments->deterministic,
                    "Only kernels that give the same bits each time");
  command->callback([arguments, &run] { run = [arguments] { return sample(*arguments); }; });
}

}  // namespace kinora::apps
