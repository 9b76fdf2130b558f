#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kinora/models/layers/clip_stream.h"
#include "kinora/nn/bands.h"
#include "kinora/nn/module.h"

namespace kinora::models {

/// How large an activation [B, C, T, H, W] is.
struct ClipSize {
  int64_t batch = 1;
  int64_t channels = 1;
  int64_t frames = 1;
  int64_t rows = 1;
  int64_t columns = 1;
  int64_t element_bytes = 4;
  bool one_pass_norms = false;  ///< ops::norms_in_one_pass()

  [[nodiscard]] int64_t bytes() const {
    return batch * channels * frames * rows * columns * element_bytes;
  }
};

/// Of x [B, C, T, H, W], as it is computed now.
[[nodiscard]] ClipSize clip_size(const at::Tensor& x);

/// What layers keep of a clip that passes in pieces of frames: the last frames that each has read,
/// under its address.
struct ClipMemory {
  bool begins = true;  ///< whether the next piece is the first
  at::Tensor piece{};  ///< what the first layer is given of it
  std::map<const void*, nn::Bands> frames = {};
};

/// A layer that computes band by band.
class BandLayer : public nn::Module {
 public:
  virtual ~BandLayer() = default;

  /// x: [B, C, T, H, W] in bands.
  [[nodiscard]] virtual nn::Bands forward(nn::Bands x) const = 0;

  /// The same of the next frames of a clip, for layers that see none but their own and earlier
  /// ones. Those that see only their own need nothing of it.
  [[nodiscard]] virtual nn::Bands forward_next(nn::Bands x, ClipMemory& /*memory*/) const {
    return forward(std::move(x));
  }
  /// Bytes of what it keeps in `memory` of pieces of that size.
  [[nodiscard]] virtual int64_t remembered_bytes(const ClipSize& /*in*/) const { return 0; }

  /// Whether it computes window by window.
  [[nodiscard]] virtual bool streams() const { return false; }
  /// What it makes of the next window; nothing where that met a norm whose sums are not known yet.
  [[nodiscard]] virtual std::optional<ClipWindow> stream(ClipWindow x, ClipStream& stream) const;
  /// Rows around its input from which it makes so many rows around its output.
  [[nodiscard]] virtual int64_t rows_around(int64_t rows) const { return rows; }

  /// What forward() makes of such an activation; appends what it takes to `needs`.
  [[nodiscard]] virtual ClipSize plan(const ClipSize& in,
                                      std::vector<nn::BandNeed>* needs) const = 0;
};

/// Layers one after the other, computed within limits of memory. Where these are too tight for
/// results that lie whole in memory, the last layers that stream() compute window by window, so
/// many times as they have norms, before host memory is asked for.
class BandNet : public nn::Module {
 public:
  /// `unit`: the input's rows come in such multiples, each of which becomes whole rows at the end.
  explicit BandNet(int64_t unit) : unit_(unit) {}

  /// Appends a layer under a name, which may be a path.
  template <typename Layer, typename... Arguments>
  Layer& add(const std::string& name, Arguments&&... arguments) {
    auto layer = std::make_unique<Layer>(std::forward<Arguments>(arguments)...);
    Layer& added = *layer;
    layers_.push_back(std::move(layer));
    add_child(name, added);
    return added;
  }

  /// x: [B, C, T, H, W] of the parameters' type. kConfig: activations do not fit the limits.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const nn::BandLimits& limits) const;

  /// How forward() cuts such inputs.
  [[nodiscard]] nn::BandPlan plan(const ClipSize& in, const nn::BandLimits& limits,
                                  bool with_gradients) const;

  /// forward() in pieces of so many frames, one after the other; every layer must be one for
  /// forward_next(). Gradients want what is kept of all pieces.
  [[nodiscard]] at::Tensor forward_pieces(const at::Tensor& x, const std::vector<int64_t>& pieces,
                                          const nn::BandLimits& limits) const;
  /// How forward_pieces() cuts pieces of at most so many frames.
  [[nodiscard]] nn::BandPlan piece_plan(const ClipSize& in, int64_t frames,
                                        const nn::BandLimits& limits,
                                        bool with_gradients = false) const;
  /// Whether such pieces stay within the limits without being cut.
  [[nodiscard]] bool piece_fits(const ClipSize& in, int64_t frames,
                                const nn::BandLimits& limits) const;

 private:
  /// Layers [first, last), in windows of a band of rows and so many frames.
  struct StreamedPart {
    size_t first = 0;
    size_t last = 0;
    int64_t bands = 1;
    int64_t frames = 1;
  };
  struct NetPlan {
    nn::BandPlan bands;  ///< of the layers before those
    std::vector<StreamedPart> streamed;
  };
  [[nodiscard]] NetPlan net_plan(const ClipSize& in, const nn::BandLimits& limits,
                                 bool with_gradients) const;
  /// Parts from layer `first` on within the limits, each beginning with a layer that makes rows
  /// more; nothing where they do not fit.
  [[nodiscard]] std::vector<StreamedPart> streamed_parts(const ClipSize& in, size_t first,
                                                         const nn::BandLimits& limits) const;
  [[nodiscard]] bool fits(const ClipSize& in, const StreamedPart& part, int64_t bytes) const;
  [[nodiscard]] int64_t rows_around(const StreamedPart& part) const;
  [[nodiscard]] at::Tensor streamed(const at::Tensor& x, const StreamedPart& part) const;
  /// What the part's layers make of a window; nothing where one of them does.
  [[nodiscard]] std::optional<ClipWindow> through(const StreamedPart& part, ClipWindow window,
                                                  ClipStream& stream) const;
  /// What layers [first, last) make of such an activation.
  [[nodiscard]] ClipSize size_behind(ClipSize size, size_t first, size_t last) const;

  /// Of the first `count` layers.
  [[nodiscard]] nn::BandStage stage(const ClipSize& in, size_t count) const;
  [[nodiscard]] nn::BandStage piece_stage(const ClipSize& in, int64_t frames) const;

  int64_t unit_;
  std::vector<std::unique_ptr<BandLayer>> layers_;
};

}  // namespace kinora::models
