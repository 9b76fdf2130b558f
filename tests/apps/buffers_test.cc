// The null text of a published file, a buffer, stays with a run: to its end, after a stop, in its
// samples and in what it exports.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "kinora/io/safetensors.h"
#include "tests/apps/run_folder.h"

namespace kinora::apps {
namespace buffers_test {

namespace fs = std::filesystem;

constexpr const char* kNullText = "y_embedder.y_embedding";
// Half of the samples are trained on the null text.
const Arguments kClips =
    joined(kReads, {"data.source=moving_shapes", "data.frames=2", "model.learn_sigma=false",
                    "objective.kind=flow", "model.architecture=stdit3", "train.global_batch=4",
                    "train.label_dropout=0.5", "train.self_test=false", "checkpoint.export=true"});

std::vector<float> null_text(const fs::path& file) {
  const auto weights = io::SafetensorsFile::open(file);
  const io::SafetensorsTensor& tensor = *weights.find(kNullText);
  std::vector<float> values(tensor.data.size() / sizeof(float));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

class BuffersTest : public RunTest {
 protected:
  /// Weights of a new model with another null text.
  void write_published(const fs::path& path) const {
    train_well(run_dir("new"), joined(kClips, {"train.steps=1"}));
    const fs::path made = run_dir("new") / "model.safetensors";
    std::vector<float> values = null_text(made);
    std::transform(values.begin(), values.end(), values.begin(),
                   [](float value) { return 1.0F - 2.0F * value; });
    const auto weights = io::SafetensorsFile::open(made);
    std::vector<io::SafetensorsTensor> tensors = weights.tensors();
    const auto found = std::find_if(tensors.begin(), tensors.end(),
                                    [](const auto& tensor) { return tensor.name == kNullText; });
    found->data = std::as_bytes(std::span(values));
    io::write_safetensors(path, tensors);
  }

  std::string sampled(const std::string& out, const Arguments& of) const {
    const Outcome outcome =
        run_kinora(joined({"sample", "--out", (folder() / out).string(), "--device", "cpu",
                           "--steps", "2", "--guidance", "4", "--captions", "a red circle"},
                          of),
                   folder());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return read_picture_bytes(folder() / out / "clip-00000.webp");
  }
};

TEST_F(BuffersTest, TheNullTextOfAFileStaysWithTheRun) {
  const fs::path published = folder() / "published.safetensors";
  write_published(published);
  const Arguments from =
      joined(kClips, {"checkpoint.init_from=" + published.string(), "train.steps=4"});
  const fs::path whole = run_dir("whole");
  const fs::path parts = run_dir("parts");
  train_well(whole, from);
  train_well(parts, joined(from, {"train.steps=2"}));
  train_well(parts, joined(from, {"--resume", "auto"}));
  expect_same_state(whole / "checkpoints/step-4", parts / "checkpoints/step-4");
  expect_same_log(whole, parts, 4);
  EXPECT_EQ(null_text(parts / "model.safetensors"), null_text(published));

  const fs::path converted = folder() / "converted.safetensors";
  EXPECT_EQ(run_kinora({"convert", parts.string(), "--to", converted.string()}, folder()).exit_code,
            0);
  EXPECT_TRUE(read_text(converted) == read_text(parts / "model.safetensors"));
  EXPECT_TRUE(sampled("run", {"--run", parts.string()}) ==
              sampled("file", {"--checkpoint", converted.string()}));
}

}  // namespace buffers_test
}  // namespace kinora::apps
