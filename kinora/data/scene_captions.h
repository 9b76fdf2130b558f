#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kinora/core/philox.h"
#include "kinora/data/scenes.h"

/// The words of generated scenes (data/scenes.h): synonyms, free order, and back.
namespace kinora::data {

/// What `content` says in one of many wordings: "a small red circle to the left of a large blue
/// square", "one big square in azure with a little red disc on its left".
[[nodiscard]] std::string caption(const SceneContent& content, const RandomStream& stream);

/// What a caption says, in any of those wordings, whatever its case and punctuation; nothing where
/// it is worded otherwise, or names two objects of one kind.
[[nodiscard]] std::optional<SceneContent> content_of(std::string_view caption);

}  // namespace kinora::data
