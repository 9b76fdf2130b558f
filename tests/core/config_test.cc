#include "kinora/core/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <limits>

#include "kinora/core/error.h"
#include "kinora/core/philox.h"
#include "kinora/core/text.h"
#include "tests/core/sample_config.h"
#include "tests/error_of.h"

namespace kinora {
namespace config_test {

using sample::Precision;
using sample::SampleConfig;
using testing::ElementsAre;
using testing::HasSubstr;

SampleConfig parsed(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return parse_config<SampleConfig>({text, "a.yaml"}, overrides);
}

TEST(ConfigTest, EmptyTextGivesTheDefaults) {
  for (const char* text :
       {"", "# only a comment\n", "---\n", "train:\n  # all commented out\n", "{}"}) {
    const SampleConfig config = parsed(text);
    EXPECT_EQ(config.steps, 1000) << text;
    EXPECT_EQ(config.path, "data/train");
    EXPECT_THAT(config.input_size, ElementsAre(32, 32));
  }
}

TEST(ConfigTest, ReadsEveryType) {
  const SampleConfig config = parsed(R"(
train:
  steps: 20          # a comment
  precision: bf16
  deterministic: true
  lr: {value: 3e-4}
  dropout: 0
data:
  path: "a: b # c"
  input_size: [16, 64]
  sources:
    - one
    - 'two words'
ema:
  decays: [0.999, 0.5, 1]
top: -3
)");
  EXPECT_EQ(config.steps, 20);
  EXPECT_EQ(config.precision, Precision::kBf16);
  EXPECT_TRUE(config.deterministic);
  EXPECT_EQ(config.learning_rate, 3e-4);
  EXPECT_EQ(config.dropout, 0.0);
  EXPECT_EQ(config.path, "a: b # c");
  EXPECT_THAT(config.input_size, ElementsAre(16, 64));
  EXPECT_THAT(config.sources, ElementsAre("one", "two words"));
  EXPECT_THAT(config.decays, ElementsAre(0.999, 0.5, 1.0));
  EXPECT_EQ(config.top, -3);
}

TEST(ConfigTest, IntegersMayBeExactPowers) {
  EXPECT_EQ(parsed("train.steps: 1e6").steps, 1000000);
  EXPECT_EQ(parsed("train.steps: 2.5E3").steps, 2500);
  EXPECT_EQ(parsed("top: +7").top, 7);
  EXPECT_EQ(parsed("top: 9223372036854775807").top, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(parsed("top: -9223372036854775808").top, std::numeric_limits<int64_t>::min());
}

TEST(ConfigTest, StringsTakeAnyScalar) {
  EXPECT_EQ(parsed("data.path: 2024").path, "2024");
  EXPECT_EQ(parsed("data.path: true").path, "true");
  EXPECT_EQ(parsed("data.path: ''").path, "");
  EXPECT_EQ(parsed("data.path: \"null\"").path, "null");
  EXPECT_EQ(parsed("data.path: |\n  two\n  lines\n").path, "two\nlines\n");
}

TEST(ConfigTest, OverridesWinAndTheLastOneCounts) {
  const std::vector<std::string> overrides = {"train.steps=5",        "train.steps=6",
                                              "data.sources=[a, b]",  "train={dropout: 0.5}",
                                              " data.path = \"x y\"", "train.precision=fp16"};
  const SampleConfig config = parsed("train: {steps: 20, micro_batch: 4}", overrides);
  EXPECT_EQ(config.steps, 6);
  EXPECT_EQ(config.micro_batch, 4);
  EXPECT_EQ(config.dropout, 0.5);
  EXPECT_THAT(config.sources, ElementsAre("a", "b"));
  EXPECT_EQ(config.path, "x y");
  EXPECT_EQ(config.precision, Precision::kFp16);
}

TEST(ConfigTest, OverrideMendsAnOutOfRangeValue) {
  EXPECT_EQ(parsed("train.steps: 0", {"train.steps=3"}).steps, 3);
}

TEST(ConfigTest, RetiredKeysAreReadWithTheirOneValueAndNotDumped) {
  const SampleConfig config = parsed("train: {stages: 1, steps: 2}", {"train.stages=1"});
  EXPECT_EQ(config.steps, 2);
  EXPECT_EQ(dump_config(config).find("stages"), std::string::npos);
  EXPECT_EQ(help_config<SampleConfig>().find("stages"), std::string::npos);
}

TEST(ConfigTest, AnchorsAndAliasesShareValues) {
  const SampleConfig config = parsed(R"(
data:
  input_size: &size [8, 8]
train:
  steps: &n 4
  micro_batch: *n
ema: {decays: [0.5]}
)");
  EXPECT_EQ(config.micro_batch, 4);
  EXPECT_THAT(config.input_size, ElementsAre(8, 8));
}

struct Chosen {
  std::string shape = "round";
};
void describe(Fields& fields, Chosen& c) {
  fields.add("shape", c.shape, {"round", "square"}, "Its outline.");
}

TEST(ConfigTest, StringsMayHaveChoices) {
  EXPECT_EQ(parse_config<Chosen>({"shape: square", "a.yaml"}).shape, "square");
  EXPECT_EQ(dump_config(Chosen{}), "shape: round\n");
  EXPECT_THAT(help_config<Chosen>(), HasSubstr("one of round, square"));
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [] {
                         return parse_config<Chosen>({"shape: squre", "a.yaml"}).shape;
                       }),
              HasSubstr("did you mean square?"));
}

TEST(ConfigTest, FilesAreRead) {
  const std::string path = testing::TempDir() + "kinora_config_test.yaml";
  std::ofstream(path) << "train:\r\n  steps: 12\r\n";
  EXPECT_EQ(load_config<SampleConfig>(path).steps, 12);
}

TEST(ConfigTest, DumpIsCompleteYamlByHand) {
  EXPECT_EQ(dump_config(SampleConfig{}), R"(train:
  steps: 1000
  global_batch: 16
  micro_batch: 8
  precision: fp32
  deterministic: false
  lr:
    value: 0.0001
  dropout: 0.1
data:
  path: data/train
  input_size: [32, 32]
  sources: []
ema:
  decays: [0.9999]
top: 0
)");
}

TEST(ConfigTest, FlattenListsKeysAndValues) {
  const auto list = flatten_config(SampleConfig{});
  ASSERT_EQ(list.size(), 12U);
  EXPECT_EQ(list[5], (std::pair<std::string, std::string>("train.lr.value", "0.0001")));
  EXPECT_EQ(list[8], (std::pair<std::string, std::string>("data.input_size", "[32, 32]")));
}

TEST(ConfigTest, DumpedDoublesComeBackBitForBit) {
  std::vector<double> values = {0.0,
                                -0.0,
                                1.0,
                                0.1,
                                1e22,
                                1e-5,
                                123456789.0,
                                std::numeric_limits<double>::max(),
                                std::numeric_limits<double>::lowest(),
                                std::numeric_limits<double>::min(),
                                std::numeric_limits<double>::denorm_min()};
  for (uint32_t i = 0; i < 20000; ++i) {
    const PhiloxBlock block = philox({.seed = 9}, i);
    const auto value =
        std::bit_cast<double>(block.word[0] | (static_cast<uint64_t>(block.word[1]) << 32));
    if (std::isfinite(value)) {
      values.push_back(value);
    }
  }
  const auto describe_list = [](Fields& fields, std::vector<double>& list, double& one) {
    fields.add("list", list, "Numbers.");
    fields.add("one", one, "A number.");
  };
  double one = values[1];
  Fields before;
  describe_list(before, values, one);
  const std::string text = dump(before);
  EXPECT_EQ(text.find("e-05"), text.find(".0e-05") + 2) << "other readers want a point";

  std::vector<double> values_back;
  double one_back = 1.0;
  Fields after;
  describe_list(after, values_back, one_back);
  parse(after, {text, "dump"});
  ASSERT_EQ(values_back.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint64_t>(values_back[i]), std::bit_cast<uint64_t>(values[i]));
  }
  EXPECT_TRUE(std::signbit(one_back));
}

