#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kinora/nn/module.h"
#include "kinora/optim/arena.h"

namespace kinora::train {

/// Watches the first steps of a run for parameters that do not learn: no gradient ever, or a stored
/// weight that never changes. The loss of such a run can look fine. Where state is divided all
/// ranks of its group keep one each.
class SelfTest {
 public:
  static constexpr int64_t kSteps = 20;

  /// What is done about a weight that had gradients and did not move. Steps of most rules are as
  /// large as the learning rate, so that such a weight is lost: stop. SGD's are as large as the
  /// gradients, and Prodigy begins with tiny ones: rounding may hide them for a while, so warn.
  enum class SmallSteps : uint8_t { kStop, kWarn };

  /// Remembers a fingerprint of every weight as it is stored (fp32).
  SelfTest(std::vector<nn::NamedParameter> parameters, const optim::Arena& arena);

  /// After backward and before the update of each of the first steps.
  void see_gradients(const optim::Arena& arena);

  /// In place of these, where updates in backward keep no gradients: after kSteps updates. Moments
  /// are zeros where there has been none.
  void see_moments(const optim::Arena& arena);

  /// After kSteps updates: kDiverged, naming every parameter that had only zero gradients or did
  /// not move, if there is one.
  void finish(const optim::Arena& arena, SmallSteps small_steps) const;

 private:
  void see(const optim::Arena& arena, optim::Role role);

  std::vector<nn::NamedParameter> parameters_;
  at::Tensor largest_gradient_;  // fp32 [parameters], in this rank's parts
  std::vector<int64_t> first_fingerprint_;
};

}  // namespace kinora::train
