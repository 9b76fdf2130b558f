#include "kinora/data/moving_shapes.h"

#include <array>
#include <cstddef>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/philox.h"
#include "kinora/data/moving_captions.h"

namespace kinora::data {
namespace {

constexpr std::array<std::string_view, kNumMotions> kMotionNames = {
    "moving to the left", "moving to the right", "moving up", "moving down"};

// Of the random stream; still shapes draw from 0, scenes from 4 to 6.
enum ClipStep : uint32_t { kClipStep = 1, kClipCaptionStep = 7, kReferenceStep = 8 };
constexpr uint64_t kHeldOutClipSeed = 0x636c697073;  // "clips"

// What is random in a clip; the numbers are elements of its random stream. The last ones are of a
// picture, of which each clip has several.
enum ClipElement : uint64_t {
  kColour,
  kAlong,
  kAcross,
  kClipRadius,
  kClipBrightness,
  kClipGround,
  kTravel,
  kTint,
  kTintShare
};
enum ReferenceElement : uint64_t { kCount, kCentreX, kCentreY, kSize, kLight, kBehind, kElements };

// That colour, shape and motion are numbers which sum to a multiple of four.
Colour held_out_colour(Shape shape, Motion motion) {
  const int64_t others = static_cast<int64_t>(shape) + static_cast<int64_t>(motion);
  return static_cast<Colour>((2 * kNumColours - others) % kNumColours);
}

// The same of clips with references: that colour and shape sum to a multiple of four.
Colour held_out_colour(Shape shape) {
  return static_cast<Colour>((kNumColours - static_cast<int64_t>(shape)) % kNumColours);
}

// Of clip `index` of any stream: classes are balanced.
Shape shape_at(int64_t index) {
  return static_cast<Shape>(index % kNumMovingClasses / kNumMotions);
}
Motion motion_at(int64_t index) {
  return static_cast<Motion>(index % kNumMotions);
}

// Which colours a clip may have.
enum class Colours : uint8_t { kHeldOut, kOthers, kAll };

// spared: the colour that is held out.
MovingScene draw_clip(uint64_t seed, int64_t index, Colour spared, Colours colours) {
  const RandomStream stream{seed, static_cast<uint64_t>(index), kClipStep,
                            RandomPurpose::kGenerate};
  const auto uniform = [&stream](ClipElement element, float low, float high) {
    return low + (high - low) * random_uniform(stream, element);
  };
  MovingScene clip;
  clip.motion = motion_at(index);
  // The farthest shape reaches from 0.02 + 0.42 / 2 off the middle to 1.24 * 0.19 beyond, which
  // leaves 3 % of the side free: a pixel at 32 x 32.
  clip.travel = uniform(kTravel, 0.38F, 0.42F);
  const float along = 0.5F + uniform(kAlong, -0.02F, 0.02F);
  const float across = 0.5F + uniform(kAcross, -0.20F, 0.20F);
  const bool is_level = clip.motion == Motion::kLeft || clip.motion == Motion::kRight;
  ShapeScene& scene = clip.middle;
  scene.shape = shape_at(index);
  int64_t further = 0;
  if (colours == Colours::kOthers) {
    further = 1 + random_index(stream, kColour, static_cast<uint32_t>(kNumColours - 1));
  } else if (colours == Colours::kAll) {
    further = random_index(stream, kColour, static_cast<uint32_t>(kNumColours));
  }
  scene.colour = static_cast<Colour>((static_cast<int64_t>(spared) + further) % kNumColours);
  scene.centre_x = is_level ? along : across;
  scene.centre_y = is_level ? across : along;
  scene.radius = uniform(kClipRadius, 0.17F, 0.19F);
  scene.brightness = uniform(kClipBrightness, 0.90F, 1.0F);
  scene.ground = uniform(kClipGround, 0.09F, 0.15F);
  return clip;
}

MovingScene draw_clip(uint64_t seed, int64_t index, bool held_out) {
  return draw_clip(seed, index, held_out_colour(shape_at(index), motion_at(index)),
                   held_out ? Colours::kHeldOut : Colours::kOthers);
}

// Mixes another colour into that of what moves.
void add_tint(uint64_t seed, int64_t index, ShapeScene& scene) {
  const RandomStream stream{seed, static_cast<uint64_t>(index), kClipStep,
                            RandomPurpose::kGenerate};
  const int64_t further = 1 + random_index(stream, kTint, static_cast<uint32_t>(kNumColours - 1));
  scene.tint = static_cast<Colour>((static_cast<int64_t>(scene.colour) + further) % kNumColours);
  const float least = is_held_out_reference(scene.shape, scene.colour) ? 0.3F : 0.0F;
  scene.tint_share = least + (0.45F - least) * random_uniform(stream, kTintShare);
}

// Number `number` of the pictures of what moves in `clip`.
ShapeScene draw_reference(const MovingScene& clip, const RandomStream& stream, int64_t number) {
  const auto uniform = [&](ReferenceElement element, float low, float high) {
    const auto at = static_cast<uint64_t>(number) * kElements + element;
    return low + (high - low) * random_uniform(stream, at);
  };
  ShapeScene scene{.shape = clip.middle.shape, .colour = clip.middle.colour};
  scene.tint = clip.middle.tint;
  scene.tint_share = clip.middle.tint_share;
  scene.centre_x = uniform(kCentreX, 0.45F, 0.55F);
  scene.centre_y = uniform(kCentreY, 0.45F, 0.55F);
  scene.radius = uniform(kSize, 0.24F, 0.30F);
  scene.brightness = uniform(kLight, 0.90F, 1.0F);
  scene.ground = uniform(kBehind, 0.20F, 0.35F);
  return scene;
}

ReferencedClip draw_referenced(uint64_t seed, int64_t index, int64_t most, bool held_out) {
  ReferencedClip drawn{.scene = draw_clip(seed, index, held_out_colour(shape_at(index)),
                                          held_out ? Colours::kHeldOut : Colours::kAll),
                       .references = {},
                       .caption = {}};
  if (!held_out) {
    add_tint(seed, index, drawn.scene.middle);
  }
  const RandomStream stream{seed, static_cast<uint64_t>(index), kReferenceStep,
                            RandomPurpose::kGenerate};
  const int64_t count = 1 + random_index(stream, kCount, static_cast<uint32_t>(most));
  for (int64_t number = 0; number < count; ++number) {
    drawn.references.push_back(draw_reference(drawn.scene, stream, number));
  }
  drawn.caption = motion_caption(drawn.scene.motion, {seed, static_cast<uint64_t>(index),
                                                      kClipCaptionStep, RandomPurpose::kGenerate});
  return drawn;
}

std::string draw_caption(uint64_t seed, int64_t index, const MovingContent& content) {
  return caption(content,
                 {seed, static_cast<uint64_t>(index), kClipCaptionStep, RandomPurpose::kGenerate});
}

}  // namespace

std::string_view name_of(Motion motion) {
  return kMotionNames[static_cast<size_t>(motion)];
}

bool is_held_out(const MovingContent& content) {
  return content.colour == held_out_colour(content.shape, content.motion);
}

MovingScene moving_scene(uint64_t seed, int64_t index) {
  return draw_clip(seed, index, false);
}

MovingScene held_out_clip(int64_t number) {
  return draw_clip(kHeldOutClipSeed, number, true);
}

bool is_held_out_reference(Shape shape, Colour colour) {
  return colour == held_out_colour(shape);
}

ReferencedClip referenced_clip(uint64_t seed, int64_t index, int64_t most) {
  return draw_referenced(seed, index, most, false);
}

ReferencedClip held_out_referenced_clip(int64_t number, int64_t most) {
  return draw_referenced(kHeldOutClipSeed, number, most, true);
}

ShapeScene scene_at(const MovingScene& clip, float time) {
  ShapeScene scene = clip.middle;
  const float offset = clip.travel * (time - 0.5F);
  switch (clip.motion) {
    case Motion::kLeft:
      scene.centre_x -= offset;
      return scene;
    case Motion::kRight:
      scene.centre_x += offset;
      return scene;
    case Motion::kUp:
      scene.centre_y -= offset;
      return scene;
    case Motion::kDown:
      scene.centre_y += offset;
      return scene;
  }
  KINORA_UNREACHABLE("[shapes] unknown motion");
}

std::string moving_caption(uint64_t seed, int64_t index) {
  return draw_caption(seed, index, moving_scene(seed, index).content());
}

std::string held_out_clip_caption(int64_t number) {
  return draw_caption(kHeldOutClipSeed, number, held_out_clip(number).content());
}

MovingShapeSource::MovingShapeSource(uint64_t seed, int64_t count, int64_t num_frames, float fps,
                                     int64_t height, int64_t width, int64_t references)
    : seed_(seed),
      count_(count),
      num_frames_(num_frames),
      fps_(fps),
      height_(height),
      width_(width),
      references_(references) {
  check_generated_size(height, width);
  KINORA_CHECK(num_frames >= 2, kConfig, "[moving_shapes] a clip must have at least 2 frames, got ",
               num_frames, ". Hint: set data.frames.");
  for (int64_t label = 0; label < kNumMovingClasses; ++label) {
    std::string name(name_of(static_cast<Shape>(label / kNumMotions)));
    names_.push_back(name.append(" ").append(name_of(static_cast<Motion>(label % kNumMotions))));
  }
  check_size(count, "the generated clips (data.count)");
}

std::string MovingShapeSource::sample_name(int64_t index) const {
  return "generated clip " + std::to_string(index);
}

void MovingShapeSource::read(int64_t index, Sample& out) const {
  MovingScene clip;
  if (references_ > 0) {
    ReferencedClip with = referenced_clip(seed_, index, references_);
    clip = with.scene;
    out.caption = std::move(with.caption);
    out.references.resize(with.references.size());
    for (size_t i = 0; i < with.references.size(); ++i) {
      render(with.references[i], height_, width_, out.references[i]);
    }
  } else {
    clip = moving_scene(seed_, index);
    out.caption = draw_caption(seed_, index, clip.content());
  }
  io::set_size(out.image, height_, num_frames_ * width_);
  for (int64_t frame = 0; frame < num_frames_; ++frame) {
    const float time = static_cast<float>(frame) / static_cast<float>(num_frames_ - 1);
    draw(scene_at(clip, time), frame * width_, width_, out.image);
  }
  out.num_frames = num_frames_;
  out.fps = fps_;
  out.label = moving_label(clip.middle.shape, clip.motion);
}

}  // namespace kinora::data
