#include "kinora/train/validation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <variant>

#include "kinora/data/loader.h"
#include "kinora/data/normalise.h"
#include "kinora/inference/conditions.h"

namespace kinora::train {

double validation_time(int64_t i, int64_t n, int64_t num_bands,
                       const std::pair<double, double>& range) {
  const int64_t per_band = std::max<int64_t>(n / num_bands, 1);
  const int64_t band = i % num_bands;
  const int64_t place = i / num_bands;
  const double within = (static_cast<double>(place) + 0.5) / static_cast<double>(per_band);
  const double share = (static_cast<double>(band) + within) / static_cast<double>(num_bands);
  return range.first + (range.second - range.first) * share;
}

Validation::Validation(const data::Source& held_out, const data::SampleSize& size,
                       const EncodeStage& latents, const models::ModelConfig& model,
                       int64_t num_bands, int64_t micro_batch, uint64_t seed)
    : num_bands_(num_bands), micro_batch_(micro_batch), seed_(seed) {
  std::vector<int64_t> indices(static_cast<size_t>(held_out.size()));
  std::iota(indices.begin(), indices.end(), 0);
  samples_ = micro_batch_of(latents.means(data::load_samples(held_out, indices, size)), model);
}

diffusion::NoisedBatch validation_batch(const diffusion::Objective& objective, const at::Tensor& x0,
                                        int64_t first, int64_t n, int64_t num_bands,
                                        uint64_t seed) {
  const int64_t size = x0.size(0);
  const bool discrete = std::holds_alternative<diffusion::Iddpm>(objective);
  at::Tensor t = at::empty({size}, at::kFloat);
  for (int64_t i = 0; i < size; ++i) {
    const double time = validation_time(first + i, n, num_bands, diffusion::time_range(objective));
    t.mutable_data_ptr<float>()[i] = static_cast<float>(discrete ? std::floor(time) : time);
  }
  const at::Tensor t_device = t.to(x0.device());
  return diffusion::noise_at(objective, x0, {.t = t_device, .weights = at::ones_like(t_device)},
                             {.seed = seed,
                              .step = 0,
                              .sample_index = at::arange(first, first + size, at::kLong),
                              .noise = RandomPurpose::kValidation,
                              .timestep = RandomPurpose::kValidation});
}

at::Tensor Validation::errors(diffusion::Denoiser& denoiser, const diffusion::Objective& objective,
                              at::Device device, int64_t first, int64_t size) const {
  const MicroBatch samples = narrow(samples_, first, size);
  const at::Tensor x0 = data::to_float(samples.images, device);
  diffusion::NoisedBatch batch =
      validation_batch(objective, x0, first, samples_.images.size(0), num_bands_, seed_);
  batch.place_weights = place_weights(samples.mask, x0);
  const at::Tensor prediction =
      denoiser.forward(batch.x_t, batch.t, inference::to_device(samples.conditions, device));
  return diffusion::loss(objective, prediction, batch, x0).mse.to(at::kCPU);
}

ValidationLoss Validation::evaluate(diffusion::Denoiser& denoiser,
                                    const diffusion::Objective& objective, at::Device device,
                                    const parallel::Mesh& mesh) const {
  at::NoGradGuard no_grad;
  const int64_t n = samples_.images.size(0);
  at::Tensor mse = at::zeros({n}, at::kFloat);
  const int64_t round = micro_batch_ * mesh.data_ranks();
  for (int64_t start = 0; start < n; start += round) {
    const int64_t first = start + micro_batch_ * mesh.data_rank();
    if (first < n) {
      const int64_t size = std::min(micro_batch_, n - first);
      mse.narrow(0, first, size).copy_(errors(denoiser, objective, device, first, size));
    } else {
      // Where weights are divided every rank takes part in every forward pass.
      (void)errors(denoiser, objective, device, 0, std::min(micro_batch_, n));
    }
  }
  // Each element is of one group, whose ranks all have it, and 0 of the others.
  mesh.world().all_reduce(mse);
  mse.div_(static_cast<double>(mesh.ranks_of_sample()));
  std::vector<double> sums(static_cast<size_t>(num_bands_), 0.0);
  std::vector<int64_t> counts(static_cast<size_t>(num_bands_), 0);
  for (int64_t i = 0; i < n; ++i) {
    const auto band = static_cast<size_t>(i % num_bands_);
    sums[band] += static_cast<double>(mse.const_data_ptr<float>()[i]);
    ++counts[band];
  }
  ValidationLoss result;
  double total = 0.0;
  for (size_t band = 0; band < sums.size(); ++band) {
    result.bands.push_back(counts[band] > 0 ? sums[band] / static_cast<double>(counts[band]) : 0.0);
    total += sums[band];
  }
  result.mean = total / static_cast<double>(n);
  return result;
}

}  // namespace kinora::train
