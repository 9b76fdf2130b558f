#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>

#include "kinora/checkpoint/training_state.h"
#include "kinora/comm/group.h"
#include "kinora/nn/module.h"
#include "kinora/optim/arena.h"

/// Reading checkpoints of training, which writer.h writes: a folder `step-N` with safetensors
/// files, one a role of the arena and part of it, whose tensors are (parts of) the flat buckets,
/// and manifest.json, written last. The folder gets its name only when everything in it is on the
/// disk, so that a folder named step-N is whole, whenever and however a run ended. How many ranks
/// wrote it and how many read it does not matter, nor how they divide the state.
namespace kinora::checkpoint {

/// Reads only the manifest's part of the state. kIo for a folder that is no checkpoint.
[[nodiscard]] TrainingState load_state(const std::filesystem::path& checkpoint);
/// Whether it has averaged weights, likewise.
[[nodiscard]] bool has_averages(const std::filesystem::path& checkpoint);

/// Fills the arena (its master, moments and averages, frozen weights, then the compute copies) and
/// returns the state. All ranks of `world` call it; each reads what it owns, and they share the
/// work of comparing every file's checksum before anything is changed. Errors are the same on all
/// ranks: kDamaged if what was written is no longer there; kIo if the checkpoint cannot be read, is
/// of another model, holds values that are not finite, or was written by a newer version. EMAs are
/// matched by position; with other decays than before they go on from what they were.
[[nodiscard]] TrainingState load(const std::filesystem::path& checkpoint, optim::Arena& arena,
                                 const comm::Group& world = {});

/// Reads the weights alone into an arena that only samples, averages number `ema`, or with nothing
/// the raw ones, and buffers into the model.
void load_for_sampling(const std::filesystem::path& checkpoint, std::optional<size_t> ema,
                       nn::Module& model, optim::Arena& arena);

}  // namespace kinora::checkpoint
