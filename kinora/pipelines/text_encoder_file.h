#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kinora/checkpoint/adapter.h"
#include "kinora/comm/group.h"
#include "kinora/data/caption_tokens.h"
#include "kinora/models/text_encoders/text_encoder.h"
#include "kinora/pipelines/text_encoder_config.h"

namespace kinora::pipelines {

/// The CLIP and the T5 in the folder of Open-Sora 2, each with its tokenizer.
inline constexpr std::array<const char*, 2> kOpenSora2Encoders = {"openai/clip-vit-large-patch14",
                                                                  "google/t5-v1_1-xxl"};

struct TextEncoderOptions {
  at::Device device = at::kCPU;
  at::ScalarType type = at::kFloat;  ///< kFloat, kBFloat16 or kHalf
  /// The linears of the blocks are kept in 8 bits, and widened to `type` at each use.
  std::optional<models::EightBit> eight_bits = std::nullopt;
  /// Blocks are read from the file each time they are used, the next one while one computes. So the
  /// device holds one, and the host another. The vocabulary stays in the mapped file. Not with
  /// eight_bits.
  bool streamed = false;
  /// Where there are several, each holds a part of every block, and they gather a block when it is
  /// used (SharedBlocks). All of them open the encoder, and encode equally often in the same order.
  /// Neither streamed nor with eight_bits.
  comm::Group ranks = {};
  /// Of a file with several text encoders, the one whose keys begin so.
  std::string prefix = {};
  /// Merged into the weights: of read_text_adapters() for this path.
  std::vector<checkpoint::WeightedAdapter> adapters = {};
};

/// Bytes of an encoder's weights as such options keep them, but for a file's own.
[[nodiscard]] int64_t weight_bytes(models::TextEncoder& encoder, at::ScalarType type,
                                   std::optional<models::EightBit> eight_bits = std::nullopt);

/// A text encoder with its weights, frozen. `path` is one of
///   - a folder of transformers with config.json and model.safetensors, pytorch_model.bin or one of
///     their indices (model.safetensors.index.json), or one that has it in text_encoder/ or, of
///     latent diffusion, bert/;
///   - a folder of SDXL, which has a second CLIP in text_encoder_2/ and its tokenizer in
///     tokenizer_2/: both are one encoder (JointTextEncoder), or of the refiner that one alone, of
///     whose states those behind the block before the last are read, without the last norm;
///   - a folder of Flux or Stable Diffusion 3, with a T5 behind one CLIP or two, of HunyuanVideo,
///     with a Llama, or where it goes on from a picture a Llava, before a CLIP, or of Open-Sora 2,
///     with kOpenSora2Encoders (EncoderWithClips);
///   - a file of weights, or an index. The encoder's keys may have anything before them
///     ("text_encoder.", "cond_stage_model.transformer."), and other parts may lie beside it: T5's
///     decoder, CLIP's vision tower, a whole pipeline. A config.json beside it is followed if it is
///     a text encoder's; else text_encoder_config.h says how it is built. With OpenCLIP's own keys
///     (Stable Diffusion 2, "cond_stage_model.model.") the last block is not taken, as there. Of
///     SDXL in one file ("conditioner.embedders.") all is taken, as of its folder.
/// Names and shapes are compared before any weight is read: kIo, listing what is missing,
/// unexpected or of another shape, with both shapes. kConfig for a config that is not known, and
/// where there are several encoders, naming them.
[[nodiscard]] std::unique_ptr<models::TextEncoder> open_text_encoder(
    const std::filesystem::path& path, const TextEncoderOptions& options);

/// The tokenizers of the CLIPs beside the T5 of Flux, Stable Diffusion 3 and Open-Sora 2 and the
/// Llama or Llava of HunyuanVideo, in the folder of the pipeline `path`; [] for other encoders.
/// Errors of Tokenizer::load(); kConfig where one has tokens that its encoder lacks.
[[nodiscard]] std::vector<data::TokenizerBeside> tokenizers_beside(
    const std::filesystem::path& path);

/// What adapters, each "FILE" or "FILE:WEIGHT" (checkpoint::read_adapter), change in the text
/// encoder at `path`, or in both of SDXL: an entry for each that changes something. Reads no
/// weights of the encoder. kIo as read_adapter(), naming the first key that the encoder lacks.
[[nodiscard]] std::vector<checkpoint::WeightedAdapter> read_text_adapters(
    const std::vector<std::string>& choices, const std::filesystem::path& path);

/// The same without weights, of which folders need none: config.json says all.
[[nodiscard]] std::unique_ptr<models::TextEncoder> described_text_encoder(
    const std::filesystem::path& path);

/// open_text_encoder() without weights, whose names and shapes are compared all the same.
[[nodiscard]] std::unique_ptr<models::TextEncoder> outlined_text_encoder(
    const std::filesystem::path& path, const std::string& prefix = {});

/// What tells a text encoder from others, whatever its path: a checksum of how it is built and of
/// the names, types, shapes and first values of its weights. Reads a page of each. Errors as
/// open_text_encoder().
[[nodiscard]] std::string text_encoder_fingerprint(const std::filesystem::path& path,
                                                   const std::string& prefix = {});

}  // namespace kinora::pipelines
