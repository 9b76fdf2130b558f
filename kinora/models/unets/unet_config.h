#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kinora/models/shown_input.h"

namespace kinora {
class Fields;
}

namespace kinora::models {

/// How a U-Net of classes is told them: by a learned vector of each class and of the null class.
enum class UnetClasses {
  kNone,   ///< it reads captions
  kToken,  ///< the vector is all that attention to captions reads (Rombach et al. 2022)
  kTime,   ///< it is added to the embedded time, and attention to captions reads zeros
};

[[nodiscard]] const char* to_string(UnetClasses classes);

/// What a U-Net attends to, behind residual blocks of the levels where it does.
enum class UnetAttends {
  kCaptions,  ///< places to each other, then to captions: blocks of transformers
  kPlaces,    ///< places to each other alone (Ho et al. 2020): one attention and no MLP
};

[[nodiscard]] const char* to_string(UnetAttends attends);

/// What the channels of a file, in and out, say of its U-Net.
struct UnetChannels {
  int64_t drawn = 0;  ///< ModelConfig::in_channels
  bool learn_sigma = false;
  ShownInput input = ShownInput::kPlain;
};
/// Nothing for numbers that no U-Net here has.
[[nodiscard]] std::optional<UnetChannels> unet_channels(int64_t in, int64_t out);

/// An IP-Adapter (ip_adapter.h). No keys of recipes: the file that it is drawn with says it
/// (pipelines::with_ip_adapter).
struct IpAdapterConfig {
  int64_t tokens = 0;    ///< that a picture becomes; 0: there is no adapter
  int64_t channels = 0;  ///< of what the image encoder says of a picture
  double scale = 1.0;    ///< of attention to it
  /// Of a "plus" adapter, which reads the states of all places of a picture in the place of one
  /// vector: width, blocks, heads and MLP of what resamples them. 0: of the plain one.
  int64_t width = 0;
  int64_t depth = 0;
  int64_t heads = 0;
  int64_t mlp = 0;

  [[nodiscard]] bool operator==(const IpAdapterConfig&) const = default;
  [[nodiscard]] bool any() const { return tokens > 0; }
  [[nodiscard]] bool reads_places() const { return width > 0; }
};

/// What only U-Nets have: ModelConfig::unet. Lists have an entry a level, from the finest. Empty or
/// 0 is what model.name gives.
struct UnetConfig {
  ShownInput input = ShownInput::kPlain;
  UnetClasses classes = UnetClasses::kNone;
  UnetAttends attends = UnetAttends::kCaptions;
  std::vector<int64_t> channels = {};  ///< width of each level
  int64_t resnets = 0;                 ///< residual blocks of a level; on its way up one more
  /// Transformer blocks behind each residual block of a level, 0: none attends there.
  std::vector<int64_t> depths = {};
  int64_t middle_depth = 0;  ///< likewise between the ways, where there is one residual block
  std::vector<int64_t> heads = {};  ///< of attention; the last also of the middle
  int64_t norm_groups = 32;         ///< of every group norm
  double norm_epsilon = 1e-5;       ///< of the residual blocks' norms, the last one and kPlaces'
  bool sines_first = false;         ///< of the time's sinusoids; else cosines
  int64_t time_shift = 0;           ///< their periods go to 10000 in count / 2 - time_shift steps
  /// Where a level halves its size zeros lie behind the last row and column alone, else also before
  /// the first.
  bool pads_behind = false;
  /// With kPlaces: residual blocks scale and shift their second norm by the time, where others add
  /// it to their channels before (Dhariwal and Nichol 2021).
  bool scales_by_time = false;
  /// With kPlaces: residual blocks halve and double sizes, not convolutions.
  bool resizes_in_blocks = false;
  bool linear_projection =
      false;  ///< diffusers' files have linears around attention, not convolutions
  /// With ModelConfig::pooled_channels: sinusoids of each number that says how large a picture was
  /// and how it was cut.
  int64_t size_channels = 0;
  bool reads_score = false;  ///< likewise: a score stands for the size after the cut (refiner)
  /// ControlNets (Zhang et al. 2023) whose residuals are added, what each is multiplied by ([]: 1),
  /// and the widths of what reads their pictures, each but the first at half the size.
  int64_t controls = 0;
  std::vector<double> control_scales = {};
  std::vector<int64_t> control_channels = {16, 32, 96, 256};
  IpAdapterConfig ip_adapter = {};

  [[nodiscard]] bool operator==(const UnetConfig&) const = default;
  /// It draws by itself: nobody tells it captions or classes, and labels are not read.
  [[nodiscard]] bool is_unconditional() const {
    return attends == UnetAttends::kPlaces && classes == UnetClasses::kNone;
  }
  [[nodiscard]] int64_t levels() const { return static_cast<int64_t>(channels.size()); }
  /// Residual blocks of both ways and of the middle, which counts as one; of ControlNets those of
  /// their one way and middle.
  [[nodiscard]] int64_t units() const {
    return levels() * (2 * resnets + 1) + 1 + controls * (levels() * resnets + 1);
  }
  /// Numbers of sizes: before the cut, of the cut, and behind it or the score.
  [[nodiscard]] int64_t size_numbers() const { return reads_score ? 5 : 6; }
  /// Numbers that the embedded time has added to it, with a vector of `pooled` channels.
  [[nodiscard]] int64_t added_channels(int64_t pooled) const {
    return pooled + size_numbers() * size_channels;
  }
  /// Channels beside in_channels of x_t.
  [[nodiscard]] int64_t channels_beside(int64_t in_channels) const;
  /// Width of the embedded time.
  [[nodiscard]] int64_t time_width() const { return 4 * channels.front(); }
};

/// Registers the keys unet.* in the scope that is open.
void describe(Fields& fields, UnetConfig& config);

}  // namespace kinora::models
