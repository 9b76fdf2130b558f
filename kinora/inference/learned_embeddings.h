#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <vector>

/// Files of textual inversion (Gal et al. 2022) as diffusers has them: one tensor, the embedding of
/// a token, whose name is the token's.
namespace kinora::inference {

struct LearnedEmbedding {
  std::string token;
  at::Tensor values;  ///< fp32 [C]
};

/// A safetensors file, or a folder with learned_embeds.safetensors. kIo for other files, and for
/// tokens of several vectors.
[[nodiscard]] LearnedEmbedding read_embedding(const std::filesystem::path& path);

/// Writes learned_embeds.safetensors into `folder`; of several learned_embeds-1.safetensors and so
/// on, since diffusers reads one token a file.
void write_embeddings(const std::filesystem::path& folder,
                      const std::vector<LearnedEmbedding>& embeddings);

}  // namespace kinora::inference
