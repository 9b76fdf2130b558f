#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "kinora/device/side_stream.h"
#include "kinora/nn/module.h"
#include "kinora/nn/plan.h"
#include "kinora/ops/bucket_hook.h"
#include "kinora/ops/host_product.h"
#include "kinora/ops/quantised_weight.h"
#include "kinora/optim/arena.h"

namespace kinora::optim {

/// Whether a parameter makes vectors that modulate a block (Peebles and Xie 2023, "adaLN").
[[nodiscard]] bool is_modulation(const std::string& path);

/// Frozen weights in the buckets of rings that are held otherwise than they are read: in few bits,
/// in the host's memory, or both. While a bucket is used, its weights lie in a room of the compute
/// type that the buckets of its ring take turns in. So the device holds codes, or nothing, and the
/// rooms, those of modulation (what makes the vectors that modulate blocks) apart from the others:
/// - one a ring; two of modulation that backward reads, since backward of the block before begins
///   when it is still read;
/// - of what the host holds one more, since the next bucket comes over the link, on a stream of its
///   own, while this one is used; of modulation two more, since it is small, and must not wait for
///   what is large. Codes arrive in places of their own, as many and one, and are widened when they
///   are used.
/// With ModulationUse::kHostProducts modulation of the host's has none of this: it is multiplied
/// where it lies (ops/host_product.h), unless its codes have no product.
/// The host never waits, and all of it can be recorded in CUDA graphs of whole passes.
class HeldWeights {
 public:
  struct Weight {
    Slot slot;  ///< offset: in the room of its bucket
    /// What it is held as: codes, or where these are undefined `plain`, in its shape, of the
    /// compute type.
    ops::QuantisedWeight codes;
    at::Tensor plain;

    [[nodiscard]] bool is_coded() const { return codes.codes.defined(); }
  };

  /// Takes what is not trained of `parameters`, all of them where `train` is false, and points
  /// their values into the rooms. They must outlive this. All are zeros until they are loaded.
  /// kConfig where there is nothing to take.
  HeldWeights(const std::vector<nn::NamedParameter>& parameters, const HeldOptions& options,
              at::ScalarType compute_type, at::Device device, bool train);
  HeldWeights(const HeldWeights&) = delete;
  HeldWeights& operator=(const HeldWeights&) = delete;
  ~HeldWeights();

  [[nodiscard]] const std::optional<kernels::WeightFormat>& format() const { return format_; }
  [[nodiscard]] bool contains(const std::string& path) const { return places_.contains(path); }
  /// In the order of the buckets.
  [[nodiscard]] const std::vector<Weight>& weights() const { return weights_; }
  [[nodiscard]] int64_t num_elements() const;
  /// Of codes and scales on the device; of what the host holds; of rooms.
  [[nodiscard]] int64_t code_bytes() const;
  [[nodiscard]] int64_t host_bytes() const;
  [[nodiscard]] int64_t room_bytes() const;

  /// All that weights are held as, on the device and in the host's memory: uint8 [n] each.
  [[nodiscard]] std::vector<at::Tensor> bytes() const;
  /// Before these are written to, between passes: the current stream is behind what is still being
  /// brought, and whoever keeps a copy of what a room held sees that it has changed. The next pass
  /// brings anew.
  void begin_change();

  /// Sets a weight to `value`, or the nearest codes. kShape.
  void load(const std::string& path, const at::Tensor& value);
  /// What a weight stands for, in its shape: a new tensor.
  [[nodiscard]] at::Tensor value(const std::string& path, at::ScalarType type) const;

  /// Has the weights of a bucket in their room when it is used, and then tells `next`, which may be
  /// empty. Borrows this.
  [[nodiscard]] ops::BucketHook hook(ops::BucketHook next = {});

 private:
  /// Where parts of the host arrive: for codes a place of its own, else a room.
  struct Arrival {
    at::Tensor bytes;  ///< uint8
    size_t part = 0;   ///< whose, if `holds`
    bool holds = false;
  };
  /// Of the weights of one bucket of the model its modulation, or the others.
  struct Part {
    size_t first = 0;  ///< of weights_
    size_t end = 0;
    int64_t size = 0;    ///< elements of the room
    at::Tensor at_host;  ///< uint8: all that they are held as, in one piece; undefined: the device
    size_t ring = 0;
    size_t room = 0;     ///< of rooms_
    size_t arrival = 0;  ///< of arrivals_, if at_host
    bool stays = false;  ///< at the host, which makes its products
  };
  /// Parts of the same kind that take turns: modulation of a ring of the model, or the others.
  struct Ring {
    std::vector<size_t> at_host;       ///< of parts_, in order
    std::vector<size_t> arrivals;      ///< of these
    int64_t last_forward = INT64_MAX;  ///< part
    bool is_begun = false;             ///< the first part of the next pass is on its way
  };
  /// A part that is being laid out.
  struct Plan {
    Part part;
    std::vector<Weight> weights;
    std::vector<nn::Parameter*> owners;
  };

  [[nodiscard]] static std::vector<Plan> plans_of(const std::vector<nn::NamedParameter>& parameters,
                                                  const HeldOptions& options, bool train);
  void hold(Part& part, bool is_at_host, at::Device device, at::ScalarType type);
  [[nodiscard]] bool multiplies_at_host() const;
  [[nodiscard]] std::shared_ptr<ops::HostProducts> host_products(at::Device device) const;
  void make_rooms(const HeldOptions& options, at::ScalarType type, at::Device device, bool train);
  void forget_arrivals(const Ring& ring);
  void prepare(ops::BucketMoment moment, size_t number);
  void fetch(size_t number);
  void fetch_unless_there(size_t number);
  void widen(const Part& part) const;

  std::optional<kernels::WeightFormat> format_;
  std::vector<Weight> weights_;
  std::vector<at::Tensor> in_room_;  // [weight]: its place there
  std::vector<Part> parts_;          // [2 x bucket of the model + whether it is not modulation]
  std::vector<Ring> rings_;          // [2 x ring of the model + whether it is not modulation]
  std::vector<at::Tensor> rooms_;    // of the compute type
  std::vector<Arrival> arrivals_;
  std::unordered_map<std::string, size_t> places_;
  std::unique_ptr<device::SideStream> link_;  // a mark an arrival
  ModulationUse modulation_;
};

/// The parameters and buckets without the weights that `held` has.
[[nodiscard]] std::vector<nn::NamedParameter> without(std::vector<nn::NamedParameter> parameters,
                                                      const HeldWeights& held);
[[nodiscard]] std::vector<nn::BucketSpec> without(std::vector<nn::BucketSpec> buckets,
                                                  const HeldWeights& held);

}  // namespace kinora::optim
