#include "kinora/models/families.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/core/regex.h"
#include "kinora/models/model.h"
#include "kinora/models/transformers/diffusers_names.h"
#include "tests/error_of.h"
#include "tests/places.h"

namespace kinora::models {
namespace families_test {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::StartsWith;

/// A published size, for latents of Stable Diffusion.
ModelConfig published(const std::string& name, int64_t frames = 0) {
  ModelConfig config;
  config.name = name;
  config.in_channels = 4;
  config.frames = frames;
  config.height = 32;
  config.width = 32;
  config.num_classes = 1000;
  return config;
}

bool is_transformer(const Family& family) {
  return family.shape == transformer_shape;
}

TEST(FamiliesTest, EveryRowIsFull) {
  std::set<std::string> names;
  for (const Family& family : families()) {
    SCOPED_TRACE(family.key);
    EXPECT_TRUE(names.insert(family.key).second);
    EXPECT_TRUE(names.insert(family.name).second);
    const FamilyConditions& conditions = family.conditions;
    EXPECT_EQ(conditions.labels + conditions.text + conditions.pooled, 1);
    EXPECT_NE(family.resolve, nullptr);
    EXPECT_NE(family.shape, nullptr);
    EXPECT_NE(family.macs, nullptr);
    EXPECT_NE(family.make, nullptr);
    EXPECT_FALSE(family.published().empty());
    if (family.diffusers) {
      EXPECT_NE(family.diffusers->naming, nullptr);
      EXPECT_NE(family.diffusers->find_naming, nullptr);
    }
  }
}

TEST(FamiliesTest, EveryNameGivesItsModel) {
  for (const Family& family : families()) {
    for (const PublishedSize& size : family.published()) {
      SCOPED_TRACE(size.name);
      const ModelConfig recipe = published(size.name, family.is_video ? 16 : 0);
      EXPECT_EQ(&family_of(recipe), &family);
      EXPECT_EQ(recipe.is_video(), family.is_video);
      ModelConfig config = resolved(recipe);
      EXPECT_EQ(config.architecture, family.key);
      EXPECT_EQ(&family_of(config), &family);
      EXPECT_GT(forward_macs(config), 0.0);
      if (is_transformer(family)) {
        EXPECT_EQ(config.transformer.depth, size.values.transformer.depth);
        const ops::Switch of_size = size.values.transformer.qk_norm;
        EXPECT_EQ(config.transformer.qk_norm,
                  of_size != ops::Switch::kAuto
                      ? of_size
                      : (family.qk_norm ? ops::Switch::kOn : ops::Switch::kOff));
        config.transformer.depth = 1;
      } else {
        EXPECT_EQ(config.unet, size.values.unet);
      }
      const std::unique_ptr<Model> model = make_model(config);
      EXPECT_EQ(&family_of(model->config()), &family);
      std::set<int64_t> layers;
      for (const auto& [path, parameter] : model->named_parameters()) {
        layers.insert(parameter->layer);
      }
      const int64_t blocks = shape_of(config).blocks;
      EXPECT_EQ(std::ssize(layers), blocks + 2) << "embedders, the blocks, what follows them";
      EXPECT_EQ(*layers.rbegin(), blocks + 1);
      EXPECT_TRUE(std::ranges::any_of(model->buckets(), &nn::BucketSpec::is_block));
    }
  }
}

TEST(FamiliesTest, ARecipeMayAlsoNameTheFamily) {
  ModelConfig config = published("STDiT2-XL/2", 16);
  config.architecture = "stdit2";
  EXPECT_EQ(resolved(config).transformer.hidden, 1152);
  config.architecture = "stdit3";
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return resolved(config).name; }),
              HasSubstr("model.architecture contradicts model.name STDiT2-XL/2"));
  config.architecture = "stdit9";
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return family_of(config).key; }),
              HasSubstr("\"stdit9\""));
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return resolved(published("DiT-M/2")).name; }),
              HasSubstr("must be custom, DiT-S/2, DiT-S/4"));
  EXPECT_EQ(family_of(ModelConfig{}).key, "dit");
}

