// Fine-tuning as a user does it: train a base, adapt it, resume, convert, sample.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "kinora/io/safetensors.h"
#include "tests/apps/run_folder.h"

namespace kinora::apps {
namespace finetune_test {

namespace fs = std::filesystem;
using testing::HasSubstr;

class FinetuneTest : public RunTest {
 protected:
  FinetuneTest() {
    train_well(run_dir("base"),
               {"train.steps=6", "checkpoint.export=true", "ema.decays=[]", "lr.value=1.0e-2"});
  }

  [[nodiscard]] fs::path base() const { return run_dir("base") / "model.safetensors"; }

  /// A command line of fine-tuning `base`.
  [[nodiscard]] Arguments tuned(const Arguments& more) const {
    Arguments arguments = {"checkpoint.init_from=" + base().string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  Outcome run(const Arguments& arguments) const { return run_kinora(arguments, folder()); }

  /// The bytes of the pictures.
  [[nodiscard]] std::map<std::string, std::string> samples(const Arguments& whose,
                                                           const std::string& name) const {
    Arguments arguments = {"sample",
                           "--count",
                           "4",
                           "--seed",
                           "3",
                           "--device",
                           "cpu",
                           "--threads",
                           "1",
                           "--out",
                           (folder() / name).string()};
    arguments.insert(arguments.end(), whose.begin(), whose.end());
    run_well(arguments);
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder() / name)) {
      if (entry.path().extension() == ".png") {  // not drawing.json, which has the recipe
        files[entry.path().lexically_relative(folder() / name).string()] =
            read_picture_bytes(entry.path());
      }
    }
    return files;
  }

