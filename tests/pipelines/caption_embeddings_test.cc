#include "kinora/pipelines/caption_embeddings.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

#include "kinora/core/stop_signal.h"
#include "kinora/data/text_file.h"
#include "kinora/pipelines/text_encoder_file.h"
#include "kinora/pipelines/tokenizer_folder.h"
#include "kinora/prompts/caption_cleaning.h"
#include "tests/comm/ranks.h"
#include "tests/error_of.h"
#include "tests/io/io_testing.h"
#include "tests/pipelines/tiny_text_encoder.h"

namespace kinora::pipelines {
namespace caption_embeddings_test {

namespace fs = std::filesystem;
using io::test::TemporaryFolder;
using testing::AllOf;
using testing::HasSubstr;

const std::vector<std::string> kCaptions = {
    "a red circle",
    "",
    "Two dogs play in the snow while a third one watches them from under a tree",
    "a blue square moving to the left",
    "circle",
};

std::string bytes_of_file(const fs::path& path) {
  return io::read_text(path, 1 << 24);
}

class CaptionEmbeddingsTest : public testing::Test {
 protected:
  /// The encoder at `path` with its tokenizer.
  void open(const fs::path& path) {
    encoder_ = open_text_encoder(path, {});
    tokens_ = {.tokenizer = std::make_shared<const tokenizers::Tokenizer>(
                   tokenizers::Tokenizer::load(find_tokenizer(path))),
               .max_length = models::kMostTokens};
  }
  [[nodiscard]] fs::path out() const { return folder_ / "texts.safetensors"; }
  CaptionEmbeddingResult encode(const CaptionEmbeddingOptions& options,
                                const StopSignal* stop = nullptr) {
    return encode_captions(kCaptions, *encoder_, tokens_, options, stop);
  }
  /// Compares row `row` with the library called directly, one text at a time.
  void expect_row(const data::TextFile& file, int64_t row, const std::string& text, double bound) {
    const at::NoGradGuard no_grad;
    models::TextTokens tokens;
    tokens.ids = tokens_.tokenizer->encode(text, {.max_length = tokens_.max_length}).ids;
    tokens.lengths = {std::ssize(tokens.ids)};
    const models::TextStates wanted = encoder_->encode(tokens);
    data::Text got;
    file.read(row, got);
    ASSERT_EQ(got.length, tokens.lengths[0]) << text;
    const at::Tensor states =
        at::from_blob(got.tokens.data(), {file.shape().length, file.shape().channels});
    EXPECT_LE((states.narrow(0, 0, got.length) - wanted.states).abs().max().item<double>(),
              bound * wanted.states.abs().max().item<double>())
        << text;
    if (wanted.pooled.defined()) {
      const at::Tensor pooled = at::from_blob(got.pooled.data(), {1, file.shape().pooled_channels});
      EXPECT_LE((pooled - wanted.pooled).abs().max().item<double>(),
                bound * wanted.pooled.abs().max().item<double>())
          << text;
    }
  }

