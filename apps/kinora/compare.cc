// kinora compare A B: where two models that should agree part.

#include <CLI/CLI.hpp>

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "apps/kinora/commands.h"
#include "kinora/core/text.h"
#include "kinora/io/jsonl.h"
#include "kinora/ops/device.h"
#include "kinora/train/compare.h"

namespace kinora::apps {
namespace {

using train::OutputDifference;
using train::Precision;

constexpr int kDifferentCode = 1;  // as diff and cmp
constexpr size_t kMostNames = 5;

struct Side {
  std::string path;
  std::vector<std::string> overrides;
  std::optional<Precision> precision;
  std::string weights = "ema";
};

struct Arguments {
  Side a;
  Side b;
  std::string config;
  int64_t count = 4;
  int64_t seed = 0;
  double threshold = 0.0;
  train::DeviceChoice device = train::DeviceChoice::kAuto;
  int64_t threads = 0;
  bool json = false;
  bool all = false;
};

train::TrainedModel load(const Side& side, const Arguments& arguments) {
  return train::load_trained(side.path, {.ema = side.weights == "ema",
                                         .device = arguments.device,
                                         .precision = side.precision,
                                         .overrides = side.overrides,
                                         .config_file = arguments.config});
}

/// What rounding alone makes of a model's outputs, at most: of the coarser precision of the two.
double usual_error(Precision a, Precision b) {
  if (a == Precision::kBf16 || b == Precision::kBf16) {
    return 5e-2;
  }
  return a == Precision::kFp16 || b == Precision::kFp16 ? 1e-2 : 1e-4;
}

void print_row(const OutputDifference& output) {
  std::cout << std::setw(12) << std::setprecision(3) << output.relative_error << std::setw(13)
            << std::setprecision(8) << output.cosine << std::setw(12) << std::setprecision(3)
            << output.largest << "  " << (output.module.empty() ? "the model" : output.module)
            << '\n';
}

void print_json(const OutputDifference& output, const char* kind) {
  std::cout << io::JsonObject()
                   .add("kind", kind)
                   .add("module", output.module)
                   .add("relative_error", output.relative_error)
                   .add("cosine", output.cosine)
                   .add("max_abs", output.largest)
                   .text()
            << '\n';
}

void print(const train::Comparison& found, double threshold, bool all) {
  std::cout << "relative err       cosine    max |b-a|  module\n";
  const OutputDifference* first = found.first_above(threshold);
  for (const OutputDifference& output : found.modules) {
    if (all || &output == first || !(output.relative_error <= threshold)) {
      print_row(output);
    }
  }
  for (const auto& [names, side] :
       {std::pair(&found.only_in_a, "A"), std::pair(&found.only_in_b, "B")}) {
    if (!names->empty()) {
      std::cout << "only in " << side << ", or of another shape: " << list_names(*names, kMostNames)
                << '\n';
    }
  }
  std::cout << found.modules.size() << " modules; the prediction differs by "
            << found.prediction.relative_error << " (cosine " << std::setprecision(8)
            << found.prediction.cosine << std::setprecision(3) << ")\n";
  if (first != nullptr) {
    std::cout << "first above " << threshold << ": "
              << (first->module.empty() ? "the model" : first->module) << '\n';
  } else {
    std::cout << "no module differs by more than " << threshold << '\n';
  }
}

int compare(const Arguments& arguments) {
  ops::configure_computation(arguments.threads, /*deterministic=*/true);
  train::TrainedModel a = load(arguments.a, arguments);
  train::TrainedModel b = load(arguments.b, arguments);
  const train::Comparison found =
      train::compare(a, b,
                     train::compared_input(a.config, a.objective, arguments.count,
                                           static_cast<uint64_t>(arguments.seed)));
  const double threshold = arguments.threshold > 0.0
                               ? arguments.threshold
                               : usual_error(a.config.train.precision, b.config.train.precision);
  if (arguments.json) {
    for (const OutputDifference& output : found.modules) {
      print_json(output, "module");
    }
    print_json(found.prediction, "prediction");
  } else {
    print(found, threshold, arguments.all);
  }
  const bool is_same = found.first_above(threshold) == nullptr && found.only_in_a.empty() &&
                       found.only_in_b.empty() && found.prediction.relative_error <= threshold;
  return is_same ? 0 : kDifferentCode;
}

void add_side(CLI::App& command, const std::string& name, Side& side) {
  const std::map<std::string, Precision> precisions = {
      {"fp32", Precision::kFp32}, {"bf16", Precision::kBf16}, {"fp16", Precision::kFp16}};
  command.add_option(name, side.path, "A run, a checkpoint's folder, or a file of weights")
      ->required();
  const std::string suffix = "-" + name;
  command.add_option("--set" + suffix, side.overrides, "key.path=value over its configuration");
  command
      .add_option("--precision" + suffix, side.precision, "fp32, bf16 or fp16; default: its own")
      ->transform(CLI::CheckedTransformer(precisions));
  command.add_option("--weights" + suffix, side.weights, "ema (averaged) or raw; default: ema")
      ->check(CLI::IsMember({"ema", "raw"}));
}

}  // namespace

void add_compare(CLI::App& app, Action& run) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand(
      "compare", "Show two models the same samples and find the first module that differs.");
  add_side(*command, "a", arguments->a);
  add_side(*command, "b", arguments->b);
  command->add_option("--config", arguments->config,
                      "Recipe of the models, for files that do not hold it");
  command->add_option("--count", arguments->count, "Samples of A's data to show; default: 4")
      ->check(CLI::PositiveNumber);
  command->add_option("--seed", arguments->seed, "Seed of their noise; default: 0")
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--threshold", arguments->threshold,
                   "Relative error from which a module differs; default: 1e-4, 1e-2 where one is "
                   "fp16, 5e-2 where one is bf16")
      ->check(CLI::PositiveNumber);
  command->add_option("--device", arguments->device, "auto, cpu or cuda; default: auto")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, train::DeviceChoice>{{"auto", train::DeviceChoice::kAuto},
                                                     {"cpu", train::DeviceChoice::kCpu},
                                                     {"cuda", train::DeviceChoice::kCuda}}));
  command->add_option("--threads", arguments->threads, "CPU threads; default: libtorch's choice")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--all", arguments->all, "Print every module, not only those that differ");
  command->add_flag("--json", arguments->json, "One line of JSON for each module");
  command->callback([arguments, &run] { run = [arguments] { return compare(*arguments); }; });
}

}  // namespace kinora::apps
