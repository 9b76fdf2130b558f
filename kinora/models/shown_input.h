#pragma once

#include <cstdint>

namespace kinora::models {

/// What a model is shown beside x_t (diffusion::Conditions::beside): in further channels, or as
/// kReference and kSubjects say.
enum class ShownInput : uint8_t {
  kPlain,       ///< nothing
  kInpaint,     ///< a mask, 1 where the picture is drawn, and the picture without that part
  kEdit,        ///< a picture to be changed (Brooks et al. 2023, "InstructPix2Pix")
  kFrames,      ///< which frames of a clip are given, and the clip of these, grey elsewhere (Wan)
  kFirstFrame,  ///< the latents of a clip's first frame alone, and zeros behind (CogVideoX)
  kMarkedFirstFrame,  ///< these, and a channel that is 1 where they are (HunyuanVideo)
  kFill,  ///< the picture without a part, and a mask of pixels, 1 where it is drawn (Flux Fill)
  kReference,  ///< a picture to be changed, as tokens behind those of x_t (Flux Kontext)
  kSubjects,   ///< pictures of what is to be seen, likewise, several of them
};

/// Whether it is made of the first frame of a clip alone.
[[nodiscard]] inline bool shows_first_frame(ShownInput input) {
  return input == ShownInput::kFirstFrame || input == ShownInput::kMarkedFirstFrame;
}

/// Whether it is made of given frames of a clip.
[[nodiscard]] inline bool shows_frames(ShownInput input) {
  return input == ShownInput::kFrames || shows_first_frame(input);
}

/// Whether it is a picture of which a part is drawn, and a mask that says which.
[[nodiscard]] inline bool fills_in(ShownInput input) {
  return input == ShownInput::kInpaint || input == ShownInput::kFill;
}

/// Whether it is tokens behind those of x_t.
[[nodiscard]] inline bool shows_tokens(ShownInput input) {
  return input == ShownInput::kReference || input == ShownInput::kSubjects;
}

/// Whether it is a picture that is changed.
[[nodiscard]] inline bool changes_picture(ShownInput input) {
  return input == ShownInput::kEdit || input == ShownInput::kReference;
}

[[nodiscard]] const char* to_string(ShownInput input);

}  // namespace kinora::models
