#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kinora/comm/group.h"
#include "kinora/nn/group_norm.h"

/// Convolutional networks computed band by band, exactly: an activation [B, C, (T,) H, W] is cut
/// along H, and each layer makes a band of its output from the rows of its input that the band
/// sees. What needs all places (statistics of norms, sums of linear attention) is summed over bands
/// first. A layer can keep only its input for backward, and without gradients an activation is
/// freed while it is read.
///
/// Ranks can divide the rows: each has the bands of some neighbouring units, layers ask the ranks
/// next to it for the rows around these, and sums go over all of them.
///
/// So does backward: gradients of rows that a rank has asked for go back to the rank that has them,
/// and those of sums and of wholes are added over the ranks, by rank. Given the same gradient of
/// what joined() made, all ranks have the gradient of the whole input. Those of weights are on each
/// rank what its rows give, times the number of ranks: their mean over the ranks is right, as it is
/// of weights of which all ranks make the same (Autoencoder::average_gradients()). What a layer
/// computes again communicates nothing: the rows from other ranks are among its inputs. Backward of
/// an exchange waits for that of the next one of its pass, so all ranks come to them in one order,
/// however many bands each has, and also to those whose result a rank does not read.
namespace kinora::nn {

/// What a network may take.
struct BandLimits {
  int64_t bytes = 0;  ///< of activations at once, on each rank; 0: no limit
  /// Those that divide the rows. All of them make the same calls, and run the same backward.
  comm::Group ranks = {};
};

/// How activations are cut and kept.
struct BandPlan {
  /// Of neighbouring layers.
  struct Stage {
    int64_t bands = 1;
    int64_t units = 0;  ///< equal groups of rows, which are not cut; 0: every row is one
  };
  std::vector<Stage> stages = {{}};
  bool recompute = false;  ///< backward computes layers again from their inputs
  bool on_host = false;    ///< between layers bands lie in (pinned) host memory
  comm::Group ranks = {};  ///< BandLimits::ranks; `bands` are those of one
  /// An empty tensor that the last exchange of ranks has made: a plan with ranks is of one pass.
  std::shared_ptr<at::Tensor> last_exchange = std::make_shared<at::Tensor>();
};

/// x, which all ranks have and of which each reads its own rows, as bands are cut from it: backward
/// makes its gradient whole on each. All ranks call it.
[[nodiscard]] at::Tensor for_bands(const at::Tensor& x, const BandPlan& plan);

/// Rows that a layer computes from: a band and those next to it.
struct Rows {
  at::Tensor x;  ///< [B, C, (T,) rows, W] on the computing device
  /// Rows above and below that the layer asked for and the whole does not have.
  std::array<int64_t, 2> missing = {0, 0};
};

/// An activation in bands, from top to bottom: those of this rank.
class Bands {
 public:
  /// Cuts x [B, C, (T,) H, W], the whole as for_bands() gives it, as the plan's first stage has it;
  /// into fewer bands where it has not so many units. kConfig where ranks have none.
  Bands(const at::Tensor& x, const BandPlan& plan);

  /// The same cut as the plan's next stage has it; each band is freed once it is in new ones.
  [[nodiscard]] Bands next_stage() &&;

  /// One without bands that computes and keeps them as this one, to add() bands to.
  [[nodiscard]] Bands like() const;
  void add(const at::Tensor& band);

  [[nodiscard]] size_t size() const { return bands_.size(); }
  /// Whether ranks divide the rows.
  [[nodiscard]] bool is_divided() const { return plan_.ranks.size() > 1; }
  /// Of the whole.
  [[nodiscard]] int64_t num_rows() const;
  /// Whether a layer may overwrite it: its bands lie in the device's memory, nobody else holds
  /// them, and no gradients are wanted.
  [[nodiscard]] bool may_overwrite() const;
  /// A band where it is kept.
  [[nodiscard]] const at::Tensor& operator[](size_t i) const { return bands_[i]; }
  /// Elements of the whole that one group of a norm has.
  [[nodiscard]] int64_t group_elements(int64_t groups) const;
  /// Rows [from, to) of the whole, on the computing device: of the own bands, and of what meet()
  /// has fetched.
  [[nodiscard]] at::Tensor rows(int64_t from, int64_t to) const;
  /// The whole, on the computing device, of which all ranks make the same. All of them call it.
  [[nodiscard]] at::Tensor joined() const;
  /// The sum over ranks of what each has made of its bands.
  [[nodiscard]] at::Tensor over_ranks(const at::Tensor& sum) const;
  /// Fetches so many rows above and below the own bands from the ranks that have them, in place of
  /// what was fetched before. All ranks call it. kConfig where these have fewer.
  void meet(std::array<int64_t, 2> halo) const;
  /// Where band i begins and ends, in rows of the whole.
  [[nodiscard]] int64_t begin(size_t i) const { return begins_[i]; }
  [[nodiscard]] int64_t end(size_t i) const { return begins_[i + 1]; }

