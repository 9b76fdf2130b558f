#pragma once

namespace kinora::models {

/// Makes model.architecture two_streams known: a small multimodal transformer, as Stable Diffusion
/// 3 has (Esser et al. 2024, figure 2b). Text and image have weights of their own.
void add_two_streams();

}  // namespace kinora::models
