#pragma once

#include <cstdint>
#include <vector>

#include "kinora/models/shown_input.h"
#include "kinora/ops/kernel_options.h"

namespace kinora {
class Fields;
}

namespace kinora::models {

/// How PixArt-Sigma makes fewer keys and values of an image's (Chen et al. 2024, section 2.3).
enum class KvSampling : uint8_t {
  kNone,
  kConv,          ///< a learned depthwise convolution, and a norm
  kAve,           ///< as published: the nearest token of each cell, which is no average
  kUniform,       ///< the first token of each cell
  kUniformEvery,  ///< every so manieth token, counted row by row
};

/// What only transformers have: ModelConfig::transformer. 0 or auto is what model.name gives.
struct TransformerConfig {
  int64_t depth = 0;         ///< number of blocks; STDiT3: of pairs
  int64_t hidden = 0;        ///< C, width of a token; a multiple of 4 (position embedding)
  int64_t heads = 0;         ///< attention heads; divides hidden
  int64_t patch = 0;         ///< side of a square patch
  int64_t patch_frames = 0;  ///< frames of a patch
  double mlp_ratio = 4.0;    ///< hidden width of the MLP over C

  // Those that a family reads stand in its row, in Family::own_keys.
  ops::Switch qk_norm = ops::Switch::kAuto;      ///< auto: as published
  bool size_conditions = false;                  ///< PixArt: height, width and aspect ratio
  int64_t base_pixels = 512;                     ///< side for which positions are unscaled
  double position_scale = 1.0;                   ///< positions in space are divided by it
  double time_position_scale = 1.0;              ///< positions in time likewise
  KvSampling kv_compress = KvSampling::kNone;    ///< PixArt-Sigma: fewer keys and values
  int64_t kv_compress_factor = 2;                ///< cells of this side become one
  std::vector<int64_t> kv_compress_layers = {};  ///< blocks, from 0; []: the second half
  /// STDiT3: given frames, and which ones these are, are embedded beside the input (1.3).
  bool given_embedders = false;
  ShownInput input = ShownInput::kPlain;  ///< Flux: what picture it is shown
  int64_t references = 0;      ///< Flux' line: pictures of subjects that it is shown, at most
  int64_t image_channels = 0;  ///< Wan: of states of given frames that are read beside the text
  int64_t image_positions =
      0;                       ///< Wan: of these that a learned table is added to; 0: there is none
  bool rotary_3d = false;      ///< STDiT3, CogVideoX: over time, rows and columns
  int64_t parallel_depth = 0;  ///< MMDiT: parallel blocks behind the others
  std::vector<int64_t> second_attention = {};  ///< MMDiT: blocks that have it, from 0
  std::vector<int64_t> rotary_axes = {};       ///< MMDiT: dims of frame, row and column; [] = none
  double rotary_base = 0.0;   ///< MMDiT: angles at place 1 are its powers; 0: as published
  int64_t refiner_depth = 0;  ///< MMDiT: blocks of HunyuanVideo's token refiner; 0: there is none
  int64_t position_grid = 0;  ///< MMDiT: side of the table of positions
  double guidance = 0.0;      ///< MMDiT: told to a distilled model; 0: it is none
  bool learned_positions = false;  ///< CogVideoX: a table beside rotary positions
  /// LTX-Video: the first latent is one frame, and the others follow it, where positions are told.
  bool single_first_frame = false;
  /// HunyuanVideo: the first frame can be given, clean in the clip, where its tokens have vectors
  /// of time 0.
  bool clean_first_frame = false;
  /// CogVideoX: frames, rows and columns of patches whose positions are whole numbers, and which
  /// the table is of.
  std::vector<int64_t> base_grid = {};
  int64_t time_channels = 0;  ///< CogVideoX: width of the time's embedding
  double ofs = 0.0;           ///< CogVideoX: a number that the model is told; 0: it is told none
  std::vector<int64_t> window = {};  ///< STDiT3: frames, rows, columns of local attention; [] = all
  /// MMDiT: frames, rows, columns of patches around each that it attends to; 0: all; [] = all
  std::vector<int64_t> sliding_window = {};

  [[nodiscard]] bool operator==(const TransformerConfig&) const = default;
  /// Values of one channel in a patch.
  [[nodiscard]] int64_t patch_volume() const { return patch_frames * patch * patch; }
  [[nodiscard]] int64_t mlp_hidden() const {
    return static_cast<int64_t>(static_cast<double>(hidden) * mlp_ratio);
  }
};

/// Registers its keys in the scope that is open.
void describe(Fields& fields, TransformerConfig& config);

}  // namespace kinora::models
