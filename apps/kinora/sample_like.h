#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/kinora/options/sample.h"
#include "kinora/inference/drawing.h"
#include "kinora/inference/sample_folder.h"
#include "kinora/inference/sample_metadata.h"

/// What the files of samples say of their drawing, and drawing again from it.
namespace kinora::apps {

/// The arguments of `kinora sample --like FILE ...`: those that FILE was drawn with, and those
/// beside it instead. Nothing where what FILE says is no command line, with the exit code; why has
/// been said then. kIo for files without such texts, and where the model is not there.
struct LikeArguments {
  std::optional<SampleArguments> arguments;
  int exit_code = 0;
  std::string command;  ///< the same in words
  std::string weights;  ///< the checksum that FILE knows; empty: of another model
};
[[nodiscard]] LikeArguments arguments_like(const SampleArguments& arguments);

/// What every sample of a drawing says, but for its number and what it shows.
/// captions: of all samples, where they are drawn from words; else empty.
[[nodiscard]] inference::SampleMetadata metadata_of(const SampleArguments& arguments,
                                                    const inference::DrawingKey& key,
                                                    const inference::ModelRecipe& recipe,
                                                    const std::vector<std::string>& captions);

/// The same of sample `index`.
[[nodiscard]] inference::SampleMetadata metadata_of_sample(
    inference::SampleMetadata all, int64_t index, const std::vector<inference::Asked>& asked);

}  // namespace kinora::apps
