#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kinora::prompts {

/// Bytes of a caption that are cleaned, which takes time by their square. What is behind them is
/// only made lower case: it is more than text encoders read, who cut it off and say so.
inline constexpr size_t kMostCaptionBytes = size_t{1} << 14;

/// DeepFloyd IF's cleaning of captions, which PixArt and Open-Sora were trained on
/// (PixArtAlphaPipeline._clean_caption, Open-Sora's T5Encoder.clean_caption): in lower case,
/// without addresses, tags, names of files, long numbers, Chinese characters and odd punctuation.
/// Both do it twice over. What of it is not as there: fixed_text.h, html_text.h. Bytes that are not
/// UTF-8 become U+FFFD first.
[[nodiscard]] std::string clean_caption(std::string_view caption);

/// What both do to a prompt: clean_caption twice, or without `cleans` lower case alone.
[[nodiscard]] std::string preprocess_caption(std::string_view caption, bool cleans = true);

/// What Wan does to a prompt (WanPipeline's prompt_clean): ftfy's repairs (fixed_text.h),
/// references of HTML as what they stand for, white space as single spaces.
[[nodiscard]] std::string tidied_caption(std::string_view caption);

}  // namespace kinora::prompts
