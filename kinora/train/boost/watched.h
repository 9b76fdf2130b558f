#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "kinora/train/boost/divided_layer.h"

/// Tensors that tell of every operation on them before it runs: what hooks are elsewhere, for
/// modules of other people, whose forward nobody can change.
namespace kinora::train {

/// Who is told.
class Watcher {
 public:
  Watcher() = default;
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;
  virtual ~Watcher() = default;

  /// An operation on watched tensors of these numbers (ascending, each once) is about to run, in
  /// forward or in backward: they must have their values now.
  virtual void before_read(const std::vector<size_t>& numbers) = 0;
};

/// What a watched tensor belongs to.
struct Watched {
  std::shared_ptr<Watcher> watcher;  ///< null: nobody is told
  size_t number = 0;
  /// The layer whose weight it is, where ranks divide that; then its operations of forward are
  /// those of divided_layer.h.
  std::shared_ptr<const DividedLayer> layer;
};

/// Gives `tensor` the shape, type, device and memory of `value`, and watches it from now on, with
/// its views. Autograd's state of `tensor` stays. No gradient recording.
void watch(const at::Tensor& tensor, const at::Tensor& value, Watched watched);

/// Gives `tensor` the data of `value`, unwatched, whether it was watched or not.
void unwatch(const at::Tensor& tensor, const at::Tensor& value);

}  // namespace kinora::train
