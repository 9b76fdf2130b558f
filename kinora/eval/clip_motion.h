#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <memory>

#include "kinora/eval/feature_network.h"

/// How clips hold together and move: VBench's figures (Huang et al. 2024, section 3.2) in networks
/// that the user names.
namespace kinora::eval {

/// A network of images, which looks at the frames of clips one by one. Its features are the
/// frames', one behind the other: [B, T * D].
[[nodiscard]] std::unique_ptr<FeatureNetwork> frame_by_frame(
    std::unique_ptr<FeatureNetwork> images);

/// How alike the frames of clips are: the mean, over clips and their frames from the second on, of
/// (max(cos(frame, first), 0) + max(cos(frame, the one before), 0)) / 2. VBench calls it subject
/// consistency in features of DINO's ViT-B/16, background consistency in those of CLIP's ViT-B/32.
/// features: float32 [N, T * D], T = `frames` of 2 or more.
[[nodiscard]] double frame_consistency(const at::Tensor& features, int64_t frames);

/// Motion smoothness: each frame between two others is compared with what an interpolator makes of
/// these. The feature [B, 1] of a clip is (255 - the mean difference in levels) / 255, over frames
/// 1, 3, 5, ...; VBench's interpolator is AMT-S.
/// script: TorchScript whose forward takes two frames, float32 [B, 3, H, W] in [0, 1], and returns
/// the one between them likewise. It runs its author's code. kIo for other files; of clips of fewer
/// than 3 frames, and of what it returns in another shape, kShape.
[[nodiscard]] std::unique_ptr<FeatureNetwork> open_interpolator(const std::filesystem::path& script,
                                                                at::Device device);

/// Dynamic degree: the feature [B, 1] of a clip is 1 if it moves, else 0. It moves if the fastest
/// 5 % of the pixels go further than 6 pixels at a shorter side of 256, likewise at others, from
/// one frame to the next, in a quarter of the frames or more; VBench's network is RAFT, its clips
/// have 8 frames a second.
/// script: TorchScript whose forward takes two frames, float32 [B, 3, H, W] in 0 to 255, and
/// returns by how many pixels each place moves, [B, 2, h, w]. Errors as open_interpolator().
[[nodiscard]] std::unique_ptr<FeatureNetwork> open_flow(const std::filesystem::path& script,
                                                        at::Device device);

}  // namespace kinora::eval
