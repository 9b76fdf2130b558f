#include "kinora/train/boost/pipeline_run.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "kinora/ops/block_kernels.h"

namespace kinora::train {

void run_pipeline(Boosted& boosted, const PipelineSettings& settings,
                  const std::vector<double>& shares,
                  const std::function<at::Tensor(const StageForward&)>& forward) {
  using Kind = parallel::PipelineAction::Kind;
  /// A micro-batch between its forward and its backward.
  struct Flight {
    std::unique_ptr<parallel::StagePass> stage;
    at::Tensor loss;
    std::vector<std::function<void()>> late;  // gradients of weights
  };
  const bool is_late = settings.schedule == parallel::PipelineSchedule::kZeroBubble;
  parallel::PipelineLinks& links = *settings.links;
  const parallel::StagePlan& plan = links.plan();
  const std::vector<parallel::PipelineAction> actions =
      parallel::pipeline_actions(settings.schedule, plan, links.group().rank(), std::ssize(shares));
  const auto last_backward = std::find_if(
      actions.rbegin(), actions.rend(),
      [](const parallel::PipelineAction& action) { return action.kind == Kind::kBackward; });
  std::map<std::pair<int64_t, int64_t>, Flight> flights;  // by micro-batch and the rank's stage
  links.time_waits(&boosted.waiting());
  const diffusion::Pass first = boosted.begin_pass({.first = true, .last = false});
  for (const parallel::PipelineAction& action : actions) {
    const auto number = static_cast<size_t>(action.micro_batch);
    Flight& flight = flights[{action.micro_batch, action.chunk}];
    if (action.kind == Kind::kForward) {
      flight.stage = std::make_unique<parallel::StagePass>(
          links, action.chunk * plan.ranks + links.group().rank());
      flight.loss = forward({.micro_batch = number,
                             .chunk = action.chunk,
                             .stage = *flight.stage,
                             .pass = {.starts_step = number == 0 && action.chunk == 0,
                                      .overwrite = number == 0 && first.overwrite,
                                      .new_weights = number == 0,
                                      .stage = flight.stage.get()}});
      continue;
    }
    if (action.kind == Kind::kWeights) {
      const at::NoGradGuard no_grad;
      for (const auto& compute : flight.late) {
        compute();
      }
      flights.erase({action.micro_batch, action.chunk});
      continue;
    }
    if (is_late) {
      settings.kernels->put_off_weight_grads(&flight.late);
    } else if (&action == &*last_backward) {
      boosted.begin_last_backward();
    }
    boosted.begin_backward();
    if (flight.stage->is_last()) {
      boosted.backward_of(flight.loss, shares[number]);
    } else {
      flight.stage->backward();
    }
    flight.stage->send_gradients();
    boosted.end_backward();
    if (is_late) {
      settings.kernels->put_off_weight_grads(nullptr);
      flight.stage.reset();
      flight.loss.reset();
    } else {
      flights.erase({action.micro_batch, action.chunk});
    }
  }
  links.finish();
  links.time_waits(nullptr);
  if (is_late) {
    boosted.begin_last_backward();
  }
  boosted.end_passes();
}

}  // namespace kinora::train