// tests/api/two_streams_test.cc adds one.
TEST(FamiliesTest, RowsThatAreNotWholeAreRefused) {
  const Family whole = families().front();
  const auto refusal = [&](const std::function<void(Family&)>& change) {
    Family row = whole;
    row.key = "own";
    row.name = "Own";
    row.diffusers.reset();
    change(row);
    const size_t before = families().size();
    std::string message = error_of(ErrorKind::kConfig, [&] { add_family(row); });
    EXPECT_EQ(families().size(), before);
    return message;
  };
  EXPECT_THAT(refusal([](Family& row) { row.key = "auto"; }), HasSubstr("a key other than auto"));
  EXPECT_THAT(refusal([](Family& row) { row.name = ""; }), HasSubstr("got \"own\" and \"\""));
  EXPECT_THAT(refusal([](Family& row) { row.key = "pixart"; }),
              HasSubstr("there is a family pixart already, named PixArt; got pixart, named Own"));
  EXPECT_THAT(refusal([](Family& row) { row.name = "DiT"; }), HasSubstr("got own, named DiT"));
  EXPECT_THAT(refusal([](Family& row) { row.conditions.text = true; }),
              HasSubstr("one of labels, text and pooled, got 2 of them"));
  EXPECT_THAT(refusal([](Family& row) { row.make = nullptr; }),
              HasSubstr("own must have resolve, shape, macs and make"));
  EXPECT_THAT(refusal([](Family& row) { row.sizes.clear(); }),
              HasSubstr("sizes where it has patches, got 3 patches"));
  EXPECT_THAT(refusal([&](Family& row) { row.diffusers = whole.diffusers; }),
              HasSubstr("own must leave diffusers out"));
}

TEST(FamiliesTest, HelpAndHintsNameThem) {
  Fields fields;
  ModelConfig config;
  describe(fields, config);
  EXPECT_EQ(fields.all().front().doc,
            "A published size: DiT-{S,B,L,XL}/{2,4,8}, VDiT-XL/{1x2x2,2x2x2}, "
            "Latte-XL/{1x2x2,2x2x2}, STDiT-XL/2, STDiT2-XL/2, STDiT3-{XL,3B}/2, "
            "PixArt-{XL,1B,MS-XL,Sigma-XL}/2, LatteT2V-XL/2, SD3-{Medium,3.5-Medium,3.5-Large}, "
            "Flux-{Dev,Schnell,Fill-Dev,Kontext-Dev}, OpenSora2-11B, "
            "HunyuanVideo-{13B,I2V-13B,I2V-33ch-13B}, "
            "CogVideoX-{2B,5B,5B-I2V,1.5-5B,1.5-5B-I2V}, "
            "Wan{2.1-T2V-1.3B,2.1-T2V-14B,2.1-I2V-14B,2.1-FLF2V-14B,2.2-T2V-A14B,2.2-I2V-A14B,"
            "2.2-TI2V-5B}, LTXVideo-{2B,13B}, "
            "UNet-{SD1,SD2,SDXL,SDXL-Refiner}, "
            "ClassUNet-{ImageNet,CelebAHQ}. It "
            "gives what is 0 or "
            "auto below; "
            "custom gives "
            "nothing.");
  EXPECT_THAT(dump(fields), HasSubstr("name: custom\n  architecture: auto\n"));
  EXPECT_EQ(families_that(&Family::takes_any_size),
            "STDiT2, STDiT3, SD3, Flux, OpenSora2, HunyuanVideo, CogVideoX, Wan, LTXVideo, UNet "
            "and ClassUNet");
  EXPECT_EQ(families_that([](const Family& family) { return family.conditions.frame_mask; }),
            "STDiT, STDiT2, STDiT3, LatteT2V, OpenSora2, HunyuanVideo, Wan and LTXVideo");
  EXPECT_EQ(families_that([](const Family& family) { return family.key == "dit"; }), "DiT");
}

// In 10^9, at 32 x 32 latents and, of clips, 16 frames of them. DiT's are those of the paper, the
// U-Nets', Stable Diffusion 3's, Flux', Wan's and LTX-Video's what PyTorch's counter of operations
// counts of diffusers'; the others pin what is counted.
TEST(FamiliesTest, MultiplyAccumulatesAreCounted) {
  struct Row {
    const char* name;
    double gmacs;
  };
  for (const Row& row : {Row{"DiT-S/2", 6.06},
                         Row{"DiT-B/2", 23.01},
                         Row{"DiT-L/2", 80.71},
                         Row{"DiT-XL/2", 118.64},
                         Row{"DiT-XL/4", 29.05},
                         Row{"DiT-XL/8", 7.39},
                         Row{"VDiT-XL/1x2x2", 2909.22},
                         Row{"Latte-XL/2x2x2", 931.11},
                         Row{"STDiT-XL/2", 2853.12},
                         Row{"STDiT2-XL/2", 2853.12},
                         Row{"STDiT3-XL/2", 4538.74},
                         Row{"STDiT3-3B/2", 11749.43},
                         Row{"PixArt-XL/2", 149.06},
                         Row{"PixArt-Sigma-XL/2", 166.5},
                         Row{"SD3-Medium", 421.51},
                         Row{"SD3-3.5-Medium", 455.63},
                         Row{"Flux-Dev", 5173.77},
                         Row{"Wan2.1-T2V-1.3B", 6938.44},
                         Row{"LTXVideo-2B", 57996.85},
                         Row{"UNet-SD1", 90.05},
                         Row{"UNet-SD2", 90.55},
                         Row{"UNet-SDXL", 213.89},
                         Row{"ClassUNet-ImageNet", 25.24}}) {
    const ModelConfig recipe = published(row.name);
    const ModelConfig config = published(row.name, recipe.is_video() ? 16 : 0);
    EXPECT_NEAR(forward_macs(resolved(config)) / 1e9, row.gmacs, 0.005 * row.gmacs) << row.name;
  }
}