  TemporaryFolder folder_;
  std::unique_ptr<models::TextEncoder> encoder_;
  data::CaptionTokens tokens_;
};

TEST_F(CaptionEmbeddingsTest, RowsAreWhatEncoderAndTokenizerGive) {
  write_tiny_t5(folder_ / "t5");
  write_tiny_clip(folder_ / "clip");
  for (const auto& [name, pooled] : {std::pair<const char*, int64_t>{"t5", 0}, {"clip", 10}}) {
    open(folder_ / name);
    tokens_.max_length = 77;
    for (const auto& [dtype, bound] :
         {std::pair{DType::kF32, 1e-5}, {DType::kF16, 1e-3}, {DType::kBF16, 8e-3}}) {
      const auto result = encode({.out = out(), .dtype = dtype, .batch = 2});
      EXPECT_TRUE(result.complete);
      EXPECT_EQ(result.computed, 5);
      EXPECT_EQ(result.num_bytes, static_cast<int64_t>(fs::file_size(out())));
      const data::TextFile file(out());
      EXPECT_EQ(file.shape(), (data::TextShape{result.length, 24, pooled}));
      EXPECT_TRUE(file.keyed_by_caption());
      for (int64_t row = 0; row < 5; ++row) {
        const std::string& caption = kCaptions[static_cast<size_t>(row)];
        EXPECT_EQ(file.find_key(caption), row);
        expect_row(file, row, caption, bound);
      }
    }
  }
}

TEST_F(CaptionEmbeddingsTest, CleanedCaptionsKeepTheirKeys) {
  write_tiny_t5(folder_ / "t5");
  open(folder_ / "t5");
  tokens_.cleans = true;
  (void)encode({.out = out(), .dtype = DType::kF32});
  const data::TextFile file(out());
  const std::string& caption = kCaptions[2];
  ASSERT_EQ(file.find_key(caption), 2);
  const std::string cleaned = prompts::preprocess_caption(caption);
  EXPECT_NE(cleaned, caption);  // "two dogs"
  expect_row(file, 2, cleaned, 1e-5);
}

TEST_F(CaptionEmbeddingsTest, LongCaptionsAreCutOffAndTold) {
  write_tiny_t5(folder_ / "t5");
  open(folder_ / "t5");
  testing::internal::CaptureStderr();
  tokens_.max_length = 7;
  const auto result = encode({.out = out(), .dtype = DType::kF32, .keyed = false});
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(result.length, 7);
  EXPECT_GE(result.cut, 1);
  EXPECT_THAT(log, AllOf(HasSubstr(std::to_string(result.cut) + " of 5 captions are cut off"),
                         HasSubstr("after 7 tokens"), HasSubstr("Two dogs play")));
  const data::TextFile file(out());
  EXPECT_FALSE(file.has_keys());
  for (int64_t row = 0; row < 5; ++row) {
    expect_row(file, row, kCaptions[static_cast<size_t>(row)], 1e-5);
  }
}

TEST_F(CaptionEmbeddingsTest, AStoppedFileGoesOnAndComesOutTheSame) {
  write_tiny_t5(folder_ / "t5");
  open(folder_ / "t5");
  CaptionEmbeddingOptions options{.out = folder_ / "whole.safetensors", .batch = 2};
  EXPECT_EQ(encode(options).computed, 5);
  options.out = out();
  {
    const StopSignal stop;
    std::raise(SIGTERM);
    const auto stopped = encode(options, &stop);
    EXPECT_FALSE(stopped.complete);
    EXPECT_EQ(stopped.computed, 2);
  }
  EXPECT_FALSE(fs::exists(out()));
  const fs::path partial = out().string() + ".partial";
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { return data::TextFile(partial).num_texts(); }),
              HasSubstr("texts.safetensors.partial"));
  EXPECT_EQ(encode(options).computed, 3);
  EXPECT_EQ(bytes_of_file(out()), bytes_of_file(folder_ / "whole.safetensors"));
  EXPECT_FALSE(fs::exists(partial));
  EXPECT_FALSE(fs::exists(partial.string() + ".json"));
  // Once whole, nothing is computed again; for another encoder everything is.
  EXPECT_EQ(encode(options).computed, 0);
  options.metadata = {{"text_encoder", "another"}};
  EXPECT_EQ(encode(options).computed, 5);
}

TEST_F(CaptionEmbeddingsTest, RanksShareTheWorkAndAnyNumberOfThemGoesOn) {
  comm::run_on_ranks(2, [this](const comm::Group& world) {
    const fs::path folder =
        fs::temp_directory_path() / (std::string("kinora-texts-") + std::getenv("MASTER_PORT"));
    if (world.rank() == 0) {
      fs::create_directories(folder);
      write_tiny_t5(folder / "t5");
    }
    world.barrier();
    open(folder / "t5");
    CaptionEmbeddingOptions options{
        .out = folder / "texts.safetensors", .batch = 1, .ranks = world};
    {
      const StopSignal stop;
      if (world.rank() == 1) {  // alone
        std::raise(SIGTERM);
      }
      const auto stopped = encode(options, &stop);
      EXPECT_FALSE(stopped.complete);
      EXPECT_EQ(stopped.computed, 2);
    }
    world.barrier();
    if (world.rank() == 0) {
      const CaptionEmbeddingOptions whole{.out = folder / "whole.safetensors", .batch = 1};
      EXPECT_EQ(encode(whole).computed, 5);
      for (const char* rest : {".partial", ".partial.json"}) {
        fs::copy(options.out.string() + rest, (folder / "one.safetensors").string() + rest);
      }
      EXPECT_EQ(encode({.out = folder / "one.safetensors", .batch = 1}).computed, 3);
    }
    world.barrier();
    EXPECT_EQ(encode(options).computed, 3);
    EXPECT_EQ(encode(options).computed, 0);
    if (world.rank() == 0) {
      const std::string whole = bytes_of_file(folder / "whole.safetensors");
      EXPECT_EQ(bytes_of_file(options.out), whole);
      EXPECT_EQ(bytes_of_file(folder / "one.safetensors"), whole);
      fs::remove_all(folder);
    }
    world.barrier();
  });
}

