#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kinora/comm/group.h"
#include "kinora/nn/module.h"
#include "kinora/ops/fp8_state.h"
#include "kinora/optim/adamw.h"
#include "kinora/optim/arena.h"

/// Checkpoints of training: a folder `step-N` with safetensors files, one a role of the arena and
/// part of it, whose tensors are (parts of) the flat buckets, and manifest.json, written last. The
/// folder gets its name only when everything in it is on the disk, so that a folder named step-N is
/// whole, whenever and however a run ended. How many ranks wrote it and how many read it does not
/// matter, nor how they divide the state.
namespace kinora::checkpoint {

/// What the bits of a deterministic run depend on besides its configuration.
struct PinnedChoices {
  std::map<std::string, std::string> versions;  ///< by name: "cuDNN" -> "91300"
  /// The algorithm of every matrix product run so far, as kernels/matmul_cache.h writes it. Not
  /// looked into here.
  std::vector<std::string> products;

  bool operator==(const PinnedChoices&) const = default;
};

/// Tensors on the CPU, by name.
using Arrays = std::map<std::string, at::Tensor>;

/// Everything of a run besides the arena's arrays.
struct TrainingState {
  int64_t step = 0;            ///< optimizer updates done, skipped ones included
  int64_t position = 0;        ///< samples of the data stream consumed
  int64_t image_position = 0;  ///< likewise of image_data; 0 in older checkpoints
  optim::AdamWState optimizer;
  /// Of importance sampling (diffusion::LossSecondMoment); empty without it.
  std::vector<double> timestep_history;
  std::vector<int64_t> timestep_counts;
  std::string config;  ///< the run's resolved configuration, YAML
  /// Nothing where the run was not deterministic or the checkpoint is older than this field.
  std::optional<PinnedChoices> pinned;
  /// Of fp8; nothing likewise, and nothing from load_state(): it lies in a file of its own.
  std::optional<ops::Fp8State> fp8;
  /// Of the model (buffers.h), the same on all ranks; likewise in a file of their own.
  Arrays buffers;
  /// What the run does not train (frozen_of), likewise.
  Arrays frozen;
};

/// The arena's frozen parameters in their compute type, on the CPU. Steps do not change them: they
/// are read once a run, and share the arena's memory where that is the host's.
[[nodiscard]] Arrays frozen_of(const optim::Arena& arena);

/// "step-1000" in `folder`.
[[nodiscard]] std::filesystem::path step_folder(const std::filesystem::path& folder, int64_t step);

/// The step of a folder's name; nothing if it is not a checkpoint's.
[[nodiscard]] std::optional<int64_t> step_of(const std::filesystem::path& checkpoint);

/// Checkpoints in `folder`, oldest first; unfinished ones do not count.
[[nodiscard]] std::vector<std::filesystem::path> list_checkpoints(
    const std::filesystem::path& folder);

/// Writes `folder`/step-N and returns its path, as Writer does (writer.h), and waits for it. All
/// ranks of `world` call it.
std::filesystem::path save(const std::filesystem::path& folder, const optim::Arena& arena,
                           const TrainingState& state, const comm::Group& world = {});

/// Reads only the manifest's part of the state. kIo for a folder that is no checkpoint.
[[nodiscard]] TrainingState load_state(const std::filesystem::path& checkpoint);

/// Fills the arena (its master, moments and averages, frozen weights, then the compute copies) and
/// returns the state. All ranks of `world` call it; each reads what it owns, and they share the
/// work of comparing every file's checksum before anything is changed. kIo, on all ranks the same,
/// if a file is damaged or the checkpoint is of another model. EMAs are matched by position; with
/// other decays than before they go on from what they were.
[[nodiscard]] TrainingState load(const std::filesystem::path& checkpoint, optim::Arena& arena,
                                 const comm::Group& world = {});

/// Reads the weights alone into an arena that only samples, averages number `ema`, or with nothing
/// the raw ones, and buffers into the model.
void load_for_sampling(const std::filesystem::path& checkpoint, std::optional<size_t> ema,
                       nn::Module& model, optim::Arena& arena);

/// kIo, saying how much is missing, unless `folder` has room for `bytes` of arrays and what goes
/// with them.
void check_space(const std::filesystem::path& folder, int64_t bytes);

/// What a checkpoint that this process writes is called until it is whole.
[[nodiscard]] std::string unfinished_name(int64_t step);

/// Removes unfinished checkpoints. Only for who holds the run's lock.
void remove_unfinished(const std::filesystem::path& folder);

/// Removes all but the newest `keep_last` checkpoints (0: none is removed) and those whose step is
/// a multiple of `keep_every` (0: no such).
void prune(const std::filesystem::path& folder, int64_t keep_last, int64_t keep_every);

}  // namespace kinora::checkpoint
