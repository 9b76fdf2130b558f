#include "kinora/train/plan/memory_budget.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "kinora/core/config.h"
#include "kinora/core/cuda.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/text.h"
#include "kinora/device/free_memory.h"
#include "kinora/io/file.h"
#include "kinora/train/plan/gpu_facts.h"
#include "kinora/train/plan/memory_plan.h"
#include "kinora/train/plan/plan_search.h"

namespace kinora::train {
namespace {

/// Ranks are there already: how many share a sequence stays.
std::optional<PlanChoice> fastest(const RunConfig& config, const PlanTarget& target,
                                  const GpuFacts& gpu) {
  constexpr size_t kTried = 8;
  const bool changes_ranks = target.ranks > 1 && config.model.is_video();
  for (PlanChoice& choice : search_plans(config, target, gpu, changes_ranks ? kTried : 1)) {
    if (choice.config.parallel.sp_size == config.parallel.sp_size) {
      return std::move(choice);
    }
  }
  return std::nullopt;
}

/// Nothing is known of a CPU.
GpuFacts facts_of(at::Device device) {
  if (!device.is_cuda()) {
    return {};
  }
  const CudaDevice gpu = cuda_device(device.index());
  return gpu_of_driver(gpu.name, gpu.total_memory);
}

/// What search_plans() sets.
constexpr std::array kSettings = {
    "train.micro_batch",        "train.recompute",           "optim.offload",
    "optim.offload_weights",    "optim.in_backward",         "finetune.offload",
    "parallel.plugin",          "parallel.zero_stage",       "parallel.sequence",
    "parallel.tensor",          "parallel.divided_norms",    "parallel.pipeline",
    "parallel.pipeline_chunks", "parallel.pipeline_schedule"};

constexpr int64_t kMostPlanBytes = 64 << 10;

std::filesystem::path kept_plan(const RunConfig& config) {
  return std::filesystem::path(config.run_dir) / "replanned.txt";
}

}  // namespace

RunConfig within_budget(const RunConfig& config, at::Device device, const comm::Group& world) {
  const int64_t budget = device::gpu_budget("train.vram_budget", config.train.vram_budget, device);
  if (budget == 0) {
    return config;
  }
  const PlanTarget target{
      .device = device.type(),
      .ranks = world.size(),
      .memory = static_cast<int64_t>(device::kPlannedShare * static_cast<double>(budget))};
  const GpuFacts facts = facts_of(device);
  RunConfig fitting = config;
  MemoryPlan plan = plan_memory(config, target);
  if (!plan.fits()) {
    const std::optional<PlanChoice> choice = fastest(config, target, facts);
    if (!choice) {
      const PlanChoice least = smallest_plan(config, target, facts);
      throw_error(ErrorKind::kMemory, "[train] train.vram_budget of ", human_bytes(budget),
                  " is too little: the least is ",
                  human_bytes(static_cast<int64_t>(static_cast<double>(least.plan.needed()) /
                                                   device::kPlannedShare)),
                  ", with ", least.text());
    }
    if (world.rank() == 0) {
      log_info("[train] train.vram_budget of ", human_bytes(budget), ": the recipe needs ",
               human_bytes(plan.needed()), ", with ", choice->text(), " ",
               human_bytes(choice->plan.needed()), " at about ", human_number(choice->slowdown, 3),
               "x the time");
    }
    fitting = choice->config;
    plan = choice->plan;
  }
  device::limit_memory(device, budget - plan.outside);
  return fitting;
}

std::optional<PlanChoice> next_smaller(const RunConfig& config, at::Device device,
                                       const MemoryPlan& now) {
  constexpr double kError = 0.03;
  const auto tensors = static_cast<double>(now.peak - now.process);
  PlanTarget target = now.target;
  target.memory = now.needed() - static_cast<int64_t>(kError * tensors) - 1;
  return fastest(config, target, facts_of(device));
}

PlanChoice least_of(const RunConfig& config, at::Device device, const MemoryPlan& now) {
  return smallest_plan(config, now.target, facts_of(device));
}

RunConfig with_kept_plan(const RunConfig& config) {
  const std::filesystem::path file = kept_plan(config);
  if (config.train.oom != OutOfMemory::kReplan || !std::filesystem::exists(file)) {
    return config;
  }
  const std::string text = io::read_text(file, kMostPlanBytes);
  std::vector<std::string> settings;
  for (const std::string_view line : split(text, '\n')) {
    if (!line.empty()) {
      settings.emplace_back(line);
    }
  }
  return parse_config<RunConfig>(
      {.text = dump_config(config), .origin = "the recipe with " + file.string()}, settings);
}

void keep_plan(const RunConfig& config) {
  std::string text;
  for (const auto& [key, value] : flatten_config(config)) {
    if (std::find(kSettings.begin(), kSettings.end(), key) != kSettings.end()) {
      text += key + "=" + value + "\n";
    }
  }
  io::write_file_atomic(kept_plan(config), text);
}

}  // namespace kinora::train
