#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kinora/models/layers/band_net.h"
#include "kinora/nn/bands.h"
#include "kinora/nn/conv.h"
#include "kinora/nn/group_norm.h"

/// Layers of the autoencoders of clips. B = batch, C = channels, T = frames, H, W = rows, columns.
namespace kinora::models {

/// What a convolution sees where the clip ends.
enum class Edges {
  kZero,
  kRepeat,        ///< its outermost places again
  kRepeatFrames,  ///< its first and last frame again, around a frame zeros
};

struct ClipKernel {
  std::array<int64_t, 3> size = {3, 3, 3};  ///< T, H, W; odd
  std::array<int64_t, 3> stride = {1, 1, 1};
  /// Frames before and after the clip; causal ones have none after it.
  nn::Padding time = {2, 0};
  Edges edges = Edges::kRepeat;
  bool has_bias = true;
  int64_t groups = 1;
  /// Weights have no dim of time, and frames are seen one by one: in T size and stride are 1 and
  /// none are around, edges are kZero.
  bool of_images = false;
  /// In H and W zeros come behind the last place only, as many as stride leaves; else size / 2
  /// places around are seen.
  bool zeros_behind = false;

  /// What sees one place only.
  [[nodiscard]] static ClipKernel point(bool has_bias = true) {
    return {.size = {1, 1, 1}, .time = {0, 0}, .has_bias = has_bias};
  }
};

/// A convolution that sees places around in H and W, and zeros beyond the clip.
class ClipConv {
 public:
  ClipConv(int64_t in_channels, int64_t out_channels, const ClipKernel& kernel);

  /// What has its parameters.
  [[nodiscard]] nn::Conv& parameters() { return conv_; }

  /// x: rows that halo() asked for.
  [[nodiscard]] at::Tensor forward(const nn::Rows& x) const;
  /// forward() of silu(norm(x)), given the norm's sums and elements (GroupNorm::apply_silu); plus
  /// `plus` where that is defined.
  [[nodiscard]] at::Tensor forward_normed(const nn::Rows& x, const nn::GroupNorm& norm,
                                          const at::Tensor& sums, int64_t elements,
                                          const at::Tensor& plus = {}) const;
  /// forward() of x, rows with one row around, with every row and column twice and every frame
  /// `frames` times, without the `first` first ones of these.
  [[nodiscard]] at::Tensor forward_repeated(const nn::Rows& x, int64_t frames,
                                            int64_t first = 0) const;
  /// forward_repeated(), for kernels of 3 x 3 places that see zeros around.
  [[nodiscard]] at::Tensor forward_doubled(const nn::Rows& x, int64_t frames) const;
  /// Whether it computes window by window: it sees no later frames, and clips' edges again.
  [[nodiscard]] bool streams() const;
  /// What it makes of a window, behind silu(norm) where `norm` is not null; plus the same rows of
  /// `plus` where that is not null.
  [[nodiscard]] ClipWindow stream(const ClipWindow& x, ClipStream& stream,
                                  const nn::GroupNorm* norm = nullptr,
                                  const ClipWindow* plus = nullptr) const;
  /// Whether forward_repeated() computes from x itself without gradients
  /// (ops::convolve_doubled_clip).
  [[nodiscard]] bool doubles(int64_t frames) const;
  /// forward_repeated() of a window, of whose first frame one comes, by who doubles().
  [[nodiscard]] ClipWindow stream_repeated(const ClipWindow& x, int64_t frames,
                                           ClipStream& stream) const;
  /// Bytes that stream() remembers of such windows.
  [[nodiscard]] int64_t remembered_bytes(const ClipSize& in) const {
    return in.bytes() / in.frames * kernel_.time[0];
  }
  [[nodiscard]] std::array<int64_t, 2> halo() const;
  [[nodiscard]] ClipSize out_size(const ClipSize& in) const;
  /// clip_need() of forward_normed().
  [[nodiscard]] nn::BandNeed normed_need(const ClipSize& in, int64_t beside = 0) const;

 private:
  /// What is seen around rows in T, H and W: places again, and zeros.
  struct Around {
    std::vector<nn::Padding> again;
    std::vector<nn::Padding> zeros;
  };

  /// Columns before and after a place.
  [[nodiscard]] nn::Padding beside() const;
  [[nodiscard]] Around around(const nn::Padding& missing_rows) const;

