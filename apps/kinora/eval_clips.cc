#include "apps/kinora/eval_clips.h"

#include <memory>

#include "apps/kinora/eval_progress.h"
#include "kinora/eval/clip_motion.h"
#include "kinora/eval/clip_network.h"
#include "kinora/eval/extract.h"

namespace kinora::apps {

nlohmann::ordered_json score_clips(const EvalArguments& arguments, const comm::Group& group,
                                   at::Device device) {
  const EvalOptions& options = arguments.eval;
  const eval::SampleSet set = eval::SampleSet::open(options.samples, options.set);
  const auto features_of = [&](const eval::FeatureNetwork& network) {
    return eval::extract(set, network, group, shown_extraction(options, group, device)).features;
  };
  nlohmann::ordered_json report = {
      {"samples", options.samples}, {"num_samples", set.size()}, {"frames", options.set.frames}};
  if (!options.metrics.empty()) {
    const std::unique_ptr<eval::FeatureNetwork> network =
        arguments.clip.empty() ? eval::frame_by_frame(eval::open_network(options.network, device))
                               : std::make_unique<eval::ClipNetwork>(arguments.clip, device);
    report["network"] = network->name();
    report["frame_consistency"] =
        eval::frame_consistency(features_of(*network), options.set.frames);
  }
  const auto mean_of = [&](const eval::FeatureNetwork& network) {
    return features_of(network).to(at::kDouble).mean().item<double>();
  };
  if (!arguments.interpolator.empty()) {
    const auto network = eval::open_interpolator(arguments.interpolator, device);
    report["interpolator"] = network->name();
    report["motion_smoothness"] = mean_of(*network);
  }
  if (!arguments.flow.empty()) {
    const auto network = eval::open_flow(arguments.flow, device);
    report["flow"] = network->name();
    report["dynamic_degree"] = mean_of(*network);
  }
  return report;
}

}  // namespace kinora::apps
