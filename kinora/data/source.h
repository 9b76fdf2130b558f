#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kinora/core/dtype.h"
#include "kinora/core/philox.h"
#include "kinora/data/frame_choice.h"
#include "kinora/io/image.h"

namespace kinora::data {

/// The size of an image or latent, or of each frame of a clip, as a batch holds it.
struct SampleShape {
  int64_t channels = 0;
  int64_t height = 0;
  int64_t width = 0;
  /// Of the picture that a latent stands for, in pixels; 0: not known.
  int64_t pixel_height = 0;
  int64_t pixel_width = 0;

  [[nodiscard]] int64_t num_values() const { return channels * height * width; }
  [[nodiscard]] std::string text() const;  ///< "4 x 32 x 32", "4 x 32 x 32 (256 x 256 pixels)"

  bool operator==(const SampleShape&) const = default;
};

/// What a batch holds of pictures or clips, in pixels, whether it holds pixels or latents of them.
struct PixelSize {
  int64_t height = 0;
  int64_t width = 0;
  int64_t frames = 1;

  bool operator==(const PixelSize&) const = default;
};

/// Latents of one size.
struct LatentShape {
  SampleShape frame;
  int64_t frames = 1;
};

/// The size of the texts of a set.
struct TextShape {
  int64_t length = 0;           ///< L: tokens that every text has room for
  int64_t channels = 0;         ///< D: of a token's vector; 0: texts are the ids of their tokens
  int64_t pooled_channels = 0;  ///< of the vector of the whole text; 0: there is none

  [[nodiscard]] bool is_ids() const { return length > 0 && channels == 0; }

  bool operator==(const TextShape&) const = default;
};

/// A text as a model takes it, or its text encoder: as vectors of its tokens, or as their ids.
struct Text {
  std::vector<float> tokens;      ///< [L, D]; zero from `length` on
  std::vector<int64_t> ids = {};  ///< [L]; padding from `length` on
  int64_t length = 0;             ///< tokens that count
  std::vector<float> pooled;      ///< [pooled_channels]
};

/// Numbers of a mapped file where they lie, perhaps unaligned: F32, F16 or BF16. They live as long
/// as the source.
struct StoredValues {
  DType dtype = DType::kF32;
  std::span<const std::byte> bytes;
};

/// What an autoencoder made of a picture or clip, [C, T, h, w]: the values themselves, or the mean
/// and the standard deviation of what they are drawn from.
struct Latent {
  StoredValues mean;
  StoredValues std;  ///< empty: there is none
  /// Of sources whose beside() has such pictures, the means of the one before, [C, h, w], of what
  /// the mask leaves of the sample's own, and of the sample's own references, [n, C, h, w].
  StoredValues before = {};
  StoredValues masked = {};
  StoredValues references = {};
};

/// What a source of latents has besides one value of each.
struct LatentParts {
  bool std = false;       ///< standard deviations, to draw latents anew each time
  bool mirrored = false;  ///< latents of the mirrored pictures
};

/// Pictures that a source has beside each picture, but for references of its size.
struct PicturesBeside {
  bool control = false;  ///< what a ControlNet is shown
  bool before = false;   ///< the picture before it was changed
  bool mask = false;     ///< grey: how much a place counts, or what is filled in
  /// Pictures of what is to be seen, at most, of any size; a sample may have fewer. Of clips too.
  int64_t references = 0;

  [[nodiscard]] bool any_of_its_size() const { return control || before || mask; }
};

/// One decoded sample: an image, a clip or, of sources with a latent_shape, a latent. Readers fill
/// it in place, so that a thread's buffers are allocated once; it is used with one source only, and
/// what that source does not know stays as it is here.
///
/// A clip of pixels is a strip: its frames lie side by side in `image`, the first at the left. So
/// whoever knows only images goes on reading `image`.
struct Sample {
  /// Set by who reads: what will be made of an image of its own. A source may then leave out what
  /// that does not need (io::decode_image_into); one that looks at pixels itself clears it first.
  io::CropHint crop = {};
  /// What the reader is going to take of a clip; nothing: all frames. It stands here before read().
  std::optional<FrameChoice> choice;
  /// Set by who reads: what random choices of its caption are drawn by (CaptionChoice); nothing:
  /// they are not drawn.
  std::optional<RandomStream> caption_draws;
  /// Likewise what its mask is drawn by (DrawnMaskSource); nothing: always the same.
  std::optional<RandomStream> mask_draws;
  /// Set by sources for which the other frames were work: `image` holds just the chosen ones.
  bool is_chosen = false;

