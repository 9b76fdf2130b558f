#include "kinora/data/data_config.h"

#include <filesystem>

#include "kinora/core/error.h"
#include "kinora/data/class_folder.h"
#include "kinora/data/class_tar.h"
#include "kinora/data/latent_files.h"
#include "kinora/data/shapes.h"

namespace kinora::data {

void describe(Fields& fields, DataConfig& c) {
  const auto scope = fields.scope("data");
  fields.add("source", c.source,
             {{"shapes", SourceKind::kShapes},
              {"folder", SourceKind::kFolder},
              {"tar", SourceKind::kTar},
              {"latents", SourceKind::kLatents}},
             "Where samples come from: shapes (generated images, need no files), folder "
             "(PATH/CLASS/IMAGE), tar (the same inside archives, which are not unpacked), latents "
             "(safetensors files with latents [n, C, h, w], already scaled, and labels [n]).");
  fields
      .add("path", c.path,
           "The folder of class folders, or one or several .tar archives or .safetensors files of "
           "latents; relative to the working folder.")
      .check(
          "name one folder for data.source folder, at least one file for tar and latents, and be "
          "left out for shapes",
          [&c] {
            switch (c.source) {
              case SourceKind::kShapes:
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
  fields.add("count", c.count, "Number of generated images, for data.source shapes.",
             between(2, 4294967295.0));
  fields.add("seed", c.seed,
             "Seed of the generated images and of the choice of what is held out; apart from "
             "train.seed, so that another run holds out the same images.",
             at_least(0));
  fields.add("validation", c.validation,
             "Number of samples held out of training for validation, drawn at random.",
             at_least(0));
  fields.add("flip", c.flip, "Mirror every image with probability 1/2.")
      .check(
          "be false for data.source latents (a mirrored latent is not the latent of the mirrored "
          "image; compute latents of mirrored images instead)",
          [&c] { return !c.flip || c.source != SourceKind::kLatents; });
  fields.add("threads", c.threads,
             "Threads that read and decode; 0 takes half the cores, from 1 to 16.",
             between(0, 1024));
  fields.add("queue", c.queue, "Batches decoded ahead.", between(1, 1024));
  fields.add(
      "max_bad", c.max_bad,
      "Unreadable samples that are named and replaced before the run stops; -1 allows 1 % of "
      "the set, but at least 10.",
      at_least(-1));
}

std::unique_ptr<Source> open_source(const DataConfig& config) {
  switch (config.source) {
    case SourceKind::kShapes:
      return std::make_unique<ShapeSource>(static_cast<uint64_t>(config.seed), config.count,
                                           config.height, config.width);
    case SourceKind::kFolder:
      KINORA_CHECK(config.path.size() == 1, kConfig, "[data] data.path must name one folder, got ",
                   config.path.size());
      return std::make_unique<ClassFolder>(config.path.front());
    case SourceKind::kTar:
      return std::make_unique<ClassTar>(
          std::vector<std::filesystem::path>(config.path.begin(), config.path.end()));
    case SourceKind::kLatents:
      return std::make_unique<LatentFiles>(
          std::vector<std::filesystem::path>(config.path.begin(), config.path.end()));
  }
  KINORA_UNREACHABLE("[data] unknown source kind");
}

LoaderOptions loader_options(const DataConfig& config) {
  LoaderOptions options;
  options.height = config.height;
  options.width = config.width;
  options.random_flip = config.flip;
  options.num_threads = config.threads;
  options.queue_depth = config.queue;
  options.max_bad = config.max_bad;
  return options;
}

}  // namespace kinora::data
