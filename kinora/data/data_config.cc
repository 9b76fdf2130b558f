#include "kinora/data/data_config.h"

#include <filesystem>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/data/class_folder.h"
#include "kinora/data/class_tar.h"
#include "kinora/data/drawn_masks.h"
#include "kinora/data/latent_cache.h"
#include "kinora/data/latent_files.h"
#include "kinora/data/media_set.h"
#include "kinora/data/media_source.h"
#include "kinora/data/moving_shapes.h"
#include "kinora/data/path_patterns.h"
#include "kinora/data/scenes.h"
#include "kinora/data/screened.h"
#include "kinora/data/shapes.h"
#include "kinora/data/strips.h"
#include "kinora/data/text_file.h"

namespace kinora::data {
namespace {

bool is_generated(const DataConfig& c) {
  return c.source == SourceKind::kShapes || c.source == SourceKind::kMovingShapes ||
         c.source == SourceKind::kScenes;
}

bool has_picture_files(const DataConfig& c) {
  return !is_generated(c) && c.source != SourceKind::kLatents;
}

// Of latents their files say it.
bool may_be_video(const DataConfig& c) {
  return c.source == SourceKind::kMovingShapes || c.source == SourceKind::kLatents ||
         c.frame_layout != FrameLayout::kImage;
}

bool has_right_paths(const DataConfig& c) {
  switch (c.source) {
    case SourceKind::kShapes:
    case SourceKind::kMovingShapes:
    case SourceKind::kScenes:
      return c.path.empty();
    case SourceKind::kFolder:
    case SourceKind::kCaptions:
    case SourceKind::kImageFolder:
      return c.path.size() == 1;
    case SourceKind::kTar:
    case SourceKind::kManifest:
    case SourceKind::kWebDataset:
    case SourceKind::kLatents:
      return !c.path.empty();
  }
  return false;
}

void describe_clips(Fields& fields, DataConfig& c) {
  fields
      .add("frame_layout", c.frame_layout,
           {{"image", FrameLayout::kImage},
            {"strip", FrameLayout::kStrip},
            {"video", FrameLayout::kVideo}},
           "What a file holds: image, strip (a clip: an image of square frames side by side, the "
           "first at the left), or video (a clip: MP4, MOV, MKV, WebM, AVI or GIF; wants FFmpeg).")
      .check("be image for generated sets and latents",
             [&c] { return c.frame_layout == FrameLayout::kImage || has_picture_files(c); });
  fields
      .add("frames", c.frames,
           "Frames that the model sees of a clip (of latents: frames as they are stored), from a "
           "place drawn at random. 1 = images, also from clips.",
           between(1, 4096))
      .check(
          "be 1 unless data.source is moving_shapes or latents or data.frame_layout is strip or "
          "video",
          [&c] { return c.frames == 1 || may_be_video(c); })
      .check("be at least 2 for data.source moving_shapes",
             [&c] { return c.frames >= 2 || c.source != SourceKind::kMovingShapes; });
  fields
      .add("frame_stride", c.frame_stride,
           "Take one of every so many frames of a clip: 2 = every second one.", between(1, 4096))
      .check("be 1 for data.source moving_shapes, whose clips have just data.frames frames",
             [&c] { return c.frame_stride == 1 || c.source != SourceKind::kMovingShapes; });
  fields
      .add("max_fps", c.max_fps,
           "Highest frame rate: of faster clips every second frame is taken, or every third, and "
           "so on, with the least stride that comes down to it. data.frame_stride is the least "
           "stride of all clips. 0 = no limit.",
           {.min = 0.0, .max = 1000.0})
      .check(
          "be 0 for data.source latents without data.buckets, whose frames are not those that "
          "were encoded",
          [&c] {
            return c.max_fps == 0.0 || c.source != SourceKind::kLatents || !c.buckets.empty();
          })
      .check("be 0 for data.source moving_shapes, whose clips have just data.frames frames",
             [&c] { return c.max_fps == 0.0 || c.source != SourceKind::kMovingShapes; });
  fields.add("fps", c.fps,
             "Frames a second of clips whose files do not say it, as they are stored (of "
             "latents: before they were encoded). The model is told this divided by "
             "data.frame_stride.",
             {.min = 0.0, .max = 1000.0, .min_open = true});
}

// Places of corners are the square of it.
constexpr double kMostLayoutGrid = 256;

bool has_captions(SourceKind source) {
  return source == SourceKind::kScenes || source == SourceKind::kCaptions ||
         source == SourceKind::kManifest || source == SourceKind::kWebDataset ||
         source == SourceKind::kImageFolder;
}

void describe_texts(Fields& fields, DataConfig& c) {
  fields.add(
      "text", c.text,
      {{"none", TextKind::kNone}, {"file", TextKind::kFile}, {"tokens", TextKind::kTokens}},
      "Texts of the samples: none; file = from data.text_embeddings; tokens = the caption, else "
      "the class name, as text.tokenizer numbers it, for a text encoder in the run.");
  constexpr const char* kNoWordVectors = "words have no random vectors any more";
  fields.retire("text", "builtin",
                std::string(kNoWordVectors) +
                    ". Hint: data.text=tokens text.tokenizer=configs/captions/spiece.model "
                    "model.text_encoder.layers=2, as configs/demo-video.yaml has it");
  fields.retire("text_length", "16", kNoWordVectors);
  fields.retire("text_channels", "64", kNoWordVectors);
  fields
      .add(
          "text_embeddings", c.text_embeddings,
          "A safetensors file with embeddings [K, L, D], lengths [K] and perhaps pooled [K, D2]: a "
          "text for each class (K classes), each sample (K samples), or as its sample_to_text "
          "says. Left out for a cache of latents: the texts that kinora data encode put into it.")
      .check(
          "name a file for data.text file, unless data.source is latents, and be left out "
          "otherwise",
          [&c] {
            return c.text == TextKind::kFile
                       ? !c.text_embeddings.empty() || c.source == SourceKind::kLatents
                       : c.text_embeddings.empty();
          });
  fields
      .add("layout_grid", c.layout_grid,
           "Captions are layouts, JSON lists of phrases and boxes whose corners are rounded to a "
           "grid of so many points a side; 0 = captions are words. docs/layout.md",
           between(0, kMostLayoutGrid))
      .check("be 0 unless data.text is tokens, data.flip is false and data.source has captions",
             [&c] {
               return c.layout_grid == 0 || (c.text == TextKind::kTokens && !c.flip &&
                                             has_captions(c.source) && !c.captions.changes());
             });
}

void describe_captions(Fields& fields, DataConfig& c) {
  // A file of embeddings has captions as they are.
  const auto is_drawn = [&c] { return c.text != TextKind::kFile; };
  fields
      .add("caption", c.caption,
           "The caption of samples that have none of their own: a photo of sks dog.")
      .check("be left out unless data.text is tokens",
             [&c] { return c.caption.empty() || c.text == TextKind::kTokens; });
  fields.add("captions", c.captions.lines,
             {{"whole", CaptionLines::kWhole},
              {"first", CaptionLines::kFirst},
              {"random", CaptionLines::kRandom}},
             "Of captions of several lines (a list in JSON has a line each): whole = all of it is "
             "the caption; first = the first line; random = one of them, drawn each time that the "
             "sample is shown.");
  fields
      .add("caption_weights", c.captions.weights,
           "How often captions random draws the first line, the second, ...: relative to each "
           "other, none of further lines. [] = all equally often.",
           between(0, 1e6))
      .check("begin with a number above 0",
             [&c] { return c.captions.weights.empty() || c.captions.weights.front() > 0.0; });
  fields
      .add("shuffle_tags", c.captions.shuffles_tags,
           "Captions are tags with commas between them, in a new order each time.")
      .check("be false for data.text file",
             [&c, is_drawn] { return !c.captions.shuffles_tags || is_drawn(); });
  fields
      .add("drop_tags", c.captions.drop_tags,
           "Probability that a tag of a caption is left out, drawn each time; one stays always.",
           between(0, 1))
      .check("be 0 for data.text file",
             [&c, is_drawn] { return c.captions.drop_tags == 0.0 || is_drawn(); });
}

void describe_buckets(Fields& fields, DataConfig& c) {
  fields.add(
      "buckets", c.buckets,
      "Sizes of the batches: {resolution: {frames: [keep probability, batch size]}} or "
      "[[keep, keep frames], batch size], where a resolution is 256px (a square) or 480p "
      "(16:9). A sample goes to the largest and longest that it fills and that keeps it. "
      "{} = all samples have data.height, data.width and data.frames. Of a cache of latents: "
      "those that it was made with.");
  fields.add("bucket_ratios", c.bucket_ratios,
             {{"opensora2", AspectRatios::kOpenSora2},
              {"opensora1", AspectRatios::kOpenSora1},
              {"square", AspectRatios::kSquare}},
             "Aspect ratios of each row of data.buckets: opensora2 (1:1, 4:3, 3:2, 8:5, 16:9, "
             "1.85:1, 2:1, 2.39:1, both ways), opensora1 (15 from 0.39 to 2.10), square.");
  fields.add("bucket_multiple", c.bucket_multiple,
             "Heights and widths of buckets are multiples of it: pixels of an autoencoder's cell "
             "times the model's patch.",
             between(1, 1024));
  fields.add("bucket_batches", c.bucket_batches,
             "Batches of one bucket in an optimizer step, over all ranks: a multiple of the "
             "number of ranks. 0 = one for each rank. The same value gives the same order on any "
             "number of ranks. With parallel.dynamic_sequence any number of batches, each of a "
             "bucket of its own.",
             between(0, 65536));
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
  std::vector<std::filesystem::path> paths;
  for (const std::string& pattern : config.path) {
    const std::vector<std::string> expanded = expand_braces(pattern);
    paths.insert(paths.end(), expanded.begin(), expanded.end());
  }
  return paths;
}

// For kinds of sets that are one folder.
const std::string& folder_of(const DataConfig& config) {
  KINORA_CHECK(config.path.size() == 1, kConfig, "[data] data.path must name one folder, got ",
               config.path.size());
  return config.path.front();
}

// Which pictures beside others are read.
PicturesBeside files_beside(const DataConfig& config) {
  return {.control = config.control,
          .before = config.before,
          .mask = config.mask == MaskKind::kFile,
          .references = config.references};
}

std::unique_ptr<Source> open_cache(const DataConfig& config) {
  auto cache = std::make_unique<LatentCache>(config.path.front(), files_beside(config));
  KINORA_CHECK(cache->has_several_sizes() != config.buckets.empty(), kConfig, "[data] ",
               config.path.front(), " holds latents of ",
               cache->has_several_sizes() ? "several sizes, for data.buckets"
                                          : "one size, and data.buckets wants several",
               ". Hint: the recipe that kinora data encode was given");
  if (cache->has_several_sizes()) {
    const PixelSize pixels = sample_size(config).pixels();
    KINORA_CHECK(cache->manifest().sizes.front().pixels() == pixels, kConfig, "[data] ",
                 config.path.front(), " was made for data.height, width and frames other than ",
                 pixels.height, " x ", pixels.width, ", ", pixels.frames,
                 ". Hint: the recipe that kinora data encode was given");
    return cache;
  }
  const LatentLayout& layout = cache->manifest().layout;
  KINORA_CHECK((config.mask == MaskKind::kNone && !config.control) ||
                   (layout.pixel_height == config.height && layout.pixel_width == config.width),
               kConfig, "[data] ", config.path.front(), " holds ",
               config.control ? "control pictures" : "masks", " of ", layout.pixel_height, " x ",
               layout.pixel_width, " pixels, and data.height and width are ", config.height, " x ",
               config.width, ". Hint: the recipe that kinora data encode was given");
  const int64_t stored = cache->is_video() ? layout.shape[1] : 1;
  const int64_t span = sample_size(config).choice(0.0F).span(0.0);
  KINORA_CHECK(layout.frame_compression == 1 || (config.frames == stored && span == stored),
               kConfig, "[data] ", config.path.front(), " holds clips of ", stored,
               " frames, of which the first differs from the others: data.frames must be ", stored,
               " and data.frame_stride 1, got ", config.frames, " and ", config.frame_stride);
  KINORA_CHECK(span <= stored, kConfig, "[data] ", config.path.front(),
               " must hold clips of at least ", span,
               " frames for data.frames and data.frame_stride, got ", stored);
  return cache;
}

WantedFiles wanted_files(const DataConfig& config) {
  return {.videos = config.frame_layout == FrameLayout::kVideo, .default_fps = config.fps};
}

// Images, clips or latents without texts.
std::unique_ptr<Source> open_pictures(const DataConfig& config) {
  const PicturesBeside beside = files_beside(config);
  const MediaOptions media{.is_video = config.frame_layout == FrameLayout::kVideo,
                           .default_fps = config.fps,
                           .beside = beside};
  switch (config.source) {
    case SourceKind::kShapes:
      return std::make_unique<ShapeSource>(static_cast<uint64_t>(config.seed), config.count,
                                           config.height, config.width);
    case SourceKind::kMovingShapes:
      return std::make_unique<MovingShapeSource>(static_cast<uint64_t>(config.seed), config.count,
                                                 config.frames, static_cast<float>(config.fps),
                                                 config.height, config.width, config.references);
    case SourceKind::kScenes:
      return std::make_unique<SceneSource>(static_cast<uint64_t>(config.seed), config.count,
                                           config.height, config.width, config.layout_grid > 0);
    case SourceKind::kFolder:
      return std::make_unique<ClassFolder>(folder_of(config), wanted_files(config));
    case SourceKind::kTar:
      return std::make_unique<ClassTar>(paths_of(config), wanted_files(config));
    case SourceKind::kCaptions:
      return std::make_unique<MediaSource>(list_captioned_folder(folder_of(config), beside), media);
    case SourceKind::kManifest:
      return std::make_unique<MediaSource>(
          list_manifests(paths_of(config),
                         {.allow_outside = config.allow_outside, .references = config.references}),
          media);
    case SourceKind::kWebDataset:
      return std::make_unique<MediaSource>(list_webdataset(paths_of(config)), media);
    case SourceKind::kImageFolder:
      return std::make_unique<MediaSource>(list_image_folder(folder_of(config)), media);
    case SourceKind::kLatents:
      if (config.path.size() == 1 && std::filesystem::is_directory(config.path.front())) {
        return open_cache(config);
      }
      KINORA_CHECK(config.buckets.empty(), kConfig,
                   "[data] latents in files have one size, and data.buckets wants several. Hint: "
                   "a cache, which kinora data encode makes");
      KINORA_CHECK(!beside.any_of_its_size() && beside.references == 0, kConfig,
                   "[data] files of latents hold no pictures beside these (data.control, "
                   "data.before, data.mask, data.references). Hint: a cache, which kinora data "
                   "encode makes");
      return std::make_unique<LatentFiles>(
          paths_of(config),
          LatentFilesOptions{.min_frames = sample_size(config).choice(0.0F).span(0.0),
                             .fps = static_cast<float>(config.fps),
                             .needs_labels = config.text != TextKind::kFile});
  }
  KINORA_UNREACHABLE("[data] unknown source kind");
}

}  // namespace

void describe(Fields& fields, DataConfig& c, std::string_view section) {
  const size_t first = fields.all().size();
  const auto scope = fields.scope(section);
  fields.add(
      "source", c.source,
      {{"shapes", SourceKind::kShapes},
       {"moving_shapes", SourceKind::kMovingShapes},
       {"scenes", SourceKind::kScenes},
       {"folder", SourceKind::kFolder},
       {"tar", SourceKind::kTar},
       {"captions", SourceKind::kCaptions},
       {"manifest", SourceKind::kManifest},
       {"webdataset", SourceKind::kWebDataset},
       {"imagefolder", SourceKind::kImageFolder},
       {"latents", SourceKind::kLatents}},
      "Where samples come from: shapes (generated images, need no files), "
      "moving_shapes (generated clips of 4 shapes that move in 4 directions), scenes (generated "
      "pictures of 1 to 3 objects with captions), folder (PATH/CLASS/IMAGE), tar (the same inside "
      "archives, which are not unpacked), captions "
      "(a folder of pictures with captions in .txt or .json files beside them), manifest "
      "(a table of paths and captions: CSV, JSON Lines, Parquet), webdataset (archives of "
      "KEY.jpg, KEY.txt, KEY.json, KEY.cls), imagefolder (as Hugging Face has it), latents "
      "(a folder that kinora data encode made, or safetensors files with latents "
      "[n, C, h, w], of clips [n, C, T, h, w], already scaled, and labels [n]).");
  fields
      .add("path", c.path,
           "The folder, or one or several archives, manifests or .safetensors files of latents; "
           "relative to the working folder. {000..009} in a name stands for the numbers, {a,b} for "
           "a and b.")
      .check(
          "name one folder for data.source folder, captions and imagefolder, at least one file for "
          "tar, webdataset, manifest and latents, and be left out for generated sets",
          [&c] { return has_right_paths(c); });
  fields.add("allow_outside", c.allow_outside,
             "Manifests may name files outside of their own folder: by absolute paths, by \"..\" "
             "or through links.");
  constexpr double kMaxSide = 16384;
  fields.add("height", c.height,
             "Height of the images in pixels; others are cropped from the centre as ADM does. "
             "Latents have the size that their files say.",
             between(1, kMaxSide));
  fields.add("width", c.width, "Width of the images in pixels.", between(1, kMaxSide));
  describe_clips(fields, c);
  describe_captions(fields, c);
  describe_texts(fields, c);
  fields.add("count", c.count,
             "Number of generated images or clips, for data.source shapes, moving_shapes and "
             "scenes.",
             between(2, 4294967295.0));
  fields.add("seed", c.seed,
             "Seed of the generated images and of the choice of what is held out; apart from "
             "train.seed, so that another run holds out the same images.",
             at_least(0));
  fields.add("validation", c.validation,
             "Number of samples held out of training for validation, drawn at random.",
             between(0, 4294967295.0));
  fields
      .add("flip", c.flip,
           "Mirror every image or clip with probability 1/2; of latents, where they were computed "
           "of "
           "mirrored pictures too.")
      .check(
          "be false for data.source moving_shapes and scenes and for shapes with data.text (their "
          "classes or captions tell left from right)",
          [&c] {
            return !c.flip ||
                   (c.source != SourceKind::kMovingShapes && c.source != SourceKind::kScenes &&
                    (c.source != SourceKind::kShapes || c.text == TextKind::kNone));
          });
  constexpr const char* kOfCaptionsOrLatents =
      "be false but for data.source captions of pictures (data.frame_layout image) and latents of "
      "such";
  const auto has_pictures_beside = [&c] {
    return c.source == SourceKind::kCaptions && c.frame_layout == FrameLayout::kImage;
  };
  fields
      .add(
          "control", c.control,
          "Read what a ControlNet is shown from NAME.control.png beside NAME.jpg, a picture of the "
          "same size. A cache of latents holds these.")
      .check(kOfCaptionsOrLatents, [&c, has_pictures_beside] {
        return !c.control || c.source == SourceKind::kLatents || has_pictures_beside();
      });
  fields
      .add("before", c.before,
           "Read the picture before it was changed from NAME.before.png beside NAME.jpg, a picture "
           "of the same size: what a model for editing learns to change. A cache of latents holds "
           "these.")
      .check(kOfCaptionsOrLatents, [&c, has_pictures_beside] {
        return !c.before || c.source == SourceKind::kLatents || has_pictures_beside();
      });
  fields
      .add("mask", c.mask,
           {{"false", MaskKind::kNone}, {"true", MaskKind::kFile}, {"drawn", MaskKind::kDrawn}},
           "true = read NAME.mask.png beside NAME.jpg, grey and of the same size; drawn = draw a "
           "mask at random each time. A model for inpainting learns to fill in what is white; of "
           "other models, which take files alone, the loss of a place is multiplied by the mask, "
           "white = 1. A cache of latents holds those of files.")
      .check(kOfCaptionsOrLatents,
             [&c, has_pictures_beside] {
               return c.mask != MaskKind::kFile || c.source == SourceKind::kLatents ||
                      has_pictures_beside();
             })
      .check(
          "be drawn for pictures alone, not for clips or latents (what each mask leaves is encoded "
          "in each step, from pictures with autoencoder.path)",
          [&c] {
            return c.mask != MaskKind::kDrawn ||
                   (c.source != SourceKind::kLatents && c.source != SourceKind::kMovingShapes &&
                    c.frame_layout == FrameLayout::kImage);
          });
  fields
      .add("references", c.references,
           "Read up to so many pictures of what is to be seen, such as a character, for a model "
           "with model.references: NAME.reference.png, NAME.reference2.png, ... beside NAME.jpg "
           "or NAME.mp4, the column reference of a manifest (a list, or one a line), or of "
           "data.source moving_shapes the shape, whose captions then say its motion alone. "
           "Samples may have fewer. A cache of latents holds these.",
           between(0, 16))
      .check(
          "be 0 but for data.source captions, manifest, moving_shapes and latents, and for those "
          "with data.text",
          [&c] {
            return c.references == 0 ||
                   ((c.source == SourceKind::kCaptions || c.source == SourceKind::kManifest ||
                     c.source == SourceKind::kMovingShapes || c.source == SourceKind::kLatents) &&
                    c.text != TextKind::kNone);
          });
  describe_buckets(fields, c);
  fields.add("scaled_decode", c.scaled_decode,
             "Decode large JPEGs at 1/2, 1/4 or 1/8 of their size, whatever still covers the crop, "
             "instead of halving their pixels with a box filter: up to several times faster, but "
             "not equal to it to the bit.");
  fields.add("threads", c.threads,
             "Threads that read and decode; 0 = half as many as cores, from 1 to 16.",
             between(0, 1024));
  fields.add("queue", c.queue, "Batches decoded ahead.", between(1, 1024));
  fields.add(
      "max_bad", c.max_bad,
      "Unreadable samples that a run puts up with: each is named and replaced, and one more "
      "stops the run. -1 = 1 % of the set, but at least 10. Those that data.index or a manifest "
      "rejects are counted before the run starts.",
      between(-1, 4294967295.0));
  fields.add("index", c.index,
             "The index of the set, which kinora data check makes: what it found unusable is left "
             "out.");
  fields.add("quarantine", c.quarantine,
             "A text file with names of samples that are left out, one a line; kinora data check "
             "--quarantine makes one.");
  if (section != "data") {
    rename(fields, first, section);
  }
}

std::unique_ptr<Source> open_source(const DataConfig& config, const CaptionTokens* tokens) {
  return screen(
      open_whole_source(config, tokens),
      {.quarantine = config.quarantine, .index = config.index, .max_bad = config.max_bad});
}

std::filesystem::path text_file_of(const DataConfig& config) {
  if (!config.text_embeddings.empty()) {
    return config.text_embeddings;
  }
  const std::filesystem::path cache = config.path.empty() ? "" : config.path.front();
  const std::filesystem::path file = cache / kCachedTextsFile;
  KINORA_CHECK(config.path.size() == 1 && std::filesystem::exists(file), kConfig,
               "[data] data.text is file, and the latents in ", cache.string(), " have no ",
               kCachedTextsFile, " beside them. Hint: kinora data encode with text.encoder=PATH, ",
               "or data.text_embeddings=FILE");
  return file;
}

std::string set_identity(const DataConfig& config) {
  std::string text = std::to_string(static_cast<int>(config.source)) + " " +
                     std::to_string(static_cast<int>(config.frame_layout)) + " " +
                     std::to_string(static_cast<int>(config.text)) +
                     (config.layout_grid > 0 ? " " + std::to_string(config.layout_grid) : "");
  for (const std::string& path : config.path) {
    text += "\n" + std::filesystem::absolute(path).lexically_normal().string();
  }
  return text;
}

std::unique_ptr<Source> open_whole_source(const DataConfig& config, const CaptionTokens* tokens) {
  std::unique_ptr<Source> source = open_pictures(config);
  if (config.frame_layout == FrameLayout::kStrip) {
    source = std::make_unique<StripSource>(std::move(source), static_cast<float>(config.fps));
  }
  if (!config.caption.empty()) {
    source = std::make_unique<CaptionForAllSource>(std::move(source), config.caption);
  }
  if (config.mask == MaskKind::kDrawn) {
    source =
        std::make_unique<DrawnMaskSource>(std::move(source), static_cast<uint64_t>(config.seed));
  }
  if (config.captions.changes()) {
    source = std::make_unique<CaptionChoiceSource>(std::move(source), config.captions);
  }
  switch (config.text) {
    case TextKind::kNone:
      return source;
    case TextKind::kFile:
      return std::make_unique<TextFileSource>(std::move(source), text_file_of(config),
                                              config.captions.lines == CaptionLines::kRandom);
    case TextKind::kTokens:
      return tokens == nullptr ? std::move(source)
                               : std::make_unique<TokenSource>(std::move(source), *tokens);
  }
  KINORA_UNREACHABLE("[data] unknown kind of text");
}

SampleSize sample_size(const DataConfig& config) {
  return {.height = config.height,
          .width = config.width,
          .frames = config.frames,
          .frame_stride = config.frame_stride,
          .max_fps = config.max_fps,
          .scaled_decode = config.scaled_decode};
}

LoaderOptions loader_options(const DataConfig& config) {
  LoaderOptions options;
  options.height = config.height;
  options.width = config.width;
  options.frames = config.frames;
  options.frame_stride = config.frame_stride;
  options.max_fps = config.max_fps;
  options.scaled_decode = config.scaled_decode;
  options.random_flip = config.flip;
  options.buckets = {.rows = config.buckets,
                     .ratios = config.bucket_ratios,
                     .multiple = config.bucket_multiple,
                     .frame_stride = config.frame_stride,
                     .max_fps = config.max_fps};
  options.bucket_batches = config.bucket_batches;
  options.num_threads = config.threads;
  options.queue_depth = config.queue;
  options.max_bad = config.max_bad;
  return options;
}

}  // namespace kinora::data
