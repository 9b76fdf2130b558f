#include "kinora/eval/clip_score.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "kinora/core/error.h"
#include "kinora/inference/prompts.h"
#include "kinora/io/file.h"

namespace kinora::eval {
namespace {

namespace fs = std::filesystem;

constexpr double kWeight = 100.0;
constexpr int64_t kSamplesAtOnce = 256;  // bounds the table of scores

std::map<std::string, std::string> prompts_by_name(const fs::path& file) {
  constexpr int64_t kMostBytes = int64_t{1} << 28;
  const nlohmann::json json =
      nlohmann::json::parse(io::read_text(file, kMostBytes), nullptr, /*allow_exceptions=*/false);
  KINORA_CHECK(json.is_object(), kIo, "[eval] ", file.string(),
               " must be a JSON object of prompts by file name");
  std::map<std::string, std::string> prompts;
  for (const auto& [name, prompt] : json.items()) {
    KINORA_CHECK(prompt.is_string(), kIo, "[eval] ", file.string(), ": a prompt must be text, got ",
                 prompt.dump(), " for ", io::in_quotes(name));
    prompts.emplace(name, prompt.get<std::string>());
  }
  return prompts;
}

std::string prompt_of(const SampleSet& set, int64_t index,
                      const std::map<std::string, std::string>& named) {
  const auto found = named.find(fs::path(set.name(index)).filename().string());
  const std::string prompt = found != named.end() ? found->second
                             : named.empty()      ? set.prompt(index)
                                                  : "";
  KINORA_CHECK(!prompt.empty(), kConfig, "[eval] there is no prompt of ", set.name(index),
               ". Hint: --prompts FILE, a line a sample or a JSON object by file name");
  return prompt;
}

}  // namespace

ClipScore clip_score(const at::Tensor& features, const at::Tensor& prompts,
                     const std::vector<int64_t>& own) {
  const int64_t count = features.size(0);
  const int64_t num_prompts = prompts.size(0);
  double of_own = 0.0;
  double of_others = 0.0;
  int64_t num_nearest = 0;
  for (int64_t first = 0; first < count; first += kSamplesAtOnce) {
    const int64_t size = std::min(kSamplesAtOnce, count - first);
    const at::Tensor vectors =
        features.narrow(0, first, size).reshape({size, -1, prompts.size(1)});  // [n, F, P]
    const at::Tensor scores =
        (at::matmul(vectors, prompts.t()).clamp_min(0.0) * kWeight).mean(1).to(at::kDouble);
    const at::Tensor table = scores.contiguous();  // [n, M]
    const auto* row = table.const_data_ptr<double>();
    for (int64_t i = 0; i < size; ++i, row += num_prompts) {
      const int64_t mine = own[static_cast<size_t>(first + i)];
      double sum = 0.0;
      bool is_nearest = true;
      for (int64_t j = 0; j < num_prompts; ++j) {
        sum += j == mine ? 0.0 : row[j];
        is_nearest = is_nearest && (j == mine || row[j] < row[mine]);
      }
      of_own += row[mine];
      of_others += sum / static_cast<double>(std::max<int64_t>(num_prompts - 1, 1));
      num_nearest += is_nearest ? 1 : 0;
    }
  }
  const auto samples = static_cast<double>(count);
  ClipScore score{.score = of_own / samples};
  if (num_prompts > 1) {
    score.score_of_others = of_others / samples;
    score.own_is_nearest = static_cast<double>(num_nearest) / samples;
  }
  return score;
}

std::vector<std::string> prompts_of(const SampleSet& set, const fs::path& file) {
  std::vector<std::string> prompts;
  if (!file.empty() && file.extension() != ".json") {
    const std::vector<std::string> lines = inference::caption_lines(file);
    KINORA_CHECK(set.size() % std::ssize(lines) == 0, kConfig, "[eval] ", file.string(),
                 " must have as many prompts as there are samples, or a part of them in turn, got ",
                 lines.size(), " for ", set.size(), " samples");
    for (int64_t i = 0; i < set.size(); ++i) {
      prompts.push_back(lines[static_cast<size_t>(i) % lines.size()]);
    }
    return prompts;
  }
  const auto named = file.empty() ? std::map<std::string, std::string>() : prompts_by_name(file);
  KINORA_CHECK(file.empty() || !named.empty(), kConfig, "[eval] ", file.string(),
               " must hold at least one prompt");
  for (int64_t i = 0; i < set.size(); ++i) {
    prompts.push_back(prompt_of(set, i, named));
  }
  return prompts;
}

DistinctTexts distinct(const std::vector<std::string>& texts) {
  DistinctTexts result;
  std::unordered_map<std::string, int64_t> numbers;
  for (const std::string& text : texts) {
    const auto [found, is_new] = numbers.emplace(text, std::ssize(result.texts));
    if (is_new) {
      result.texts.push_back(text);
    }
    result.number.push_back(found->second);
  }
  return result;
}

}  // namespace kinora::eval
