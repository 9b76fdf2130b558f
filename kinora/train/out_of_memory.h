#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include "kinora/core/error.h"
#include "kinora/device/out_of_memory.h"
#include "kinora/train/plan/plan_search.h"
#include "kinora/train/run.h"

/// Memory that is too little for a step, and what a run does about it (train.oom).
namespace kinora::train {

/// A part of a step found too little memory.
class StepOutOfMemory : public Error {
 public:
  enum class Part : uint8_t {
    kForwardBackward,  ///< weights and state are those of before the step
    kUpdate,           ///< some of them may be those of after it
  };
  StepOutOfMemory(int64_t step, Part part, const std::string& what)
      : Error(ErrorKind::kMemory, what), step_(step), part_(part) {}

  [[nodiscard]] int64_t step() const { return step_; }  ///< counted from 1
  [[nodiscard]] Part part() const { return part_; }

 private:
  int64_t step_;
  Part part_;
};

/// `body`, a part of a step: errors of memory become StepOutOfMemory.
template <typename Body>
auto within_memory(int64_t step, StepOutOfMemory::Part part, const Body& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    if (const std::optional<std::string> what = device::out_of_memory_text(error)) {
      throw StepOutOfMemory(step, part, *what);
    }
    throw;
  }
}

/// All ranks must end, and start again from the last checkpoint.
class StartAgain : public Error {
 public:
  explicit StartAgain(const std::string& message) : Error(ErrorKind::kMemory, message) {}
};

/// How the run goes on after `error`, as train.oom says: settings that need less memory. kMemory,
/// with what is known of who takes it, where it does not go on.
[[nodiscard]] PlanChoice plan_after(const StepOutOfMemory& error, const Run& run);

}  // namespace kinora::train
