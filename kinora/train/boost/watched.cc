#include "kinora/train/boost/watched.h"

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/library.h>

#include <algorithm>
#include <utility>

namespace kinora::train {
namespace {

/// The dispatcher's key for wrappers around all operations. Nothing of libtorch has it; what has it
/// comes to on_operation() first.
constexpr c10::DispatchKey kWatchedKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

/// What the storage of a watched tensor holds: its views share it.
struct Holder {
  at::Tensor value;  // whose memory it is
  Watched watched;
};

void free_holder(void* holder) {
  delete static_cast<Holder*>(holder);
}

/// Null for tensors that are not watched.
const Watched* watched_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.key_set().has(kWatchedKey)) {
    return nullptr;
  }
  const c10::DataPtr& pointer = tensor.storage().data_ptr();
  return pointer.get_deleter() == &free_holder
             ? &static_cast<const Holder*>(pointer.get_context())->watched
             : nullptr;
}

/// Calls `see` for every tensor of an argument.
template <typename See>
void for_tensors(const c10::IValue& argument, const See& see) {
  if (argument.isTensor()) {
    see(argument.toTensor());
  } else if (argument.isTensorList()) {
    for (const at::Tensor& tensor : argument.toTensorVector()) {
      see(tensor);
    }
  } else if (argument.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : argument.toOptionalTensorVector()) {
      see(tensor.value_or(at::Tensor()));
    }
  }
}

/// Reads by who is told of them.
using Reads = std::vector<std::pair<Watcher*, std::vector<size_t>>>;

void add_read(const Watched& watched, Reads* reads) {
  if (watched.watcher == nullptr) {
    return;
  }
  auto entry = std::find_if(reads->begin(), reads->end(), [&watched](const auto& read) {
    return read.first == watched.watcher.get();
  });
  if (entry == reads->end()) {
    entry = reads->insert(reads->end(), {watched.watcher.get(), {}});
  }
  std::vector<size_t>& numbers = entry->second;
  const auto place = std::lower_bound(numbers.begin(), numbers.end(), watched.number);
  if (place == numbers.end() || *place != watched.number) {
    numbers.insert(place, watched.number);
  }
}

/// Whether autograd is at work, and not a forward that is repeated inside of it.
bool is_backward() {
  return torch::autograd::get_current_graph_task_id() != -1 && !at::GradMode::is_enabled();
}

void on_operation(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  Reads reads;
  std::shared_ptr<const DividedLayer> layer;
  size_t place = 0;  // of the divided weight among the arguments
  const size_t num_arguments = operation.schema().arguments().size();
  for (size_t i = 0; i < num_arguments; ++i) {
    for_tensors((*stack)[stack->size() - num_arguments + i], [&](const at::Tensor& tensor) {
      if (const Watched* watched = watched_of(tensor)) {
        add_read(*watched, &reads);
        if (watched->layer != nullptr) {
          layer = watched->layer;
          place = i;
        }
      }
    });
  }
  for (const auto& [watcher, numbers] : reads) {
    watcher->before_read(numbers);
  }
  const c10::impl::ExcludeDispatchKeyGuard guard{c10::DispatchKeySet(kWatchedKey)};
  if (layer != nullptr && !is_backward()) {
    compute_divided(*layer, operation, place, stack);
  } else {
    operation.callBoxed(stack);
  }
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericWrapper, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_operation>());
}

void set_data(const at::Tensor& tensor, const at::Tensor& data) {
  const c10::impl::ExcludeDispatchKeyGuard guard{c10::DispatchKeySet(kWatchedKey)};
  at::Tensor(tensor).set_data(data);
}

}  // namespace

void watch(const at::Tensor& tensor, const at::Tensor& value, Watched watched) {
  const size_t num_bytes = value.nbytes();
  void* const data = value.mutable_data_ptr();
  const at::Device device = value.device();
  auto holder = std::make_unique<Holder>(Holder{value, std::move(watched)});
  c10::Storage storage(c10::Storage::use_byte_size_t(), num_bytes,
                       c10::DataPtr(data, holder.release(), &free_holder, device));
  const at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, std::move(storage), value.key_set().add(kWatchedKey), value.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(value.sizes(), value.strides());
  set_data(tensor, view);
}

void unwatch(const at::Tensor& tensor, const at::Tensor& value) {
  set_data(tensor, value);
}

}  // namespace kinora::train
