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
#include "kinora/models/families.h"
#include "kinora/models/model.h"
#include "kinora/parallel/tensor.h"
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

train::Route route_of(const std::string& name) {
  if (name == "torus") {
    return train::Route::kTorus;
  }
  return name == "ring" ? train::Route::kRing : train::Route::kGloo;
}

/// Everything that the prediction is made from.
struct Study {
  train::StepCosts costs;
  train::Cluster cluster;
  train::ZeroStage stage = train::ZeroStage::kNone;
  int64_t samples = 0;  // a step and model
  int64_t tensor = 1;   // GPUs of a model
  std::string route;
  std::vector<Input> inputs;
};

/// To what each of `tensor` ranks has of a model, and gradients to the type in which they travel.
void shrink(std::vector<train::BucketCost>& buckets, const train::RunConfig& config, int64_t tensor,
            double gradient_share) {
  double part = 1.0;
  if (tensor > 1) {
    const double divisible = parallel::divisible(*models::make_model(config.model)).share;
    part = 1.0 - divisible + divisible / static_cast<double>(tensor);
  }
  for (train::BucketCost& bucket : buckets) {
    bucket.gradient_bytes *= part * gradient_share;
    bucket.weight_bytes *= part;
    bucket.elements *= part;
  }
}

Study make_study(const SimulateArguments& arguments) {
  const auto config = load_config<train::RunConfig>(arguments.config, arguments.overrides);
  Study study;
  const train::PluginConfig& parallel = config.parallel;
  study.tensor = parallel.tp_size;
  study.route = arguments.route;
  study.stage = static_cast<train::ZeroStage>(arguments.zero_stage);
  KINORA_CHECK(arguments.gpus_per_node % study.tensor == 0, kConfig,
               "[bench] parallel.tensor must divide --gpus-per-node, got ", study.tensor, " and ",
               arguments.gpus_per_node);
  KINORA_CHECK(parallel.pp_size == 1 && parallel.sp_size == 1, kConfig,
               "[bench] simulate knows parallel.tensor, replicate and fp8_across, but neither "
               "parallel.pipeline nor parallel.sequence");
  KINORA_CHECK(!parallel.fp8_across ||
                   (study.stage != train::ZeroStage::kNone && arguments.route == "torus"),
               kConfig, "[bench] parallel.fp8_across needs --zero-stage 1 to 3 and --route torus");
  study.cluster.ranks_per_node = arguments.gpus_per_node / study.tensor;
  study.cluster.ranks_per_link = static_cast<double>(arguments.ranks_per_link);
  study.cluster.route = route_of(arguments.route);
  study.cluster.fp8_across = parallel.fp8_across;
  if (arguments.quantised > 0.0) {
    study.cluster.quantised_bytes_per_s = arguments.quantised;
  }
  study.cluster.is_replicated = parallel.replicate > 1;
  study.cluster.inside = link_of("--inside", arguments.inside, arguments.gpus_per_node > 1);
  study.cluster.across = link_of("--across", arguments.across, arguments.nodes > 1);
  study.samples = config.train.global_batch;
  study.costs.accumulation = config.train.global_batch / config.micro_batch();
  study.costs.update_s = arguments.update_seconds;
  const bool is_given = arguments.step_seconds > 0.0;
  KINORA_CHECK(
      is_given || study.tensor == 1, kConfig,
      "[bench] with parallel.tensor the step of one model is not measured here. Hint: give "
      "it by --step-seconds, as `kinora bench train --ranks` prints it");
  auto alone = config;
  alone.parallel = {};
  alone.plugin = "";
  const double step_s =
      is_given ? arguments.step_seconds : train::benchmark_step(alone, {}).step_seconds;
  KINORA_CHECK(step_s > arguments.update_seconds, kConfig, "[bench] the step of one GPU, ", step_s,
               " s, must be longer than --update-seconds, got ", arguments.update_seconds);
  alone.model = inference::resolved_model(config, std::max<int64_t>(config.model.num_classes, 1));
  study.costs.buckets = train::bucket_costs(
      alone, (step_s - arguments.update_seconds) / static_cast<double>(study.costs.accumulation));
  shrink(study.costs.buckets, alone, study.tensor,
         parallel.reduce_type == Precision::kFp32 ? 1.0 : 0.5);
  double gradients = 0.0;
  double weights = 0.0;
  for (const train::BucketCost& bucket : study.costs.buckets) {
    gradients += bucket.gradient_bytes;
    weights += bucket.weight_bytes;
  }
  study.inputs = {{study.tensor == 1 ? "step of one GPU" : "step of a model's GPUs", step_s, "s",
                   is_given ? "given" : "measured"},
                  {"of it, update", arguments.update_seconds, "s",
                   arguments.update_seconds > 0.0 ? "given" : "assumed"},
                  {"share of forward", train::kForwardShare, "of the rest", "assumed"},
                  {study.tensor == 1 ? "samples a step and GPU" : "samples a step and model",
                   static_cast<double>(study.samples), "", "recipe"},
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
  if (parallel.fp8_across) {
    study.inputs.push_back({"quantised", study.cluster.quantised_bytes_per_s, "bytes/s",
                            arguments.quantised > 0.0 ? "given" : "assumed"});
  }
  if (arguments.nodes > 1) {
    study.inputs.push_back({"GPUs of a link across", study.cluster.ranks_per_link, "",
                            arguments.ranks_per_link > 1 ? "given" : "assumed"});
  }
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

/// What the recipe and the route add to the stage.
std::string describe(const Study& study) {
  std::string text = ", across nodes " + study.route;
  if (study.tensor > 1) {
    text += ", " + std::to_string(study.tensor) + " GPUs a model";
  }
  if (study.cluster.is_replicated) {
    text += ", a replica a node";
  }
  return text + (study.cluster.fp8_across ? ", fp8 across" : "");
}

void print(std::ostream& out, const Study& study, int64_t nodes) {
  out << "predicted, not measured; ZeRO stage " << static_cast<int>(study.stage) << ", "
      << study.cluster.ranks_per_node * study.tensor << " GPUs a node" << describe(study) << "\n\n";
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
    out << std::setw(12) << cluster.nodes << std::setw(12) << cluster.ranks() * study.tensor
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
  json["gpus_per_node"] = study.cluster.ranks_per_node * study.tensor;
  json["route"] = study.route;
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
                            {"gpus", cluster.ranks() * study.tensor},
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
