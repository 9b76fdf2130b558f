// kinora demo: train the demo's recipe, sample from it, judge the samples.

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "apps/kinora/commands.h"
#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/eval/shape_judge.h"
#include "kinora/inference/drawing.h"
#include "kinora/io/image_grid.h"
#include "kinora/pipelines/images.h"
#include "kinora/train/trainer.h"

namespace kinora::apps {
namespace {

constexpr int64_t kNumSamples = 64;

/// runs/demo, or the first of runs/demo-2, runs/demo-3, ... that is not there yet.
std::filesystem::path free_run_dir(const std::filesystem::path& wanted) {
  std::filesystem::path path = wanted;
  for (int64_t i = 2; std::filesystem::exists(path); ++i) {
    path = wanted.string() + "-" + std::to_string(i);
  }
  return path;
}

std::vector<double> losses_of(const std::filesystem::path& log) {
  std::vector<double> losses;
  std::ifstream file(log);
  for (std::string line; std::getline(file, line);) {
    losses.push_back(nlohmann::json::parse(line).at("loss").get<double>());
  }
  return losses;
}

/// Means of equal stretches of the run, each with a bar.
void print_curve(const std::vector<double>& losses) {
  constexpr size_t kRows = 12;
  constexpr double kBarWidth = 50;
  const size_t stretch = std::max<size_t>(losses.size() / kRows, 1);
  std::vector<double> means;
  for (size_t first = 0; first + stretch <= losses.size(); first += stretch) {
    double sum = 0.0;
    for (size_t i = first; i < first + stretch; ++i) {
      sum += losses[i];
    }
    means.push_back(sum / static_cast<double>(stretch));
  }
  if (means.empty()) {
    return;
  }
  const double top = *std::max_element(means.begin(), means.end());
  std::cout << "\nloss\n";
  for (size_t i = 0; i < means.size(); ++i) {
    std::cout << std::setw(7) << (i + 1) * stretch << "  " << human_number(means[i], 4) << "  "
              << std::string(static_cast<size_t>(kBarWidth * means[i] / top), '#') << '\n';
  }
}

}  // namespace

int run(const DemoArguments& arguments) {
  auto config = load_config<train::RunConfig>(arguments.config, arguments.overrides);
  KINORA_CHECK(config.data.source == data::SourceKind::kShapes, kConfig,
               "[demo] only the generated set can be judged; data.source must be shapes");
  config.run_dir = free_run_dir(config.run_dir).string();
  const StopSignal stop;
  const train::TrainResult result = train::Trainer(config, {}).run(&stop);
  if (!result.complete) {
    return 0;
  }
  const std::filesystem::path run_dir = config.run_dir;
  print_curve(losses_of(run_dir / "log.jsonl"));

  inference::TrainedModel trained = inference::load_trained(run_dir, {});
  inference::Drawing drawing(
      trained, {{.count = kNumSamples, .seed = static_cast<uint64_t>(config.train.seed)}}, {});
  std::vector<int64_t> labels;
  for (const inference::Asked& asked : drawing.asked()) {
    labels.push_back(*asked.label);
  }
  const at::Tensor pixels = drawing.draw();
  const std::filesystem::path picture = run_dir / "samples" / "demo.png";
  io::write_png(picture, io::make_grid(pipelines::to_images(pixels)));
  const eval::ShapeScore score = eval::judge_shapes(pixels, at::tensor(labels, at::kLong));
  std::cout << "\npicture: " << picture.string() << "\nmore:    build/kinora sample --run "
            << run_dir.string() << "\ndemo: judged " << score.num_right << "/" << score.num_images
            << " right\n";
  return 0;
}

}  // namespace kinora::apps
