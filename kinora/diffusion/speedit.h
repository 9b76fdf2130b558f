#pragma once

#include <span>
#include <vector>

namespace kinora::diffusion {

/// How often SpeeDiT (Wang et al. 2024, "A Closer Look at Time Steps is Worthy of Triple Speed-Up
/// for Diffusion Model Training") trains each timestep, [T], sums to 1. Let g_t be the growth of
/// sqrt(1 - alpha-bar) a timestep. Timesteps with g above 1e-4 are drawn five times as often as the
/// others, and every drawn t is followed by its counterpart |t - m|, where m is one more than the
/// first t with g below 5e-5 (iddpm-speed of Open-Sora 1.1). They fill a batch with pairs; here
/// each sample takes t or its counterpart with the same probability, which has the same
/// distribution and does not depend on the batch. Error kConfig for chains whose g never falls
/// below 5e-5.
[[nodiscard]] std::vector<double> speedit_probabilities(std::span<const double> alphas_cumprod);

}  // namespace kinora::diffusion
