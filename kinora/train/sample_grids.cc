#include "kinora/train/sample_grids.h"

#include <ATen/ops/empty.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"
#include "kinora/inference/shown_samples.h"
#include "kinora/io/clip_file.h"
#include "kinora/io/file.h"
#include "kinora/io/image_grid.h"
#include "kinora/io/picture_texts.h"
#include "kinora/pipelines/decode.h"
#include "kinora/pipelines/draw.h"
#include "kinora/train/records/run_report.h"

namespace kinora::train {

namespace {

/// The PNG file of a grid, which keeps what it shows, unless that is too much for a picture.
std::vector<std::byte> with_prompts(const io::Image& grid,
                                    const std::vector<std::string>& captions) {
  std::vector<std::byte> png = io::encode_png(grid);
  const std::string text = nlohmann::json(captions).dump(-1, ' ', /*ensure_ascii=*/true,
                                                         nlohmann::json::error_handler_t::replace);
  if (captions.empty() || text.size() > io::kMostTextBytes) {
    return png;
  }
  return io::with_png_texts(png, std::vector<io::PictureText>{{kPromptsOfGrid, text}});
}

}  // namespace

bool SampleGrids::looks_at(int64_t step) const {
  return run_.shows_samples() && is_due(step, run_.config.shown.every);
}

void SampleGrids::after_step(int64_t step) {
  if (looks_at(step)) {
    draw();
  }
}

/// Each rank draws equally many, since where weights are divided all of them take part in every
/// pass, and rank 0 makes a picture of them.
void SampleGrids::draw() {
  const RunConfig& config = run_.config;
  const parallel::Mesh& mesh = run_.mesh;
  const int64_t step = run_.state.step;
  run_.enter(Phase::kSampling, step);
  run_.trainable->boosted().refresh();
  optim::Arena& arena = run_.trainable->arena();
  const optim::BoundWeights bound = arena.bind(
      arena.options().num_averages() == 0 ? optim::WeightSet::raw() : optim::WeightSet::average(0));
  const int64_t parts = mesh.data_ranks();
  const int64_t own = ceil_div(config.sample.count, parts);
  const int64_t first = mesh.data_rank() * own;
  const inference::ShownSamples asked = inference::shown_samples(
      *run_.data.train, config, run_.text_encoder ? &run_.text_encoder->encoder : nullptr,
      run_.encoder ? &run_.encoder->encoder : nullptr, run_.frame_states.get(), run_.device);
  const at::Tensor drawn = pipelines::draw(
      run_.trainable->model(), sampler_of(config, run_.objective), config.sample.sampling,
      {.samples = pipelines::numbered_samples(first, own, static_cast<uint64_t>(config.train.seed),
                                              config.sample.sampling.guidance),
       .batch = run_.micro_batch},
      config.model.sample_shape(),
      [&](int64_t number, int64_t size) { return asked.conditions(first + number, size); },
      run_.device);
  std::vector<int64_t> shape = drawn.sizes().vec();
  shape.insert(shape.begin(), mesh.world().size());
  const at::Tensor gathered = at::empty(shape, drawn.options());
  mesh.world().all_gather(gathered, drawn);
  // All ranks of a group have drawn the same.
  const at::Tensor all = mesh.one_of_each(gathered).flatten(0, 1);
  if (!run_.writes()) {
    return;
  }
  at::Tensor shown = all.narrow(0, 0, config.sample.count);
  if (run_.encoder != nullptr) {
    shown = pipelines::decode_latents(*run_.encoder->autoencoder, shown, run_.device,
                                      config.sample.sampling.batch_invariant);
  }
  const io::Image grid = io::make_grid(inference::shown_images(shown));
  const auto path = run_.directory.samples() / ("step-" + std::to_string(step));
  write_([&] {
    io::write_file_atomic(path.string() + ".png", with_prompts(grid, asked.captions));
    if (shown.dim() == 5 && shown.size(2) > 1) {
      io::write_clip(path, inference::shown_animation(shown), inference::clip_fps(config.data),
                     config.shown.format);
    }
  });
  run_.log->add_samples(step, grid);
}

std::string SampleGrids::why_none() const {
  if (!run_.shows_samples()) {
    return "samples are latents, which cannot be shown without autoencoder.path";
  }
  try {
    (void)sampler_of(run_.config, run_.objective);
    if (run_.config.model.is_video()) {
      io::check_can_write(run_.config.shown.format);
    }
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace kinora::train
