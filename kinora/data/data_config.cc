#include "kinora/data/data_config.h"

#include <filesystem>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/data/class_folder.h"
#include "kinora/data/class_tar.h"
#include "kinora/data/latent_files.h"
#include "kinora/data/moving_shapes.h"
#include "kinora/data/shapes.h"
#include "kinora/data/strips.h"
#include "kinora/data/text_file.h"
#include "kinora/data/word_vectors.h"

namespace kinora::data {
namespace {

// Of latents their files say it.
bool may_be_video(const DataConfig& c) {
  return c.source == SourceKind::kMovingShapes || c.source == SourceKind::kLatents ||
         c.frame_layout == FrameLayout::kStrip;
}

void describe_clips(Fields& fields, DataConfig& c) {
  fields
      .add("frame_layout", c.frame_layout,
           {{"image", FrameLayout::kImage}, {"strip", FrameLayout::kStrip}},
           "What an image of a folder or archive holds: image, or strip (a clip: square frames "
           "side by side, the first at the left).")
      .check("be image unless data.source is folder or tar", [&c] {
        return c.frame_layout == FrameLayout::kImage || c.source == SourceKind::kFolder ||
               c.source == SourceKind::kTar;
      });
  fields
      .add("frames", c.frames,
           "Frames of a clip (of latents: as they are stored) that the model sees, drawn at a "
           "random place of the clip; 1 makes images, also of clips.",
           between(1, 4096))
      .check("be 1 unless data.source is moving_shapes or latents or data.frame_layout is strip",
             [&c] { return c.frames == 1 || may_be_video(c); })
      .check("be at least 2 for data.source moving_shapes",
             [&c] { return c.frames >= 2 || c.source != SourceKind::kMovingShapes; });
  fields
      .add("frame_stride", c.frame_stride, "Takes every so many frames of a clip.",
           between(1, 4096))
      .check("be 1 for data.source moving_shapes, whose clips have just data.frames frames",
             [&c] { return c.frame_stride == 1 || c.source != SourceKind::kMovingShapes; });
  fields.add("fps", c.fps,
             "Frames a second of the clips as they are stored (of latents: before they were "
             "encoded, in files that do not say it); with data.frame_stride the model is told "
             "that many times fewer.",
             {.min = 0.0, .max = 1000.0, .min_open = true});
}

void describe_texts(Fields& fields, DataConfig& c) {
  fields.add(
      "text", c.text,
      {{"none", TextKind::kNone}, {"builtin", TextKind::kBuiltin}, {"file", TextKind::kFile}},
      "Texts of the samples: none, builtin (the words of the caption of generated samples, "
      "else of the class name, each as a fixed random vector; no language model), file (from "
      "data.text_embeddings).");
  fields
      .add(
          "text_embeddings", c.text_embeddings,
          "A safetensors file with embeddings [K, L, D], lengths [K] and perhaps pooled [K, D2]: a "
          "text for each class (K classes), each sample (K samples), or as its sample_to_text "
          "says.")
      .check("name a file for data.text file, and be left out otherwise",
             [&c] { return c.text_embeddings.empty() == (c.text != TextKind::kFile); });
  fields.add("text_length", c.text_length,
             "Words that a text has room for, for data.text builtin; further ones are cut off.",
             between(1, 4096));
  fields.add("text_channels", c.text_channels, "Channels of a word, for data.text builtin.",
             between(1, 65536));
}

// Makes the fields from `first` on, described as those of "data", speak of `section`.
void rename(Fields& fields, size_t first, std::string_view section) {
  constexpr std::string_view kData = "data.";
  const std::string prefix = std::string(section) + ".";
  for (size_t i = first; i < fields.all().size(); ++i) {
    Field& field = fields.all()[i];
    field.doc = "As data." + field.key.substr(prefix.size()) + ".";
    for (Field::Check& check : field.checks) {
      std::string& must = check.must;
      for (size_t at = must.find(kData); at != std::string::npos;
           at = must.find(kData, at + prefix.size())) {
        must.replace(at, kData.size(), prefix);
      }
    }
  }
}

std::vector<std::filesystem::path> paths_of(const DataConfig& config) {
  return {config.path.begin(), config.path.end()};
}

// Images, clips or latents without texts.
std::unique_ptr<Source> open_pictures(const DataConfig& config) {
  switch (config.source) {
    case SourceKind::kShapes:
      return std::make_unique<ShapeSource>(static_cast<uint64_t>(config.seed), config.count,
                                           config.height, config.width);
    case SourceKind::kMovingShapes:
      return std::make_unique<MovingShapeSource>(static_cast<uint64_t>(config.seed), config.count,
                                                 config.frames, static_cast<float>(config.fps),
                                                 config.height, config.width);
    case SourceKind::kFolder:
      KINORA_CHECK(config.path.size() == 1, kConfig, "[data] data.path must name one folder, got ",
                   config.path.size());
      return std::make_unique<ClassFolder>(config.path.front());
    case SourceKind::kTar:
      return std::make_unique<ClassTar>(paths_of(config));
    case SourceKind::kLatents:
      return std::make_unique<LatentFiles>(
          paths_of(config), LatentFilesOptions{.min_frames = sample_size(config).span(),
                                               .fps = static_cast<float>(config.fps),
                                               .needs_labels = config.text != TextKind::kFile});
  }
  KINORA_UNREACHABLE("[data] unknown source kind");
}

}  // namespace

void describe(Fields& fields, DataConfig& c, std::string_view section) {
  const size_t first = fields.all().size();
  const auto scope = fields.scope(section);
  fields.add("source", c.source,
             {{"shapes", SourceKind::kShapes},
              {"moving_shapes", SourceKind::kMovingShapes},
              {"folder", SourceKind::kFolder},
              {"tar", SourceKind::kTar},
              {"latents", SourceKind::kLatents}},
             "Where samples come from: shapes (generated images, need no files), "
             "moving_shapes (generated clips of 4 shapes that move in 4 directions), folder "
             "(PATH/CLASS/IMAGE), tar (the same inside archives, which are not unpacked), latents "
             "(safetensors files with latents [n, C, h, w], of clips [n, C, T, h, w], already "
             "scaled, and labels [n]).");
  fields
      .add("path", c.path,
           "The folder of class folders, or one or several .tar archives or .safetensors files of "
           "latents; relative to the working folder.")
      .check(
          "name one folder for data.source folder, at least one file for tar and latents, and be "
          "left out for generated sets",
          [&c] {
            switch (c.source) {
              case SourceKind::kShapes:
              case SourceKind::kMovingShapes:
                return c.path.empty();
              case SourceKind::kFolder:
                return c.path.size() == 1;
              case SourceKind::kTar:
              case SourceKind::kLatents:
                return !c.path.empty();
            }
            return false;
          });
  constexpr double kMaxSide = 16384;
  fields.add("height", c.height,
             "Height of the images in pixels; others are cropped from the centre as ADM does. "
             "Latents have the size that their files say.",
             between(1, kMaxSide));
  fields.add("width", c.width, "Width of the images in pixels.", between(1, kMaxSide));
  describe_clips(fields, c);
  describe_texts(fields, c);
  fields.add("count", c.count,
             "Number of generated images or clips, for data.source shapes and moving_shapes.",
             between(2, 4294967295.0));
  fields.add("seed", c.seed,
             "Seed of the generated images and of the choice of what is held out; apart from "
             "train.seed, so that another run holds out the same images.",
             at_least(0));
  fields.add("validation", c.validation,
             "Number of samples held out of training for validation, drawn at random.",
             at_least(0));
  fields.add("flip", c.flip, "Mirror every image or clip with probability 1/2.")
      .check(
          "be false for data.source latents (a mirrored latent is not the latent of the mirrored "
          "image; compute latents of mirrored images instead)",
          [&c] { return !c.flip || c.source != SourceKind::kLatents; })
      .check(
          "be false for data.source moving_shapes and for shapes with data.text (their classes or "
          "captions tell left from right)",
          [&c] {
            return !c.flip || (c.source != SourceKind::kMovingShapes &&
                               (c.source != SourceKind::kShapes || c.text == TextKind::kNone));
          });
  fields.add("threads", c.threads,
             "Threads that read and decode; 0 takes half the cores, from 1 to 16.",
             between(0, 1024));
  fields.add("queue", c.queue, "Batches decoded ahead.", between(1, 1024));
  fields.add(
      "max_bad", c.max_bad,
      "Unreadable samples that are named and replaced before the run stops; -1 allows 1 % of "
      "the set, but at least 10.",
      at_least(-1));
  if (section != "data") {
    rename(fields, first, section);
  }
}

std::unique_ptr<Source> open_source(const DataConfig& config) {
  std::unique_ptr<Source> source = open_pictures(config);
  if (config.frame_layout == FrameLayout::kStrip) {
    source = std::make_unique<StripSource>(std::move(source), static_cast<float>(config.fps));
  }
  switch (config.text) {
    case TextKind::kNone:
      return source;
    case TextKind::kBuiltin:
      return std::make_unique<WordVectorSource>(std::move(source), config.text_length,
                                                config.text_channels);
    case TextKind::kFile:
      return std::make_unique<TextFileSource>(std::move(source), config.text_embeddings);
  }
  KINORA_UNREACHABLE("[data] unknown kind of text");
}

SampleSize sample_size(const DataConfig& config) {
  return {.height = config.height,
          .width = config.width,
          .frames = config.frames,
          .frame_stride = config.frame_stride};
}

LoaderOptions loader_options(const DataConfig& config) {
  LoaderOptions options;
  options.height = config.height;
  options.width = config.width;
  options.frames = config.frames;
  options.frame_stride = config.frame_stride;
  options.random_flip = config.flip;
  options.num_threads = config.threads;
  options.queue_depth = config.queue;
  options.max_bad = config.max_bad;
  return options;
}

}  // namespace kinora::data