  /// Computes from inputs [Rows of the band, also...]; must be pure (ops::recompute).
  using Layer = std::function<at::Tensor(const Rows& rows, const std::vector<at::Tensor>& also)>;

  /// What `layer` makes of band i and the rows around it, `halo` above and below. `also`: whatever
  /// else it reads with gradients, moved to the computing device. Of band 0 it calls meet(): layers
  /// go over all bands with one halo.
  [[nodiscard]] at::Tensor computed(size_t i, std::array<int64_t, 2> halo, const Layer& layer,
                                    const std::vector<at::Tensor>& also = {}) const;

  /// Computes rows [from, to) of what it makes of the whole; must be pure.
  using WholeLayer = std::function<at::Tensor(const at::Tensor& whole, int64_t from, int64_t to)>;

  /// The own rows of what `layer` makes of the whole. All ranks call it.
  [[nodiscard]] at::Tensor computed_from_whole(const WholeLayer& layer) const;

  /// Drops the bands that no layer with that halo reads for bands after i.
  void release(size_t i, std::array<int64_t, 2> halo);

 private:
  Bands() = default;
  /// Where the bands of the present stage begin, in units of the whole; at last the end.
  [[nodiscard]] std::vector<int64_t> borders(int64_t units) const;

  BandPlan plan_;
  size_t stage_ = 0;
  c10::Device device_ = c10::Device(c10::kCPU);
  int64_t units_ = 0;             // of the whole
  std::vector<int64_t> borders_;  // of the bands, in units
  std::vector<at::Tensor> bands_;
  std::vector<int64_t> begins_;  // of each band, in rows; at last the end
  std::vector<int64_t> sizes_;   // of a band
  /// Rows of other ranks, above and below the own ones; undefined: none.
  mutable std::array<at::Tensor, 2> met_;
};

/// `layer` over all bands; x is freed on the way if nobody else holds it.
[[nodiscard]] Bands over_bands(Bands x, std::array<int64_t, 2> halo, const Bands::Layer& layer,
                               const std::vector<at::Tensor>& also = {});

/// `layer`, which must be pure, of the whole; what it makes has x's rows and is cut as x is.
[[nodiscard]] Bands over_whole(const Bands& x,
                               const std::function<at::Tensor(const at::Tensor&)>& layer);

/// The same of a layer that makes rows [from, to) alone: where ranks divide them, each makes its
/// own.
[[nodiscard]] Bands over_own_rows(const Bands& x, const Bands::WholeLayer& layer);

/// GroupNorm::sums() of the whole.
[[nodiscard]] at::Tensor band_sums(const Bands& x, const GroupNorm& norm);

// ---- how many bands ----

/// What a layer takes at once, in bytes.
struct BandNeed {
  int64_t stored = 0;  ///< activations that lie whole in memory while it computes
  int64_t kept = 0;    ///< what backward keeps of it: its inputs
  int64_t work = 0;    ///< what computing the whole output in one piece takes besides
  /// The same where bands are gathered with the rows around them, which gradients want, or fetched
  /// from host memory; 0: work.
  int64_t gathered_work = 0;
  int64_t rows = 1;  ///< of its input
  int64_t halo = 0;  ///< rows that a band sees above it, and below it
};

/// Neighbouring layers that are cut alike, as BandPlan::Stage.
struct BandStage {
  std::vector<BandNeed> needs;
  int64_t units = 1;
};

/// Whether the stage stays within the limit in one band, without gradients.
[[nodiscard]] bool fits_whole(const BandStage& stage, const BandLimits& limits);

/// For each stage the fewest bands with which all of its layers stay within the limit (0: none, one
/// band); in host memory only if nothing else fits, and never where ranks divide what wants
/// gradients: backward would run on two threads, whose order ranks do not share. kConfig: nothing
/// fits.
[[nodiscard]] BandPlan plan_bands(const std::vector<BandStage>& stages, const BandLimits& limits,
                                  bool with_gradients);

}  // namespace kinora::nn
