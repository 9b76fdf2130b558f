#pragma once

#include <string_view>

#include "kinora/core/dtype.h"

/// The Python names that a file of torch.save may use here.
namespace kinora::io {

/// A Python class, function or constant.
struct PickleGlobal {
  enum class Kind {
    kStorage,           ///< torch.FloatStorage, ...: `dtype`
    kDtype,             ///< torch.float32, ...: `dtype`
    kRebuildTensor,     ///< (storage, offset, shape, strides, ...)
    kRebuildTyped,      ///< the same, its dtype is argument 6
    kRebuildParameter,  ///< (tensor, ...)
    kOrderedDict,
    kNamespace,
    kSize,    ///< a tuple of its argument
    kOpaque,  ///< what it makes stays unread
  };
  std::string_view module;
  std::string_view name;
  Kind kind;
  DType dtype = DType::kU8;
};

/// Null for all that is not on the list.
[[nodiscard]] const PickleGlobal* find_pickle_global(std::string_view module,
                                                     std::string_view name);

}  // namespace kinora::io
