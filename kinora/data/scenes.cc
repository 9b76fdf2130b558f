#include "kinora/data/scenes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/philox.h"
#include "kinora/data/scene_captions.h"

namespace kinora::data {
namespace {

constexpr std::array<std::string_view, kNumSizes> kSizeNames = {"small", "large"};
constexpr std::array<std::string_view, kNumRelations> kRelationNames = {"left of", "right of",
                                                                        "above", "below"};
constexpr std::array<float, kNumSizes> kRadii = {0.100F, 0.158F};
constexpr float kRadiusSpread = 0.04F;  // of the radius
constexpr float kGap = 0.05F;           // between objects; a pixel and a half at 32 x 32
constexpr float kFarthest = 1.25F;      // that a shape of radius 1 reaches from its centroid
constexpr float kMargin = 0.03F;        // to the picture's border

// Of the random stream; still shapes draw from 0, moving ones from 1, words from 2 and 3.
enum Step : uint32_t { kSceneStep = 4, kCaptionStep = 5, kHashStep = 6 };
constexpr uint64_t kHeldOutSeed = 0x7363656e6573;  // "scenes"
constexpr uint64_t kKindSalt = 584;  // so that of each colour and shape one kind is held out
constexpr uint64_t kSceneSalt = 1;

// One random number after the other.
class Draws {
 public:
  Draws(uint64_t seed, int64_t index)
      : stream_{seed, static_cast<uint64_t>(index), kSceneStep, RandomPurpose::kGenerate} {}

  int64_t below(int64_t count) {  // as random_index
    return static_cast<int64_t>((word() * static_cast<uint64_t>(count)) >> 32);
  }
  float between(float low, float high) {
    return low + (high - low) * philox_uniform(static_cast<uint32_t>(word()));
  }

 private:
  uint64_t word() {
    if (next_ % 4 == 0) {
      block_ = philox(stream_, next_ / 4);
    }
    return block_.word[next_++ % 4];
  }

