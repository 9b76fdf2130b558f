// Data that cannot be trained on.

#include <gtest/gtest.h>

#include "tests/apps/run_folder.h"
#include "tests/places.h"

namespace kinora::apps {
namespace data_error_test {

namespace fs = std::filesystem;

class DataErrorTest : public RunTest {
 protected:
  DataErrorTest() : data_(folder() / "data") {
    fs::create_directory(data_);
    for (const char* name : {"cat", "dog"}) {
      fs::create_directory(data_ / name);
      for (int i = 0; i < 8; ++i) {
        write_picture(data_ / name / (std::to_string(i) + ".png"), name[0] + i, 20, 24);
      }
    }
  }

  [[nodiscard]] Outcome train_on_folder(const Arguments& more = {}) const {
    Arguments arguments = {"data.source=folder", "data.path=[" + data_.string() + "]",
                           "train.steps=8"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return train(run_dir("run"), arguments);
  }

  static void expect_refusal(const Outcome& outcome, int exit_code,
                             const std::vector<std::string>& messages) {
    EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err;
    for (const std::string& message : messages) {
      EXPECT_NE(outcome.err.find(message), std::string::npos)
          << "not said: " << message << "\nin: " << outcome.err;
    }
  }

  const fs::path data_;
};

TEST_F(DataErrorTest, FolderOfClassesTrains) {
  expect_refusal(train_on_folder(), 0, {"16 images of 2 classes"});
}

TEST_F(DataErrorTest, EmptyFolderIsRefused) {
  fs::remove_all(data_ / "cat");
  fs::remove_all(data_ / "dog");
  expect_refusal(train_on_folder(), kUsage, {"one folder for each class", data_.string()});
}

TEST_F(DataErrorTest, MissingFolderIsRefused) {
  fs::remove_all(data_);
  expect_refusal(train_on_folder(), kIo, {data_.string(), "No such file"});
}

TEST_F(DataErrorTest, OneImageIsRefused) {
  fs::remove_all(data_ / "dog");
  for (int i = 1; i < 8; ++i) {
    fs::remove(data_ / "cat" / (std::to_string(i) + ".png"));
  }
  expect_refusal(train_on_folder(), kUsage, {data_.string(), "1"});
}

TEST_F(DataErrorTest, ClassWithoutImagesIsNamed) {
  fs::create_directory(data_ / "emu");
  expect_refusal(train_on_folder(), kUsage, {"emu", "must hold images"});
}

TEST_F(DataErrorTest, MoreClassesThanTheModelHasAreRefused) {
  expect_refusal(train_on_folder({"model.num_classes=1"}), kUsage,
                 {"2 classes", "model.num_classes is 1"});
}

TEST_F(DataErrorTest, TextNamedPngIsNamedAndSkipped) {
  write_text(data_ / "cat" / "3.png", "this is not a picture");
  expect_refusal(train_on_folder(), 0, {(data_ / "cat" / "3.png").string(), "replaced"});
  EXPECT_EQ(read_log(run_dir("run")).size(), 8U);
}

// They could set a terminal's title, hide lines or worse.
TEST_F(DataErrorTest, NamesOfFilesDoNotSteerTheTerminal) {
  for (const char* name : {"a\x1b[2J.png", "b\xff.png", "c\x1b]0;title\a.avif", "d\n\x1b[1m.png"}) {
    write_text(data_ / "cat" / name, "broken");
  }
  const Outcome trained = train_on_folder();
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  const Outcome checked =
      run_kinora({"data", "check", data_.string(), "--index", (folder() / "i").string()}, folder());
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
  const Outcome refused =
      run_kinora({"data", "check", (data_ / "e\x1b[1m.zip").string()}, folder());
  EXPECT_EQ(refused.exit_code, kUsage);
  const std::string all = trained.out + trained.err + checked.out + checked.err + refused.err;
  EXPECT_EQ(all.find('\x1b'), std::string::npos) << all;
  EXPECT_EQ(all.find('\xff'), std::string::npos) << all;
  for (const char* shown : {"a\\x1b[2J.png", "b\\xff.png", "title\\x07.avif", "e\\x1b[1m.zip"}) {
    EXPECT_NE(all.find(shown), std::string::npos) << shown << "\n" << all;
  }
  EXPECT_NE(checked.out.find("d\\x0a\\x1b[1m.png"), std::string::npos) << checked.out;
}

TEST_F(DataErrorTest, TruncatedPictureIsNamedAndSkipped) {
  const std::string photo = read_text(source_path("tests/data/data/photo.jpg"));
  write_text(data_ / "dog" / "whole.jpg", photo);
  write_text(data_ / "dog" / "half.jpg", photo.substr(0, photo.size() / 2));
  const Outcome outcome = train_on_folder();
  expect_refusal(outcome, 0, {(data_ / "dog" / "half.jpg").string()});
  EXPECT_EQ(outcome.err.find("whole.jpg"), std::string::npos) << outcome.err;
}

TEST_F(DataErrorTest, TooManyBadImagesStopTheRunWhichIsSaved) {
  // The bad ones come to light during the run, as on a disk that begins to fail.
  for (int i = 0; i < 200; ++i) {
    write_picture(data_ / "cat" / ("more-" + std::to_string(i) + ".png"), i);
  }
  const Outcome first = train_on_folder({"train.steps=2"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  for (const char* name : {"0.png", "1.png", "2.png", "3.png"}) {
    write_text(data_ / "cat" / name, "broken");
    write_text(data_ / "dog" / name, "broken");
  }
  const Outcome outcome = train_on_folder({"train.steps=200", "checkpoint.every=0",
                                           "data.max_bad=4", "data.queue=1", "--resume", "auto"});
  expect_refusal(outcome, kIo, {"data.max_bad", ".png"});
  ASSERT_EQ(run_kinora({"runs", "report", run_dir("run").string()}, folder()).exit_code, 0);
  const std::string page = read_text(run_dir("run") / "report.html");
  EXPECT_NE(page.find("why it ended"), std::string::npos);
  EXPECT_NE(page.find("samples may be unreadable"), std::string::npos);
  const std::vector<LogLine> log = read_log(run_dir("run"));
  ASSERT_FALSE(log.empty());
  const int64_t last = log.back().at("step");
  EXPECT_EQ(checkpoint_steps(run_dir("run")).back(), last) << "what was learned must be saved";
  // Mended data: the run goes on.
  const Outcome mended = train_on_folder(
      {"train.steps=" + std::to_string(last + 2), "data.max_bad=100", "--resume", "auto"});
  EXPECT_EQ(mended.exit_code, 0) << mended.err;
}

// Each rank counts what it cannot read, so one of them has no more samples before the other.
TEST_F(DataErrorTest, ARankWithoutSamplesEndsAllRanksWhichHaveSaved) {
  for (int i = 0; i < 200; ++i) {
    write_picture(data_ / "cat" / ("more-" + std::to_string(i) + ".png"), i);
  }
  const Arguments two_ranks = {"--ranks", "2", "--resume", "auto", "train.global_batch=8"};
  const auto train_on_two = [&](Arguments more) {
    more.insert(more.end(), two_ranks.begin(), two_ranks.end());
    return train_on_folder(more);
  };
  const Outcome first = train_on_two({"train.steps=2"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  for (const char* name : {"0.png", "1.png", "2.png", "3.png"}) {
    write_text(data_ / "cat" / name, "broken");
    write_text(data_ / "dog" / name, "broken");
  }
  const Outcome outcome =
      train_on_two({"train.steps=200", "checkpoint.every=0", "data.max_bad=3", "data.queue=1"});
  const int64_t last = checkpoint_steps(run_dir("run")).back();
  expect_refusal(outcome, kIo,
                 {"data.max_bad", ".png", "has no samples for step " + std::to_string(last + 1),
                  "step " + std::to_string(last) + " is saved", "failed first: exit code 4"});
  EXPECT_EQ(read_log(run_dir("run")).back().at("step").get<int64_t>(), last)
      << "what was learned must be saved";
  const Outcome mended =
      train_on_two({"train.steps=" + std::to_string(last + 2), "data.max_bad=100"});
  EXPECT_EQ(mended.exit_code, 0) << mended.err;
  EXPECT_EQ(read_log(run_dir("run")).size(), static_cast<size_t>(last) + 2);
}

}  // namespace data_error_test
}  // namespace kinora::apps
