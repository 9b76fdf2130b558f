#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kinora::train {

/// Which shapes of micro-batches are recorded as CUDA graphs: each in the third step that has it.
/// The two steps before compute, since fp8 measures magnitudes in them and libraries choose their
/// algorithms. Where shapes are many, the second one also measures what the shape needs, and those
/// are recorded for which there is room.
class RecordingChoice {
 public:
  enum class Action : uint8_t { kCompute, kMeasure, kTryToRecord, kReplay };

  /// What is known of one shape.
  struct Shape {
    enum class State : uint8_t { kComputed, kRecorded, kRefused };

    int64_t last_step = -1;
    int64_t steps = 0;  ///< that had it so far
    int64_t needs = 0;  ///< bytes of a pass of it, once measured
    State state = State::kComputed;
  };

  /// Bytes of the device.
  struct Room {
    int64_t taken = 0;  ///< by graphs
    int64_t free = 0;   ///< while no step uses any
  };

  /// `limit`: bytes that graphs of many shapes may take in all; 0: what the device has. None: there
  /// are few shapes, and all are recorded.
  explicit RecordingChoice(std::optional<int64_t> limit) : limit_(limit) {}

  /// What to do with a micro-batch of the shape in `step`.
  [[nodiscard]] Action next(Shape& shape, int64_t step) const;

  /// Notes what a pass of the shape needs.
  void measured(Shape& shape, int64_t needs);

  /// Why the shape cannot be recorded, whose inputs take so many bytes; empty: it can. Graphs share
  /// memory (device/graph.h), but for how much depends on what the others have left in pieces, so
  /// none is counted on. Room stays for a pass without a graph of the largest shape so far, and for
  /// what comes between steps.
  [[nodiscard]] std::string refusal(const Shape& shape, int64_t inputs, const Room& room) const;

 private:
  std::optional<int64_t> limit_;
  int64_t largest_ = 0;  // of what was measured
};

}  // namespace kinora::train
