// kinora eval SAMPLES [REFERENCE] --features FILE: how near samples are to real ones.

#include <CLI/CLI.hpp>

#include <chrono>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/kinora/commands.h"
#include "apps/kinora/eval_scores.h"
#include "apps/kinora/ranks.h"
#include "kinora/core/error.h"
#include "kinora/eval/image_pairs.h"
#include "kinora/ops/device.h"

namespace kinora::apps {
namespace {

// Ranks that have read their samples wait for the others.
constexpr std::chrono::hours kPatience{24};

struct Arguments {
  EvalOptions eval;
  bool pairs = false;
  bool json = false;
  train::DeviceChoice device = train::DeviceChoice::kAuto;
  int64_t threads = 0;
  RankArguments ranks;
};

void print(const nlohmann::ordered_json& report, bool as_json) {
  if (as_json) {
    std::cout << report.dump() << '\n';
    return;
  }
  for (const auto& [key, value] : report.items()) {
    std::cout << key << ": " << (value.is_string() ? value.get<std::string>() : value.dump())
              << '\n';
  }
}

int score_pairs(const Arguments& arguments) {
  const eval::PairScores scores =
      eval::score_pairs(arguments.eval.samples, arguments.eval.reference);
  print({{"pairs", scores.num_pairs},
         {"equal_pairs", scores.num_equal},
         {"psnr", scores.psnr},
         {"ssim", scores.ssim}},
        arguments.json);
  return 0;
}

void describe(nlohmann::ordered_json& report, const std::string& name, const Side& side) {
  report[name] = side.path;
  if (side.num_samples > 0) {
    report["num_" + name] = side.num_samples;
  }
}

void evaluate_on_rank(const Arguments& arguments, const comm::Group& group, at::Device device) {
  ops::configure_computation(arguments.threads, /*deterministic=*/false);
  FeatureScores evaluation(arguments.eval, group, device);
  const std::vector<Score> scores = evaluation.compute();
  if (group.rank() > 0) {
    return;
  }
  nlohmann::ordered_json report;
  describe(report, "samples", evaluation.samples());
  if (evaluation.reference()) {
    describe(report, "reference", *evaluation.reference());
  }
  if (!evaluation.network_name().empty()) {
    report["network"] = evaluation.network_name();
  }
  for (const Score& score : scores) {
    report[score.key] = score.value;
  }
  if (!arguments.eval.out.empty()) {
    report["statistics"] = arguments.eval.out;
  }
  print(report, arguments.json);
}

int evaluate(Arguments& arguments) {
  EvalOptions& options = arguments.eval;
  if (arguments.pairs) {
    KINORA_CHECK(!options.reference.empty(), kConfig, "[eval] --pairs needs two folders, got one");
    return score_pairs(arguments);
  }
  if (options.metrics.empty() && !options.reference.empty()) {
    options.metrics = {"frechet"};
  }
  KINORA_CHECK(!options.metrics.empty() || !options.out.empty(), kConfig,
               "[eval] nothing is asked for. Hint: give a reference, --metrics or --out");
  const std::optional<comm::World> world = own_rank(arguments.ranks);
  if (!world) {
    return launch(arguments.ranks, arguments.device);
  }
  on_rank(*world, arguments.device,
          [&](const comm::Group& group, at::Device device) {
            evaluate_on_rank(arguments, group, device);
          },
          {.operation_timeout = kPatience});
  return 0;
}

void add_network_options(CLI::App& command, EvalOptions& options) {
  command.add_option("--features", options.network.weights,
                     "Weights of the Inception of FID or of a ResNet-20 for CIFAR-10 "
                     "(.safetensors, .pth), or a description of them (.json)");
  command.add_option("--torchscript", options.network.script,
                     "A TorchScript network instead. It runs its author's code: only from people "
                     "that you trust");
  command
      .add_option("--resize", options.network.resize,
                  "How the Inception's input is resized: clean (clean-fid, the default), pytorch "
                  "(pytorch-fid) or tensorflow (ADM, torch-fidelity)")
      ->transform(CLI::CheckedTransformer(std::map<std::string, eval::InputResize>{
          {"clean", eval::InputResize::kClean},
          {"pytorch", eval::InputResize::kPytorch},
          {"tensorflow", eval::InputResize::kTensorflow}}));
  command
      .add_option("--input-size", options.network.script_size,
                  "Pixels a side that a TorchScript network gets; default: as the samples are")
      ->check(CLI::PositiveNumber);
  command
      .add_option(
          "--input-range", options.network.script_range,
          "What a TorchScript network gets: bytes (0 to 255, the default), unit (0 to 1) or "
          "signed (-1 to 1)")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, eval::PixelRange>{{"bytes", eval::PixelRange::kBytes},
                                                  {"unit", eval::PixelRange::kUnit},
                                                  {"signed", eval::PixelRange::kSigned}}));
}

}  // namespace

void add_eval(CLI::App& app, Action& run) {
  auto arguments = std::make_shared<Arguments>();
  EvalOptions& options = arguments->eval;
  CLI::App* command = app.add_subcommand(
      "eval", "Judge samples: Frechet distance, inception score, precision and recall, classes.");
  command
      ->add_option("samples", options.samples,
                   "A folder, manifest or archive of images or clips, or an .npz of images (arr_0) "
                   "or statistics (mu, sigma)")
      ->required();
  command->add_option("reference", options.reference, "What they are compared with, likewise");
  command
      ->add_option("--metrics", options.metrics,
                   "Separated by commas: frechet, fid (the same, insists on the Inception), is, "
                   "prdc, kernel, classes; default: frechet")
      ->delimiter(',')
      ->check(CLI::IsMember({"frechet", "fid", "is", "prdc", "kernel", "classes"}));
  add_network_options(*command, options);
  command->add_option("--out", options.out, "Write the samples' statistics to this .npz file");
  command->add_flag("--pairs", arguments->pairs,
                    "PSNR and SSIM of the images of both folders that have the same name");
  command
      ->add_option("--clips", options.set.frames,
                   "The samples are clips; of each so many frames are taken, from the middle")
      ->check(CLI::PositiveNumber);
  command->add_option("--labels", options.set.labels,
                      "JSON: an object of the samples' classes by file name");
  command->add_option("--limit", options.set.limit, "Only the first so many of each side")
      ->check(CLI::PositiveNumber);
  command->add_option("--batch", options.batch, "Samples at once (32)")->check(CLI::PositiveNumber);
  command->add_option("--threads", arguments->threads, "CPU threads; 0: libtorch's default")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--device", arguments->device, "auto, cpu or cuda")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, train::DeviceChoice>{{"auto", train::DeviceChoice::kAuto},
                                                     {"cpu", train::DeviceChoice::kCpu},
                                                     {"cuda", train::DeviceChoice::kCuda}}));
  command->add_flag("--json", arguments->json, "Print one JSON object");
  add_rank_options(*command, arguments->ranks);
  command->callback([arguments, &run] { run = [arguments] { return evaluate(*arguments); }; });
}

}  // namespace kinora::apps
