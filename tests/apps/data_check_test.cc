// kinora data check, and runs that use what it found.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "tests/apps/run_folder.h"
#include "tests/places.h"

namespace kinora::apps {
namespace data_check_test {

namespace fs = std::filesystem;

// 16 pictures with captions, of which two are cut off behind their headers.
class DataCheckTest : public RunTest {
 protected:
  DataCheckTest() : data_(folder() / "data"), index_(folder() / "set.index") {
    fs::create_directory(data_);
    for (int i = 0; i < 16; ++i) {
      const fs::path path = data_ / ("p" + std::to_string(10 + i) + ".png");
      write_picture(path, i, 20, 24);
      fs::path caption = path;
      write_text(caption.replace_extension(".txt"), "number " + std::to_string(i));
      if (i == 3 || i == 7) {
        fs::resize_file(path, fs::file_size(path) - 20);
      }
    }
    write_text(data_ / "p99.txt", "no picture");
  }

  [[nodiscard]] Outcome check(const Arguments& more = {}) const {
    Arguments arguments = {"data", "check", data_.string(), "--index", index_.string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_kinora(arguments, folder());
  }

  [[nodiscard]] Outcome train_on_it(const Arguments& more) const {
    Arguments arguments = {"data.source=captions", "data.path=[" + data_.string() + "]",

                           "train.steps=4",        "train.global_batch=4",
                           "data.max_bad=1",       "data.index=" + index_.string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return train(run_dir("run"), arguments);
  }

  const fs::path data_;
  const fs::path index_;
};

TEST_F(DataCheckTest, HeadersFirstThenEverything) {
  const Outcome quick = check();
  ASSERT_EQ(quick.exit_code, 0) << quick.err;
  EXPECT_NE(quick.out.find("usable 16, with a caption 16"), std::string::npos) << quick.out;
  EXPECT_NE(quick.out.find("p99.txt"), std::string::npos) << quick.out;
  EXPECT_NE(quick.out.find("20 x 24: 16"), std::string::npos) << quick.out;
  EXPECT_NE(check().err.find("0 samples were looked at, 16 were known"), std::string::npos);
  const Outcome full = check({"--full", "--json"});
  ASSERT_EQ(full.exit_code, 0) << full.err;
  const auto facts = nlohmann::json::parse(full.out);
  EXPECT_EQ(facts.at("usable"), 14);
  ASSERT_EQ(facts.at("rejected").size(), 2U);
  EXPECT_EQ(facts.at("rejected")[0].at("name"), (data_ / "p13.png").string());
  EXPECT_EQ(facts.at("rejected")[1].at("name"), (data_ / "p17.png").string());
}

TEST_F(DataCheckTest, ARunRefusesTooManyUntilTheyAreInQuarantine) {
  ASSERT_EQ(check({"--full"}).exit_code, 0);
  const Outcome refused = train_on_it({});
  EXPECT_EQ(refused.exit_code, kIo) << refused.err;
  for (const char* part : {"at most 1 of 16", "p13.png", "p17.png"}) {
    EXPECT_NE(refused.err.find(part), std::string::npos) << refused.err;
  }
  const fs::path list = folder() / "quarantine.txt";
  ASSERT_EQ(check({"--quarantine", list.string()}).exit_code, 0);
  const Outcome trained = train_on_it({"data.quarantine=" + list.string()});
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_NE(trained.err.find("14 of 16 samples will be used"), std::string::npos) << trained.err;
}

TEST_F(DataCheckTest, ASetThatNoRunWouldTakeFails) {
  for (int i = 0; i < 16; ++i) {
    fs::resize_file(data_ / ("p" + std::to_string(10 + i) + ".png"), 10);
  }
  const Outcome outcome = check();
  EXPECT_EQ(outcome.exit_code, kIo) << outcome.err;
  EXPECT_NE(outcome.out.find("rejected 16"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("p10.png"), std::string::npos) << outcome.out;
}

TEST_F(DataCheckTest, ARecipeIsCheckedAsItSays) {
  const Outcome outcome =
      run_kinora({"data", "check", recipe().string(), "run.dir=unused", "data.source=captions",
                  "data.path=[" + data_.string() + "]", "data.index=" + index_.string(), "--json"},
                 folder());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out).at("samples"), 16);
  EXPECT_TRUE(fs::exists(index_));
}

// Of 16 pictures of 20 x 24 two cannot be decoded, which their headers do not show; 6 more are of
// 40 x 40 and one of 8 x 8.
TEST_F(DataCheckTest, BucketsOfARecipe) {
  for (int i = 0; i < 7; ++i) {
    const int side = i < 6 ? 40 : 8;
    write_picture(data_ / ("q" + std::to_string(i) + ".png"), i, side, side);
    write_text(data_ / ("q" + std::to_string(i) + ".txt"), "square");
  }
  const Arguments command = {"data",
                             "check",
                             recipe().string(),
                             "run.dir=unused",
                             "--full",
                             "data.source=captions",
                             "data.path=[" + data_.string() + "]",
                             R"(data.buckets={"32px": {1: [1.0, 4]}, "16px": {1: [1.0, 5]}})",
                             "data.bucket_multiple=8",
                             "data.bucket_batches=2",
                             "data.text=tokens",
                             "model.architecture=stdit2"};
  const auto with = [&](const Arguments& more) {
    Arguments all = command;
    all.insert(all.end(), more.begin(), more.end());
    return run_kinora(all, folder());
  };
  // Without data.index a run only reads headers.
  const Outcome outcome = with({"--json", "--index", index_.string()});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto facts = nlohmann::json::parse(outcome.out);
  EXPECT_FALSE(facts.contains("batches"));
  const auto& buckets = facts.at("buckets");
  EXPECT_EQ(buckets.at("samples"), 23);
  EXPECT_EQ(buckets.at("taken"), 22);
  EXPECT_EQ(buckets.at("batches_per_step"), 2);
  ASSERT_EQ(buckets.at("left_out").size(), 1U);
  EXPECT_EQ(buckets.at("left_out")[0].at("cause"), "smaller than every bucket");
  EXPECT_EQ(buckets.at("left_out")[0].at("first"), (data_ / "q6.png").string());
  int64_t num_used = 0;
  for (const auto& row : buckets.at("table")) {
    if (row.at("samples") == 0) {
      continue;
    }
    ++num_used;
    const bool is_large = row.at("resolution") == "32px";
    EXPECT_EQ(row.at("samples"), is_large ? 6 : 16);
    EXPECT_EQ(row.at("steps"), is_large ? 0 : 1);
    EXPECT_EQ(row.at("waiting"), 6);
    EXPECT_NEAR(row.at("ratio").get<double>(), is_large ? 1.0 : 5.0 / 6.0, 0.1);
  }
  EXPECT_EQ(num_used, 2);
  ASSERT_EQ(buckets.at("scaled").size(), 5U);
  EXPECT_EQ(buckets.at("scaled")[1].at("steps"), 1 + 4);  // of 2 * 2 and 2 * 2

  // With it what cannot be decoded is left out before.
  const Outcome screened = with({"data.index=" + index_.string(), "data.validation=4"});
  ASSERT_EQ(screened.exit_code, 0) << screened.err;
  EXPECT_NE(screened.out.find(" of 17\n"), std::string::npos) << screened.out;

  const Outcome none =
      with({R"(data.buckets={"512px": {1: [1.0, 4]}})", "--index", index_.string()});
  EXPECT_EQ(none.exit_code, 2) << none.err;
  EXPECT_NE(none.err.find("none of the 23 samples suits a bucket"), std::string::npos) << none.err;
}

TEST_F(DataCheckTest, WhatTrainRefusesOfARecipeIsRefusedHere) {
  const Arguments of_data = {"data.source=captions", "data.path=[" + data_.string() + "]"};
  const auto refusals = [&](Arguments wrong) {
    wrong.insert(wrong.end(), of_data.begin(), of_data.end());
    Arguments arguments = {"data", "check", recipe().string(), "run.dir=unused"};
    arguments.insert(arguments.end(), wrong.begin(), wrong.end());
    return std::vector<Outcome>{run_kinora(arguments, folder()), train(run_dir("refused"), wrong)};
  };
  for (const Outcome& outcome : refusals({R"(data.buckets={"32px": {1: [1.0, 4]}})"})) {
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_NE(outcome.err.find("data.buckets needs a model that"), std::string::npos)
        << outcome.err;
  }
  const fs::path tokenizer = source_path("configs/captions/spiece.model");
  for (const Outcome& outcome :
       refusals({"data.text=tokens", "text.tokenizer=" + tokenizer.string()})) {
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_NE(outcome.err.find("data.text gives samples texts, but the model, custom, is"),
              std::string::npos)
        << outcome.err;
  }
}

TEST_F(DataCheckTest, TheGuessedLayoutIsSaidAndAnotherTaken) {
  const Outcome guessed = check();
  EXPECT_NE(guessed.err.find(data_.string() + " is read as data.source=captions"),
            std::string::npos)
      << guessed.err;
  EXPECT_NE(guessed.err.find("add data.source=NAME"), std::string::npos) << guessed.err;
  const Outcome other = check({"data.source=imagefolder", "--json"});
  ASSERT_EQ(other.exit_code, 0) << other.err;
  EXPECT_EQ(nlohmann::json::parse(other.out).at("with_caption"), 0);
  EXPECT_EQ(other.err.find("is read as"), std::string::npos) << other.err;
}

TEST_F(DataCheckTest, ARunAndACheckCountAlikeWhatTheyCannotUse) {
  const fs::path set = folder() / "set";
  for (const char* name : {"cat/1.png", "cat/2.png", "dog/3.png", "dog/4.png", "5.png"}) {
    fs::create_directories((set / name).parent_path());
    write_picture(set / name, 1, 20, 24);
  }
  write_text(set / "dog/empty.png", "");
  write_text(set / "dog/broken.png", "x");
  write_text(set / "dog/a.avif", "x");
  write_text(set / "dog/b.txt", "x");
  const Outcome checked = run_kinora(
      {"data", "check", set.string(), "data.source=folder", "--index", index_.string()}, folder());
  const Outcome trained =
      train(run_dir("run"), {"data.source=folder", "data.path=[" + set.string() + "]", "--ranks",
                             "2", "train.steps=1", "train.global_batch=4"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  for (const std::string& all : {checked.out, trained.err}) {
    for (const char* part :
         {"outside of the class folders: 1", "not a picture that Kinora reads: 2 (.avif: 1, .txt",
          "got an empty file: 1", "begins like none of them.: 1"}) {
      EXPECT_NE(all.find(part), std::string::npos) << part << "\n" << all;
    }
  }
  // One rank speaks for all.
  EXPECT_EQ(trained.err.find("passed over"), trained.err.rfind("passed over")) << trained.err;
}

TEST_F(DataCheckTest, ThreadsAreBoundedByTheMachine) {
  const Outcome outcome =
      run_kinora({"data", "check", recipe().string(), "--threads", "1000000"}, folder());
  EXPECT_EQ(outcome.exit_code, kUsage) << outcome.err;
  EXPECT_NE(outcome.err.find("for each of"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("got 1000000"), std::string::npos) << outcome.err;
}

TEST_F(DataCheckTest, ACacheFolderThatCannotBeWrittenCostsTheCacheAlone) {
  write_text(folder() / "file", "x");
  ::setenv("XDG_CACHE_HOME", (folder() / "file").c_str(), 1);
  const Outcome outcome = run_kinora({"data", "check", data_.string(), "--json"}, folder());
  ::unsetenv("XDG_CACHE_HOME");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out).at("usable"), 16);
  EXPECT_NE(outcome.err.find("What is found out is not kept"), std::string::npos) << outcome.err;
}

TEST_F(DataCheckTest, TheIndexLiesInTheCacheFolderByDefault) {
  const fs::path cache = folder() / "cache";
  ::setenv("XDG_CACHE_HOME", cache.c_str(), 1);
  const Outcome outcome = run_kinora({"data", "check", data_.string()}, folder());
  ::unsetenv("XDG_CACHE_HOME");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_FALSE(fs::is_empty(cache / "kinora"));
  EXPECT_EQ(outcome.out.find(cache.string()), std::string::npos);
  EXPECT_NE(outcome.err.find((cache / "kinora").string()), std::string::npos) << outcome.err;
}

}  // namespace data_check_test
}  // namespace kinora::apps
