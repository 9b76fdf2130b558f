#pragma once

#include <c10/core/Event.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kinora/data/batch.h"
#include "kinora/data/loader.h"
#include "kinora/data/source.h"
#include "kinora/parallel/mesh.h"
#include "kinora/train/run_config.h"

/// Which samples optimizer steps take, of one set or of two.
namespace kinora::train {

/// A section of the configuration. Steps are of the first two; of prior_data each takes a part.
enum class StepKind : uint8_t { kData, kImageData, kPriorData };

/// "data", "image_data", "prior_data".
[[nodiscard]] std::string_view to_string(StepKind kind);

/// Of the step behind `step` others, drawn with image_data.share by (seed, step) alone: so all
/// ranks agree, and so does a run that goes on from there.
[[nodiscard]] StepKind kind_of_step(double share, uint64_t seed, int64_t step);

/// Those of one step.
struct StepSamples {
  StepKind kind = StepKind::kData;
  int64_t step = 0;                  ///< steps before it
  int64_t global_batch = 0;          ///< samples of all ranks, without those of prior_data
  std::vector<data::Batch> batches;  ///< this rank's micro-batches
  int64_t num_prior = 0;             ///< of them, the last ones, are of prior_data
  int64_t num_batches = 0;           ///< of parallel.dynamic_sequence: micro-batches of all ranks
  std::vector<int64_t> ranks = {};   ///< likewise, of each of `batches`: that divide its tokens
  data::SlowestSample slowest;       ///< of those
  std::optional<c10::Event> ready;   ///< when a EncodeStage is done with them, on its own stream
};

/// Where a run stands: steps done, and samples that were taken of each set.
struct StepPosition {
  int64_t step = 0;
  int64_t data = 0;
  int64_t image_data = 0;
};

/// Sets of which a run's steps are made; null where the run takes none.
struct StepSets {
  const data::Source* data = nullptr;
  const data::Source* image_data = nullptr;
  const data::Source* prior_data = nullptr;
};

/// The samples of a run's steps, one after the other. Each set has its own order and epochs, and
/// goes on in them from step to step of its kind.
class StepLoader {
 public:
  /// The sources must outlive the loader. pinned: batches in page-locked memory. share_out: of
  /// parallel.dynamic_sequence. Errors as data::Loader.
  StepLoader(const RunConfig& config, const StepSets& sets, const parallel::Mesh& mesh,
             const StepPosition& position, bool pinned, const data::ShareOut& share_out = {});

  /// Errors as data::Loader::next().
  [[nodiscard]] StepSamples next();

  /// Of all sets.
  [[nodiscard]] data::LoaderStats stats() const;

  /// As data::Loader::waits_for().
  [[nodiscard]] std::string waits_for() const;

 private:
  /// A set.
  struct Part {
    Part() = default;
    Part(const data::Source& source, const data::LoaderOptions& options);

    std::unique_ptr<data::Loader> loader;
    int64_t num_ranks = 1;
    int64_t num_passes = 0;  // of a step, on this rank; 0: steps differ

    void take(StepSamples& samples);
    void take_batch(StepSamples& samples);
  };

  double share_;
  uint64_t seed_;
  int64_t step_;
  Part data_;
  Part image_data_;  // without a loader where the share is 0
  Part prior_data_;  // likewise where the weight is 0
};

}  // namespace kinora::train
