// kinora bench simulate CONFIG [key=value ...]: the training step on more GPUs than there are.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "apps/kinora/commands.h"
#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/train/bench/benchmark_step.h"
#include "kinora/train/bench/scaling_model.h"
#include "kinora/train/plan/step_estimate.h"

namespace kinora::apps {
namespace {

using Json = nlohmann::ordered_json;

/// A figure that the prediction rests on.
struct Input {
  std::string name;
  double value;
  std::string unit;
  std::string origin;  // "given", "measured", "recipe", "assumed"
};

comm::Link link_of(const char* option, const std::vector<double>& values, bool is_needed) {
  KINORA_CHECK(!is_needed || !values.empty(), kConfig, "[bench] ", option,
               " is needed: seconds,bytes/s of that link. Hint: the self-check at the start of a "
               "run on several GPUs prints measured figures");
  if (values.empty()) {
    return {};
  }
  KINORA_CHECK(values[0] >= 0.0 && values[1] > 0.0, kConfig, "[bench] ", option,
               " must be a latency in seconds and bytes per second above 0, got ", values[0], ", ",
               values[1]);
  return {values[0], values[1]};
}

/// Everything that the prediction is made from.
struct Study {
  train::StepCosts costs;
  train::Cluster cluster;
  train::ZeroStage stage = train::ZeroStage::kNone;
  int64_t samples = 0;  // a step and GPU
  std::vector<Input> inputs;
};

Study make_study(const SimulateArguments& arguments) {
  const auto config = load_config<train::RunConfig>(arguments.config, arguments.overrides);
  Study study;
  study.cluster.ranks_per_node = arguments.gpus_per_node;
  study.cluster.inside = link_of("--inside", arguments.inside, arguments.gpus_per_node > 1);
  study.cluster.across = link_of("--across", arguments.across, arguments.nodes > 1);
  study.stage = static_cast<train::ZeroStage>(arguments.zero_stage);
  study.samples = config.train.global_batch;
  study.costs.accumulation = config.train.global_batch / config.micro_batch();
  study.costs.update_s = arguments.update_seconds;
  const bool is_given = arguments.step_seconds > 0.0;
  const double step_s =
      is_given ? arguments.step_seconds : train::benchmark_step(config, {}).step_seconds;
  KINORA_CHECK(step_s > arguments.update_seconds, kConfig, "[bench] the step of one GPU, ", step_s,
               " s, must be longer than --update-seconds, got ", arguments.update_seconds);
  auto resolved = config;
  resolved.model =
      inference::resolved_model(config, std::max<int64_t>(config.model.num_classes, 1));
  study.costs.buckets =
      train::bucket_costs(resolved, (step_s - arguments.update_seconds) /
                                        static_cast<double>(study.costs.accumulation));
  double gradients = 0.0;
  double weights = 0.0;
  for (const train::BucketCost& bucket : study.costs.buckets) {
    gradients += bucket.gradient_bytes;
    weights += bucket.weight_bytes;
  }
  study.inputs = {{"step of one GPU", step_s, "s", is_given ? "given" : "measured"},
                  {"of it, update", arguments.update_seconds, "s",
                   arguments.update_seconds > 0.0 ? "given" : "assumed"},
                  {"share of forward", train::kForwardShare, "of the rest", "assumed"},
                  {"samples a step and GPU", static_cast<double>(study.samples), "", "recipe"},
                  {"micro-steps", static_cast<double>(study.costs.accumulation), "", "recipe"},
                  {"buckets", static_cast<double>(study.costs.buckets.size()), "", "recipe"},
                  {"gradients", gradients, "bytes", "recipe"},
                  {"weights", weights, "bytes", "recipe"},
                  {"pipelined from", static_cast<double>(study.cluster.min_pipelined_bytes),
                   "bytes a message", "assumed"}};
  const auto add_link = [&](const std::string& name, const std::vector<double>& link) {
    if (!link.empty()) {
      study.inputs.push_back({name + " latency", link[0], "s", "given"});
      study.inputs.push_back({name + " bandwidth", link[1], "bytes/s", "given"});
    }
  };
  add_link("inside", arguments.inside);
  add_link("across", arguments.across);
  return study;
}

/// The buckets that would expose least of the gradients within a node, where there are ranks.
train::BucketChoice best_buckets(const Study& study) {
  double gradients = 0.0;
  double backward_s = 0.0;
  for (const train::BucketCost& bucket : study.costs.buckets) {
    gradients += bucket.gradient_bytes;
    backward_s += bucket.backward_s;
  }
  return train::bucket_size(
      comm::ring_bytes(comm::Operation::kReduceScatter, study.cluster.ranks_per_node, gradients),
      backward_s, study.cluster.inside);
}

double samples_per_s(const Study& study, const train::Cluster& cluster,
                     const train::ScalingPrediction& prediction) {
  return static_cast<double>(study.samples * cluster.ranks()) / prediction.step_s;
}

void print(std::ostream& out, const Study& study, int64_t nodes) {
  out << "predicted, not measured; ZeRO stage " << static_cast<int>(study.stage) << ", "
      << study.cluster.ranks_per_node << " GPUs a node\n\n";
  for (const Input& input : study.inputs) {
    out << "  " << std::left << std::setw(24) << input.name << std::right << std::setw(12)
        << std::setprecision(4) << input.value << ' ' << std::left << std::setw(16) << input.unit
        << input.origin << '\n';
  }
  if (study.cluster.ranks_per_node > 1) {
    const train::BucketChoice best = best_buckets(study);
    out << "  by the formula " << best.count << " equal buckets of "
        << human_bytes(
               static_cast<int64_t>(best.bytes * static_cast<double>(study.cluster.ranks_per_node) /
                                    static_cast<double>(study.cluster.ranks_per_node - 1)))
        << " would expose least inside a node\n";
  }
  out << '\n' << std::right;
  for (const char* column : {"nodes", "GPUs", "step ms", "exposed ms", "inside ms", "across ms",
                             "samples/s", "scaling %"}) {
    out << std::setw(12) << column;
  }
  out << '\n' << std::fixed;
  train::Cluster cluster = study.cluster;
  for (cluster.nodes = 1; cluster.nodes <= nodes; ++cluster.nodes) {
    const train::ScalingPrediction result = predict_step(study.costs, cluster, study.stage);
    out << std::setw(12) << cluster.nodes << std::setw(12) << cluster.ranks()
        << std::setprecision(3);
    for (const double seconds :
         {result.step_s, result.exposed_s, result.inside_s, result.across_s}) {
      out << std::setw(12) << seconds * 1e3;
    }
    out << std::setprecision(1) << std::setw(12) << samples_per_s(study, cluster, result)
        << std::setw(12) << 100.0 * result.efficiency << '\n';
  }
}

Json to_json(const Study& study, int64_t nodes) {
  Json json;
  json["zero_stage"] = static_cast<int>(study.stage);
  json["gpus_per_node"] = study.cluster.ranks_per_node;
  json["inputs"] = Json::array();
  for (const Input& input : study.inputs) {
    json["inputs"].push_back({{"name", input.name},
                              {"value", input.value},
                              {"unit", input.unit},
                              {"origin", input.origin}});
  }
  json["rows"] = Json::array();
  train::Cluster cluster = study.cluster;
  for (cluster.nodes = 1; cluster.nodes <= nodes; ++cluster.nodes) {
    const train::ScalingPrediction result = predict_step(study.costs, cluster, study.stage);
    json["rows"].push_back({{"nodes", cluster.nodes},
                            {"gpus", cluster.ranks()},
                            {"ms", result.step_s * 1e3},
                            {"exposed_ms", result.exposed_s * 1e3},
                            {"inside_ms", result.inside_s * 1e3},
                            {"across_ms", result.across_s * 1e3},
                            {"samples_per_s", samples_per_s(study, cluster, result)},
                            {"scaling", result.efficiency}});
  }
  return json;
}

}  // namespace

int run(const SimulateArguments& arguments) {
  const Study study = make_study(arguments);
  if (arguments.json) {
    std::cout << to_json(study, arguments.nodes).dump() << '\n';
  } else {
    print(std::cout, study, arguments.nodes);
  }
  return 0;
}

}  // namespace kinora::apps
