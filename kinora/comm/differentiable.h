#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "kinora/comm/group.h"

/// What ranks exchange, as steps that autograd can go back through. Backward makes calls on the
/// group too: all ranks run it on the same graph, and autograd visits equal graphs in equal order.
namespace kinora::comm {

/// A function of tensors with a gradient of its own: for what consists of calls that autograd does
/// not see.
struct Differentiable {
  /// Returns the output; puts what backward will need in `saved`.
  std::function<at::Tensor(const std::vector<at::Tensor>& inputs, std::vector<at::Tensor>* saved)>
      forward;
  /// The gradients of all inputs, from what was saved and the gradient of the output, which need
  /// not be contiguous.
  std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& saved,
                                        const at::Tensor& gradient)>
      backward;

  /// forward(inputs), wired into autograd if any of them requires gradients. The output must not
  /// be one of the inputs or a view of one.
  [[nodiscard]] at::Tensor operator()(const std::vector<at::Tensor>& inputs) const;
};

/// Group::reshard; backward is the way back, another one.
[[nodiscard]] at::Tensor all_to_all(const Group& group, const at::Tensor& x, int64_t split,
                                    int64_t joined);

/// The ranks' parts one behind the other in `dim`: one all_gather. What is computed from the result
/// must be the same on all ranks, and so must its gradient be: backward, which sends nothing, takes
/// this rank's part of that W times. Gradients averaged over the ranks are right then.
[[nodiscard]] at::Tensor all_gather(const Group& group, const at::Tensor& part, int64_t dim);

/// x, which all ranks have, for a part of a computation on each: backward sums its gradient over
/// them.
[[nodiscard]] at::Tensor shared(const Group& group, const at::Tensor& x);

/// The sum over ranks of what each has made, which all go on with in the same way: backward sends
/// nothing.
[[nodiscard]] at::Tensor sum(const Group& group, const at::Tensor& x);

}  // namespace kinora::comm
