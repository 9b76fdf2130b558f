#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/kinora/options/eval.h"
#include "kinora/comm/group.h"
#include "kinora/eval/extract.h"
#include "kinora/eval/feature_network.h"
#include "kinora/eval/sample_set.h"
#include "kinora/eval/statistics_file.h"

/// What `kinora eval` computes, and how it is told.
namespace kinora::apps {

/// A figure with its name in JSON.
struct Score {
  std::string key;
  double value = 0.0;
};

/// What there is of one side.
struct Side {
  std::string path;
  std::optional<eval::SampleSet> set;
  std::optional<eval::FeatureTable> table;
  std::optional<eval::StoredStatistics> statistics;
  int64_t num_samples = 0;  ///< 0: not known
};

/// Scores of features. On every rank of `group`; all get the same figures.
class FeatureScores {
 public:
  /// Opens the sets and, where it is needed, the network. kConfig for metrics that lack something:
  /// a reference, classes, samples.
  FeatureScores(const EvalOptions& options, const comm::Group& group, at::Device device);

  /// The figures in the order of the metrics.
  [[nodiscard]] std::vector<Score> compute();

  [[nodiscard]] const Side& samples() const { return samples_; }
  [[nodiscard]] const std::optional<Side>& reference() const { return reference_; }
  /// FeatureNetwork::name(), or what the files of statistics say; empty: nobody says.
  [[nodiscard]] const std::string& network_name() const { return network_name_; }

 private:
  [[nodiscard]] Side open_side(const std::string& path, bool needs_samples,
                               const eval::SampleSetOptions& options) const;
  void read_features(Side& side);
  void keep_gaussian(Side& side, const eval::Gaussian& gaussian);
  void find_gaussian(Side& side);
  [[nodiscard]] bool wants(const char* metric) const;
  [[nodiscard]] bool is_fid() const;
  void add_frechet(std::vector<Score>& scores);
  void add_features(std::vector<Score>& scores) const;
  void add_classes(std::vector<Score>& scores) const;

  const EvalOptions& options_;
  const comm::Group& group_;
  at::Device device_;
  std::unique_ptr<eval::FeatureNetwork> network_;
  Side samples_;
  std::optional<Side> reference_;
  std::string network_name_;
};

}  // namespace kinora::apps
