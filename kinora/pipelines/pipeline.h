#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kinora/prompts/open_sora_scores.h"

/// Whole pipelines in folders and files: all that draws pictures or clips from words or classes.
namespace kinora::pipelines {

/// How a pipeline makes states of captions.
struct PipelineText {
  std::filesystem::path tokenizer;  ///< in the pipeline's folder, or absolute
  std::filesystem::path encoder;    ///< likewise: text_encoder_file.h
  int64_t max_tokens = 0;           ///< of a caption, its end token counted
  /// Where no negative caption is given, the model's own null embedding stands for it: a learned
  /// one, or the zeros of SDXL.
  bool has_own_null = false;
  /// Of the negative caption, padding included, as many states are read as the caption has (Latte).
  bool cuts_negative = false;
  /// What Open-Sora appends to prompts where nobody says otherwise.
  std::optional<prompts::OpenSoraScores> scores = {};
  prompts::OpenSoraWording wording = prompts::OpenSoraWording::kNumbers;  ///< of those
  /// Captions are layouts (data::box_tokens), and `tokenizer` is a file of the classes of objects,
  /// a name a line; empty: there is none.
  bool reads_boxes = false;
};

/// A pipeline of diffusers (diffusers_pipeline.h), of Open-Sora (open_sora_pipeline.h,
/// open_sora2_pipeline.h), or in one file (compvis_pipeline.h).
struct Pipeline {
  std::filesystem::path folder;  ///< or the file
  std::string class_name;
  std::string (*recipe)(const Pipeline&) = nullptr;     ///< pipeline_recipe() of it
  std::optional<PipelineText> text = {};                ///< nothing: it draws classes
  std::vector<std::filesystem::path> controlnets = {};  ///< folders in it
  /// What is chosen since no file says it, and by what else, for people; "" for nothing.
  std::string note = {};

  /// The path of a part of it, such as "vae/config.json" in its folder. kIo, naming the path, where
  /// it is not there.
  [[nodiscard]] std::filesystem::path part(const std::filesystem::path& path) const;
};

/// The pipeline in the folder or file `path`; nothing where there is none, or where it is of a kind
/// that Kinora lacks. kIo for a file that should say it and is none.
[[nodiscard]] std::optional<Pipeline> find_pipeline(const std::filesystem::path& path);

/// The recipe of the pipeline: its model, how it is sampled where nobody says otherwise, and its
/// autoencoder. kIo for parts that are missing, kConfig for parts that are of another kind or that
/// do not fit, naming both.
[[nodiscard]] std::string pipeline_recipe(const Pipeline& pipeline);

/// The keys of a recipe that the files of a model give, whether a pipeline is around it or not:
/// diffusers_recipe() or compvis_recipe(). "" where they say nothing.
[[nodiscard]] std::string model_recipe(const std::filesystem::path& path);

}  // namespace kinora::pipelines
