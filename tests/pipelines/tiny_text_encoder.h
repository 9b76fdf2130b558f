#pragma once

#include <filesystem>
#include <string>

#include "kinora/io/file.h"
#include "kinora/models/text_encoders/clip_text_encoder.h"
#include "kinora/models/text_encoders/t5_encoder.h"
#include "tests/models/formula_file.h"
#include "tests/places.h"

/// Text encoders of a few kilobytes with the tokenizers of tests/tokenizers/data, as folders of
/// transformers.
namespace kinora::pipelines {

inline std::filesystem::path tokenizer_data(const std::string& name) {
  return source_path("tests/tokenizers/data") / name;
}

inline void write_encoder(const std::filesystem::path& folder, nn::Module&& encoder,
                          const std::string& config) {
  std::filesystem::create_directories(folder);
  models::write_tensors(folder / "model.safetensors", models::formula_weights(encoder));
  io::write_file_atomic(folder / "config.json", config);
}

/// PIPELINE/text_encoder, a T5 of `width` channels, and PIPELINE/tokenizer.
inline void write_tiny_t5(const std::filesystem::path& pipeline, int64_t width = 24) {
  write_encoder(pipeline / "text_encoder",
                models::T5Encoder({.vocab_size = 700,
                                   .d_model = width,
                                   .d_kv = 6,
                                   .d_ff = 40,
                                   .num_layers = 2,
                                   .num_heads = 2,
                                   .activation = models::Activation::kGeluTanh,
                                   .is_gated = true}),
                R"({"model_type": "t5", "architectures": ["T5EncoderModel"], "vocab_size": 700,
                    "d_model": )" +
                    std::to_string(width) +
                    R"(, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_heads": 2,
                    "feed_forward_proj": "gated-gelu"})");
  std::filesystem::copy(tokenizer_data("t5_json"), pipeline / "tokenizer");
}

/// A CLIP of 24 channels with a pooled vector of 10, its tokenizer in the same folder.
inline void write_tiny_clip(const std::filesystem::path& folder) {
  write_encoder(folder,
                models::ClipTextEncoder({.vocab_size = 1064,
                                         .hidden_size = 24,
                                         .intermediate_size = 40,
                                         .num_hidden_layers = 2,
                                         .num_attention_heads = 2,
                                         .max_position_embeddings = 77,
                                         .activation = models::Activation::kGelu,
                                         .projection_dim = 10,
                                         .eos_token_id = 1063}),
                R"({"model_type": "clip_text_model",
                    "architectures": ["CLIPTextModelWithProjection"], "vocab_size": 1064,
                    "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
                    "num_attention_heads": 2, "max_position_embeddings": 77, "hidden_act": "gelu",
                    "projection_dim": 10, "eos_token_id": 1063})");
  std::filesystem::copy(tokenizer_data("clip"), folder);
}

}  // namespace kinora::pipelines
