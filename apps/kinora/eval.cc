// kinora eval SAMPLES [REFERENCE] --features FILE: how near samples are to real ones; --clip
// FOLDER: how well they show their prompts; --metrics consistency, --interpolator, --flow: how
// clips hold together and move.

#include <chrono>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/kinora/commands.h"
#include "apps/kinora/error_report.h"
#include "apps/kinora/eval_clip.h"
#include "apps/kinora/eval_clips.h"
#include "apps/kinora/eval_scenes.h"
#include "apps/kinora/eval_scores.h"
#include "apps/kinora/ranks.h"
#include "kinora/core/error.h"
#include "kinora/device/device.h"
#include "kinora/eval/image_pairs.h"
#include "kinora/io/file.h"

namespace kinora::apps {
namespace {

// Ranks that have read their samples wait for the others.
constexpr std::chrono::hours kRankPatience{24};

void print(const nlohmann::ordered_json& report, bool as_json) {
  if (as_json) {
    std::cout << report.dump(-1, ' ', /*ensure_ascii=*/true,
                             nlohmann::json::error_handler_t::replace)
              << '\n';
    return;
  }
  for (const auto& [key, value] : report.items()) {
    std::cout << key << ": " << (value.is_string() ? value.get<std::string>() : value.dump())
              << '\n';
  }
}

int score_pairs(const EvalArguments& arguments) {
  const eval::PairScores scores =
      eval::score_pairs(arguments.eval.samples, arguments.eval.reference);
  // JSON has no infinite number.
  const auto psnr = std::isinf(scores.psnr) ? nlohmann::ordered_json("infinite")
                                            : nlohmann::ordered_json(scores.psnr);
  print({{"pairs", scores.num_pairs},
         {"equal_pairs", scores.num_equal},
         {"psnr", psnr},
         {"ssim", scores.ssim}},
        arguments.json);
  return 0;
}

void describe(nlohmann::ordered_json& report, const std::string& name, const Side& side) {
  report[name] = side.path;
  if (side.num_samples > 0) {
    report["num_" + name] = side.num_samples;
  }
}

void evaluate_on_rank(const EvalArguments& arguments, const comm::Group& group, at::Device device) {
  device::configure_computation(arguments.threads, /*deterministic=*/false);
  if (!arguments.clip.empty() || arguments.judges_clips()) {
    const nlohmann::ordered_json report = arguments.judges_clips()
                                              ? score_clips(arguments, group, device)
                                              : score_clip(arguments, group, device);
    if (group.rank() == 0) {
      print(report, arguments.json);
    }
    return;
  }
  FeatureScores evaluation(arguments.eval, group, device);
  const std::vector<Score> scores = evaluation.compute();
  if (group.rank() > 0) {
    return;
  }
  nlohmann::ordered_json report;
  describe(report, "samples", evaluation.samples());
  if (evaluation.reference()) {
    describe(report, "reference", *evaluation.reference());
  }
  if (!evaluation.network_name().empty()) {
    report["network"] = evaluation.network_name();
  }
  for (const Score& score : scores) {
    report[score.key] = score.value;
  }
  if (!arguments.eval.out.empty()) {
    report["statistics"] = arguments.eval.out;
  }
  print(report, arguments.json);
}

}  // namespace

int run(const EvalArguments& arguments) {
  set_memory_hint("a smaller --batch");
  if (arguments.scenes > 0) {
    print(score_scenes(arguments), arguments.json);
    return 0;
  }
  if (!arguments.clip.empty() && is_run(arguments)) {
    print(score_clip_of_run(arguments), arguments.json);
    return 0;
  }
  if (arguments.pairs) {
    return score_pairs(arguments);
  }
  if (const std::filesystem::path out = arguments.eval.out; !out.empty()) {
    io::check_can_write(std::filesystem::absolute(out).parent_path());
  }
  const std::optional<comm::World> world = own_rank(arguments.ranks);
  if (!world) {
    return launch(arguments.ranks, arguments.device);
  }
  on_rank(*world, arguments.device,
          [&](const comm::Group& group, at::Device device) {
            evaluate_on_rank(arguments, group, device);
          },
          {.operation_timeout = kRankPatience});
  return 0;
}

}  // namespace kinora::apps
