#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "kinora/checkpoint/model_weights.h"

/// Weights from one kind of file into another.
namespace kinora::inference {

struct ConvertOptions {
  /// A run directory (its newest checkpoint), a checkpoint, or what checkpoint::WeightsFile opens.
  std::filesystem::path from;
  /// X.safetensors, or a folder for diffusers or PEFT, which must be empty or not be there.
  std::filesystem::path to;
  /// Floating tensors become this; nothing: they stay what they are.
  std::optional<at::ScalarType> type = {};
  size_t ema = 0;    ///< which average of a checkpoint
  bool raw = false;  ///< the weights that are trained, not an average
  int64_t max_shard_bytes = 0;
  std::string config_file = {};  ///< a recipe, for files that do not say what model they are of
  bool allow_missing = false;
  bool allow_unexpected = false;           ///< such tensors are left out
  std::filesystem::path autoencoder = {};  ///< for vae/ of a diffusers' folder
  /// Whose names a file gets: ours, CompVis' of U-Nets and autoencoders, or those in the files of
  /// its authors (models::Family::original_naming).
  enum class Layout { kOwn, kCompvis, kAuthors } layout = Layout::kOwn;
  /// Adapters to merge, each "FILE" or "FILE:WEIGHT"; weights that they change become fp32.
  std::vector<std::string> adapters = {};
  /// Of a run with low-rank updates, or of the one of `adapters`: not merged weights, but the
  /// updates as PEFT has them, with our names of linears (kOwn) or diffusers', or as kohya's file.
  enum class Updates { kMerged, kOwn, kDiffusers, kKohya } updates = Updates::kMerged;
};

/// What was done.
struct Converted {
  std::string what;        ///< "averaged weights of runs/first/checkpoints/step-200"
  bool has_model = false;  ///< whether anything said what model it is
  checkpoint::WeightsFit fit;
  std::vector<std::string> made;   ///< buffers that were not there and are as the model makes them
  int64_t num_tensors = 0;         ///< that were written, under our names
  std::vector<std::string> notes;  ///< what whoever uses the result should know
};

/// Streams tensor by tensor. Without a model tensors keep their names; with one they are compared
/// with it: kIo, before anything is written, for missing, unexpected and misshapen ones. kConfig
/// where `to` is no name of a known kind, and where what it is of has no place in it.
[[nodiscard]] Converted convert_weights(const ConvertOptions& options);

}  // namespace kinora::inference
