#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kinora/diffusion/denoiser.h"
#include "kinora/diffusion/objective.h"
#include "kinora/inference/trained_model.h"

/// Where two models that should agree part: two checkpoints, two precisions, two ways to compute.
namespace kinora::inference {

/// What both models are shown, on the CPU.
struct ComparedInput {
  diffusion::NoisedBatch batch;
  diffusion::Conditions conditions;
};

/// How output b of a module differs from output a.
struct OutputDifference {
  std::string module;           ///< its path; "" is the model
  double cosine = 1.0;          ///< of the angle between them; 1 where both are zero
  double relative_error = 0.0;  ///< |b - a| / |a|, Euclidean; infinite where only a is zero
  double largest = 0.0;         ///< max |b - a|
};

/// Of two tensors of one shape, computed in double. What is not finite on one side only is an
/// infinite difference. kShape for two shapes.
[[nodiscard]] OutputDifference difference(const at::Tensor& a, const at::Tensor& b);

struct Comparison {
  /// In the order in which `a` computes: a module comes after those inside it.
  std::vector<OutputDifference> modules;
  std::vector<std::string> only_in_a;
  std::vector<std::string> only_in_b;
  /// The prediction as each computes it when nobody looks inside: by its kernels, on its path.
  OutputDifference prediction;

  /// The first module whose relative error is above `threshold`; null: there is none.
  [[nodiscard]] const OutputDifference* first_above(double threshold) const;
};

/// Shows both the same and compares all outputs of modules, which are computed on the plain path
/// for that, each on its device and in its precision. kShape where the models take other inputs.
[[nodiscard]] Comparison compare(TrainedModel& a, TrainedModel& b, const ComparedInput& input);

}  // namespace kinora::inference
