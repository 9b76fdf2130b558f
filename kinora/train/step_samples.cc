#include "kinora/train/step_samples.h"

#include <algorithm>

#include "kinora/core/philox.h"
#include "kinora/data/epoch_order.h"

namespace kinora::train {

std::string_view to_string(StepKind kind) {
  return kind == StepKind::kData ? "data" : "image_data";
}

StepKind kind_of_step(double share, uint64_t seed, int64_t step) {
  const RandomStream stream{seed, static_cast<uint64_t>(step), data::kKindStep,
                            RandomPurpose::kDataOrder};
  const auto drawn = static_cast<double>(random_uniform(stream, 0));
  return drawn < share ? StepKind::kImageData : StepKind::kData;
}

StepLoader::StepLoader(const RunConfig& config, const data::Source& data,
                       const data::Source* image_data, const parallel::Mesh& mesh,
                       const StepPosition& position, bool pinned)
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
    return result;
  };
  data_ = Part(data, options(config.data, config.train.global_batch,
                             config.micro_batch(mesh.data_ranks()), position.data));
  if (image_data != nullptr) {
    image_data_ = Part(*image_data,
                       options(config.image_data, config.image_batch(),
                               config.image_micro_batch(mesh.data_ranks()), position.image_data));
  }
}

StepLoader::Part::Part(const data::Source& source, const data::LoaderOptions& options)
    : loader(std::make_unique<data::Loader>(source, options)), num_ranks(options.num_ranks) {
  if (options.buckets.rows.empty()) {
    num_passes = options.global_batch / (options.num_ranks * options.micro_batch);
  } else {
    num_passes = std::max<int64_t>(1, options.bucket_batches / options.num_ranks);
  }
}

StepSamples StepLoader::next() {
  StepSamples samples;
  samples.kind = kind_of_step(share_, seed_, step_);
  Part& part = samples.kind == StepKind::kData ? data_ : image_data_;
  for (int64_t pass = 0; pass < part.num_passes; ++pass) {
    samples.batches.push_back(part.loader->next());
    samples.slowest.add(part.loader->stats().slowest);
    samples.global_batch += part.num_ranks * samples.batches.back().images.size(0);
  }
  ++step_;
  return samples;
}

data::LoaderStats StepLoader::stats() const {
  data::LoaderStats sum = data_.loader->stats();
  if (image_data_.loader == nullptr) {
    return sum;
  }
  const data::LoaderStats images = image_data_.loader->stats();
  sum.num_batches += images.num_batches;
  sum.wait_seconds += images.wait_seconds;
  sum.num_bad += images.num_bad;
  sum.num_buffers += images.num_buffers;
  sum.slowest.add(images.slowest);
  return sum;
}

std::string StepLoader::waits_for() const {
  std::string name = data_.loader->waits_for();
  return name.empty() && image_data_.loader != nullptr ? image_data_.loader->waits_for() : name;
}

}  // namespace kinora::train
