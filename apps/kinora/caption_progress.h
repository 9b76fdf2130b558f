#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kinora/core/stop_signal.h"
#include "kinora/data/set_captions.h"
#include "kinora/data/source.h"
#include "kinora/pipelines/caption_embeddings.h"

/// From the captions of a set to a file of their embeddings, with bars.
namespace kinora::apps {

/// Nothing if a signal came. options.progress is set here. `says`: with a bar, and what was found.
/// Errors as data::captions_of().
[[nodiscard]] std::optional<std::vector<std::string>> read_captions(const data::Source& source,
                                                                    data::CaptionOptions options,
                                                                    const StopSignal& stop,
                                                                    bool says = true);

/// What a file of embeddings says of how it was made.
[[nodiscard]] std::map<std::string, std::string> text_metadata(
    const std::filesystem::path& encoder, const std::filesystem::path& tokenizer,
    const std::string& computed_in, bool cleaned);

/// options.progress is set here, of the first rank. Errors as pipelines::encode_captions().
pipelines::CaptionEmbeddingResult embed_captions(const std::vector<std::string>& captions,
                                                 models::TextEncoder& encoder,
                                                 const data::CaptionTokens& tokens,
                                                 pipelines::CaptionEmbeddingOptions options,
                                                 const StopSignal& stop);

}  // namespace kinora::apps
