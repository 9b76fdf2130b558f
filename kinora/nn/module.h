#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kinora/nn/box.h"
#include "kinora/ops/host_product.h"

namespace kinora::ops {
class BlockKernels;
}

namespace kinora::nn {

/// How a parameter starts.
struct Init {
  enum class Kind { kZero, kOne, kConstant, kNormal, kUniform };
  Kind kind = Kind::kZero;
  /// kConstant: the value; kNormal: standard deviation; kUniform: values in (-scale, scale)
  double scale = 0.0;

  [[nodiscard]] static Init zero() { return {}; }
  [[nodiscard]] static Init one() { return {Kind::kOne}; }
  [[nodiscard]] static Init constant(double value) { return {Kind::kConstant, value}; }
  [[nodiscard]] static Init normal(double std) { return {Kind::kNormal, std}; }
  /// Glorot and Bengio 2010: U(-a, a), a = sqrt(6 / (fan_in + fan_out)).
  [[nodiscard]] static Init xavier_uniform(int64_t fan_in, int64_t fan_out);
};

/// A trainable tensor. Declared with shape and initialisation only; optim::Arena gives it storage.
struct Parameter {
  std::vector<int64_t> shape;
  Init init;
  /// Kept and computed in fp32 whatever the precision of the run (design, "Numbers": islands).
  bool fp32_island = false;
  /// Not trained: no gradient, master, moments or averages, only the compute copy.
  bool frozen = false;
  double lr_factor = 1.0;  ///< of the learning rate; of the weight decay with it
  /// How deep in the model: 0 embedders and the like, 1 the first block, ..., the most what is
  /// behind the blocks.
  int64_t layer = 0;
  /// Of a convolution: in memory the dim of in-channels is the innermost, as convolutions of
  /// channels_last inputs read it.
  bool channels_last = false;
  /// Of a frozen matrix [out, in]: columns behind each row, and rows below the last, that memory
  /// leaves free for its low-rank update (kernels/low_rank.h).
  int64_t room = 0;
  /// Where ranks divide it: which part is here, of which `shape` is the shape.
  std::optional<Box> box = {};
  /// Where ranks divide the layers around it, each uses it, whole, for what it has of those: the
  /// gradient is the sum over the ranks.
  bool is_partial = false;
  /// Where ranks divide the blocks of a model (pipeline parallelism): which of them has it.
  /// Nothing: each has it whole, and the gradient is the sum over them.
  std::optional<int64_t> stage = {};
  /// false: it is another rank's (`stage`), and has no memory here.
  bool is_here = true;

  /// The compute copy: what forward reads. Undefined until materialised. While training a leaf that
  /// requires gradients.
  at::Tensor value;
  /// Set: it stays in the host's memory, `value` is a tensor of the meta device, and its product is
  /// made there (optim/held_weights.h).
  ops::HostProduct at_host = {};
  /// fp32, same shape and order: a view of the gradient bucket that backward adds into. Undefined
  /// outside training, and where it is frozen.
  at::Tensor grad;

  [[nodiscard]] int64_t numel() const;
  /// Its shape where nobody divides it.
  [[nodiscard]] const std::vector<int64_t>& whole_shape() const { return box ? box->whole : shape; }
};

/// A path such as "blocks.3.attn.qkv.weight" and what stands there.
struct NamedParameter {
  std::string path;
  Parameter* parameter;
};
struct NamedBuffer {
  std::string path;
  at::Tensor* buffer;
};
class WeightLayer;
struct NamedWeightLayer {
  std::string path;
  WeightLayer* layer;
};

/// Sees (module path, output) of every module as it is computed and returns the output to go on
/// with. Used to find the first non-finite module and to compare implementations.
using Tap = std::function<at::Tensor(const std::string& path, const at::Tensor& output)>;

/// A node of the tree of named parameters, buffers and children. Children and parameters are
/// members that register themselves in their parent's constructor, so a Module never moves. There
/// is no virtual forward: each layer has the signature that it needs.
class Module {
 public:
  Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// All parameters below this module, depth first in order of registration, paths relative to it.
  [[nodiscard]] std::vector<NamedParameter> named_parameters();
  [[nodiscard]] std::vector<NamedBuffer> named_buffers();
  [[nodiscard]] std::vector<NamedWeightLayer> named_weight_layers();

  /// Sets Parameter::layer of all parameters below this module.
  void set_layer(int64_t layer);

  /// Sets (or with an empty function removes) the tap of this module and everything below it.
  /// `path` is the path that this module reports itself under.
  void set_tap(const Tap& tap, const std::string& path = "");

  /// Lets the attention of this module and everything below it run by `kernels`, borrowed; null: by
  /// ATen's calls.
  void set_kernels(ops::BlockKernels* kernels);
  /// Those of set_kernels(), null where outputs are tapped: kernels pass over modules.
  [[nodiscard]] ops::BlockKernels* kernels() const { return tap_ ? nullptr : kernels_; }

 protected:
  ~Module() = default;

  /// `child` must live as long as this module: a member, or owned by one. What a nameless child has
  /// lies beside this module's own.
  void add_child(std::string name, Module& child);
  void add_parameter(std::string name, Parameter& parameter);
  void add_buffer(std::string name, at::Tensor& buffer);
  /// This module is `layer`, whose weight may have an update.
  void set_weight_layer(WeightLayer& layer) { weight_layer_ = &layer; }

  /// Whether something looks at outputs. Then forward must pass through every module.
  [[nodiscard]] bool is_tapped() const { return tap_ != nullptr; }
  /// Passes a module's output through its tap. Every forward ends with this.
  [[nodiscard]] at::Tensor tapped(const at::Tensor& output) const;

 private:
  template <typename T>
  struct Named {
    std::string name;
    T* item;
  };
  /// What named_...() return.
  struct Collected {
    std::vector<NamedParameter> parameters;
    std::vector<NamedBuffer> buffers;
    std::vector<NamedWeightLayer> layers;
  };
  void collect(const std::string& prefix, Collected& collected);

  std::vector<Named<Parameter>> parameters_;
  std::vector<Named<at::Tensor>> buffers_;
  std::vector<Named<Module>> children_;
  WeightLayer* weight_layer_ = nullptr;
  ops::BlockKernels* kernels_ = nullptr;
  Tap tap_;
  std::string tap_path_;
};

}  // namespace kinora::nn
