#include "kinora/checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "kinora/core/build_info.h"
#include "tests/checkpoint/testing.h"

namespace kinora::checkpoint {
namespace manifest_test {

using nlohmann::json;
using testing::HasSubstr;

Manifest example() {
  Manifest manifest;
  manifest.state.step = 12;
  manifest.state.position = 3'000'000'000'000;
  manifest.state.image_position = 7;
  manifest.state.optimizer = {
      .applied_steps = 11, .skipped_steps = 1, .loss_scale = 32768.0F, .good_steps = 7};
  manifest.state.timestep_history = {0.1, 1.0 / 3.0, 5e-324};
  manifest.state.timestep_counts = {1, 2, 0};
  manifest.state.pinned = {.versions = {{"cuDNN", "91300"}},
                           .products = {"NVIDIA H200|130100|m=1|id=66|ns=0|", ""}};
  manifest.state.config = "run:\n  dir: \"a b\"\n# \xC3\xA9\n";
  optim::Bucket bucket;
  bucket.name = "blocks.0";
  bucket.numel = 4096;
  bucket.slots = {{.path = "blocks.0.weight", .shape = {3, 5}, .offset = 0, .numel = 15},
                  {.path = "blocks.0.bias", .shape = {5}, .offset = 32, .numel = 5}};
  manifest.buckets = {bucket};
  manifest.shards = {{.file = "master.safetensors",
                      .role = "master",
                      .part = {.index = 1, .count = 2},
                      .num_bytes = 16500,
                      .chunk_bytes = 16384,
                      .checksums = {"0123456789abcdef", "fedcba9876543210"}}};
  return manifest;
}

class ManifestTest : public testing::Test {
 protected:
  Manifest read(const std::string& text) const {
    write_text(folder_.path() / kManifestName, text);
    return read_manifest(folder_.path());
  }

  /// What is said about the example after `change`.
  std::string refusal_of(const std::function<void(json&)>& change) const {
    json manifest = json::parse(to_json(example()));
    change(manifest);
    return refusal(ErrorKind::kDamaged, [&] { (void)read(manifest.dump()); });
  }

