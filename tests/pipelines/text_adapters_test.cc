// Low-rank updates of CLIPs, of files that PEFT, diffusers and kohya's layout have
// (tools/reference/make_text_adapter_fixtures.py), against what PEFT computes with them.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kinora/checkpoint/low_rank_file.h"
#include "kinora/checkpoint/weights_file.h"
#include "kinora/pipelines/text_encoder_file.h"
#include "tests/error_of.h"
#include "tests/io/io_testing.h"
#include "tests/ops/tensors.h"
#include "tests/places.h"

namespace kinora::pipelines {
namespace text_adapters_test {

namespace fs = std::filesystem;
using testing::HasSubstr;

const fs::path kAdapters = source_path("tests/pipelines/data/text_adapters");
const fs::path kOne = source_path("tests/inference/data/sd1");
const fs::path kTwo = source_path("tests/inference/data/sdxl");
constexpr double kTolerance = 1e-5;

at::Tensor expected(const std::string& name) {
  return checkpoint::WeightsFile::open(kAdapters / "expected.safetensors").read(name);
}

std::string adapter(const std::string& name) {
  return (kAdapters / name).string();
}

models::TextStates states(const fs::path& encoder, const std::vector<std::string>& adapters,
                          bool streamed = false) {
  const at::NoGradGuard no_grad;
  const auto opened = open_text_encoder(
      encoder, {.streamed = streamed, .adapters = read_text_adapters(adapters, encoder)});
  const at::Tensor ids = expected("ids");
  models::TextTokens tokens;
  tokens.ids.assign(ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + ids.numel());
  tokens.lengths = {ids.numel()};
  return opened->encode(tokens);
}

TEST(TextAdaptersTest, AreThoseOfPeft) {
  const at::Tensor base = states(kOne, {}).states;
  EXPECT_GT(ops::relative_error(base, expected("states")), 1e-2);
  for (const std::string name : {"peft", "diffusers", "kohya.safetensors"}) {
    for (const bool streamed : {false, true}) {
      EXPECT_LT(
          ops::relative_error(states(kOne, {adapter(name)}, streamed).states, expected("states")),
          kTolerance)
          << name << (streamed ? ", streamed" : "");
    }
  }
  const std::string kohya = adapter("kohya.safetensors");
  const at::Tensor none = states(kOne, {kohya + ":0.75", kohya + ":-0.75"}).states;
  EXPECT_LT(ops::relative_error(none, base), kTolerance);
}

TEST(TextAdaptersTest, BothOfSdxlHaveTheirOwn) {
  for (const std::string name : {"diffusers_sdxl", "kohya_sdxl.safetensors"}) {
    const models::TextStates got = states(kTwo, {adapter(name)});
    EXPECT_LT(ops::relative_error(got.states, expected("sdxl_states")), kTolerance) << name;
    EXPECT_LT(ops::relative_error(got.pooled[0], expected("sdxl_pooled")), kTolerance) << name;
  }
  const models::TextStates base = states(kTwo, {});
  EXPECT_GT(ops::relative_error(base.states, expected("sdxl_states")), 1e-2);
  EXPECT_GT(ops::relative_error(base.pooled[0], expected("sdxl_pooled")), 1e-2);
}

TEST(TextAdaptersTest, WhatIsOfAnotherEncoderIsRefused) {
  const std::string refusal = error_of(ErrorKind::kIo, [] {
    return read_text_adapters({adapter("peft")}, source_path("tests/inference/data/refiner"))
        .size();
  });
  EXPECT_THAT(refusal, HasSubstr("weights, but text_encoder.text_model.encoder.layers.0."));
}

// PEFT's, of all updates with names of ours, diffusers' and kohya's again: the same numbers.
TEST(TextAdaptersTest, FilesOfAllFormsCanBeWritten) {
  const io::test::TemporaryFolder folder;
  for (const auto& [base, name] :
       {std::pair(kOne, "kohya.safetensors"), std::pair(kTwo, "kohya_sdxl.safetensors")}) {
    const bool has_two = base == kTwo;
    checkpoint::Adapter own = read_text_adapters({adapter(name)}, base).front().adapter;
    if (!has_two) {  // an adapter has the encoder's name
      auto changes = std::exchange(own.changes, {});
      for (auto& [path, change] : changes) {
        own.changes.emplace("text_encoder." + path, std::move(change));
      }
    }
    EXPECT_TRUE(checkpoint::has_text_parts(own));
    const fs::path out = folder.path() / name;
    checkpoint::write_adapter(out / "own", own, {});
    checkpoint::write_diffusers_adapter(out / "diffusers", own, {});
    checkpoint::write_kohya_adapter(out / "kohya.safetensors", own, {}, has_two);
    const auto wrote = checkpoint::WeightsFile::open(out / "kohya.safetensors");
    EXPECT_EQ(wrote.names(), checkpoint::WeightsFile::open(adapter(name)).names());
    const at::Tensor want = expected(has_two ? "sdxl_states" : "states");
    for (const char* form : {"own", "diffusers", "kohya.safetensors"}) {
      EXPECT_LT(ops::relative_error(states(base, {(out / form).string()}).states, want), kTolerance)
          << name << ", " << form;
    }
  }
}

TEST(TextAdaptersTest, OfAModelAloneThereIsNothing) {
  const io::test::TemporaryFolder folder;
  checkpoint::Adapter own{.origin = "a test"};
  own.changes["mid_block.attentions.0.proj_in.weight"].push_back(checkpoint::make_change(
      "proj_in", {{"lora_A", ops::normal({2, 16}, 1)}, {"lora_B", ops::normal({16, 2}, 2)}},
      "a test"));
  checkpoint::write_adapter(folder.path() / "own", own, {});
  const fs::path three = source_path("tests/inference/data/sd3");
  for (const fs::path& base : {kOne, kTwo, three}) {
    EXPECT_TRUE(read_text_adapters({(folder.path() / "own").string()}, base).empty()) << base;
  }
}

}  // namespace text_adapters_test
}  // namespace kinora::pipelines
