#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "kinora/checkpoint/snapshot.h"
#include "kinora/checkpoint/training_state.h"
#include "kinora/comm/group.h"
#include "kinora/optim/arena.h"

namespace kinora::checkpoint {

struct WriterOptions {
  std::filesystem::path folder;  ///< where step-N is to appear; must exist
  /// As prune(), after every checkpoint; 0: all stay.
  int64_t keep_last = 0;
  int64_t keep_every = 0;
  /// How many share a host's memory.
  int64_t ranks_per_host = 1;
  /// Nothing: choose_place(), once.
  std::optional<SnapshotPlace> place = {};
};

/// Writes checkpoints while training goes on. Every rank writes its part in the background; when
/// all of them are on the disk, rank 0 writes the manifest and gives the folder its name. Then it
/// says in the log how long training stood still, how long it took and how fast it was.
///
/// All ranks of `world` make the same calls, and share the folder.
class Writer {
 public:
  /// The arena must outlive the writer. kComm.
  Writer(WriterOptions options, const optim::Arena& arena, const comm::Group& world);
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  /// Waits; an error is only logged.
  ~Writer();

  /// Takes a snapshot, starts to write it as step-N and returns: the arena may change at once, on a
  /// GPU by what the current stream is given from now on. Waits first for the one before, if that
  /// is still under way, and throws its error. A checkpoint of this step that exists already is
  /// kept as it is.
  void start(const TrainingState& state);

  /// Returns when nothing is under way. kIo, on all ranks the same, if the last checkpoint could
  /// not be written: then nothing that was there is changed. kComm if a rank is gone.
  void wait();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Writes `folder`/step-N and returns its path, as Writer does, and waits for it. All
/// ranks of `world` call it.
std::filesystem::path save(const std::filesystem::path& folder, const optim::Arena& arena,
                           const TrainingState& state, const comm::Group& world = {});

}  // namespace kinora::checkpoint
