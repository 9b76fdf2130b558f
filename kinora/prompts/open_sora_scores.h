#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kinora::prompts {

/// What Open-Sora's models were told behind their captions; nothing: it is not said.
struct OpenSoraScores {
  std::optional<double> aesthetic = {};  ///< 1 to 10; 6.5 is what Open-Sora draws with
  std::optional<double> motion = {};     ///< optical flow
  std::string camera_motion = {};        ///< "pan right"; empty: not said
};

/// Open-Sora 1.2: "... aesthetic score: 6.5. motion score: 4.0. camera motion: pan right." What the
/// prompt says already is left as it is.
[[nodiscard]] std::string with_scores(std::string_view prompt, const OpenSoraScores& scores);

/// Open-Sora 1.3, which has words for the numbers: "... The aesthetic score is excellent. The
/// motion strength is fair. camera motion: pan right."
[[nodiscard]] std::string with_worded_scores(std::string_view prompt, const OpenSoraScores& scores);

}  // namespace kinora::prompts