TEST(FamiliesTest, DiffusersNamesAreFoundAgain) {
  for (const Family& family : families()) {
    if (!family.diffusers) {
      continue;
    }
    ModelConfig config = published(family.published().front().name, family.is_video ? 16 : 0);
    config.transformer.depth = is_transformer(family) ? 2 : 0;
    config = resolved(config);
    std::vector<std::string> keys;
    for (const nn::OtherName& name : diffusers_naming(config)) {
      keys.insert(keys.end(), name.keys.begin(), name.keys.end());
      keys.insert(keys.end(), name.copies.begin(), name.copies.end());
    }
    const auto found = find_diffusers_naming(keys);
    ASSERT_TRUE(found.has_value()) << family.key;
    EXPECT_EQ(found->size(), diffusers_naming(config).size());
    EXPECT_EQ(found->back().path, diffusers_naming(config).back().path);
  }
  EXPECT_FALSE(find_diffusers_naming({"blocks.0.attn.qkv.weight"}).has_value());
  EXPECT_THAT(
      error_of(ErrorKind::kConfig,
               [] { return diffusers_naming(resolved(published("STDiT-XL/2", 16))); }),
      HasSubstr("diffusers has DiT, PixArt, LatteT2V, SD3, Flux, HunyuanVideo, CogVideoX, Wan, "
                "LTXVideo, UNet and ClassUNet, but not STDiT-XL/2"));
}

/// Whether a source compares something called `word`, or names an enumerator of it.
bool compares(const std::string& text, const std::string& word) {
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const size_t next = text.find_first_not_of(" \n", at + word.size());
    const std::string operation = next == std::string::npos ? "" : text.substr(next, 2);
    if (operation == "==" || operation == "!=" || operation == "::") {
      return true;
    }
  }
  return false;
}

struct SourceFile {
  fs::path path;
  std::string text;
};

/// All sources of the library and the program.
std::vector<SourceFile> sources() {
  std::vector<SourceFile> all;
  for (const char* top : {"kinora", "apps"}) {
    for (const auto& entry : fs::recursive_directory_iterator(source_path(top))) {
      const std::string extension = entry.path().extension().string();
      if (entry.is_regular_file() &&
          std::set<std::string>{".h", ".cc", ".cu", ".cuh"}.contains(extension)) {
        std::ifstream file(entry.path());
        all.push_back({entry.path(), std::string{std::istreambuf_iterator<char>(file), {}}});
      }
    }
  }
  return all;
}

// What differs from family to family is asked of its row.
TEST(FamiliesTest, NobodyElseAsksWhichFamilyAModelIsOf) {
  // These: the table, and a network of features, which has an architecture too.
  const std::set<std::string> exempt = {"families", "feature_network"};
  int64_t num_files = 0;
  for (const SourceFile& source : sources()) {
    if (exempt.contains(source.path.stem().string())) {
      continue;
    }
    ++num_files;
    for (const char* word : {".architecture", "Architecture", "family.key", ").key"}) {
      EXPECT_FALSE(compares(source.text, word)) << source.path << " compares " << word;
    }
  }
  EXPECT_GT(num_files, 500);
}

// Depth, width and patches are ModelConfig::transformer's: others ask shape_of(). The
// same of ModelConfig::unet.
TEST(FamiliesTest, KeysOfAKindOfNetworkStayInTheirRoom) {
  TransformerConfig config;
  Fields fields;
  describe(fields, config);
  std::string names = "mlp_hidden|patch_volume";
  for (const Field& field : fields.all()) {
    names += "|" + field.key;
  }
  const Regex part(
      "\\btransformer\\.(" + names + ")\\b|\\bTransformerConfig\\b|\\bUnetConfig\\b|\\.unet\\b",
      Regex::Dialect::kPython, "[test]");
  std::set<std::string> readers;
  for (const SourceFile& source : sources()) {
    if (source.path.string().find("/kinora/models/") != std::string::npos) {
      continue;
    }
    std::vector<TextRange> matches;
    part.find(source.text, matches);
    if (!matches.empty()) {
      readers.insert(source.path.stem().string());
    }
  }
  EXPECT_EQ(readers,
            (std::set<std::string>{"compvis_pipeline", "diffusers_plain_unet",
                                   "diffusers_transformer", "diffusers_unet", "ip_adapter_file"}))
      << "what files of others say of their models. Hint: others ask models::shape_of()";
}

