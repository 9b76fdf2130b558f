#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kinora/eval/sample_set.h"

namespace kinora::eval {

/// How well samples show what their prompts say, as a CLIP sees it.
struct ClipScore {
  /// CLIPScore (Hessel et al. 2021): 100 max(cos, 0), the mean over frames of a clip, then over
  /// samples. (The paper's own weight is 2.5 in place of 100.)
  double score = 0.0;
  /// The same with the prompts of other samples: what is reached without looking at the prompt.
  /// Nothing where there is one prompt.
  std::optional<double> score_of_others = {};
  /// The share of samples to which no prompt is nearer than their own (Park et al. 2021,
  /// R-precision at 1, among all prompts of the set). Nothing likewise.
  std::optional<double> own_is_nearest = {};
};

/// features: float32 [N, F * P], the vectors of the F frames of each sample. prompts: float32
/// [M, P], each prompt once. own: of each sample the number of its prompt. All vectors have
/// length 1.
[[nodiscard]] ClipScore clip_score(const at::Tensor& features, const at::Tensor& prompts,
                                   const std::vector<int64_t>& own);

/// The prompt of each sample: from `file`, where it is not empty, else from the samples themselves
/// (SampleSet::prompt). file: lines, of which sample i has line i modulo their number, as `kinora
/// sample` draws them; or .json, an object of prompts by file name. kIo, kConfig for a sample
/// without a prompt, and for lines that do not divide the samples.
[[nodiscard]] std::vector<std::string> prompts_of(const SampleSet& set,
                                                  const std::filesystem::path& file);

/// Texts, each once.
struct DistinctTexts {
  std::vector<std::string> texts;
  std::vector<int64_t> number;  ///< of each of the given ones
};
[[nodiscard]] DistinctTexts distinct(const std::vector<std::string>& texts);

}  // namespace kinora::eval