  TemporaryFolder folder_;
};

TEST_F(ManifestTest, ReadsBackWhatWasWritten) {
  const Manifest expected = example();
  const Manifest got = read(to_json(expected));
  EXPECT_EQ(got.state.step, expected.state.step);
  EXPECT_EQ(got.state.position, expected.state.position);
  EXPECT_EQ(got.state.image_position, expected.state.image_position);
  EXPECT_EQ(got.state.optimizer, expected.state.optimizer);
  EXPECT_EQ(got.state.timestep_history, expected.state.timestep_history);
  EXPECT_EQ(got.state.timestep_counts, expected.state.timestep_counts);
  EXPECT_EQ(got.state.config, expected.state.config);
  EXPECT_EQ(got.state.pinned, expected.state.pinned);
  ASSERT_EQ(got.buckets.size(), 1U);
  EXPECT_EQ(got.buckets[0].name, "blocks.0");
  EXPECT_EQ(got.buckets[0].numel, 4096);
  ASSERT_EQ(got.buckets[0].slots.size(), 2U);
  EXPECT_EQ(got.buckets[0].slots[0].path, "blocks.0.weight");
  EXPECT_EQ(got.buckets[0].slots[0].shape, (std::vector<int64_t>{3, 5}));
  EXPECT_EQ(got.buckets[0].slots[1].offset, 32);
  ASSERT_EQ(got.shards.size(), 1U);
  EXPECT_EQ(got.shards[0].file, "master.safetensors");
  EXPECT_EQ(got.shards[0].role, "master");
  EXPECT_EQ(got.shards[0].part.index, 1);
  EXPECT_EQ(got.shards[0].part.count, 2);
  EXPECT_EQ(got.shards[0].num_bytes, 16500);
  EXPECT_EQ(got.shards[0].chunk_bytes, 16384);
  EXPECT_EQ(got.shards[0].checksums, expected.shards[0].checksums);
  EXPECT_EQ(to_json(parse_shards(to_json(expected.shards))), to_json(expected.shards));
}

// Of the first version of the format, before runs pinned anything.
TEST_F(ManifestTest, ReadsTheOldest) {
  const Manifest got = read(R"({
 "format": "kinora-checkpoint",
 "version": 1,
 "state": {
  "step": 10,
  "position": 80,
  "optimizer": {"applied_steps": 10, "skipped_steps": 0, "loss_scale": 1.0, "good_steps": 0},
  "timestep_history": [],
  "timestep_counts": [],
  "config": "run:\n  dir: a\n"
 },
 "buckets": [{"name": "head", "numel": 2, "tensors": [
   {"name": "head.bias", "shape": [2], "dtype": "F32", "offset": 0}]}],
 "shards": [{"file": "master.safetensors", "role": "master", "bytes": 72,
             "checksum": "0123456789abcdef"}]
})");
  EXPECT_EQ(got.state.step, 10);
  EXPECT_EQ(got.state.image_position, 0);
  EXPECT_EQ(got.state.config, "run:\n  dir: a\n");
  EXPECT_FALSE(got.state.pinned.has_value());
  EXPECT_FALSE(got.state.fp8.has_value());
  ASSERT_EQ(got.shards.size(), 1U);
  EXPECT_EQ(got.shards[0].part.index, 0);
  EXPECT_EQ(got.shards[0].part.count, 1);
  EXPECT_EQ(got.shards[0].chunk_bytes, 72);
  EXPECT_EQ(got.shards[0].checksums, std::vector<std::string>{"0123456789abcdef"});
}

TEST_F(ManifestTest, SameContentSameBytes) {
  EXPECT_EQ(to_json(example()), to_json(example()));
}

TEST_F(ManifestTest, FolderWithoutOneIsNoCheckpoint) {
  EXPECT_THAT(refusal(ErrorKind::kDamaged, [&] { (void)read_manifest(folder_.path()); }),
              HasSubstr("is no checkpoint"));
}

TEST_F(ManifestTest, DamagedTextIsRefusedWithItsName) {
  const std::string whole = to_json(example());
  for (const std::string& text :
       {std::string(), std::string("{"), whole.substr(0, whole.size() / 2), "\xFF" + whole,
        whole + "}", std::string("[]"), std::string("null"), std::string("12"),
        std::string(100000, '[')}) {
    const std::string message = refusal(ErrorKind::kDamaged, [&] { (void)read(text); });
    EXPECT_THAT(message, HasSubstr(kManifestName)) << text.substr(0, 50);
  }
}

TEST_F(ManifestTest, OtherFormatsAndVersionsAreRefused) {
  EXPECT_THAT(refusal_of([](json& m) { m["format"] = "other"; }), HasSubstr("format must be"));
  EXPECT_THAT(refusal_of([](json& m) { m["version"] = 0; }), HasSubstr("version must be"));
  EXPECT_THAT(refusal_of([](json& m) { m["version"] = "1"; }), HasSubstr("version must be"));
}

// It is whole: what takes damaged ones out of the way must leave it alone.
TEST_F(ManifestTest, OfANewerVersionSaysWhoWroteIt) {
  json manifest = json::parse(to_json(example()));
  EXPECT_EQ(manifest["written_by"], build_info().version);
  manifest = {{"format", manifest["format"]}, {"version", 7}, {"written_by", "9.1.0"}};
  const std::string message = refusal(ErrorKind::kIo, [&] { (void)read(manifest.dump()); });
  EXPECT_THAT(message, HasSubstr("version 7 of the format was written by kinora 9.1.0; kinora " +
                                 std::string(build_info().version) + " reads versions up to 6"));
}

TEST_F(ManifestTest, MomentsOfAnUnknownRuleAreNamed) {
  json manifest = json::parse(to_json(example()));
  manifest["state"]["optimizer"]["rule"] = "shampoo";
  const std::string message = refusal(ErrorKind::kIo, [&] { (void)read(manifest.dump()); });
  EXPECT_THAT(message, HasSubstr("are of the optimizer shampoo, which this version does not have"));
}

TEST_F(ManifestTest, UnknownFormatsOfStateAreNamed) {
  json manifest = json::parse(to_json(example()));
  manifest["state"]["optimizer"]["moments"] = "4bit";
  const std::string message = refusal(ErrorKind::kIo, [&] { (void)read(manifest.dump()); });
  EXPECT_THAT(message,
              HasSubstr("its optimizer has moments = 4bit, which this version does not have"));
}

TEST_F(ManifestTest, EveryMissingFieldIsRefused) {
  const json whole = json::parse(to_json(example()));
  int num_removed = 0;
  // Removes the member that each JSON pointer of the flattened manifest and its parents name.
  const json places = whole.flatten();
  for (const auto& [pointer, value] : places.items()) {
    for (json::json_pointer place(pointer); !place.empty(); place.pop_back()) {
      if (whole.at(place.parent_pointer()).is_array()) {
        continue;
      }
      if (place.back() == "dtype" || place.back() == "pinned" || place.back() == "cuDNN" ||
          place.back() == "image_position" || place.back() == "written_by" ||
          place.back() == "rule") {
        continue;  // for readers: all is F32; what only some runs have, or newer ones
      }
      json less = whole;
      less.at(place.parent_pointer()).erase(place.back());
      const std::string message = refusal(ErrorKind::kDamaged, [&] { (void)read(less.dump()); });
      EXPECT_THAT(message, HasSubstr(kManifestName)) << place.to_string();
      ++num_removed;
    }
  }
  EXPECT_GT(num_removed, 20);
}

TEST_F(ManifestTest, BoxesComeBackAndMustFit) {
  Manifest divided = example();
  divided.num_boxes = 2;
  optim::Slot& slot = divided.buckets[0].slots[0];
  slot.box = nn::Box{.whole = {4, 5}, .dim = 0, .stretches = {4}, .count = 2};
  slot.shape = slot.box->shape();
  for (Shard& shard : divided.shards) {
    shard.box = {1, 2};
  }
  const std::string text = to_json(divided);
  const Manifest got = read(text);
  EXPECT_EQ(got.num_boxes, 2);
  EXPECT_EQ(got.buckets[0].slots[0].box, slot.box);
  EXPECT_EQ(got.shards[0].box.index, 1);
  const auto refusal_with = [&](const char* place, const json& value) {
    json wrong = json::parse(text);
    wrong.at(json::json_pointer(place)) = value;
    return refusal(ErrorKind::kDamaged, [&] { (void)read(wrong.dump()); });
  };
  const std::string box = "/buckets/0/tensors/0/box";
  for (const json& count : {json(0), json(-2), json(3), json(1 << 30)}) {
    EXPECT_THAT(refusal_with("/boxes", count), HasSubstr("manifest.json")) << count;
  }
  EXPECT_THAT(refusal_with((box + "/dim").c_str(), 7), HasSubstr("is not what its box has"));
  EXPECT_THAT(refusal_with((box + "/dim").c_str(), -1), HasSubstr("is not what its box has"));
  EXPECT_THAT(refusal_with((box + "/stretches").c_str(), json::array({3})),
              HasSubstr("stretches that 2 boxes divide"));
  EXPECT_THAT(refusal_with((box + "/stretches").c_str(), json::array({int64_t{1} << 62})),
              HasSubstr("stretches that 2 boxes divide"));
  EXPECT_THAT(refusal_with((box + "/whole").c_str(), json::array()),
              HasSubstr("is not what its box has"));
  EXPECT_THAT(refusal_with("/shards/0/box", 2), HasSubstr("must be one of 2"));
}

TEST_F(ManifestTest, WrongTypesAreRefused) {
  for (const char* place : {"/state/step", "/state/optimizer/loss_scale", "/buckets/0/numel",
                            "/buckets/0/tensors/0/offset", "/shards/0/bytes"}) {
    const std::string message =
        refusal_of([place](json& m) { m.at(json::json_pointer(place)) = "many"; });
    EXPECT_THAT(message, HasSubstr("damaged")) << place;
  }
  EXPECT_THAT(refusal_of([](json& m) { m["buckets"][0]["tensors"][0]["shape"] = 3; }),
              HasSubstr("damaged"));
  EXPECT_THAT(refusal_of([](json& m) { m["shards"][0]["file"] = 3; }), HasSubstr("damaged"));
  EXPECT_THAT(refusal_of([](json& m) { m["buckets"][0]["tensors"][0]["channels_last"] = true; }),
              HasSubstr("blocks.0.weight must have 3 dims or more to lie in channels_last order"));
  for (const json& wrong : {json("x"), json(3), json::array({1, 2}), json(nullptr)}) {
    EXPECT_THAT(refusal_of([&](json& m) { m["state"]["pinned"]["products"] = wrong; }),
                HasSubstr("damaged"))
        << wrong;
    EXPECT_THAT(refusal_of([&](json& m) { m["state"]["pinned"]["versions"] = wrong; }),
                HasSubstr("damaged"))
        << wrong;
    EXPECT_THAT(refusal_of([&](json& m) { m["state"]["pinned"] = wrong; }), HasSubstr("damaged"))
        << wrong;
  }
}

TEST_F(ManifestTest, ShardsThatDoNotAddUpAreRefused) {
  const auto expect_refused = [this](const char* change, const char* message) {
    EXPECT_THAT(refusal_of([change](json& m) { m["shards"][0].update(json::parse(change)); }),
                HasSubstr(message))
        << change;
  };
  for (const char* change :
       {R"({"bytes": 40000})", R"({"bytes": 16384})", R"({"bytes": 0})", R"({"bytes": -1})",
        R"({"chunk_bytes": 0})", R"({"chunk_bytes": -16384})", R"({"chunk_bytes": 16500})",
        R"({"checksums": []})"}) {
    expect_refused(change, "must have a checksum every");
  }
  for (const char* change : {R"({"part": 2, "parts": 2})", R"({"part": -1, "parts": 2})",
                             R"({"part": 0, "parts": 0})", R"({"part": 0, "parts": -1})"}) {
    expect_refused(change, "must be one of");
  }
}

TEST_F(ManifestTest, FilesOutsideOfTheFolderAreRefused) {
  for (const char* name : {"../master.safetensors", "/etc/passwd", "a/b", "", "..", "."}) {
    EXPECT_THAT(refusal_of([name](json& m) { m["shards"][0]["file"] = name; }),
                HasSubstr("must lie in the checkpoint's folder"))
        << name;
  }
}

}  // namespace manifest_test
}  // namespace kinora::checkpoint
