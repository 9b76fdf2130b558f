// Every layout of up to eight ranks, each against one rank. It takes half an hour, so it runs only
// when it is asked for: scripts/layouts.sh.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kinora/checkpoint/agreement.h"
#include "kinora/core/error.h"
#include "tests/comm/ranks.h"
#include "tests/data/files.h"
#include "tests/train/tiny_families.h"

namespace kinora::train {
namespace all_layouts_test {

constexpr int64_t kRanks = 8;
constexpr double kTolerance = 1e-5;
constexpr std::array<int64_t, 3> kSizes = {1, 2, 4};
constexpr int64_t kHeads = 4;
constexpr int64_t kSkipped = 1;  // the step whose update is left out
constexpr int64_t kSteps = 3;

/// With as many blocks as there may be stages, and tokens of text that rings can divide.
RunConfig recipe_of(const std::string& family, inference::Path path) {
  RunConfig config = family == "unet" ? tiny_unet() : tiny_of(family);
  if (family == "pixart" || family == "stdit3") {
    config.model.transformer.depth = 4;
    config.model = models::resolved(config.model);
    config.model.num_classes = 1;
  }
  if (family == "flux") {
    config.model.text_tokens = 8;
  }
  config.path = path;
  config.train.global_batch = 2 * kRanks;  // so that every rank accumulates
  config.train.micro_batch = 1;
  return config;
}

/// All divisions of `kRanks` ranks. Tokens are divided by Ulysses where it can be, and ZeRO-1 on
/// the fast path has the zero-bubble schedule.
std::vector<PluginConfig> layouts(inference::Path path) {
  std::vector<PluginConfig> all;
  for (const int64_t tensor : kSizes) {
    for (const int64_t sequence : kSizes) {
      for (const int64_t pipeline : kSizes) {
        if (tensor * sequence * pipeline > kRanks) {
          continue;
        }
        for (const int64_t stage : {0, 1, 2, 3}) {
          PluginConfig layout{
              .zero_stage = stage, .sp_size = sequence, .tp_size = tensor, .pp_size = pipeline};
          if (tensor * sequence <= kHeads) {
            layout.sequence_scheme = parallel::SequenceScheme::kUlysses;
          }
          if (pipeline > 1) {
            layout.reduce_each_micro_batch = stage == 3;  // which is refused
            if (path == inference::Path::kFast && stage == 1) {
              layout.pp_schedule = parallel::PipelineSchedule::kZeroBubble;
            }
          }
          all.push_back(layout);
        }
      }
    }
  }
  return all;
}

std::string name_of(const PluginConfig& layout) {
  return "tensor " + std::to_string(layout.tp_size) + ", sequence " +
         std::to_string(layout.sp_size) + ", pipeline " + std::to_string(layout.pp_size) +
         ", ZeRO-" + std::to_string(layout.zero_stage);
}

/// What is compared after each of the two updates.
struct Seen {
  std::vector<float> losses;
  std::vector<float> norms;
  at::Tensor gradients;  // of the first step
  at::Tensor weights;    // after the last
  at::Tensor averages;
};

/// The last step, and what the run comes to.
void finish(TinyRun& run, Seen* seen) {
  Outcome outcome;
  run.step(&outcome);
  seen->losses.push_back(outcome.losses.back());
  seen->norms.push_back(outcome.norms.back());
  seen->weights = run.all(optim::Role::master());
  seen->averages = run.all(optim::Role::average(1));
}

/// All steps but the last.
Seen begin(TinyRun& run) {
  Seen seen;
  Outcome outcome;
  const at::Tensor loss = run.forward_backward();
  seen.gradients = run.all(optim::Role::grad());
  run.update(loss, &outcome);
  const at::Tensor before = run.all(optim::Role::average(1));
  run.step(&outcome, /*is_finite=*/false);
  EXPECT_TRUE(std::isnan(outcome.losses.back()));
  EXPECT_TRUE(at::equal(run.all(optim::Role::average(1)), before));
  EXPECT_EQ(run.trainable.optimizer().state().skipped_steps, 1);
  seen.losses = {outcome.losses.front()};
  seen.norms = {outcome.norms.front()};
  return seen;
}

/// The largest differences, as shares of what is compared; of weights as they are.
struct Differences {
  double losses = 0.0;
  double gradients = 0.0;
  double weights = 0.0;

