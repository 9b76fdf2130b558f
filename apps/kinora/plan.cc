// kinora plan CONFIG [key=value ...]: the memory of a run, before there is one.

#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "apps/kinora/commands.h"
#include "kinora/core/config.h"
#include "kinora/core/counted.h"
#include "kinora/core/cuda.h"
#include "kinora/core/error.h"
#include "kinora/core/process_memory.h"
#include "kinora/core/text.h"
#include "kinora/core/text_table.h"
#include "kinora/train/dynamic_sequence.h"
#include "kinora/train/plan/gpu_facts.h"
#include "kinora/train/plan/memory_plan.h"
#include "kinora/train/plan/plan_search.h"
#include "kinora/train/plan/step_estimate.h"

namespace kinora::apps {
namespace {

using Json = nlohmann::ordered_json;

/// Rows of --search.
constexpr size_t kMostChoices = 8;

/// A recipe on a device.
struct Study {
  train::RunConfig config;
  train::GpuFacts gpu;  // of a CPU its name and memory
  train::PlanTarget target;
  std::vector<std::string> assumed;
};

/// The GPU that is asked for, else that of this machine, else its CPU.
train::GpuFacts choose_gpu(const std::string& asked, bool& is_cpu, DeviceChoice device) {
  is_cpu = false;
  if (!asked.empty()) {
    KINORA_CHECK(device != DeviceChoice::kCpu, kConfig, "[plan] --gpu is ", asked,
                 ", but train.device is cpu");
    return train::find_gpu(asked);
  }
  if (device != DeviceChoice::kCpu && cuda_available()) {
    const CudaDevice found = cuda_device(0);
    return train::gpu_of_driver(found.name, found.total_memory);
  }
  KINORA_CHECK(device != DeviceChoice::kCuda, kConfig,
               "[plan] train.device is cuda, but this machine has no GPU. Hint: --gpu says which "
               "to plan for, one of ",
               train::gpu_names());
  is_cpu = true;
  return {.name = "the memory of this machine", .memory = physical_memory()};
}

Study make_study(const PlanArguments& arguments) {
  Study study;
  study.config = train::without_data(
      load_config<train::RunConfig>(arguments.config, arguments.overrides), study.assumed);
  train::check_dynamic_sequence(study.config);
  bool is_cpu = false;
  study.gpu = choose_gpu(arguments.gpu, is_cpu, study.config.train.device);
  KINORA_CHECK(!study.config.train.fp8 || is_cpu || study.gpu.fp8, kConfig,
               "[plan] train.fp8 needs a GPU with 8-bit floats (Ada, Hopper or newer), which ",
               study.gpu.name, " has not. Hint: train.fp8=false");
  KINORA_CHECK(study.config.precision != Precision::kBf16 || is_cpu || study.gpu.bf16, kConfig,
               "[plan] train.precision bf16 needs a GPU of Ampere or newer, which ", study.gpu.name,
               " is not. Hint: train.precision=fp16");
  study.target = {.device = is_cpu ? c10::DeviceType::CPU : c10::DeviceType::CUDA,
                  .ranks = arguments.ranks,
                  .memory = is_cpu ? study.gpu.memory / arguments.ranks : study.gpu.memory};
  return study;
}

std::string gib(int64_t bytes) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << static_cast<double>(bytes) / kGiB;
  return text.str();
}

std::string heading(const Study& study, const train::MemoryPlan& plan) {
  std::ostringstream text;
  const models::ModelConfig& model = study.config.model;
  text << (model.name.empty() ? "the model" : model.name) << ", " << human_count(plan.parameters)
       << " parameters, on " << counted(plan.target.ranks, "rank") << ": "
       << counted(plan.micro_batch, "sample") << " at once"
       << (plan.bucket.empty() ? "" : " of the largest bucket (" + plan.bucket + ")") << ", "
       << counted(plan.passes, "time") << " a step; " << (plan.fast_path ? "fast" : "plain")
       << " path, recompute " << study.config.train.recompute;
  return text.str();
}

/// choices: what search_plans() has found where the plan does not fit.
std::string verdict(const Study& study, const train::MemoryPlan& plan,
                    const std::vector<train::PlanChoice>& choices) {
  std::ostringstream text;
  if (plan.fits()) {
    text << "fits " << study.gpu.name << ": " << gib(plan.needed()) << " of "
         << gib(plan.target.memory) << " GiB";
    return text.str();
  }
  text << "does not fit " << study.gpu.name << ": " << gib(plan.needed())
       << " GiB are needed, it has " << gib(plan.target.memory) << ". Hint: ";
  if (choices.empty()) {
    text << "no setting of train.recompute, train.micro_batch"
         << (plan.target.ranks > 1 ? " or parallel.plugin" : "")
         << " makes it fit; more ranks with parallel.plugin=zero3 or a smaller model may";
    return text.str();
  }
  const train::PlanChoice& choice = choices.front();
  text << choice.text() << " makes it " << gib(choice.plan.needed()) << " GiB at about "
       << human_number(std::max(choice.slowdown, 1.0), 3) << "x the time";
  return text.str();
}

std::string search_table(const std::vector<train::PlanChoice>& choices) {
  std::vector<std::vector<std::string>> rows = {{"samples/s", "GiB", "overrides"}};
  for (const train::PlanChoice& choice : choices) {
    rows.push_back({choice.samples_per_s > 0.0 ? human_rate(choice.samples_per_s) : "?",
                    gib(choice.plan.needed()),
                    choice.overrides.empty() ? "(as it is)" : choice.text()});
  }
  return text_table(rows);
}

Json parts_json(const std::vector<train::MemoryPart>& parts) {
  Json json = Json::object();
  for (const train::MemoryPart& part : parts) {
    json[part.name] = part.bytes;
  }
  return json;
}

}  // namespace

