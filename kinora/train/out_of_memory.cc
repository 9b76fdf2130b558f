#include "kinora/train/out_of_memory.h"

#include <algorithm>
#include <functional>
#include <sstream>
#include <utility>
#include <vector>

#include "kinora/checkpoint/step_folders.h"
#include "kinora/core/cuda.h"
#include "kinora/core/log.h"
#include "kinora/core/process_memory.h"
#include "kinora/core/text.h"
#include "kinora/train/plan/memory_budget.h"

namespace kinora::train {
namespace {

/// "moments 5 GiB, weights 2.5 GiB, ...": the largest.
std::string largest_of(std::vector<MemoryPart> parts, size_t most) {
  std::erase_if(parts, [](const MemoryPart& part) { return part.bytes == 0; });
  std::ranges::stable_sort(parts, std::greater(), &MemoryPart::bytes);
  std::string text;
  for (size_t i = 0; i < std::min(most, parts.size()); ++i) {
    text += (i == 0 ? "" : ", ") + parts[i].name + " " + human_bytes(parts[i].bytes);
  }
  return text + (parts.size() > most ? ", ..." : "");
}

std::string budget_text(const Run& run) {
  if (run.config.train.vram_budget != "none") {
    return "train.vram_budget is " + run.config.train.vram_budget;
  }
  return run.device.is_cuda()
             ? "the GPU has " + human_bytes(cuda_device(run.device.index()).total_memory)
             : "this machine has " + human_bytes(physical_memory());
}

/// What is known of who takes the memory.
std::string describe(const StepOutOfMemory& error, const Run& run,
                     const std::optional<MemoryPlan>& plan) {
  constexpr size_t kParts = 6;
  constexpr size_t kLayers = 3;
  std::ostringstream text;
  text << "[train] out of memory in "
       << (error.part() == StepOutOfMemory::Part::kUpdate ? "the update" : "forward and backward")
       << " of step " << error.step() << ": " << error.what() << "; " << budget_text(run)
       << ", the most at once so far was " << human_bytes(run.peak_memory());
  if (plan) {
    text << "; planned are " << human_bytes(plan->needed()) << ": "
         << largest_of(plan->parts, kParts);
    if (!plan->layers.empty()) {
      text << "; of activations most are of " << largest_of(plan->layers, kLayers);
    }
  }
  return text.str();
}

std::string last_checkpoint(const Run& run) {
  const auto whole = checkpoint::list_checkpoints(run.directory.checkpoints());
  return whole.empty() ? "there is no checkpoint"
                       : "the last checkpoint is " + whole.back().string();
}

}  // namespace

PlanChoice plan_after(const StepOutOfMemory& error, const Run& run) {
  const std::optional<MemoryPlan> plan =
      plan_of_run(run.config, {.device = run.device.type(), .ranks = run.mesh.world().size()});
  const std::string what = describe(error, run, plan);
  KINORA_CHECK(error.part() == StepOutOfMemory::Part::kForwardBackward, kMemory, what,
               "; weights and moments may be half of this step and half of the one before, so "
               "nothing of them is saved, and ",
               last_checkpoint(run),
               ". Hint: --resume auto goes on from it, with a smaller train.vram_budget, "
               "train.micro_batch or train.recompute=block");
  KINORA_CHECK(run.config.train.oom == OutOfMemory::kReplan, kMemory, what,
               ". Hint: train.oom=replan goes on with a smaller plan; a smaller "
               "train.micro_batch, or train.recompute=block");
  KINORA_CHECK(plan, kMemory, what, "; nothing smaller can be planned");
  std::optional<PlanChoice> choice = next_smaller(run.config, run.device, *plan);
  if (!choice) {
    const PlanChoice least = least_of(run.config, run.device, *plan);
    throw_error(ErrorKind::kMemory, what,
                "; there is no smaller plan: the least that is planned are ",
                human_bytes(least.plan.needed()), ", with ", least.text(),
                ". Hint: a smaller model, train.global_batch or data, or a GPU with more memory");
  }
  log_warn(what, "; ", run.mesh.world().size() > 1 ? "all ranks go" : "going", " on with ",
           choice->text(), ", planned are ", human_bytes(choice->plan.needed()), ", at about ",
           human_number(choice->slowdown, 3), "x the time");
  return *std::move(choice);
}

}  // namespace kinora::train