  RandomStream stream_;
  PhiloxBlock block_{};
  uint32_t next_ = 0;
};

uint64_t hash(uint64_t salt, uint64_t value) {
  return philox({salt, value, kHashStep, RandomPurpose::kGenerate}, 0).word[0];
}

bool is_held_out(const ObjectKind& kind) {
  return hash(kKindSalt, static_cast<uint64_t>(kind.number())) % 8 == 0;
}

// A number for each content that says something else. same_content() holds for equal ones.
uint64_t key_of(const SceneContent& content) {
  const auto number = [](const ObjectKind& kind) { return static_cast<uint64_t>(kind.number()); };
  const auto joined = [&](const ObjectKind& first, const ObjectKind& other, Relation relation) {
    return (number(first) * kNumKinds + number(other)) * kNumRelations +
           static_cast<uint64_t>(relation);
  };
  const std::vector<ObjectKind>& objects = content.objects;
  const std::vector<Relation>& relations = content.relations;
  if (objects.size() == 1) {
    return number(objects[0]);
  }
  constexpr uint64_t kPairs = static_cast<uint64_t>(kNumKinds) * kNumKinds * kNumRelations;
  if (objects.size() == 2) {
    return kNumKinds + std::min(joined(objects[0], objects[1], relations[0]),
                                joined(objects[1], objects[0], opposite(relations[0])));
  }
  uint64_t low = joined(objects[0], objects[1], relations[0]);
  uint64_t high = joined(objects[0], objects[2], relations[1]);
  if (high < low) {
    std::swap(low, high);
  }
  return kNumKinds + kPairs + low * kPairs + high;
}

SceneContent draw_content(Draws& draws, int64_t num_objects) {
  SceneContent content;
  while (std::ssize(content.objects) < num_objects) {
    const ObjectKind kind{static_cast<ObjectSize>(draws.below(kNumSizes)),
                          static_cast<Colour>(draws.below(kNumColours)),
                          static_cast<Shape>(draws.below(kNumShapes))};
    if (std::find(content.objects.begin(), content.objects.end(), kind) == content.objects.end()) {
      content.objects.push_back(kind);
    }
  }
  for (int64_t i = 1; i < num_objects; ++i) {
    content.relations.push_back(static_cast<Relation>(draws.below(kNumRelations)));
  }
  return content;
}

// At most kFarthest.
float reach(Shape shape) {
  return shape == Shape::kCircle ? 1.0F : shape == Shape::kCross ? 1.11F : kFarthest;
}

bool fits(const SceneContent& content, const std::vector<Placement>& places) {
  for (size_t i = 1; i < places.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const float apart = std::hypot(places[i].x - places[j].x, places[i].y - places[j].y);
      if (apart < reach(content.objects[i].shape) * places[i].radius +
                      reach(content.objects[j].shape) * places[j].radius + kGap) {
        return false;
      }
    }
    const float right = places[i].x - places[0].x;
    const float down = places[i].y - places[0].y;
    const Relation relation = content.relations[i - 1];
    const bool is_level = relation == Relation::kLeftOf || relation == Relation::kRightOf;
    const bool is_forward = relation == Relation::kRightOf || relation == Relation::kBelow;
    const float along = (is_level ? right : down) * (is_forward ? 1.0F : -1.0F);
    if (along < kMinSeparation) {
      return false;
    }
  }
  return true;
}

std::vector<Placement> draw_places(Draws& draws, const SceneContent& content) {
  constexpr int kMostTries = 1 << 20;
  std::vector<Placement> places(content.objects.size());
  for (size_t i = 0; i < places.size(); ++i) {
    const float radius = kRadii[static_cast<size_t>(content.objects[i].size)];
    places[i].radius = radius * draws.between(1.0F - kRadiusSpread, 1.0F + kRadiusSpread);
  }
  for (int i = 0; i < kMostTries; ++i) {
    for (size_t object = 0; object < places.size(); ++object) {
      Placement& place = places[object];
      const float edge = reach(content.objects[object].shape) * place.radius + kMargin;
      place.x = draws.between(edge, 1.0F - edge);
      place.y = draws.between(edge, 1.0F - edge);
    }
    if (fits(content, places)) {
      return places;
    }
  }
  KINORA_UNREACHABLE("[scenes] found no room for ", content.objects.size(), " objects");
}

Scene draw_scene(uint64_t seed, int64_t index, bool held_out) {
  Draws draws(seed, index);
  Scene scene;
  do {
    scene.content = draw_content(draws, 1 + index % kMostObjects);
  } while (is_held_out(scene.content) != held_out);
  scene.places = draw_places(draws, scene.content);
  scene.brightness = draws.between(0.90F, 1.0F);
  scene.ground = draws.between(0.09F, 0.15F);
  return scene;
}

std::string draw_caption(uint64_t seed, int64_t index, const SceneContent& content) {
  return caption(content,
                 {seed, static_cast<uint64_t>(index), kCaptionStep, RandomPurpose::kGenerate});
}

}  // namespace

Relation opposite(Relation relation) {
  switch (relation) {
    case Relation::kLeftOf:
      return Relation::kRightOf;
    case Relation::kRightOf:
      return Relation::kLeftOf;
    case Relation::kAbove:
      return Relation::kBelow;
    case Relation::kBelow:
      return Relation::kAbove;
  }
  KINORA_UNREACHABLE("[scenes] unknown relation");
}

std::string_view name_of(ObjectSize size) {
  return kSizeNames[static_cast<size_t>(size)];
}

std::string_view name_of(Relation relation) {
  return kRelationNames[static_cast<size_t>(relation)];
}

std::string name_of(const ObjectKind& kind) {
  return std::string(name_of(kind.size)) + " " + std::string(name_of(kind.colour)) + " " +
         std::string(name_of(kind.shape));
}

std::optional<ObjectKind> kind_of(std::string_view name) {
  for (int64_t size = 0; size < kNumSizes; ++size) {
    for (int64_t colour = 0; colour < kNumColours; ++colour) {
      for (int64_t shape = 0; shape < kNumShapes; ++shape) {
        const ObjectKind kind{static_cast<ObjectSize>(size), static_cast<Colour>(colour),
                              static_cast<Shape>(shape)};
        if (name == name_of(kind)) {
          return kind;
        }
      }
    }
  }
  return std::nullopt;
}

