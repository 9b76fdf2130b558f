#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/kinora/ranks.h"
#include "apps/kinora/sample_files.h"
#include "apps/kinora/sample_judge.h"
#include "kinora/comm/group.h"
#include "kinora/models/autoencoder.h"
#include "kinora/pipelines/sampling_ranks.h"
#include "kinora/train/trained_model.h"

namespace kinora::apps {

/// The command line of `kinora sample`; 0 and empty: not given.
struct SampleArguments {
  std::string run;
  std::string checkpoint;
  std::string config;
  std::vector<std::string> overrides;
  std::string weights = "ema";
  std::vector<std::string> adapters;  ///< FILE or FILE:WEIGHT

  std::vector<int64_t> classes;
  std::vector<std::string> captions;
  std::string captions_file;
  std::string text_embeddings;

  int64_t count = 0;
  int64_t batch = 64;
  int64_t steps = 0;
  double guidance = -1.0;  ///< below 0: not given
  int64_t seed = 0;

  int64_t frames = 0;
  int64_t height = 0;  ///< in pixels, as width
  int64_t width = 0;
  double fps = 0.0;
  std::string given;
  std::string given_frames = "head";
  std::string frame_layout = "image";
  double given_edit = 0.0;
  int64_t loop = 1;
  int64_t overlap = 0;

  std::string autoencoder;
  std::optional<double> memory_budget;  ///< GiB; 0: no limit

  std::string out = "samples";
  FileFormat format = FileFormat::kUsual;
  std::string device = "auto";
  std::string precision;
  int64_t threads = 0;
  bool deterministic = false;
  bool judge = false;
  bool json = false;

  RankArguments ranks;
  pipelines::SamplingRanks sharing;
};

/// kConfig for options that are for another kind of model.
void check_options(const SampleArguments& arguments, const models::ModelConfig& model);

/// Puts into a run's configuration what the command line says of sampling, size and speed of clips.
/// kConfig for a size that the model does not take.
void adjust(train::RunConfig& config, const SampleArguments& arguments);

/// Samples, and what each was asked to show.
struct Drawn {
  /// float32 [B, C, H, W] or [B, C, T, H, W] on the CPU; on ranks other than 0 those of the rank.
  at::Tensor samples;
  std::vector<Asked> asked;
};

/// What makes pixels of a model's latents, as the command line says, or else the run; null: neither
/// does. kConfig where it does not belong to the model.
[[nodiscard]] std::unique_ptr<models::Autoencoder> open_decoder(const SampleArguments& arguments,
                                                                const train::RunConfig& config,
                                                                at::Device device);

/// Draws with the run's configuration, adjusted, on all ranks of `world`. judge: null, or who has
/// to know the classes that captions name. kConfig, kIo.
[[nodiscard]] Drawn draw_samples(train::TrainedModel& trained, const SampleArguments& arguments,
                                 const SampleJudge* judge, const comm::Group& world);

}  // namespace kinora::apps