TEST_F(CaptionEmbeddingsTest, WhatIsLeftOfOtherCaptionsIsNotTaken) {
  write_tiny_t5(folder_ / "t5");
  open(folder_ / "t5");
  {
    const StopSignal stop;
    std::raise(SIGTERM);
    EXPECT_FALSE(encode({.out = out(), .batch = 2}, &stop).complete);
  }
  tokens_.cleans = true;
  EXPECT_EQ(encode({.out = out(), .batch = 2}).computed, 5);
  // Records that somebody damaged.
  for (const char* record : {"", "[1]", "{\"content\": 3, \"done\": 4}", "{\"done\": 4}"}) {
    io::write_file_atomic(out().string() + ".partial.json", record);
    io::write_file_atomic(out().string() + ".partial", "rest");
    fs::remove(out());
    EXPECT_EQ(encode({.out = out()}).computed, 5) << record;
  }
}

TEST_F(CaptionEmbeddingsTest, WhatCannotBeEmbeddedIsNamed) {
  write_tiny_t5(folder_ / "t5");
  write_tiny_clip(folder_ / "clip");
  open(folder_ / "t5");
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] { return encode_captions({}, *encoder_, tokens_, {.out = out()}).cut; }),
              HasSubstr("at least one caption"));
  const data::CaptionTokens of_clip{.tokenizer = std::make_shared<const tokenizers::Tokenizer>(
                                        tokenizers::Tokenizer::load(folder_ / "clip")),
                                    .max_length = models::kMostTokens};
  EXPECT_THAT(
      error_of(ErrorKind::kConfig,
               [&] { return encode_captions(kCaptions, *encoder_, of_clip, {.out = out()}).cut; }),
      AllOf(HasSubstr("1064 tokens"), HasSubstr("vocabulary of 700")));
  for (const auto& [path, parameter] : encoder_->named_parameters()) {
    if (path.ends_with("final_layer_norm.weight")) {
      parameter->value = parameter->value * 1e6;  // beyond fp16
    }
  }
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] { return encode({.out = out(), .dtype = DType::kF16}).cut; }),
              AllOf(HasSubstr("not finite as F16"), HasSubstr("--dtype bf16")));
  EXPECT_FALSE(fs::exists(out()));
}

TEST_F(CaptionEmbeddingsTest, ATokenizerIsFoundBesideItsEncoder) {
  write_tiny_t5(folder_ / "t5");
  write_tiny_clip(folder_ / "clip");
  EXPECT_EQ(find_tokenizer(folder_ / "t5"), folder_ / "t5/tokenizer");
  EXPECT_EQ(find_tokenizer(folder_ / "t5/text_encoder/"), folder_ / "t5/tokenizer");
  EXPECT_EQ(find_tokenizer(folder_ / "clip/model.safetensors"), folder_ / "clip");
  fs::copy(folder_ / "t5", folder_ / "sdxl", fs::copy_options::recursive);
  fs::rename(folder_ / "sdxl/text_encoder", folder_ / "sdxl/text_encoder_2");
  EXPECT_THAT(
      error_of(ErrorKind::kIo, [&] { return find_tokenizer(folder_ / "sdxl/text_encoder_2"); }),
      AllOf(HasSubstr("sdxl/tokenizer_2"), HasSubstr("--tokenizer")));
  EXPECT_NE(tokenizer_fingerprint(folder_ / "t5/tokenizer"),
            tokenizer_fingerprint(folder_ / "clip"));
  EXPECT_EQ(text_encoder_fingerprint(folder_ / "t5"),
            text_encoder_fingerprint(folder_ / "sdxl/text_encoder_2"));
  EXPECT_NE(text_encoder_fingerprint(folder_ / "t5"), text_encoder_fingerprint(folder_ / "clip"));
}

}  // namespace caption_embeddings_test
}  // namespace kinora::pipelines
