#include "kinora/train/records/run_requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <fstream>

#include "kinora/core/error.h"

namespace kinora::train {
namespace run_requests_test {

namespace fs = std::filesystem;
using testing::HasSubstr;

class RunRequestsTest : public testing::Test {
 public:
  ~RunRequestsTest() override { fs::remove_all(folder_); }

 protected:
  RunRequestsTest() {
    std::string name = testing::TempDir() + "kinora-requests-XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }

  void write(const std::string& name, const std::string& text) const {
    fs::create_directories(folder_ / "box");
    std::ofstream(folder_ / "box" / name) << text;
  }

  fs::path folder_;
  RequestBox box() const { return RequestBox(folder_ / "box"); }
};

TEST_F(RunRequestsTest, AreTakenInTheirOrderAndOnce) {
  EXPECT_FALSE(box().take());
  const std::string first = box().ask(RunCommand::kLearningRate, 2.5e-4);
  const std::string second = box().ask(RunCommand::kSave);
  EXPECT_LT(first, second);
  const auto taken = box().take();
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->id, first);
  EXPECT_EQ(taken->command, RunCommand::kLearningRate);
  EXPECT_EQ(taken->value, 2.5e-4);
  EXPECT_FALSE(box().withdraw(first));
  EXPECT_EQ(box().take()->command, RunCommand::kSave);
  EXPECT_FALSE(box().take());
}

TEST_F(RunRequestsTest, AnswersComeBackOnce) {
  const std::string id = box().ask(RunCommand::kSample);
  EXPECT_FALSE(box().answer_to(id));
  box().reply(*box().take(), {.done = false, .step = 12, .text = "no \"quotes\"\n"});
  const auto answer = box().answer_to(id);
  ASSERT_TRUE(answer);
  EXPECT_FALSE(answer->done);
  EXPECT_EQ(answer->step, 12);
  EXPECT_EQ(answer->text, "no \"quotes\"\n");
  EXPECT_FALSE(box().answer_to(id));
}

TEST_F(RunRequestsTest, WhatIsWithdrawnIsNotTaken) {
  const std::string id = box().ask(RunCommand::kStop);
  EXPECT_TRUE(box().withdraw(id));
  EXPECT_FALSE(box().take());
  EXPECT_FALSE(box().withdraw(id));
}

TEST_F(RunRequestsTest, NonsenseIsRefusedAndTheRestIsTaken) {
  for (const auto& [name, text] : std::initializer_list<std::pair<const char*, const char*>>{
           {"01-empty", ""},
           {"02-list", "[]"},
           {"03-unknown", R"({"command": "erase"})"},
           {"04-none", R"({"command": "none"})"},
           {"05-negative", R"({"command": "lr", "value": -1.0})"},
           {"06-text", R"({"command": "lr", "value": "1"})"},
           {"07-part", R"({"command": "extend", "value": 1.5})"},
           {"08-huge", R"({"command": "lr", "value": 1e999})"}}) {
    write(std::string(name) + ".request", text);
  }
  write("09-long.request", std::string(100'000, ' '));
  write("10-other.txt", "not a request");
  write("11-good.request", R"({"command": "save"})");
  const auto taken = box().take();
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->id, "11-good");
  for (const char* id : {"01-empty", "02-list", "03-unknown", "04-none", "05-negative", "06-text",
                         "07-part", "08-huge", "09-long"}) {
    const auto answer = box().answer_to(id);
    ASSERT_TRUE(answer) << id;
    EXPECT_FALSE(answer->done) << id;
    EXPECT_FALSE(fs::exists(folder_ / "box" / (std::string(id) + ".request"))) << id;
  }
  EXPECT_TRUE(fs::exists(folder_ / "box/10-other.txt"));
}

TEST_F(RunRequestsTest, ValuesThatNoRunTakesAreRefusedAtOnce) {
  EXPECT_THROW((void)box().ask(RunCommand::kLearningRate, -1.0), Error);
  EXPECT_THROW((void)box().ask(RunCommand::kLearningRate, std::nan("")), Error);
  EXPECT_THROW((void)box().ask(RunCommand::kExtend, 10.5), Error);
  EXPECT_THROW((void)box().ask(RunCommand::kExtend, 1e308), Error);
  EXPECT_FALSE(box().take());
}

TEST_F(RunRequestsTest, ClearingForgetsRequestsAndAnswers) {
  const std::string answered = box().ask(RunCommand::kSave);
  box().reply(*box().take(), {.text = "done"});
  (void)box().ask(RunCommand::kSave);
  box().clear();
  EXPECT_FALSE(box().take());
  EXPECT_FALSE(box().answer_to(answered));
}

}  // namespace run_requests_test
}  // namespace kinora::train
