#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kinora::prompts {

/// What Open-Sora's models were told behind their captions; nothing: it is not said.
struct OpenSoraScores {
  std::optional<double> aesthetic = {};  ///< 1 to 10; 6.5 is what Open-Sora draws with
  std::optional<double> motion = {};     ///< optical flow; of 2.0 FFmpeg's vmafmotion
  std::string camera_motion = {};        ///< "pan right"; empty: not said
  double fps = 0.0;                      ///< frames a second; 0: not said
};

/// How they were told.
enum class OpenSoraWording : uint8_t {
  kNumbers,    ///< 1.2: "... aesthetic score: 6.5. motion score: 4.0. camera motion: pan right."
  kWords,      ///< 1.3: "... The aesthetic score is excellent. The motion strength is fair. ..."
  kFrameRate,  ///< 2.0: "... 24 FPS. 4 motion score.", and nothing else
};

/// `prompt` with the scores behind it. What it says already is left as it is. kConfig for scores
/// that are no numbers, or that the wording has no words for.
[[nodiscard]] std::string with_scores(std::string_view prompt, const OpenSoraScores& scores,
                                      OpenSoraWording wording);

}  // namespace kinora::prompts
