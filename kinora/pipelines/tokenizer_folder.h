#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kinora/tokenizers/tokenizer.h"

namespace kinora::pipelines {

/// Whether a folder has a tokenizer.
[[nodiscard]] bool has_tokenizer(const std::filesystem::path& folder);

/// Folders where find_tokenizer() looks, in order.
[[nodiscard]] std::vector<std::filesystem::path> tokenizer_places(
    const std::filesystem::path& text_encoder);

/// Where the tokenizer of a text encoder (text_encoder_file.h) lies: in the encoder's own folder,
/// or in the pipeline's folder tokenizer/, of text_encoder_2/ tokenizer_2/. kIo where none of them
/// has one, naming them.
[[nodiscard]] std::filesystem::path find_tokenizer(const std::filesystem::path& text_encoder);

/// Copies what Tokenizer::load() may read of the folder or file into `folder`, which is made, so
/// that copied_tokenizer() finds it there. kIo.
void copy_tokenizer(const std::filesystem::path& path, const std::filesystem::path& folder);

/// The copy in `folder` of the tokenizer that was at `path`; nothing where there is none.
[[nodiscard]] std::optional<std::filesystem::path> copied_tokenizer(
    const std::filesystem::path& path, const std::filesystem::path& folder);

/// What tells a tokenizer from others: a checksum of all files that Tokenizer::load() may read of
/// the folder or file. kIo.
[[nodiscard]] std::string tokenizer_fingerprint(const std::filesystem::path& path);

/// kConfig where the tokenizer has tokens that a text encoder with a vocabulary of `vocab_size`
/// lacks. encoder: the text encoder in words.
void check_vocabulary(const tokenizers::Tokenizer& tokenizer, const std::string& encoder,
                      int64_t vocab_size);

}  // namespace kinora::pipelines
