#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "tests/core/sample_config.h"

namespace kinora {
namespace config_error_test {

using sample::SampleConfig;
using testing::HasSubstr;
using testing::Not;

template <typename Action>
std::string message_of(ErrorKind kind, Action action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

std::string error_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return message_of(ErrorKind::kConfig, [&] {
    (void)parse_config<SampleConfig>({text, "a.yaml"}, overrides);
  });
}

std::string error_of_setting(const std::string& setting) {
  return error_of("", {setting});
}

TEST(ConfigErrorTest, UnknownKeyNamesFileLineAndNearestKey) {
  EXPECT_EQ(error_of("train:\n  steps: 1\n  stepss: 2\n"),
            "[config] a.yaml:3: unknown key train.stepss. Hint: did you mean train.steps?");
  EXPECT_EQ(error_of("train: {micro_bacth: 2}"),
            "[config] a.yaml:1: unknown key train.micro_bacth. Hint: did you mean "
            "train.micro_batch?");
  EXPECT_EQ(error_of_setting("steps=2"),
            "[config] command line: unknown key steps. Hint: did you mean train.steps?");
  EXPECT_EQ(error_of_setting("model.steps=2"),
            "[config] command line: unknown key model.steps. Hint: did you mean train.steps?");
  EXPECT_EQ(error_of_setting("trian.lr.value=2"),
            "[config] command line: unknown key trian.lr.value. Hint: did you mean "
            "train.lr.value?");
}

TEST(ConfigErrorTest, RetiredKeysSayWhyTheyAreGone) {
  const std::string gone =
      " train.stages is no more, since there are no stages. Hint: leave it out; "
      "of older files only 1 is read";
  EXPECT_EQ(error_of("train: {stages: 2}"), "[config] a.yaml:1:" + gone);
  EXPECT_EQ(error_of("train: {stages: [1]}"), "[config] a.yaml:1:" + gone);
  EXPECT_EQ(error_of_setting("train.stages=2"), "[config] command line:" + gone);
}

TEST(ConfigErrorTest, UnknownSectionNamesTheNearestSection) {
  EXPECT_EQ(error_of("\ntrian:\n  steps: 1\n"),
            "[config] a.yaml:2: unknown section trian. Hint: did you mean train?");
}

TEST(ConfigErrorTest, FarFetchedKeyGetsNoSuggestion) {
  EXPECT_EQ(error_of_setting("zebra=2"),
            "[config] command line: unknown key zebra. Hint: --help-config lists all keys");
  EXPECT_THAT(error_of("data: {zebra: 1}"),
              HasSubstr("Hint: the keys of this section are data.path, data.input_size, "
                        "data.sources"));
}

TEST(ConfigErrorTest, MergeKeysAreExplained) {
  EXPECT_THAT(error_of("train: {<<: {steps: 3}}"), HasSubstr("merge keys are not supported"));
}

TEST(ConfigErrorTest, WrongTypesAreNamed) {
  EXPECT_EQ(error_of("train:\n  steps: many\n"),
            "[config] a.yaml:2: train.steps must be an integer of 1 or more, got many");
  EXPECT_EQ(error_of("train: {steps: 1.5}"),
            "[config] a.yaml:1: train.steps must be an integer of 1 or more, got 1.5");
  EXPECT_EQ(error_of("train: {steps: \"5\"}"),
            "[config] a.yaml:1: train.steps must be an integer of 1 or more, got the string \"5\". "
            "Hint: a "
            "value in quotes is a string");
  EXPECT_EQ(error_of("train: {deterministic: yes}"),
            "[config] a.yaml:1: train.deterministic must be true or false, got yes");
  EXPECT_EQ(error_of("train: {lr: {value: fast}}"),
            "[config] a.yaml:1: train.lr.value must be a number above 0, got fast");
  EXPECT_EQ(error_of("train: {precision: bf61}"),
            "[config] a.yaml:1: train.precision must be one of fp32, bf16, fp16, got bf61. Hint: "
            "did you mean bf16?");
  EXPECT_EQ(error_of("train: {precision: int8}"),
            "[config] a.yaml:1: train.precision must be one of fp32, bf16, fp16, got int8");
}

TEST(ConfigErrorTest, IntegersAreStrict) {
  for (const char* text : {"1_000", "1.0", "1e-1", "1.5e0", "0x10", "1e400", "", "+-5", "5 6",
                           "1e19", "9007199254740993e0e", "99999999999999999999", ".", "e5"}) {
    EXPECT_THAT(error_of_setting(std::string("top=") + text), HasSubstr("top must be an integer"));
  }
  EXPECT_THAT(error_of_setting("top=1_000"), HasSubstr("without underscores"));
  EXPECT_THAT(error_of_setting("top=99999999999999999999"), HasSubstr("64 bits"));
}

TEST(ConfigErrorTest, NumbersMustBeFinite) {
  for (const char* text : {"nan", "NaN", ".nan", "inf", "-inf", ".inf", "infinity", "1e999",
                           "-1e999", "1e-999", "0x1p3", "1,5", "nan(1)"}) {
    EXPECT_THAT(error_of_setting(std::string("train.dropout=") + text),
                HasSubstr("train.dropout must be a number"))
        << text;
  }
}

TEST(ConfigErrorTest, RangesAreChecked) {
  EXPECT_EQ(error_of("train:\n  steps: 0\n"),
            "[config] a.yaml:2: train.steps must be an integer of 1 or more, got 0");
  EXPECT_EQ(error_of_setting("train.global_batch=65537"),
            "[config] command line: train.global_batch must be an integer from 1 to 65536, got "
            "65537");
  EXPECT_THAT(error_of_setting("train.lr.value=0"), HasSubstr("must be a number above 0, got 0.0"));
  EXPECT_THAT(error_of_setting("train.dropout=1"), HasSubstr("0 or more and below 1, got 1.0"));
  EXPECT_THAT(error_of_setting("ema.decays=[0.5, 1.5]"),
              HasSubstr("each from 0 to 1, got [0.5, 1.5]"));
  EXPECT_THAT(error_of_setting("data.input_size=[0, 1]"), HasSubstr("each 1 or more, got [0, 1]"));
}

TEST(ConfigErrorTest, LargeIntegersAreComparedExactly) {
  int64_t value = 0;
  Fields fields;
  fields.add("n", value, "A number.", between(0, 0x1p62));
  EXPECT_NO_THROW(parse(fields, {"n: 4611686018427387904", "a"}));
  EXPECT_THROW(parse(fields, {"n: 4611686018427387905", "a"}), Error);
}

TEST(ConfigErrorTest, ChecksSeeTheWholeConfiguration) {
  EXPECT_EQ(error_of("train:\n  micro_batch: 5\n"),
            "[config] a.yaml:2: train.micro_batch must divide train.global_batch, got 5");
  EXPECT_EQ(error_of_setting("train.global_batch=20"),
            "[config] train.micro_batch must divide train.global_batch, got 8");
  EXPECT_EQ(error_of_setting("data.input_size=[4]"),
            "[config] command line: data.input_size must have 2 numbers, got [4]");
}

TEST(ConfigErrorTest, RequiredKeysMustBeGiven) {
  std::string name;
  Fields fields;
  fields.add("run.dir", name, "Folder of the run.").required();
  EXPECT_EQ(message_of(ErrorKind::kConfig,
                       [&] {
                         parse(fields, {"", "a.yaml"});
                       }),
            "[config] a.yaml: run.dir must be given, it has no default. Hint: it is a string: "
            "Folder of the run.");
  EXPECT_NO_THROW(parse(fields, {"", "a.yaml"}, {"run.dir=x"}));
}

TEST(ConfigErrorTest, RepeatedKeysAreErrors) {
  EXPECT_EQ(error_of("top: 1\ntop: 2\n"),
            "[config] a.yaml:2: the key top is here twice, first in line 1");
  EXPECT_EQ(error_of("train:\n  steps: 1\ndata:\n  path: x\ntrain:\n  dropout: 0.5\n"),
            "[config] a.yaml:5: the key train is here twice, first in line 1");
  EXPECT_EQ(error_of("train:\n  steps: 1\ntrain.steps: 2\n"),
            "[config] a.yaml:3: train.steps is set twice, first in line 2");
}

TEST(ConfigErrorTest, ShapesOfValuesAreChecked) {
  EXPECT_EQ(error_of("train: 5"),
            "[config] a.yaml:1: train is a section and must hold keys, got 5. Hint: its keys are "
            "train.steps, train.global_batch, train.micro_batch, train.precision, "
            "train.deterministic, train.lr.value, train.dropout");
  EXPECT_THAT(error_of("data: [1]"), HasSubstr("data is a section and must hold keys, got a list"));
  EXPECT_THAT(error_of("train:\n  steps:\n    x: 1\n"),
              HasSubstr("a.yaml:2: train.steps must be an integer of 1 or more, got a mapping"));
  EXPECT_THAT(error_of("top: [1]"), HasSubstr("top must be an integer, got a list"));
  EXPECT_THAT(
      error_of("data: {input_size: 5}"),
      HasSubstr("must be a list of integers, each 1 or more, got 5. Hint: write it as [a, b]"));
  EXPECT_THAT(error_of("data: {input_size: [5, x]}"), HasSubstr("got x in the list"));
  EXPECT_THAT(error_of("data: {input_size: [5, [6]]}"), HasSubstr("got a list in the list"));
  EXPECT_THAT(error_of("train: {precision: [fp32]}"), HasSubstr("got a list"));
  EXPECT_THAT(error_of("- 1\n- 2\n"), HasSubstr("a.yaml:1: a configuration must be a mapping"));
  EXPECT_THAT(error_of("word"),
              HasSubstr("a configuration must be a mapping of keys, got a single"));
}

TEST(ConfigErrorTest, NullIsNoValue) {
  for (const char* text : {"train: {steps: }", "train:\n  steps: ~\n", "train: {steps: null}"}) {
    EXPECT_THAT(error_of(text),
                HasSubstr("train.steps must be an integer of 1 or more, got no value"));
  }
  EXPECT_THAT(error_of_setting("data.path="), HasSubstr("write \"\" for an empty string"));
  EXPECT_THAT(error_of_setting("data.path=#1"), HasSubstr("got no value (null)"));
  EXPECT_THAT(error_of("data: {sources: [a, null]}"), HasSubstr("got no value (null) in the list"));
}

TEST(ConfigErrorTest, SettingsNeedAKeyAndAnEqualsSign) {
  EXPECT_EQ(error_of_setting("train.steps"),
            "[config] command line: a setting must look like key.path=value, got train.steps");
  EXPECT_THAT(error_of_setting("=5"), HasSubstr("must look like key.path=value"));
  EXPECT_THAT(error_of_setting("train.steps=[1"), HasSubstr("[config] command line: invalid YAML"));
}

TEST(ConfigErrorTest, InvalidYamlNamesTheLine) {
  EXPECT_THAT(error_of("train:\n  steps: [1,\n"), HasSubstr("[config] a.yaml:"));
  EXPECT_THAT(error_of("a: b: c\n"), HasSubstr("a.yaml:1: invalid YAML"));
  EXPECT_THAT(error_of("train:\n\tsteps: 1\n"), HasSubstr("a.yaml:2: invalid YAML"));
  EXPECT_THAT(error_of("top: *nobody\n"), HasSubstr("a.yaml:1: invalid YAML"));
}

TEST(ConfigErrorTest, AQuoteThatIsNeverClosedIsRefusedWhereItBegins) {
  const std::string refusal = "a quote begins here and is never closed";
  for (const char* quote : {"\"", "'"}) {
    EXPECT_THAT(
        error_of("top: 1\ndata:\n  path: " + std::string(quote) + "x\ntrain:\n  steps: 3\n"),
        HasSubstr("a.yaml:3: " + refusal));
    EXPECT_THAT(error_of("top: " + std::string(quote) + "x"), HasSubstr("a.yaml:1: " + refusal));
    EXPECT_THAT(error_of("data: {path: " + std::string(quote) + "x}\n"),
                HasSubstr("a.yaml:1: " + refusal));
    EXPECT_THAT(error_of_setting("top=" + std::string(quote) + "x"), HasSubstr(refusal));
  }
}

TEST(ConfigErrorTest, APipeIsNotWaitedFor) {
  const std::string pipe = testing::TempDir() + "kinora-config-pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  try {
    (void)read_config_file(pipe);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    EXPECT_THAT(error.what(), HasSubstr("got a pipe or a device"));
  }
  std::filesystem::remove(pipe);
}

TEST(ConfigErrorTest, StrangeTextIsRefused) {
  EXPECT_THAT(error_of("top: 1\n---\ntop: 2\n"), HasSubstr("expected one YAML document"));
  EXPECT_THAT(error_of("top: !!int 5\n"), HasSubstr("YAML tags are not used"));
  EXPECT_THAT(error_of("train: !x {steps: 1}\n"), HasSubstr("YAML tags are not used"));
  EXPECT_THAT(error_of("top: \xff\n"), HasSubstr("must be UTF-8"));
  EXPECT_THAT(error_of("data:\n  path: a\x04\ntrain: 5\n"), HasSubstr("a.yaml:2: control char"));
  EXPECT_THAT(error_of(std::string("top: 1\0", 7)), HasSubstr("a.yaml:1: control characters"));
  EXPECT_THAT(error_of("data: {path: \"a\\0b\"}"), HasSubstr("it contains a NUL character"));
  EXPECT_THAT(error_of("[1, 2]: 5"), HasSubstr("a key must be a word, got a list or mapping"));
  EXPECT_THAT(error_of("~: 5"), HasSubstr("a key must be a word, got null"));
  EXPECT_THAT(error_of("&a [*a]"), Not(HasSubstr("internal")));
}

TEST(ConfigErrorTest, LongValuesAreCutInMessages) {
  EXPECT_THAT(error_of_setting("top=" + std::string(1000, 'x')),
              HasSubstr("got " + std::string(60, 'x') + "..."));
  // not in the middle of a character: 59 letters and an umlaut
  EXPECT_THAT(error_of_setting("top=" + std::string(59, 'x') + "\xc3\xa4yyy"),
              HasSubstr("got " + std::string(59, 'x') + "..."));
}

TEST(ConfigErrorTest, DeepNestingAndAliasBombsAreHarmless) {
  EXPECT_THAT(error_of("top: " + std::string(40, '[') + std::string(40, ']')),
              HasSubstr("must not nest deeper than 32"));
  EXPECT_THAT(error_of("top: " + std::string(100000, '[')), HasSubstr("must not nest deeper"));
  EXPECT_THAT(error_of("top: " + std::string(100000, '{')), HasSubstr("must not nest deeper"));
  std::string bomb = "top: &a0 [1]\n";
  for (int i = 1; i < 30; ++i) {
    std::ostringstream line;
    line << "x" << i << ": &a" << i << " [*a" << i - 1 << ", *a" << i - 1 << "]\n";
    bomb += line.str();
  }
  bomb += "data: {sources: *a29}\n";
  EXPECT_THAT(error_of(bomb), HasSubstr("top must be an integer, got a list"));
  // A chain of aliases whose destruction or reading must not recurse.
  std::string chain = "x:\n- &a0 {k: 1}\n";
  for (int i = 1; i < 20000; ++i) {
    std::ostringstream line;
    line << "- &a" << i << " {k: *a" << i - 1 << "}\n";
    chain += line.str();
  }
  EXPECT_THAT(error_of(chain), HasSubstr("unknown"));
}

TEST(ConfigErrorTest, NumberOfValuesIsLimited) {
  std::string text = "top: [";
  for (int i = 0; i < 100001; ++i) {
    text += "1,";
  }
  EXPECT_THAT(error_of(text + "]"), HasSubstr("at most 100000 values"));
}

TEST(ConfigErrorTest, FilesThatCannotBeReadAreIoErrors) {
  const auto error_of_file = [](const std::string& path) {
    return message_of(ErrorKind::kIo, [&] { (void)load_config<SampleConfig>(path); });
  };
  EXPECT_EQ(error_of_file("no/such.yaml"),
            "[config] cannot open no/such.yaml: No such file or directory");
  EXPECT_THAT(error_of_file(testing::TempDir()), HasSubstr("must be a YAML file, got a folder"));
  const std::string large = testing::TempDir() + "kinora_large_config.yaml";
  std::ofstream(large) << std::string((1 << 20) + 1, '#');
  EXPECT_THAT(error_of_file(large), HasSubstr("at most 1 MiB"));
}

TEST(ConfigErrorTest, ValuesOfAProgramAreChecked) {
  SampleConfig config;
  EXPECT_NO_THROW(check_config(config));
  config.dropout = 2.0;
  EXPECT_EQ(message_of(ErrorKind::kConfig, [&] { check_config(config); }),
            "[config] train.dropout must be a number of 0 or more and below 1, got 2.0");
  config.dropout = std::nan("");
  EXPECT_THAT(message_of(ErrorKind::kConfig, [&] { check_config(config); }), HasSubstr("got nan"));
  config = {};
  config.learning_rate = std::numeric_limits<double>::infinity();
  EXPECT_THAT(message_of(ErrorKind::kConfig, [&] { check_config(config); }), HasSubstr("got inf"));
  EXPECT_THAT(message_of(ErrorKind::kConfig, [&] { (void)dump_config(config); }),
              HasSubstr("got inf"));
  config = {};
  config.precision = static_cast<sample::Precision>(9);
  EXPECT_THAT(message_of(ErrorKind::kConfig, [&] { (void)dump_config(config); }),
              HasSubstr("a value without a name"));
  config = {};
  config.path = "\xff";
  EXPECT_THAT(message_of(ErrorKind::kConfig, [&] { (void)dump_config(config); }),
              HasSubstr("must be UTF-8"));
}

TEST(ConfigErrorTest, BadDescriptionsAreBugs) {
  int64_t value = 0;
  const auto add = [&](Fields& fields, const char* key) {
    return message_of(ErrorKind::kInternal, [&] { fields.add(key, value, "A value."); });
  };
  Fields fields;
  fields.add("a.b", value, "A value.");
  EXPECT_THAT(add(fields, "a.b"), HasSubstr("exclude each other"));
  EXPECT_THAT(add(fields, "a"), HasSubstr("exclude each other"));
  EXPECT_THAT(add(fields, "a.b.c"), HasSubstr("exclude each other"));
  EXPECT_THAT(add(fields, "a..c"), HasSubstr("words of a-z"));
  EXPECT_THAT(add(fields, "A"), HasSubstr("words of a-z"));
  EXPECT_NO_THROW(fields.add("a.bc", value, "A value."));
}

}  // namespace config_error_test
}  // namespace kinora
