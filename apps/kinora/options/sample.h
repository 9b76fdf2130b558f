#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/kinora/options/ranks.h"
#include "kinora/core/compute_choice.h"
#include "kinora/inference/request.h"
#include "kinora/inference/sample_files.h"
#include "kinora/inference/sample_metadata.h"
#include "kinora/kernels/weight_codes.h"
#include "kinora/prompts/open_sora_scores.h"

namespace kinora::apps {

/// The command line of `kinora sample`; empty: not given.
struct SampleArguments {
  inference::OptionValues given;  ///< the options as they stand on the command line
  std::string run;
  std::string checkpoint;
  std::string config;
  std::vector<std::string> overrides;
  std::string sampler;  ///< sample.method
  std::string weights = "ema";
  std::vector<std::string> adapters;            ///< FILE or FILE:WEIGHT
  std::vector<std::string> low_noise_adapters;  ///< of the second of two experts

  inference::Request request;
  std::vector<std::string> classes;  ///< numbers and names, instead of the request's
  std::string captions_file;
  std::string negative;         ///< caption that a pipeline guides away from
  bool cleans_captions = true;  ///< of pipelines
  std::string text_encoder;
  std::string tokenizer;                ///< of pipelines: a folder or file instead of theirs
  prompts::OpenSoraScores scores;       ///< of Open-Sora's pipelines
  std::vector<std::string> embeddings;  ///< of pipelines: learned tokens
  inference::PromptWeights prompt_weights = inference::PromptWeights::kOff;
  inference::DrawOptions options;
  std::string like;                     ///< a file that says what it was drawn from
  std::optional<int64_t> only;          ///< the one sample that is drawn
  std::vector<std::string> at;          ///< DrawOptions::at in words
  std::vector<std::string> init;        ///< pictures or clips to begin with
  std::string image_model;              ///< draws the first frames of clips
  bool keep_image_size = false;         ///< of pictures that are shown as tokens
  std::vector<std::string> references;  ///< pictures of what is to be seen
  std::vector<std::string> mask;        ///< which part of them is drawn
  std::optional<double> image_guidance;
  std::vector<std::string> controlnets;  ///< folders
  std::vector<std::string> control;      ///< what they are shown
  std::vector<double> control_scales;    ///< one for all, or one for each
  std::string ip_adapter;                ///< a file
  std::string ip_encoder;                ///< a folder; empty: image_encoder/ beside the file
  std::vector<std::string> ip_images;    ///< what it is shown
  double ip_scale = 1.0;
  std::string latents;  ///< a file of them, instead
  std::string noise;
  std::optional<double> strength;
  std::string upsample;  ///< a folder: clips are drawn small, and on when it has doubled them
  int64_t upsample_steps = 10;
  double upsample_adain = 0.0;  ///< models::UpsampleTuning
  double upsample_tones = 0.0;
  bool save_latents = false;
  int64_t preview = 0;  ///< steps between two; 0: none
  std::string preview_decoder;

  std::string autoencoder;
  std::optional<double> memory_budget;  ///< GiB; 0: no limit

  std::string out = "samples";
  bool overwrite = false;
  inference::FileFormat format = inference::FileFormat::kUsual;
  DeviceChoice device = DeviceChoice::kAuto;
  std::optional<Precision> precision;
  std::optional<kernels::WeightFormat> quantise;
  double offload = 0.0;
  bool exchange_experts = false;
  std::string vram_budget = "none";
  int64_t threads = 0;
  bool deterministic = false;
  bool judge = false;
  bool cache_price = false;
  bool verbose = false;
  bool json = false;

  RankArguments ranks;
};

}  // namespace kinora::apps
