#pragma once

#include <cstdint>
#include <string>

#include "kinora/parallel/mesh.h"
#include "kinora/parallel/sequence_plan.h"

/// Drawing samples on several ranks: groups of ranks draw samples of their own, and the ranks of a
/// group share each of its samples, by guidance and by sequence.
namespace kinora::pipelines {

/// What is asked for.
struct SamplingRanks {
  int64_t guidance = 0;  ///< ranks that share guidance: 1 or 2; 0: to be chosen
  int64_t sequence = 0;  ///< ranks that share the tokens of a sample; 0: to be chosen
  int64_t tensor = 1;    ///< ranks that share the weights of each block (parallel/tensor.h)
  int64_t pipeline = 1;  ///< ranks that share the blocks (parallel/pipeline.h)
  parallel::SequenceScheme scheme = parallel::SequenceScheme::kAuto;
};

/// ranks = pipeline x groups x guidance x sequence x tensor.
struct SamplingShares {
  int64_t pipeline = 1;
  int64_t groups = 1;
  int64_t guidance = 1;
  int64_t sequence = 1;
  int64_t tensor = 1;
  std::string reason = {};  ///< a line for the start

  /// Its shard axis is that of the groups.
  [[nodiscard]] parallel::MeshShape mesh() const;
};

/// Where there are as many samples as groups can be, ranks draw different ones, which needs no
/// communication; else guidance goes on two ranks, and what remains divides tokens. guided: whether
/// there is guidance to share. kConfig where ranks do not divide or some would have nothing to do.
[[nodiscard]] SamplingShares share_ranks(const SamplingRanks& wanted, int64_t ranks,
                                         int64_t samples, bool guided);

/// Samples first, ..., first + count - 1.
struct SampleRange {
  int64_t first = 0;
  int64_t count = 0;
};

/// Those that this rank's group draws of `samples`: all groups' one behind the other, as even as
/// can be.
[[nodiscard]] SampleRange own_samples(int64_t samples, const parallel::Mesh& mesh);

/// Whether this rank is the first of its group, all of which draw the same.
[[nodiscard]] bool leads_group(const parallel::Mesh& mesh);

}  // namespace kinora::pipelines