Box box_of(Shape shape, const Placement& place) {
  const Extents reach = extents_of(shape);
  return {.left = static_cast<double>(place.x - reach.side * place.radius),
          .top = static_cast<double>(place.y - reach.up * place.radius),
          .right = static_cast<double>(place.x + reach.side * place.radius),
          .bottom = static_cast<double>(place.y + reach.down * place.radius)};
}

Layout layout_of(const Scene& scene) {
  Layout layout;
  for (size_t i = 0; i < scene.places.size(); ++i) {
    const ObjectKind& kind = scene.content.objects[i];
    layout.push_back({.phrase = name_of(kind), .box = box_of(kind.shape, scene.places[i])});
  }
  return layout;
}

bool same_content(const SceneContent& a, const SceneContent& b) {
  return a.objects.size() == b.objects.size() && key_of(a) == key_of(b);
}

bool is_held_out(const SceneContent& content) {
  const bool has_held_out = std::any_of(content.objects.begin(), content.objects.end(),
                                        [](const ObjectKind& kind) { return is_held_out(kind); });
  return has_held_out ||
         (content.objects.size() > 1 && hash(kSceneSalt, key_of(content)) % 10 == 0);
}

Scene scene(uint64_t seed, int64_t index) {
  return draw_scene(seed, index, false);
}

Scene held_out_scene(int64_t number) {
  return draw_scene(kHeldOutSeed, number, true);
}

std::string scene_caption(uint64_t seed, int64_t index) {
  return draw_caption(seed, index, scene(seed, index).content);
}

std::string held_out_caption(int64_t number) {
  return draw_caption(kHeldOutSeed, number, held_out_scene(number).content);
}

void render(const Scene& scene, int64_t side, io::Image& out) {
  io::set_size(out, side, side);
  const auto pixels = static_cast<float>(side);
  const Rgb ground = ground_of(scene.ground);
  for (int64_t row = 0; row < side; ++row) {
    for (int64_t column = 0; column < side; ++column) {
      Rgb value = ground;
      for (size_t i = 0; i < scene.places.size(); ++i) {
        const Placement& place = scene.places[i];
        const float radius = place.radius * pixels;
        const float most = kFarthest * radius + 1.0F;
        if (std::abs(static_cast<float>(row) + 0.5F - place.y * pixels) > most ||
            std::abs(static_cast<float>(column) + 0.5F - place.x * pixels) > most) {
          continue;
        }
        const float x = (static_cast<float>(column) + 0.5F - place.x * pixels) / radius;
        const float y = (static_cast<float>(row) + 0.5F - place.y * pixels) / radius;
        const ObjectKind& kind = scene.content.objects[i];
        const float cover =
            std::clamp(0.5F - shape_distance(kind.shape, x, y) * radius, 0.0F, 1.0F);
        const Rgb colour = rgb_of(kind.colour);
        for (size_t channel = 0; channel < 3; ++channel) {
          value[channel] += cover * (scene.brightness * colour[channel] - value[channel]);
        }
      }
      for (size_t channel = 0; channel < 3; ++channel) {
        const float level = value[channel] * 255.0F + 0.5F;  // not negative, so cutting off rounds
        out.pixels[static_cast<size_t>((row * side + column) * 3) + channel] =
            static_cast<uint8_t>(level);
      }
    }
  }
}

SceneSource::SceneSource(uint64_t seed, int64_t count, int64_t height, int64_t width,
                         bool has_layouts)
    : seed_(seed),
      count_(count),
      side_(height),
      has_layouts_(has_layouts),
      names_({"one object", "two objects", "three objects"}) {
  check_generated_size(height, width);
  KINORA_CHECK(height == width && height >= kMinSceneSide, kConfig,
               "[scenes] generated scenes must be square, from ", kMinSceneSide,
               " pixels a side on, got ", height, " x ", width,
               ". Hint: set data.height and data.width.");
  check_size(count, "the generated scenes (data.count)");
}

std::string SceneSource::sample_name(int64_t index) const {
  return "generated scene " + std::to_string(index);
}

void SceneSource::read(int64_t index, Sample& out) const {
  const Scene shown = scene(seed_, index);
  render(shown, side_, out.image);
  out.caption =
      has_layouts_ ? to_text(layout_of(shown)) : draw_caption(seed_, index, shown.content);
  out.label = std::ssize(shown.content.objects) - 1;
}

}  // namespace kinora::data