TEST(ConfigTest, TablesOfTwoKeys) {
  ConfigTable table;
  const auto read = [&table](const std::string& text) {
    Fields fields;
    fields.add("buckets", table, "Sizes.");
    parse(fields, {text, "a.yaml"});
    return dump(fields);
  };
  const std::string dumped =
      read("buckets:\n  \"256\": {1: [1.0, 16], 51: [[0.5, 0.25], 4]}\n  480p: {16: [0.5, 2]}\n");
  const ConfigTable expected = {
      {"256", 1, {1.0, 16.0}}, {"256", 51, {0.5, 0.25, 4.0}}, {"480p", 16, {0.5, 2.0}}};
  EXPECT_EQ(table, expected);
  EXPECT_EQ(dumped,
            "buckets: {\"256\": {1: [1.0, 16.0], 51: [0.5, 0.25, 4.0]}, \"480p\": {16: [0.5, "
            "2.0]}}\n");
  table.clear();
  EXPECT_EQ(read(dumped), dumped);
  EXPECT_EQ(table, expected);
  EXPECT_EQ(read("buckets: {}"), "buckets: {}\n");
  EXPECT_TRUE(table.empty());
  for (const auto& [text, message] : std::initializer_list<std::pair<const char*, const char*>>{
           {"buckets: 3", "got 3. Hint: write it as {name: {number: [numbers]}}"},
           {"buckets: {a: 3}", "got 3 for \"a\""},
           {"buckets: {a: {b: [1]}}", "got b in the list"},
           {"buckets: {a: {1: 2}}", "got 2 for \"1\""},
           {"buckets: {a: {1: [x]}}", "got x in the list"}}) {
    EXPECT_THAT(error_of(ErrorKind::kConfig, [&, t = text] { return read(t); }), HasSubstr(message))
        << text;
  }
}

