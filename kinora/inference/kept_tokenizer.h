#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "kinora/checkpoint/weights_file.h"
#include "kinora/inference/recipe.h"

/// A model with a text encoder of its own brings its tokenizer along: a run in its folder, a file
/// of weights in its header, as "kinora.tokenizer.NAME" of each file (TokenizerFiles::texts()).
namespace kinora::inference {

/// Lets `recipe`, which is of the checkpoint or file of weights at `path`, take the tokenizer that
/// is kept with it in the place of what text.tokenizer names: that in the header of `file`, which
/// may be null, else the copy in the run's folder. Without either nothing changes. kIo for a
/// damaged header.
void take_kept_tokenizer(const std::filesystem::path& path, const checkpoint::WeightsFile* file,
                         ModelRecipe& recipe);

/// What the header of a file of the recipe's weights keeps of its tokenizer; nothing where
/// text.tokenizer names none. Where that is not there, or larger than a header may be, the log says
/// that the file names it by its path alone.
[[nodiscard]] std::map<std::string, std::string> tokenizer_metadata(const ModelRecipe& recipe);

}  // namespace kinora::inference
