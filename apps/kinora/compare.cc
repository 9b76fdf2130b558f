// kinora compare A B: where two models that should agree part.

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <string>
#include <vector>

#include "apps/kinora/commands.h"
#include "kinora/core/text.h"
#include "kinora/device/device.h"
#include "kinora/inference/compare.h"
#include "kinora/io/jsonl.h"
#include "kinora/train/compared_input.h"

namespace kinora::apps {
namespace {

using inference::OutputDifference;

constexpr int kDifferentCode = 1;  // as diff and cmp
constexpr size_t kMostNames = 5;

inference::TrainedModel load(const ComparedSide& side, const CompareArguments& arguments) {
  return inference::load_trained(side.path, {.ema = side.weights == "ema",
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

void print(const inference::Comparison& found, double threshold, bool all) {
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

}  // namespace

int run(const CompareArguments& arguments) {
  device::configure_computation(arguments.threads, /*deterministic=*/true);
  inference::TrainedModel a = load(arguments.a, arguments);
  inference::TrainedModel b = load(arguments.b, arguments);
  const inference::Comparison found =
      inference::compare(a, b,
                         train::compared_input(a.recipe, a.objective, arguments.count,
                                               static_cast<uint64_t>(arguments.seed)));
  const double threshold = arguments.threshold > 0.0
                               ? arguments.threshold
                               : usual_error(a.recipe.precision, b.recipe.precision);
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

}  // namespace kinora::apps