  void add(const Seen& got, const Seen& want) {
    const auto raise = [](double* worst, double value) {
      *worst = std::isnan(value) ? value : std::max(*worst, value);
    };
    for (size_t i = 0; i < want.losses.size(); ++i) {
      raise(&losses, std::abs(got.losses[i] / want.losses[i] - 1.0));
      raise(&losses, std::abs(got.norms[i] / want.norms[i] - 1.0));
    }
    const auto largest = [](const at::Tensor& values) { return values.abs().max().item<double>(); };
    raise(&gradients, largest(got.gradients - want.gradients) / largest(want.gradients));
    raise(&weights, largest(got.weights - want.weights));
    raise(&weights, largest(got.averages - want.averages));
  }
};

/// Runs a family's layouts of one path; a row of the report.
class Matrix {
 public:
  Matrix(std::string family, inference::Path path, const comm::Group& world,
         const std::filesystem::path& folder)
      : config_(recipe_of(family, path)),
        name_(std::move(family) + (path == inference::Path::kFast ? ", fast" : ", plain")),
        world_(world),
        folder_(folder) {}

  void run() {
    TinyRun alone(config_, {});
    Seen want = begin(alone);
    finish(alone, &want);
    EXPECT_GT(want.norms[0], config_.optim.max_grad_norm) << "clipping is not seen";
    for (const PluginConfig& layout : layouts(config_.path)) {
      SCOPED_TRACE(name_ + ": " + name_of(layout));
      config_.parallel = layout;
      config_.train.recompute = num_done_ % 2 == 0 ? "none" : "block:1";
      std::optional<TinyRun> run;
      try {
        run.emplace(config_, world_);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kConfig);
        EXPECT_NE(std::string(error.what()).find("Hint: "), std::string::npos) << error.what();
        ++refused_[error.what()];
        continue;
      }
      compare(*run, want);
      ++num_done_;
    }
  }

  void report(std::ostream& out) const {
    out << "| " << name_ << " | " << num_done_ << " | " << std::setprecision(2) << worst_.losses
        << " | " << worst_.gradients << " | " << worst_.weights << " |\n";
    for (const auto& [message, count] : refused_) {
      out << "  refused " << count << ": " << message << "\n";
    }
    out.flush();
  }

 private:
  void compare(TinyRun& run, const Seen& want) {
    Differences differences;
    Seen whole = begin(run);
    const std::filesystem::path checkpoint =
        run.save(folder_ / (name_ + std::to_string(num_done_)), world_);
    Seen resumed = whole;
    finish(run, &whole);
    differences.add(whole, want);
    if (!previous_.empty()) {  // of another layout
      run.resume(previous_, world_);
      finish(run, &resumed);
      differences.add(resumed, want);
      world_.barrier();
      if (world_.rank() == 0) {
        std::filesystem::remove_all(previous_.parent_path());
      }
    }
    previous_ = checkpoint;
    EXPECT_LE(differences.losses, kTolerance);
    EXPECT_LE(differences.gradients, kTolerance);
    EXPECT_LE(differences.weights, kTolerance);
    worst_.losses = std::max(worst_.losses, differences.losses);
    worst_.gradients = std::max(worst_.gradients, differences.gradients);
    worst_.weights = std::max(worst_.weights, differences.weights);
  }

  RunConfig config_;
  std::string name_;
  const comm::Group& world_;
  std::filesystem::path folder_;
  std::filesystem::path previous_;  // the checkpoint of the layout before
  Differences worst_;
  int64_t num_done_ = 0;
  std::map<std::string, int64_t> refused_;  // how often, by message
};

class AllLayoutsTest : public testing::TestWithParam<const char*> {};

TEST_P(AllLayoutsTest, DISABLED_EqualOneRank) {
  comm::run_on_ranks(
      kRanks,
      [](const comm::Group& world) {
        const data::TemporaryFolder own_folder;
        const std::filesystem::path folder =
            checkpoint::gather_texts(world, own_folder.path().string()).front();
        for (const inference::Path path : {inference::Path::kPlain, inference::Path::kFast}) {
          Matrix matrix(GetParam(), path, world, folder);
          matrix.run();
          const char* report = std::getenv("KINORA_LAYOUTS_REPORT");
          if (world.rank() == 0 && report != nullptr) {
            std::ofstream out(report, std::ios::app);
            matrix.report(out);
          }
        }
        world.barrier();  // rank 0's folder is removed now
      },
      {.group = {std::chrono::seconds(120), std::chrono::seconds(120)},
       .time_limit = std::chrono::hours(1)});
}

INSTANTIATE_TEST_SUITE_P(Families, AllLayoutsTest,
                         testing::Values("dit", "stdit3", "pixart", "flux", "unet"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace all_layouts_test
}  // namespace kinora::train
