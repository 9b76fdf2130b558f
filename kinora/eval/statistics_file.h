#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "kinora/eval/feature_statistics.h"
#include "kinora/io/npz.h"

/// Statistics of a set's features as .npz: mu [D] and sigma [D, D], which pytorch-fid, clean-fid
/// and ADM read and write.
namespace kinora::eval {

struct StoredStatistics {
  Gaussian gaussian;
  std::optional<Gaussian> spatial;  ///< ADM's mu_s and sigma_s, of its spatial features
  std::string network;              ///< FeatureNetwork::name(); empty: the file does not say
};

/// Of a file with mu and sigma; nothing of others. kIo for arrays of other shapes than a mean and
/// its covariance, and for values that are not finite.
[[nodiscard]] std::optional<StoredStatistics> read_statistics(const io::NpzFile& file);

/// Writes mu and sigma as float64, with num_samples and, as bytes, network beside them. kIo.
void write_statistics(const std::filesystem::path& path, const Gaussian& gaussian,
                      const std::string& network);

}  // namespace kinora::eval