  /// Names and bytes of the tensors of a file.
  static std::map<std::string, std::string> tensors_of(const fs::path& path) {
    std::map<std::string, std::string> result;
    const auto file = io::SafetensorsFile::open(path);
    for (const io::SafetensorsTensor& tensor : file.tensors()) {
      result[tensor.name] =
          std::string(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
    }
    return result;
  }
};

const Arguments kLora = {"finetune.lora.targets=[\"blocks.*.attn.*\", final_layer.linear]",
                         "finetune.lora.rank=2", "lr.value=2.0e-2"};

// Averaged weights, and updates merged, as the run exports them.
TEST_F(FinetuneTest, ARunStartsFromARunAsFromItsExport) {
  Arguments lora = tuned(kLora);
  lora.insert(lora.end(), {"train.steps=3", "checkpoint.export=true", "ema.decays=[0.5]"});
  train_well(run_dir("lora"), lora);
  for (const fs::path& start : {run_dir("base"), run_dir("lora")}) {
    const fs::path from_file = run_dir(start.filename().string() + "-file");
    const fs::path from_run = run_dir(start.filename().string() + "-run");
    train_well(from_file,
               {"checkpoint.init_from=" + (start / "model.safetensors").string(), "train.steps=2"});
    train_well(from_run, {"checkpoint.init_from=" + start.string(), "train.steps=2"});
    expect_same_state(from_file / "checkpoints/step-2", from_run / "checkpoints/step-2");
  }
}

TEST_F(FinetuneTest, TwentyStepsEqualTenAndTen) {
  const std::map<std::string, Arguments> cases = {
      {"lora", kLora},
      {"lora_nf4",
       {"finetune.lora.targets=[blocks.*]", "finetune.lora.rank=2", "lr.value=2.0e-2",
        "finetune.frozen_weights=nf4", "train.precision=bf16", "train.recompute=block:1"}},
      {"dora_bf16",
       {"finetune.lora.targets=[blocks.*]", "finetune.lora.dora=true", "train.precision=bf16",
        "finetune.train=[y_embedder.*]", "finetune.fresh=[y_embedder.*]"}},
      {"frozen",
       {"finetune.freeze=[blocks.0.*, x_embedder.*]", "lr.layer_decay=0.7",
        "train.recompute=block:1", "ema.decays=[0.9, 0.99]"}}};
  for (const auto& [name, overrides] : cases) {
    SCOPED_TRACE(name);
    const auto with = [this, &own = overrides](const Arguments& more) {
      Arguments arguments = tuned(own);
      arguments.insert(arguments.end(), more.begin(), more.end());
      return arguments;
    };
    const fs::path whole = run_dir(name + "-whole");
    const fs::path parts = run_dir(name + "-parts");
    train_well(whole, with({"train.steps=20"}));
    train_well(parts, with({"train.steps=10"}));
    train_well(parts, with({"train.steps=20", "--resume", "auto"}));
    expect_same_state(whole / "checkpoints/step-20", parts / "checkpoints/step-20");
    expect_same_log(whole, parts, 20);
    const auto before = arrays_of(whole / "checkpoints/step-10");
    const auto after = arrays_of(whole / "checkpoints/step-20");
    ASSERT_TRUE(before.contains("frozen.safetensors"));
    for (const auto& [file, bytes] : before) {
      const bool stays = file == "frozen.safetensors" || file == "buffers.safetensors";
      EXPECT_EQ(bytes == after.at(file), stays) << file;
    }
    EXPECT_EQ(fs::hard_link_count(whole / "checkpoints/step-20/frozen.safetensors"), 2U)
        << "frozen weights are written once";
  }
}

TEST_F(FinetuneTest, AnAdapterIsTheSameEverywhere) {
  const fs::path lora = run_dir("lora");
  train_well(lora, [&] {
    Arguments arguments = tuned(kLora);
    arguments.emplace_back("checkpoint.export=true");
    return arguments;
  }());
  // The run, its export, the base with the adapter, and both conversions.
  const fs::path merged = folder() / "merged.safetensors";
  const fs::path from_base = folder() / "from_base.safetensors";
  const fs::path adapter = folder() / "adapter";
  const fs::path theirs = folder() / "theirs";
  run_well({"convert", lora.string(), "--to", merged.string()});
  run_well({"convert", lora.string(), "--adapter", "own", "--to", adapter.string()});
  run_well({"convert", lora.string(), "--adapter", "diffusers", "--to", theirs.string()});
  run_well({"convert", base().string(), "--lora", adapter.string(), "--to", from_base.string()});
  EXPECT_EQ(tensors_of(adapter / "adapter_model.safetensors"),
            tensors_of(lora / "adapter/adapter_model.safetensors"));
  EXPECT_EQ(tensors_of(merged), tensors_of(lora / "model.safetensors"));
  EXPECT_EQ(tensors_of(merged), tensors_of(from_base));
  EXPECT_NE(tensors_of(merged), tensors_of(base()));

  const auto want = samples({"--run", lora.string()}, "by-run");
  EXPECT_EQ(samples({"--checkpoint", merged.string()}, "by-merged"), want);
  EXPECT_EQ(samples({"--checkpoint", base().string(), "--lora", adapter.string()}, "by-adapter"),
            want);
  EXPECT_EQ(samples({"--checkpoint", base().string(), "--lora",
                     (theirs / "adapter_model.safetensors").string() + ":1.0"},
                    "by-theirs"),
            want);
  const auto plain = samples({"--checkpoint", base().string()}, "by-base");
  EXPECT_NE(plain, want);
  EXPECT_EQ(samples({"--checkpoint", base().string(), "--lora", adapter.string() + ":0.5", "--lora",
                     adapter.string() + ":-0.5"},
                    "by-nothing"),
            plain);
}

// A run over weights in few bits draws and merges as over what they stand for, and what it has
// learned fits the base as it is.
TEST_F(FinetuneTest, AnAdapterOfWeightsInFewBitsFitsTheBase) {
  const fs::path run = run_dir("int8");
  train_well(run, [&] {
    Arguments arguments = tuned(kLora);
    arguments.insert(arguments.end(), {"finetune.frozen_weights=int8", "checkpoint.export=true"});
    return arguments;
  }());
  const fs::path merged = folder() / "merged.safetensors";
  run_well({"convert", run.string(), "--to", merged.string()});
  EXPECT_EQ(tensors_of(merged), tensors_of(run / "model.safetensors"));
  const auto want = samples({"--run", run.string()}, "by-run");
  EXPECT_EQ(samples({"--checkpoint", merged.string()}, "by-merged"), want);
  const auto on_base = samples(
      {"--checkpoint", base().string(), "--lora", (run / "adapter").string(), "--quantise", "int8"},
      "by-adapter");
  EXPECT_EQ(on_base.size(), want.size());
  EXPECT_NE(samples({"--checkpoint", base().string(), "--quantise", "nf4"}, "nf4"),
            samples({"--checkpoint", base().string()}, "full"));
  const Outcome other =
      train(run, tuned({"finetune.frozen_weights=nf4", "train.steps=30", "--resume", "auto"}));
  EXPECT_NE(other.exit_code, 0);
}

TEST_F(FinetuneTest, FewerBytesOfStateThanTheBase) {
  const fs::path lora = run_dir("lora");
  train_well(lora, tuned(kLora));
  const auto size = [](const fs::path& run, const char* file, int step) {
    return fs::file_size(run / "checkpoints" / ("step-" + std::to_string(step)) / file);
  };
  EXPECT_LT(size(lora, "exp_avg.safetensors", 20), size(run_dir("base"), "exp_avg.safetensors", 6));
  const Outcome outcome = train(run_dir("again"), tuned(kLora));
  EXPECT_THAT(outcome.err, HasSubstr("parameters are trained; LoRA of rank 2 on 5 linears"));
  EXPECT_THAT(outcome.err, HasSubstr("plain path"));
}

TEST_F(FinetuneTest, OtherClassesNeedAKeyThatTheErrorNames) {
  const Arguments classes = {"model.num_classes=20"};
  const Outcome refused = train(run_dir("refused"), tuned(classes));
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("y_embedder.embedding_table.weight (must be [21, 32], is "
                                     "[17, 32])"));
  EXPECT_THAT(refused.err, HasSubstr("finetune.fresh"));
  const Outcome done =
      train(run_dir("fresh"), tuned({"model.num_classes=20", "finetune.fresh=[y_embedder.*]"}));
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_THAT(done.err, HasSubstr("as in a new model: y_embedder.embedding_table.weight"));
}

TEST_F(FinetuneTest, OtherSizesNeedAKeyThatTheErrorNames) {
  const Outcome refused = train(run_dir("refused"), tuned({"data.height=32", "data.width=32"}));
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("finetune.positions"));
  for (const char* choice : {"made", "interpolated"}) {
    const Outcome done = train(
        run_dir(choice),
        tuned({"data.height=32", "data.width=32", std::string("finetune.positions=") + choice}));
    EXPECT_EQ(done.exit_code, 0) << done.err;
    EXPECT_THAT(done.err, HasSubstr("pos_embed"));
  }
}

TEST_F(FinetuneTest, MistakesOnTheCommandLineAreNamed) {
  const auto refused = [this](const Arguments& arguments) {
    const Outcome outcome = run(arguments);
    EXPECT_NE(outcome.exit_code, 0);
    return outcome.err;
  };
  const std::string to = (folder() / "x").string();
  EXPECT_THAT(refused({"convert", run_dir("base").string(), "--adapter", "own", "--to", to}),
              HasSubstr("is no run with finetune.lora"));
  EXPECT_THAT(refused({"sample", "--checkpoint", base().string(), "--lora", "no/file"}),
              HasSubstr("does not exist"));
  EXPECT_THAT(refused({"sample", "--checkpoint", base().string(), "--lora", base().string()}),
              HasSubstr("holds no low-rank update"));
  const Outcome changed =
      train(run_dir("base"), {"train.steps=8", "--resume", "auto", "finetune.freeze=[blocks.0.*]"});
  EXPECT_NE(changed.exit_code, 0);
  EXPECT_THAT(changed.err, HasSubstr("finetune.* must be as when it was saved"));
}

}  // namespace finetune_test
}  // namespace kinora::apps
