#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "kinora/comm/group.h"
#include "kinora/core/dtype.h"
#include "kinora/core/stop_signal.h"
#include "kinora/data/batch.h"
#include "kinora/data/data_config.h"
#include "kinora/data/latent_cache.h"
#include "kinora/data/source.h"
#include "kinora/pipelines/latent_encoder.h"

/// From files to a cache of latents (data/latent_cache.h).
namespace kinora::pipelines {

struct EncodeOptions {
  std::filesystem::path out;    ///< the cache's folder
  data::DataConfig data;        ///< of the source: sizes, threads, max_bad, and for the key
  std::string autoencoder;      ///< its fingerprint
  DType dtype = DType::kBF16;   ///< of what is stored: F32, F16 or BF16
  bool std = true;              ///< store standard deviations where there are any
  bool mirrored = false;        ///< store latents of mirrored pictures, too
  double block_seconds = 10.0;  ///< a block goes to the disk after this time at the latest
  /// Called on rank 0: samples done, samples in all, and how many were done before. May be empty.
  std::function<void(int64_t done, int64_t total, int64_t before)> progress;
};

struct EncodeResult {
  bool complete = false;  ///< else a signal stopped it, and the next call goes on
  int64_t samples = 0;    ///< in the cache; of rank 0 where it is complete, else 0
  int64_t left_out = 0;   ///< that cannot be read, as well
  int64_t computed = 0;   ///< by this rank in this call
};

/// Encodes every sample of `source` once, with the pictures before, masks, references and control
/// pictures that lie beside it, each rank a part of all, and commits the cache when all is there; a
/// cache of another key stays valid until then. Goes on with the whole blocks that an earlier call
/// with the same key left, by however many ranks. The files do not depend on the number of ranks
/// nor on interruptions. All ranks call it; `stop` may be null.
///
/// kIo: too many samples that cannot be read, files that cannot be written (old state stays), not
/// enough room on the disk, another process encodes into the folder. kConfig: latents of no picture
/// or a type that is no float. kShape: sizes that the autoencoder does not take.
EncodeResult encode(const data::Source& source, const LatentEncoder& encoder,
                    const EncodeOptions& options, const comm::Group& world,
                    const StopSignal* stop = nullptr);

}  // namespace kinora::pipelines
