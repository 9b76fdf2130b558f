#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kinora/data/caption_tokens.h"
#include "kinora/data/source.h"
#include "kinora/inference/recipe.h"
#include "kinora/inference/request.h"
#include "kinora/models/model_config.h"
#include "kinora/pipelines/draw.h"

namespace kinora::inference {

/// What a sample is to show.
struct Prompt {
  std::string caption;  ///< in words; empty: not known
  data::Text text;
  std::optional<int64_t> label;  ///< the class, where known
};

/// Prompts of one size of texts.
struct Prompts {
  data::TextShape shape;
  std::vector<Prompt> all;  ///< never empty
  /// What the unconditional prediction is told; nothing: the model's null embedding. Of models of
  /// tokens, not of pooled vectors.
  std::optional<data::Text> negative = {};
  bool cuts_negative = false;  ///< as many of its tokens are read as the prompt has
  std::string origin =
      {};  ///< in words: what embedded them; empty: the same texts always give them
};

/// The captions of samples 0, 1, ...: those of the request in turn, each with lines of its own
/// where they have wildcards. kConfig, kIo of the lists.
[[nodiscard]] std::vector<std::string> captions_of(const Request& request);

/// The lines of a file that are not empty, without the blanks around them. kConfig where there is
/// none; kIo.
[[nodiscard]] std::vector<std::string> caption_lines(const std::filesystem::path& path);

/// The tokens of `captions`, for a model with a text encoder of its own. kConfig for a caption
/// without a token, or none.
[[nodiscard]] Prompts prompts_of_tokens(const std::vector<std::string>& captions,
                                        const data::CaptionTokens& tokens);

/// The tokens of `captions` for the text encoder of the recipe's model. kConfig where it has none
/// of its own; errors of caption_tokens().
[[nodiscard]] Prompts prompts_of_captions(const std::vector<std::string>& captions,
                                          const ModelRecipe& recipe);

/// The texts of a file (data/text_file.h), in order. kIo.
[[nodiscard]] Prompts prompts_of_file(const std::filesystem::path& path);

/// The texts of the first `count` samples that can be read, or of all. kConfig for a source without
/// texts; kIo if none can be read.
[[nodiscard]] Prompts prompts_of_data(const data::Source& source, int64_t count);

/// Sample i shows prompt i modulo their number, at `fps` frames a second if it is a clip.
[[nodiscard]] std::function<pipelines::DrawConditions(int64_t first, int64_t size)>
conditions_of_prompts(Prompts prompts, const models::ModelConfig& model, double fps,
                      at::Device device);

}  // namespace kinora::inference
