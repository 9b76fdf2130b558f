#include "kinora/train/bench/benchmark_pipeline.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/core/philox.h"
#include "kinora/device/device.h"
#include "kinora/diffusion/sampler.h"
#include "kinora/inference/setup.h"
#include "kinora/inference/trained_model.h"
#include "kinora/models/autoencoders/autoencoder_kl.h"
#include "kinora/models/families.h"
#include "kinora/models/model.h"
#include "kinora/ops/random.h"
#include "kinora/pipelines/decode.h"
#include "kinora/train/bench/benchmark.h"
#include "kinora/train/bench/random_encoders.h"

namespace kinora::train {
namespace {

void check(const models::ModelConfig& model, const PipelineBenchmarkOptions& options) {
  const int64_t width = t5_xxl(options.text_layers).d_model;
  const int64_t channels = models::AutoencoderKlConfig{}.latent_channels;
  KINORA_CHECK(models::family_of(model).conditions.text && !model.is_video() &&
                   model.text_channels == width && !model.text_encoder.any(),
               kConfig, "[bench] a pipeline needs a model of pictures that takes texts of ", width,
               " channels (T5-XXL's), got ", models::name_of(model), " with ", model.text_channels,
               ". Hint: configs/pixart-256.yaml");
  KINORA_CHECK(model.in_channels == channels, kConfig,
               "[bench] the pipeline's autoencoder has latents of ", channels,
               " channels, but model.in_channels is ", model.in_channels);
  KINORA_CHECK(options.caption_tokens <= model.text_tokens, kConfig,
               "[bench] captions of this model have up to ", model.text_tokens, " tokens, got ",
               options.caption_tokens);
}

/// What is loaded, and runs from tokens to pixels.
class Pipeline {
 public:
  Pipeline(const RunConfig& config, const PipelineBenchmarkOptions& options, at::Device device)
      : device_(device),
        trained_(inference::initial_model(config, device, kBenchmarkSeed)),
        sampler_(sampler_of(trained_.recipe, trained_.objective)),
        guidance_(config.sample.sampling.guidance_of()),
        shape_(trained_.recipe.model.sample_shape()),
        recorded_(*trained_.model, sampler_, device) {
    randomise_zeros(trained_.model->named_parameters(), *trained_.arena);
    const at::ScalarType type = inference::compute_type(config.precision);
    encoder_ = random_t5(t5_xxl(options.text_layers), device, type);
    autoencoder_ = random_autoencoder(device, type);
    const models::ModelConfig& model = trained_.recipe.model;
    shape_.insert(shape_.begin(), options.batch);
    room_ = model.text_tokens;
    for (int64_t i = 0; i < options.batch; ++i) {
      std::vector<int32_t> text(static_cast<size_t>(options.caption_tokens));
      std::ranges::generate(text, [&] { return static_cast<int32_t>(3 + 7 * tokens_.ids.size()); });
      tokens_.add(text);
      tokens_.ids.back() = kEnd;
    }
    const std::vector<int32_t> negative = {kEnd};
    tokens_.add(negative);
    key_ = {.seed = kBenchmarkSeed, .sample_index = at::arange(options.batch, at::kLong)};
  }

  [[nodiscard]] bool graphs() const { return trained_.graphs; }
  [[nodiscard]] int64_t steps() const { return diffusion::num_steps(sampler_); }

  /// Captions and the negative text, as conditions.
  void encode() {
    const at::Tensor states = models::padded_states(encoder_->encode(tokens_), room_);
    const int64_t batch = shape_.front();
    const at::Tensor texts = states.narrow(0, 0, batch);
    conditions_.text = texts;
    conditions_.text_lengths = at::full({batch}, tokens_.lengths.front(), at::kLong).to(device_);
    guidance_.null.text = states.narrow(0, batch, 1).expand_as(texts);
    guidance_.null.text_lengths = at::full({batch}, tokens_.lengths.back(), at::kLong).to(device_);
  }
  void sample() {
    latents_ = trained_.graphs ? recorded_.sample(shape_, conditions_, guidance_, key_)
                               : diffusion::sample(*trained_.model, sampler_, shape_, conditions_,
                                                   guidance_, key_, device_);
  }
  /// To pixels on the host, which waits.
  void decode() {
    (void)pipelines::decode_latents(*autoencoder_, latents_, device_, /*one_by_one=*/false);
  }

 private:
  static constexpr int32_t kEnd = 1;  // T5's </s>

  at::Device device_;
  inference::TrainedModel trained_;
  diffusion::Sampler sampler_;
  diffusion::Guidance guidance_;
  std::vector<int64_t> shape_;
  diffusion::RecordedSampler recorded_;
  std::unique_ptr<models::TextEncoder> encoder_;
  std::unique_ptr<models::Autoencoder> autoencoder_;
  int64_t room_ = 0;
  models::TextTokens tokens_;
  diffusion::SampleKey key_;
  diffusion::Conditions conditions_;
  at::Tensor latents_;
};

}  // namespace

PipelineBenchmark benchmark_pipeline(RunConfig config, const PipelineBenchmarkOptions& options) {
  device::configure_computation(config.train.threads, config.deterministic);
  const at::Device device = inference::choose_device(config.train.device);
  start_memory_anew(device);
  const at::NoGradGuard no_grad;
  config.model = inference::resolved_model(config, std::max<int64_t>(config.model.num_classes, 1));
  check(config.model, options);
  Pipeline pipeline(config, options, device);
  const auto run = [&](int64_t /*call*/) {
    pipeline.encode();
    pipeline.sample();
    pipeline.decode();
  };
  // A run without a graph, and the recording.
  constexpr int64_t kGraphWarmup = 2;
  const int64_t warmup =
      pipeline.graphs() ? std::max(options.warmup, kGraphWarmup) : options.warmup;
  for (int64_t i = 0; i < warmup; ++i) {
    run(i);
  }
  start_memory_anew(device);  // without what was measured once
  PipelineBenchmark result;
  result.device = device::describe(device);
  std::vector<double> all;
  std::vector<double> encode;
  std::vector<double> sample;
  std::vector<double> decode;
  for (int64_t i = 0; i < options.repeats; ++i) {
    all.push_back(median_call_seconds(device, 1, run));  // users wait for each run
    encode.push_back(median_call_seconds(device, 1, [&](int64_t /*call*/) { pipeline.encode(); }));
    sample.push_back(median_call_seconds(device, 1, [&](int64_t /*call*/) { pipeline.sample(); }));
    decode.push_back(median_call_seconds(device, 1, [&](int64_t /*call*/) { pipeline.decode(); }));
  }
  result.seconds = median(std::move(all));
  result.encode_seconds = median(std::move(encode));
  result.sample_seconds = median(std::move(sample));
  result.decode_seconds = median(std::move(decode));
  result.steps = pipeline.steps();
  result.guidance = config.sample.sampling.guidance;
  result.graphs = pipeline.graphs();
  result.peak_memory = device::peak_memory(device);
  if (options.profile) {
    result.trace = trace_calls(device, 1, run);
  }
  return result;
}

}  // namespace kinora::train
