#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kinora/core/philox.h"
#include "kinora/data/moving_shapes.h"

/// The words of generated clips (data/moving_shapes.h): synonyms, free order, and back.
namespace kinora::data {

/// What `content` says in one of many wordings: "a red circle moving to the left", "gliding upwards
/// is one box in azure".
[[nodiscard]] std::string caption(const MovingContent& content, const RandomStream& stream);

/// What moves so in one of many wordings that leave open what it is: "it is moving to the left",
/// "gliding upwards".
[[nodiscard]] std::string motion_caption(Motion motion, const RandomStream& stream);

/// What a caption says, whatever its order, case and punctuation; nothing where it has other words,
/// or does not name one colour, one shape and one direction that it moves in.
[[nodiscard]] std::optional<MovingContent> moving_content_of(std::string_view caption);

}  // namespace kinora::data
