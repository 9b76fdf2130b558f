#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "kinora/comm/group.h"
#include "kinora/diffusion/denoiser.h"
#include "kinora/diffusion/step_cache.h"

namespace kinora::parallel {

/// Sampling on several ranks that each predict a part of the batch. With classifier-free guidance
/// the batch is conditional and unconditional predictions, one behind the other: two ranks predict
/// one half each, and every rank has both by one all_gather.
///
/// All ranks call it with the same tensors. A batch that the group does not divide is predicted by
/// all of them. A group of one just predicts. Without gradients.
class GuidanceParallel : public diffusion::Denoiser {
 public:
  /// `denoiser` is borrowed; it may itself be divided among ranks that are not of this group.
  GuidanceParallel(diffusion::Denoiser& denoiser, comm::Group group);

  [[nodiscard]] diffusion::Prepared prepare(const at::Tensor& times,
                                            const diffusion::Conditions& conditions) override;
  /// The denoiser's; both ranks leave out the same, as one rank with all rows would.
  [[nodiscard]] std::unique_ptr<diffusion::StepCache> make_cache() override;

 private:
  [[nodiscard]] at::Tensor predict(const at::Tensor& x_t, const at::Tensor& t,
                                   const diffusion::Conditions& conditions,
                                   const diffusion::Pass& pass) override;
  /// This rank's part of a batch; all of it where the group does not divide it.
  [[nodiscard]] at::Tensor own(const at::Tensor& tensor) const;
  [[nodiscard]] diffusion::Conditions own(const diffusion::Conditions& conditions) const;

  diffusion::Denoiser& denoiser_;
  comm::Group group_;
};

}  // namespace kinora::parallel
