#include "kinora/train/bench/random_batch.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "kinora/inference/conditions.h"
#include "kinora/models/families.h"
#include "kinora/ops/random.h"
#include "kinora/train/bench/benchmark.h"

namespace kinora::train {
namespace {

/// Random texts of `length` tokens; 0: from half of the longest to all of it.
void add_texts(data::Batch& batch, const models::ModelConfig& model, int64_t length) {
  const int64_t size = batch.sample_index.size(0);
  const auto normal = [&](const std::vector<int64_t>& shape) {
    return ops::random_normal(shape, batch.sample_index, kBenchmarkSeed, 1, RandomPurpose::kTest,
                              at::kCPU);
  };
  if (model.text_encoder.any()) {
    batch.tokens = at::zeros({size, model.text_tokens}, at::kLong);
  } else {
    batch.text = normal({size, model.text_tokens, model.text_channels});
  }
  batch.pooled = normal({size, model.pooled_width()});
  const int64_t half = model.text_tokens / 2;
  batch.text_lengths =
      length > 0 ? at::full({size}, length, at::kLong)
                 : model.text_tokens - batch.sample_index.remainder(std::max<int64_t>(half, 1));
  batch.fps = at::full({size}, 8.0, at::kFloat);
}

}  // namespace

data::Batch random_batch(const models::ModelConfig& model, std::vector<int64_t> shape,
                         int64_t first, int64_t size, int64_t text_length, at::Device device) {
  shape.insert(shape.begin(), size);
  data::Batch batch;
  batch.sample_index = at::arange(first, first + size, at::kLong);
  batch.labels = batch.sample_index.remainder(model.num_classes);
  batch.images = (ops::random_uniform(shape, batch.sample_index, kBenchmarkSeed, 0,
                                      RandomPurpose::kTest, at::kCPU) *
                  256.0)
                     .to(at::kByte);
  const models::ModelShape its = models::shape_of(model);
  const int64_t pixels = shape[1] == model.in_channels ? model.compression : 1;  // of a value
  if (its.controls > 0) {
    batch.control =
        at::zeros({size, 3 * its.controls, shape[2] * pixels, shape[3] * pixels}, at::kByte);
  }
  if (its.channels_beside > 0) {
    std::vector<int64_t> samples = model.sample_shape();
    samples.insert(samples.begin(), size);
    batch.beside = at::zeros(inference::sizes_beside(its, samples), at::kFloat);
  }
  if (its.image_states > 0) {
    batch.image_prompt = at::zeros({size, its.image_states, its.image_channels}, at::kFloat);
  }
  if (model.takes_text()) {
    add_texts(batch, model, text_length);
  }
  if (device.is_cuda()) {
    for (at::Tensor* tensor : {&batch.images, &batch.labels, &batch.sample_index, &batch.text}) {
      *tensor = tensor->defined() ? tensor->pin_memory() : at::Tensor();
    }
  }
  return batch;
}

}  // namespace kinora::train
