#include "kinora/train/bench/benchmark_ablation.h"

#include <exception>

#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/train/bench/benchmark.h"
#include "kinora/train/setup.h"

namespace kinora::train {
namespace {

/// A change of one key, what has to be so for it to mean anything, and what must change with it.
struct Variation {
  std::string assignment;
  enum class Needs { kGpu, kFastPath, kFastPathOnGpu, kGraphs, kNothing } needs;
  std::vector<std::string> also = {};
};

RunConfig with(const RunConfig& config, const Variation& variation) {
  std::vector<std::string> overrides = variation.also;
  overrides.push_back(variation.assignment);
  return parse_config<RunConfig>({.text = dump_config(config), .origin = "the recipe"}, overrides);
}

std::vector<Variation> variations_of(const RunConfig& config) {
  using Needs = Variation::Needs;
  return {{"kernels.adaln=off", Needs::kFastPathOnGpu},
          {"kernels.attention=off", Needs::kFastPathOnGpu},
          {"kernels.epilogue=off", Needs::kFastPathOnGpu},
          {"kernels.optimizer=off", Needs::kGpu},
          {"kernels.graphs=off", Needs::kGraphs},
          {"model.path=plain", Needs::kFastPath, {"train.fp8=false"}},
          {config.train.fp8 ? "train.fp8=false" : "train.fp8=true", Needs::kNothing}};
}

/// Why a variation says nothing where `base` is how the recipe runs; empty if it does.
std::string why_not(Variation::Needs needs, const StepBenchmark& base) {
  using Needs = Variation::Needs;
  const bool gpu = base.device.starts_with("cuda");
  if ((needs == Needs::kGpu || needs == Needs::kFastPathOnGpu || needs == Needs::kGraphs) && !gpu) {
    return "does not apply: a switch of kernels on a GPU";
  }
  if ((needs == Needs::kFastPath || needs == Needs::kFastPathOnGpu) && !base.fast_path) {
    return "does not apply: the recipe takes the plain path here";
  }
  if (needs == Needs::kGraphs && !base.graphs) {
    return "does not apply: the recipe is not recorded as CUDA graphs here";
  }
  return {};
}

void time_into(AblationRow* row, const RunConfig& config, const StepBenchmarkOptions& options,
               bool must_fit) {
  try {
    row->result = benchmark_step(config, options);
  } catch (const std::exception& error) {
    if (caught_out_of_memory()) {
      row->note = "out of memory";
      return;
    }
    const auto* refusal = dynamic_cast<const Error*>(&error);
    if (refusal != nullptr && refusal->kind() == ErrorKind::kConfig && !must_fit) {
      row->note = std::string("does not apply: ") + error.what();
    } else {
      throw;
    }
  }
}

}  // namespace

std::vector<AblationRow> ablate(RunConfig config, const StepBenchmarkOptions& options,
                                const std::function<void(const AblationRow&)>& report) {
  config.kernels = {};
  std::vector<AblationRow> rows(1);
  AblationRow& all_on = rows.front();
  all_on.name = "all on";
  time_into(&all_on, config, options, /*must_fit=*/true);
  all_on.ratio = all_on.result ? 1.0 : 0.0;
  const std::optional<StepBenchmark> base = all_on.result;
  report(all_on);
  for (const Variation& variation : variations_of(config)) {
    AblationRow row{.name = variation.assignment, .result = {}, .note = {}, .ratio = 0.0};
    row.note = base ? why_not(variation.needs, *base) : "";
    if (row.note.empty()) {
      time_into(&row, with(config, variation), options, /*must_fit=*/false);
    }
    if (row.result && base) {
      row.ratio = row.result->samples_per_s / base->samples_per_s;
      if (row.result->kernels == base->kernels) {
        row.note = "the same kernels ran";
      }
    }
    report(row);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace kinora::train
