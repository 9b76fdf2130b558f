#pragma once

#include <cstdint>

namespace kinora::models {

/// What a model is shown beside x_t, in further channels (diffusion::Conditions::beside).
enum class ShownInput : uint8_t {
  kPlain,       ///< nothing
  kInpaint,     ///< a mask, 1 where the picture is drawn, and the picture without that part
  kEdit,        ///< a picture to be changed (Brooks et al. 2023, "InstructPix2Pix")
  kFrames,      ///< which frames of a clip are given, and the clip of these, grey elsewhere (Wan)
  kFirstFrame,  ///< the latents of a clip's first frame alone, and zeros behind (CogVideoX)
};

/// Whether it is made of given frames of a clip.
[[nodiscard]] inline bool shows_frames(ShownInput input) {
  return input == ShownInput::kFrames || input == ShownInput::kFirstFrame;
}

[[nodiscard]] const char* to_string(ShownInput input);

}  // namespace kinora::models
