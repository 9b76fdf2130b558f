#include "kinora/train/run_validation.h"

#include <string>

namespace kinora::train {

RunValidation::RunValidation(Run& run)
    : run_(run),
      validation_(*run.data.validation, data::sample_size(run.config.data), *run.stage,
                  run.config.model, run.config.validation.bands, run.micro_batch,
                  static_cast<uint64_t>(run.config.train.seed)) {}

bool RunValidation::looks_at(int64_t step) const {
  return is_due(step, run_.config.validation.every);
}

void RunValidation::step_finished(StepRecord& record) {
  if (!looks_at(record.step)) {
    return;
  }
  run_.enter(Phase::kValidation, record.step);
  Trainable& trainable = *run_.trainable;
  const auto evaluate = [&] {
    return validation_.evaluate(trainable.model(), run_.objective, run_.device, run_.mesh);
  };
  trainable.boosted().refresh();
  record.validation.emplace_back("raw", evaluate());
  for (size_t k = 0; k < trainable.arena().options().num_averages(); ++k) {
    const optim::BoundWeights bound = trainable.arena().bind(optim::WeightSet::average(k));
    record.validation.emplace_back("ema" + std::to_string(k), evaluate());
  }
}

}  // namespace kinora::train
