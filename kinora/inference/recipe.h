#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kinora/core/compute_choice.h"
#include "kinora/data/data_config.h"
#include "kinora/diffusion/frame_mask.h"
#include "kinora/diffusion/objective.h"
#include "kinora/diffusion/objective_config.h"
#include "kinora/diffusion/sampler.h"
#include "kinora/inference/finetune_config.h"
#include "kinora/models/model_config.h"
#include "kinora/ops/kernel_options.h"
#include "kinora/pipelines/sampling_config.h"

namespace kinora {
class Fields;
}
namespace kinora::tokenizers {
class TokenizerFiles;
}

namespace kinora::inference {

enum class Path { kAuto, kPlain, kFast };

/// The keys autoencoder.*.
struct AutoencoderOptions {
  std::string path;
  Precision precision = Precision::kBf16;
  int64_t micro_batch = 0;     ///< 0: kMicroBatch
  double memory_gib = 0.0;     ///< 0: no limit
  double decode_level = 0.0;   ///< models::DecodeNoise
  double decode_noise = -1.0;  ///< likewise; less than 0: decode_level

  static constexpr int64_t kMicroBatch = 32;
};

/// How the linears of a frozen text encoder's blocks are kept.
enum class TextWeights : uint8_t { kFull, kInt8, kFp8 };

/// The keys text.*.
struct TextOptions {
  std::string encoder;
  bool train = false;                   ///< a run makes it the model's own
  std::vector<std::string> new_tokens;  ///< TOKEN=WORDS, of the model's own
  Precision precision = Precision::kBf16;
  TextWeights weights = TextWeights::kFull;
  int64_t micro_batch = 0;                 ///< 0: kMicroBatch
  bool shared = false;                     ///< ranks of a run hold a part of its blocks each
  std::string tokenizer;                   ///< empty: the encoder's
  int64_t max_length = 0;                  ///< 0: as the model and the tokenizer have it
  ops::Switch clean = ops::Switch::kAuto;  ///< auto: of models of tokens, not of pooled vectors

  static constexpr int64_t kMicroBatch = 64;
};

/// The keys image.*.
struct ImageOptions {
  std::string encoder;
};

/// The keys sample.*, but for those of the grids that training shows.
struct SampleOptions {
  int64_t count = 16;
  pipelines::SamplingConfig sampling;
};

/// What a model is, and how samples are drawn from it: all that a reader of a checkpoint needs of
/// the configuration of the run that wrote it (train::RunConfig). Keys are those of the run.
struct ModelRecipe {
  models::ModelConfig model;
  Path path = Path::kAuto;  ///< model.path
  ops::KernelOptions kernels;
  data::DataConfig data;  ///< what it learned from: sizes, classes, words
  AutoencoderOptions autoencoder;
  TextOptions text;
  ImageOptions image;
  diffusion::ObjectiveConfig objective;
  Precision precision = Precision::kFp32;  ///< train.precision
  bool deterministic = false;              ///< train.deterministic
  diffusion::FrameMaskRatios frame_masks;  ///< frame_masks.*: how often it was given frames
  FinetuneConfig finetune;                 ///< which updates its checkpoints hold beside weights
  std::vector<double> ema_decays = {0.9999};
  SampleOptions sample;
  /// Of a file of weights that keeps it (kept_tokenizer.h), in the place of text.tokenizer.
  std::shared_ptr<const tokenizers::TokenizerFiles> kept_tokenizer = nullptr;
};

/// Registers every key, and lets a text hold those of a run that are not the model's.
void describe(Fields& fields, ModelRecipe& recipe);

/// The keys by themselves, for a run's configuration, which has its own between them.
void describe_kernels(Fields& fields, ModelRecipe& recipe);  ///< model.path, kernels.*
void describe_autoencoder(Fields& fields, AutoencoderOptions& autoencoder);
void describe_text(Fields& fields, TextOptions& text);
void describe_image(Fields& fields, ImageOptions& image);
void describe_frame_masks(Fields& fields, ModelRecipe& recipe);
void describe_averages(Fields& fields, ModelRecipe& recipe);  ///< ema.decays
/// In the scope `train`.
void describe_precision(Fields& fields, ModelRecipe& recipe);
void describe_deterministic(Fields& fields, ModelRecipe& recipe);
/// In the scope `sample`.
void describe_sample_count(Fields& fields, ModelRecipe& recipe);

/// Latents of the data, as their files or the autoencoder have them.
struct LatentSize {
  data::SampleShape shape;
  int64_t frames = 1;
};

/// The model of the recipe: sizes from its name, input size and classes from the data, time_scale
/// from the objective. `latents` are those of the data where they are known. kConfig where model
/// and data do not fit together, or where the size is that of latents that nobody opened.
[[nodiscard]] models::ModelConfig resolved_model(
    const ModelRecipe& recipe, int64_t num_data_classes,
    const std::optional<LatentSize>& latents = std::nullopt);

/// What samples of the model's size are drawn with. kConfig where sample.* does not fit the
/// objective. recipe.model is resolved.
[[nodiscard]] diffusion::Sampler sampler_of(const ModelRecipe& recipe,
                                            const diffusion::Objective& objective);

/// Its last steps: pipelines::make_partial_sampler().
[[nodiscard]] pipelines::PartialSampler partial_sampler_of(const ModelRecipe& recipe,
                                                           const diffusion::Objective& objective,
                                                           double strength);

}  // namespace kinora::inference
