#pragma once

namespace kinora::diffusion {

/// The value below which a Beta(a, b) variable lies with `probability`: the inverse of the
/// regularised incomplete beta function, to 1e-12. a, b > 0; probability in [0, 1].
[[nodiscard]] double beta_quantile(double probability, double a, double b);

}  // namespace kinora::diffusion