  io::Image image;
  int64_t num_frames = 1;  ///< T; divides image.width
  float fps = 0.0F;        ///< frames of the whole clip a second
  std::string caption;     ///< empty: the class name says all
  Text text;               ///< of sources with a text_shape
  Latent latent;
  Latent mirrored;         ///< of the mirrored picture, where latent_parts() has it
  io::ImageSize pictured;  ///< of a latent: the picture before all was made of it; 0: not known
  int64_t label = 0;       ///< in [0, num_classes)
  io::Image before;        ///< of pixels whose beside() has it, of the size of `image`
  io::Image control;       ///< likewise, or as large as what is made of `image`; of latents, too
  io::Image mask;          ///< likewise
  std::vector<io::Image> references;  ///< of pixels whose beside() has them
};

/// What is known of a sample beside its pixels.
struct SampleFacts {
  int64_t height = 0;  ///< of the picture or of each frame, as shown, in pixels; of the latent
  int64_t width = 0;
  int64_t num_frames = 1;      ///< of a clip; 0: its header does not say
  float fps = 0.0F;            ///< of a clip; 0: not known
  int64_t caption_length = 0;  ///< bytes
  uint64_t checksum = 0;       ///< of what the file holds; 0: not computed

  bool operator==(const SampleFacts&) const = default;
};

/// How the cause ends of files that are passed over because of their names' suffixes.
inline constexpr std::string_view kNotRead = "that Kinora reads";

/// Of something that lies among a set's files, or stands in its manifest, and is no sample.
struct PassedOver {
  std::string name;
  std::string cause;         ///< "a caption without a picture"; the same words for the same cause
  bool is_rejected = false;  ///< it was meant to be one
};

/// A set of labelled samples with random access: generated shapes, class folders, tar files,
/// latents on disk, or a part of another set. Order, shuffling and batches are not its business.
class Source {
 public:
  Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  virtual ~Source() = default;

  [[nodiscard]] virtual int64_t size() const = 0;

  /// Names by label.
  [[nodiscard]] virtual const std::vector<std::string>& class_names() const = 0;

  [[nodiscard]] int64_t num_classes() const { return static_cast<int64_t>(class_names().size()); }

  /// The shape of the latents (of clips: of their frames) that read() gives; nothing if it gives
  /// pixels, which may differ in size and are cropped by the reader.
  [[nodiscard]] virtual std::optional<SampleShape> latent_shape() const { return std::nullopt; }

  /// Of sources that have latents of several sizes: those of pictures or clips of `size`, which
  /// Sample::crop and Sample::choice ask read() for; nothing for a size that no sample has.
  [[nodiscard]] virtual std::optional<LatentShape> latent_shape_at(
      const PixelSize& /*size*/) const {
    return std::nullopt;
  }

  /// Whether sample `index` was encoded at `size`, if only to find that it cannot be read.
  [[nodiscard]] virtual bool has_latent_at(int64_t /*index*/, const PixelSize& /*size*/) const {
    return false;
  }

  /// What read() gives of latents besides one value of each.
  [[nodiscard]] virtual LatentParts latent_parts() const { return {}; }

  /// Whether read() gives clips, which may differ in length, rather than single images.
  [[nodiscard]] virtual bool is_video() const { return false; }

  /// The size of the texts that read() gives; nothing if it gives none.
  [[nodiscard]] virtual std::optional<TextShape> text_shape() const { return std::nullopt; }

  /// What read() gives of pictures beside each; but for references only sources of pictures do. Of
  /// latents they are latents, control pictures pixels, masks both pixels and what these leave.
  [[nodiscard]] virtual PicturesBeside beside() const { return {}; }

  /// What messages call the sample: a path, or the position in a generated set.
  [[nodiscard]] virtual std::string sample_name(int64_t index) const = 0;

  /// Fills `out` with sample `index` in [0, size()). Any number of threads may read at once.
  /// Throws Error (kIo) that names the file if it cannot be read or decoded.
  virtual void read(int64_t index, Sample& out) const = 0;

  /// What headers and captions say of sample `index`, for sets of files without decoding it; any
  /// number of threads at once. Throws as read().
  [[nodiscard]] virtual SampleFacts facts(int64_t index) const;

  /// The same with everything decoded once: the true number of frames, and a checksum. Leaves in
  /// `scratch` what read() would, but perhaps not all frames of a clip.
  [[nodiscard]] virtual SampleFacts check(int64_t index, Sample& scratch) const;

  /// A number that changes, but for accidents, whenever a file of the sample does, from its size
  /// and time of change without opening it. 0: nothing can change, or nobody knows.
  [[nodiscard]] virtual uint64_t stamp(int64_t /*index*/) const { return 0; }

  /// What was found beside the samples. Hidden files are not.
  [[nodiscard]] virtual const std::vector<PassedOver>& passed_over() const;
};

/// How many samples of a set of `size` may be unusable: `max_bad`, or if it is -1, 1 % of them but
/// at least 10.
[[nodiscard]] int64_t allowed_bad(int64_t size, int64_t max_bad);

/// A source must have at least two images: with none or one there is nothing to shuffle or to hold
/// out, and such a set is nearly always a mistaken path. Throws Error (kConfig) otherwise.
void check_size(int64_t size, const std::string& origin);

}  // namespace kinora::data
