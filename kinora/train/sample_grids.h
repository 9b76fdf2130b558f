#pragma once

#include <cstdint>
#include <string>

#include "kinora/train/run.h"
#include "kinora/train/run_observer.h"

namespace kinora::train {

/// Draws a grid of samples every sample.every steps, of the averaged weights if there are any.
class SampleGrids : public RunObserver {
 public:
  /// Borrows the run.
  explicit SampleGrids(Run& run) : run_(run) {}

  [[nodiscard]] bool looks_at(int64_t step) const override;
  void after_step(int64_t step) override;

  /// Now; no step may be on its way. All ranks call it.
  void draw();
  /// Why samples cannot be drawn now; "" if they can.
  [[nodiscard]] std::string why_none() const;

 private:
  Run& run_;
  BestEffort write_{"pictures of samples"};
};

}  // namespace kinora::train
