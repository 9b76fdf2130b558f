#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

/// Whole pipelines in the folders of diffusers: what draws pictures from words.
namespace kinora::pipelines {

/// A folder of PixArtAlphaPipeline or PixArtSigmaPipeline.
struct TextPipeline {
  std::filesystem::path folder;
  std::string class_name;
  int64_t text_tokens = 0;  ///< longest caption, its end token counted

  /// The path of a part of it, such as "vae/config.json". kIo, naming the path, where it is not
  /// there.
  [[nodiscard]] std::filesystem::path part(const std::string& path) const;
};

/// What model_index.json in the folder `path` says; nothing where there is none, or where the
/// pipeline is another. kIo for a file that is none.
[[nodiscard]] std::optional<TextPipeline> find_text_pipeline(const std::filesystem::path& path);

/// The recipe of the pipeline: diffusers_recipe() of its transformer, the scheduler's sampling
/// (sampling_recipe), the steps and guidance that diffusers takes where nobody says others, and its
/// autoencoder. kIo for parts that are missing; the errors of both.
[[nodiscard]] std::string pipeline_recipe(const TextPipeline& pipeline);

}  // namespace kinora::pipelines