int run(const PlanArguments& arguments) {
  const Study study = make_study(arguments);
  const train::MemoryPlan plan = train::plan_memory(study.config, study.target);
  // An estimate is of one size.
  const double speed = study.gpu.half_flops > 0.0 && plan.bucket.empty()
                           ? train::StepEstimate(study.config, study.gpu)
                                 .samples_per_s(study.config, study.target.ranks)
                           : 0.0;
  std::vector<train::PlanChoice> choices;
  if (arguments.search || !plan.fits()) {
    choices = train::search_plans(study.config, study.target, study.gpu,
                                  arguments.search ? kMostChoices : 1);
  }
  const std::string said = verdict(study, plan, choices);
  const std::string sequences = study.config.dynamic_sequence
                                    ? train::describe(train::counted_seconds(study.config),
                                                      study.config, study.target.ranks, "TMAC")
                                    : "";
  if (arguments.json) {
    Json json = {{"device", study.target.device == c10::DeviceType::CPU ? "cpu" : study.gpu.name},
                 {"ranks", plan.target.ranks},
                 {"parameters", plan.parameters},
                 {"micro_batch", plan.micro_batch},
                 {"bucket", plan.bucket},
                 {"fast_path", plan.fast_path},
                 {"parts", parts_json(plan.parts)},
                 {"layers", parts_json(plan.layers)},
                 {"peak", plan.peak},
                 {"graphs", plan.graphs},
                 {"needed", plan.needed()},
                 {"memory", plan.target.memory},
                 {"fits", plan.fits()},
                 {"verdict", said},
                 {"samples_per_s", speed},
                 {"dynamic_sequence", sequences},
                 {"assumed", study.assumed}};
    if (arguments.search) {
      json["choices"] = Json::array();
      for (const train::PlanChoice& choice : choices) {
        json["choices"].push_back({{"overrides", choice.overrides},
                                   {"needed", choice.plan.needed()},
                                   {"samples_per_s", choice.samples_per_s}});
      }
    }
    std::cout << json.dump() << '\n';
    return 0;
  }
  std::cout << heading(study, plan) << '\n';
  if (!plan.sharing.empty()) {
    std::cout << plan.sharing << '\n';
  }
  for (const std::string& assumed : study.assumed) {
    std::cout << "assumed: " << assumed << '\n';
  }
  std::cout << '\n' << train::table(plan, arguments.layers) << "\n\n" << said << '\n';
  if (speed > 0.0) {
    std::cout << "expected: about " << human_rate(speed) << " samples/s\n";
  }
  if (!sequences.empty()) {
    std::cout << "\nranks of each size (parallel.dynamic_sequence), by arithmetic\n"
              << sequences << '\n';
  }
  if (arguments.search) {
    std::cout << '\n'
              << (choices.empty() ? "nothing that was tried fits" : search_table(choices)) << '\n';
  }
  return 0;
}

}  // namespace kinora::apps