TEST(ConfigTest, DumpedStringsComeBack) {
  SampleConfig config;
  config.sources = {"",
                    " ",
                    "a b",
                    "null",
                    "~",
                    "true",
                    "No",
                    "12",
                    "1e5",
                    "0x1f",
                    ".inf",
                    "- a",
                    "# a",
                    "a # b",
                    "a: b",
                    "a:",
                    "[a",
                    "a, b",
                    "{",
                    "\"",
                    "'",
                    "\\",
                    "\n",
                    "a\n b\n\n",
                    "\t",
                    "\x01",
                    "\x04",
                    "\x7f",
                    "*a",
                    "&a",
                    "!a",
                    "%a",
                    "@a",
                    "`",
                    "|",
                    ">",
                    "---",
                    "...",
                    "=",
                    "<<",
                    "?",
                    "a\r\nb",
                    "/x/y.z",
                    "../a",
                    "C:\\x",
                    "\xc3\xa9",
                    "\xe4\xb8\xad",
                    "\xc2\x85",
                    "\xe2\x80\xa8",
                    "\xef\xbb\xbf",
                    "a\xef\xbb\xbf",
                    "\xf0\x9f\x98\x80",
                    "y",
                    "e"};
  for (const std::string& source : config.sources) {
    config.path = source;
    EXPECT_EQ(parsed(dump_config(config)).path, source) << dump_config(config);
  }
  EXPECT_EQ(parsed(dump_config(config)).sources, config.sources);
}

TEST(ConfigTest, RandomStringsComeBack) {
  SampleConfig config;
  const std::string alphabet = "aZ09 \t\n\r\x1b\"'\\:#-,[]{}&*!|>%@`?=~._/\x7f";
  for (uint64_t i = 0; i < 2000; ++i) {
    std::string text;
    for (uint64_t k = 0; k < 1 + i % 12; ++k) {
      text += alphabet[random_index({.seed = 4, .sample = i}, k,
                                    static_cast<uint32_t>(alphabet.size()))];
    }
    config.sources.push_back(text);
  }
  EXPECT_EQ(parsed(dump_config(config)).sources, config.sources);
}

TEST(ConfigTest, HelpNamesTypeRangeDefaultAndMeaning) {
  const std::string text = help_config<SampleConfig>();
  EXPECT_THAT(text, HasSubstr("train\n  train.steps: an integer of 1 or more (default 1000)\n"
                              "      Optimizer step at which training stops.\n"));
  EXPECT_THAT(text, HasSubstr("train.global_batch: an integer from 1 to 65536 (default 16)"));
  EXPECT_THAT(text, HasSubstr("train.precision: one of fp32, bf16, fp16 (default fp32)"));
  EXPECT_THAT(text, HasSubstr("train.deterministic: true or false (default false)"));
  EXPECT_THAT(text, HasSubstr("train.lr.value: a number above 0 (default 0.0001)"));
  EXPECT_THAT(text, HasSubstr("train.dropout: a number of 0 or more and below 1 (default 0.1)"));
  EXPECT_THAT(text, HasSubstr("\ndata\n  data.path: a string (default data/train)"));
  EXPECT_THAT(text,
              HasSubstr("ema.decays: a list of numbers, each from 0 to 1 (default [0.9999])"));
  for (const std::string_view line : split(text, '\n')) {
    EXPECT_LE(line.size(), 100U);
  }
}

TEST(ConfigTest, HelpSaysWhatIsRequired) {
  std::string name;
  Fields fields;
  fields.add("run.dir", name, "Folder of the run.").required();
  EXPECT_THAT(help(fields), HasSubstr("run.dir: a string (required)"));
}

TEST(ConfigTest, EveryHelpKeyComesBackFromItsDump) {
  const std::string text = help_config<SampleConfig>();
  for (const auto& [key, value] : flatten_config(SampleConfig{})) {
    EXPECT_THAT(text, HasSubstr("  " + key + ": "));
    std::string setting = key;
    setting.append("=").append(value);
    EXPECT_NO_THROW((void)parsed("", {setting})) << setting;
  }
}

TEST(ConfigTest, SkippedKeysAreSomebodyElses) {
  struct Part {
    int64_t steps = 1;
    int64_t level = 1;
  };
  const auto read = [](const std::string& text, const std::vector<std::string>& overrides) {
    Part part;
    Fields fields;
    fields.add("train.steps", part.steps, "Steps.");
    fields.add("log.level", part.level, "Level.");
    fields.skip("train");
    fields.skip("lr");
    fields.skip("log.every");
    parse(fields, {text, "a.yaml"}, overrides);
    return part.steps;
  };
  const std::string text = "train: {steps: 3, seed: 5}\nlr: {value: 1}\nlog: {every: 2}\n";
  EXPECT_EQ(read(text, {}), 3);
  EXPECT_EQ(read(text, {"train.steps=4", "train.seed=6", "lr.value=2", "log.every=1"}), 4);
  EXPECT_THROW((void)read(text, {"train.sed=6"}), Error);
  EXPECT_THROW((void)read(text, {"lr.valeu=2"}), Error);
  EXPECT_THROW((void)read("log: {evry: 2}", {}), Error);
}

}  // namespace config_test
}  // namespace kinora
