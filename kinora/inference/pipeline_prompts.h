#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "kinora/inference/prompts.h"
#include "kinora/inference/recipe.h"
#include "kinora/inference/weighted_texts.h"
#include "kinora/io/image.h"
#include "kinora/pipelines/pipeline.h"

namespace kinora::inference {

/// How captions become what a pipeline's denoiser is told.
struct CaptionOptions {
  std::string negative = {};  ///< what pictures are guided away from
  bool cleans = true;         ///< as the model has it, of the negative caption, too
  /// Of Open-Sora: what is appended to prompts, before they are cleaned. Where nothing is said: the
  /// pipeline's own.
  prompts::OpenSoraScores scores = {};
  at::Device device = at::kCPU;
  double memory_gib = 0.0;  ///< most for the encoder's weights; 0: what is free (TextEncoderRoom)
  bool says = true;         ///< logs what is chosen and what of a caption is cut off
  PromptWeights weights = PromptWeights::kOff;
  std::vector<std::string> embeddings = {};  ///< files of read_embedding(), of CLIP
  /// Whose updates of text encoders are merged (pipelines::read_text_adapters).
  std::vector<std::string> adapters = {};
  bool verbose = false;  ///< logs the tokens of each text and their weights as well
  /// Of models whose captions are read with the first frame (models::ModelShape): caption i with
  /// picture i, both in turn, and the negative one with a black picture.
  std::vector<io::Image> pictures = {};
};

/// The captions as the pipeline's tokenizer and text encoder embed them, each with room for
/// model.text_tokens of `recipe` (load_trained's or read_recipe's), and the negative one. The
/// encoder computes in recipe.precision and is released before this returns. Tokens of
/// options.embeddings are read in all texts. Of a pipeline that reads boxes captions are layouts
/// (data::parse_layout). kIo for parts that are missing; kConfig, before weights are read, where
/// its states or the tokenizer's vocabulary do not fit, or a picture is missing.
[[nodiscard]] Prompts prompts_of_pipeline(const pipelines::Pipeline& pipeline,
                                          const std::vector<std::string>& captions,
                                          const ModelRecipe& recipe, const CaptionOptions& options);

}  // namespace kinora::inference