/// The keys model.* and what the help says of each.
std::map<std::string, std::string> help_by_key() {
  ModelConfig config;
  Fields fields;
  describe(fields, config);
  std::map<std::string, std::string> all;
  for (const Field& field : fields.all()) {
    all[field.key] = field.doc;
  }
  return all;
}

TEST(FamiliesTest, HelpSaysWhichFamiliesReadAKey) {
  const std::map<std::string, std::string> help = help_by_key();
  std::map<std::string, std::string> readers;
  for (const Family& family : families()) {
    for (const std::string& key : family.own_keys) {
      readers[key] += (readers[key].empty() ? "" : ", ") + family.key;
    }
  }
  EXPECT_EQ(readers.size(), 29U);
  for (const auto& [key, names] : readers) {
    ASSERT_TRUE(help.contains("model." + key)) << key;
    EXPECT_THAT(help.at("model." + key), StartsWith(names + ": "));
  }
}

// A family refuses what it would not read, and names those that do.
TEST(FamiliesTest, KeysWithoutAUseAreRefused) {
  const std::map<std::string, std::string> set = {
      {"qk_norm", "on"},
      {"size_conditions", "true"},
      {"base_pixels", "256"},
      {"position_scale", "2"},
      {"time_position_scale", "0.5"},
      {"rotary_3d", "true"},
      {"window", "[2, 4, 4]"},
      {"sliding_window", "[0, 9, 9]"},
      {"given_embedders", "true"},
      {"kv_compress", "conv"},
      {"kv_compress_factor", "4"},
      {"kv_compress_layers", "[1]"},
      {"parallel_depth", "3"},
      {"guidance", "4"},
      {"second_attention", "[2]"},
      {"rotary_axes", "[32, 48, 48]"},
      {"position_grid", "64"},
      {"base_grid", "[16, 16, 16]"},
      {"time_channels", "64"},
      {"ofs", "2"},
  };
  for (const Family& family : families()) {
    const std::string name = family.published().front().name;
    for (const auto& [key, value] : set) {
      SCOPED_TRACE(name + " with " + key);
      std::vector<std::string> overrides = {"model.name=" + name, "model.in_channels=4",
                                            "model.height=32", "model.width=32",
                                            "model." + key + "=" + value};
      if (family.is_video) {
        overrides.emplace_back("model.frames=16");
      }
      const bool reads = std::ranges::count(family.own_keys, key) > 0;
      const bool has_windows = std::ranges::count(family.own_keys, "window") > 0;
      if (has_windows && (key == "rotary_3d" || key == "window")) {  // only together
        overrides.emplace_back("model.window=[2, 4, 4]");
        overrides.emplace_back("model.rotary_3d=true");
      }
      if (reads && key == "kv_compress_layers") {
        overrides.emplace_back("model.kv_compress=conv");
      }
      const auto config = parse_config<ModelConfig>({}, overrides);
      if (reads) {
        EXPECT_NO_THROW((void)resolved(config));
      } else {
        EXPECT_THAT(
            error_of(ErrorKind::kConfig, [&] { return resolved(config).name; }),
            HasSubstr(family.name + " has no use for model." + key + ". Hint: leave it out"));
      }
    }
  }
  const auto clips = parse_config<ModelConfig>({}, {"model.name=DiT-S/2", "model.base_pixels=256"});
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return resolved(clips).name; }),
              HasSubstr("it is for STDiT2 and STDiT3"));
}

TEST(FamiliesTest, ShapesSayWhatOthersAsk) {
  ModelConfig config = published("STDiT3-XL/2", 16);
  config.width = 48;
  const ModelShape shape = shape_of(resolved(config));
  EXPECT_EQ(shape.blocks, 28);
  EXPECT_EQ(shape.width, 1152);
  EXPECT_EQ(shape.heads, 16);
  EXPECT_EQ(shape.frames, 16);
  EXPECT_EQ(shape.rows, 16);
  EXPECT_EQ(shape.columns, 24);
  EXPECT_EQ(shape.tokens_a_frame(), 16 * 24);
  EXPECT_EQ(shape.patch_frames, 1);
  EXPECT_EQ(shape.patch, 2);
  EXPECT_FALSE(shape.has_windows);
  config.transformer.rotary_3d = true;
  config.transformer.window = {2, 4, 4};
  EXPECT_TRUE(shape_of(resolved(config)).has_windows);
}

}  // namespace families_test
}  // namespace kinora::models