  ClipKernel kernel_;
  nn::Conv conv_;
};

/// Squares of places as channels: [B, C, T, H, W] -> [B, C p p, T, H / p, W / p], columns first;
/// and back.
[[nodiscard]] at::Tensor patched(const at::Tensor& x, int64_t patch);
[[nodiscard]] at::Tensor unpatched(const at::Tensor& x, int64_t patch);

/// Whether a group norm of such a clip, one over channels, or repeating its places takes no memory
/// but for its result.
[[nodiscard]] bool is_normed_in_one_pass(const ClipSize& in);

/// What a layer takes that reads `in`, makes `out` and has `beside` bytes lying by. `normed`: it
/// begins with a norm that takes more memory than its result. copies: of `in` while it makes `out`:
/// gathered, normed, with edges around.
[[nodiscard]] nn::BandNeed clip_need(const ClipSize& in, const ClipSize& out, int64_t halo,
                                     bool normed, int64_t beside = 0, int64_t copies = 3);

/// `layer` over all bands, whose `also` begins with the band of `beside` at the same rows; both are
/// freed on the way if nobody else holds them.
[[nodiscard]] nn::Bands over_bands_beside(nn::Bands x, std::array<int64_t, 2> halo,
                                          const nn::Bands::Layer& layer, nn::Bands beside,
                                          const std::vector<at::Tensor>& also = {});

/// A ClipConv alone; its parameters lie in `name`.
class ConvLayer : public BandLayer {
 public:
  ConvLayer(int64_t in_channels, int64_t out_channels, const ClipKernel& kernel,
            const std::string& name = "conv");
  [[nodiscard]] nn::Bands forward(nn::Bands x) const override;
  [[nodiscard]] ClipSize plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const override;

 private:
  ClipConv conv_;
};

/// Every place twice in H and W, every frame but the first `frames` times, then a convolution that
/// keeps the size; its parameters lie in `name`.
class UpsampleLayer : public BandLayer {
 public:
  UpsampleLayer(int64_t channels, int64_t frames, const ClipKernel& kernel);
  UpsampleLayer(int64_t in_channels, int64_t out_channels, int64_t frames, const ClipKernel& kernel,
                const std::string& name);
  [[nodiscard]] nn::Bands forward(nn::Bands x) const override;
  [[nodiscard]] ClipSize plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const override;
  [[nodiscard]] bool streams() const override;
  [[nodiscard]] std::optional<ClipWindow> stream(ClipWindow x, ClipStream& stream) const override;
  [[nodiscard]] int64_t rows_around(int64_t rows) const override;
  [[nodiscard]] int64_t remembered_bytes(const ClipSize& in) const override;

 private:
  int64_t frames_;
  ClipConv conv_;
};

/// Every place and every frame twice, u; then u + silu(u + y) with y two convolutions that keep the
/// size, each with a group norm behind it and SiLU between them: conv1.conv, norm1, conv2.conv,
/// norm2.
class UpsampleResidualLayer : public BandLayer {
 public:
  UpsampleResidualLayer(int64_t channels, int64_t groups, double epsilon, const ClipKernel& kernel);
  [[nodiscard]] nn::Bands forward(nn::Bands x) const override;
  [[nodiscard]] ClipSize plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const override;

 private:
  ClipConv conv1_;
  nn::GroupNorm norm1_;
  ClipConv conv2_;
  nn::GroupNorm norm2_;
};

/// A convolution to twice the channels, which become twice the frames: channel 2 c + s of frame t
/// is channel c of frame 2 t + s. Its parameters lie in "conv".
class FrameDoublingLayer : public BandLayer {
 public:
  FrameDoublingLayer(int64_t channels, const ClipKernel& kernel);
  [[nodiscard]] nn::Bands forward(nn::Bands x) const override;
  [[nodiscard]] ClipSize plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const override;

 private:
  ClipConv conv_;
};

/// Group norm, SiLU, convolution.
class NormConvLayer : public BandLayer {
 public:
  struct Options {
    int64_t groups = 32;
    double epsilon = 1e-6;
    ClipKernel kernel = {};
    std::string norm_name = "conv_norm_out";
    std::string conv_name = "conv_out.conv";
  };
  NormConvLayer(int64_t in_channels, int64_t out_channels, const Options& options);
  [[nodiscard]] nn::Bands forward(nn::Bands x) const override;
  [[nodiscard]] ClipSize plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const override;
  [[nodiscard]] bool streams() const override;
  [[nodiscard]] std::optional<ClipWindow> stream(ClipWindow x, ClipStream& stream) const override;
  [[nodiscard]] int64_t rows_around(int64_t rows) const override;
  [[nodiscard]] int64_t remembered_bytes(const ClipSize& in) const override;

 private:
  nn::GroupNorm norm_;
  ClipConv conv_;
};

struct ResidualOptions {
  int64_t groups = 32;
  double epsilon = 1e-6;
  ClipKernel kernel = {};
  /// The 1x1x1 convolution where widths differ.
  std::string shortcut_name = "conv_shortcut.conv";
};

/// x + two times (group norm, SiLU, convolution): norm1, conv1.conv, norm2, conv2.conv.
class ResidualLayer : public BandLayer {
 public:
  ResidualLayer(int64_t in_channels, int64_t out_channels, const ResidualOptions& options);
  [[nodiscard]] nn::Bands forward(nn::Bands x) const override;
  [[nodiscard]] ClipSize plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const override;
  [[nodiscard]] bool streams() const override;
  [[nodiscard]] std::optional<ClipWindow> stream(ClipWindow x, ClipStream& stream) const override;
  [[nodiscard]] int64_t rows_around(int64_t rows) const override;
  [[nodiscard]] int64_t remembered_bytes(const ClipSize& in) const override;

 private:
  nn::GroupNorm norm1_;
  ClipConv conv1_;
  nn::GroupNorm norm2_;
  ClipConv conv2_;
  std::unique_ptr<ClipConv> shortcut_;  // null where widths are the same
};

}  // namespace kinora::models
