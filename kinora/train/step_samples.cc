#include "kinora/train/step_samples.h"

#include <algorithm>

#include "kinora/core/error.h"
#include "kinora/core/philox.h"
#include "kinora/data/epoch_order.h"

namespace kinora::train {
namespace {

// A sample's number has 56 bits.
constexpr int64_t kFirstPriorSample = int64_t{1} << 48;

}  // namespace

std::string_view to_string(StepKind kind) {
  switch (kind) {
    case StepKind::kData:
      return "data";
    case StepKind::kImageData:
      return "image_data";
    case StepKind::kPriorData:
      return "prior_data";
  }
  KINORA_UNREACHABLE("[train] no such kind of samples");
}

StepKind kind_of_step(double share, uint64_t seed, int64_t step) {
  const RandomStream stream{seed, static_cast<uint64_t>(step), data::kKindStep,
                            RandomPurpose::kDataOrder};
  const auto drawn = static_cast<double>(random_uniform(stream, 0));
  return drawn < share ? StepKind::kImageData : StepKind::kData;
}

StepLoader::StepLoader(const RunConfig& config, const StepSets& sets, const parallel::Mesh& mesh,
                       const StepPosition& position, bool pinned, const data::ShareOut& share_out)
    : share_(config.image_steps.share),
      seed_(static_cast<uint64_t>(config.train.seed)),
      step_(position.step) {
  const auto options = [&](const data::DataConfig& of, int64_t global_batch, int64_t micro_batch,
                           int64_t first_position) {
    data::LoaderOptions result = data::loader_options(of);
    result.global_batch = global_batch;
    result.micro_batch = micro_batch;
    result.first_position = first_position;
    result.rank = mesh.data_rank();
    result.num_ranks = mesh.data_ranks();
    result.seed = seed_;
    result.pinned = pinned;
    if (share_out) {
      result.rank = mesh.world().rank();
      result.num_ranks = mesh.world().size();
      result.share_out = share_out;
    }
    return result;
  };
  data_ = Part(*sets.data, options(config.data, config.train.global_batch,
                                   config.micro_batch(mesh.data_ranks()), position.data));
  if (sets.image_data != nullptr) {
    image_data_ = Part(*sets.image_data,
                       options(config.image_data, config.image_batch(),
                               config.image_micro_batch(mesh.data_ranks()), position.image_data));
  }
  if (sets.prior_data != nullptr) {
    const int64_t batch = config.prior_batch();
    prior_data_ = Part(*sets.prior_data,
                       options(config.prior_data, batch,
                               config.prior_micro_batch(mesh.data_ranks()), position.step * batch));
  }
}

StepLoader::Part::Part(const data::Source& source, const data::LoaderOptions& options)
    : loader(std::make_unique<data::Loader>(source, options)), num_ranks(options.num_ranks) {
  if (options.share_out) {
    num_passes = 0;
  } else if (options.buckets.rows.empty()) {
    num_passes = options.global_batch / (options.num_ranks * options.micro_batch);
  } else {
    num_passes = std::max<int64_t>(1, options.bucket_batches / options.num_ranks);
  }
}

StepSamples StepLoader::next() {
  StepSamples samples;
  samples.kind = kind_of_step(share_, seed_, step_);
  samples.step = step_;
  (samples.kind == StepKind::kData ? data_ : image_data_).take(samples);
  if (prior_data_.loader != nullptr) {
    const int64_t others = samples.global_batch;
    prior_data_.take(samples);
    samples.global_batch = others;
    samples.num_prior = prior_data_.num_passes;
    for (int64_t i = 0; i < samples.num_prior; ++i) {
      // Other random numbers than those of the samples at the same place of the data.
      samples.batches[samples.batches.size() - 1 - static_cast<size_t>(i)].sample_index.add_(
          kFirstPriorSample);
    }
  }
  ++step_;
  return samples;
}

void StepLoader::Part::take_batch(StepSamples& samples) {
  samples.batches.push_back(loader->next());
  samples.slowest.add(loader->stats().slowest);
}

void StepLoader::Part::take(StepSamples& samples) {
  for (int64_t pass = 0; pass < num_passes; ++pass) {
    take_batch(samples);
    samples.global_batch += num_ranks * samples.batches.back().images.size(0);
  }
  if (num_passes > 0) {
    return;
  }
  const data::MixedStep step = loader->next_step();
  for (const data::OwnBatch& own : step.own) {
    take_batch(samples);
    samples.ranks.push_back(own.ranks);
  }
  samples.global_batch = step.num_samples;
  samples.num_batches = step.num_batches;
}

data::LoaderStats StepLoader::stats() const {
  data::LoaderStats sum = data_.loader->stats();
  for (const Part* part : {&image_data_, &prior_data_}) {
    if (part->loader != nullptr) {
      const data::LoaderStats stats = part->loader->stats();
      sum.num_batches += stats.num_batches;
      sum.wait_seconds += stats.wait_seconds;
      sum.num_bad += stats.num_bad;
      sum.num_buffers += stats.num_buffers;
      sum.slowest.add(stats.slowest);
    }
  }
  return sum;
}

std::string StepLoader::waits_for() const {
  std::string name = data_.loader->waits_for();
  for (const Part* part : {&image_data_, &prior_data_}) {
    if (name.empty() && part->loader != nullptr) {
      name = part->loader->waits_for();
    }
  }
  return name;
}

}  // namespace kinora::train
