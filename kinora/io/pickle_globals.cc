#include "kinora/io/pickle_globals.h"

#include <array>

namespace kinora::io {
namespace {

using Kind = PickleGlobal::Kind;

constexpr std::array kGlobals = std::to_array<PickleGlobal>({
    {"torch._utils", "_rebuild_tensor_v2", Kind::kRebuildTensor},
    {"torch._utils", "_rebuild_tensor", Kind::kRebuildTensor},  // before 0.4
    {"torch._utils", "_rebuild_tensor_v3", Kind::kRebuildTyped},
    {"torch._utils", "_rebuild_parameter", Kind::kRebuildParameter},
    {"torch._utils", "_rebuild_parameter_with_state", Kind::kRebuildParameter},
    {"collections", "OrderedDict", Kind::kOrderedDict},
    {"argparse", "Namespace", Kind::kNamespace},
    {"torch", "Size", Kind::kSize},
    {"torch", "DoubleStorage", Kind::kStorage, DType::kF64},
    {"torch", "FloatStorage", Kind::kStorage, DType::kF32},
    {"torch", "HalfStorage", Kind::kStorage, DType::kF16},
    {"torch", "BFloat16Storage", Kind::kStorage, DType::kBF16},
    {"torch", "LongStorage", Kind::kStorage, DType::kI64},
    {"torch", "IntStorage", Kind::kStorage, DType::kI32},
    {"torch", "ShortStorage", Kind::kStorage, DType::kI16},
    {"torch", "CharStorage", Kind::kStorage, DType::kI8},
    {"torch", "ByteStorage", Kind::kStorage, DType::kU8},
    {"torch", "BoolStorage", Kind::kStorage, DType::kBool},
    {"torch.storage", "UntypedStorage", Kind::kStorage, DType::kU8},
    {"torch", "float64", Kind::kDtype, DType::kF64},
    {"torch", "float32", Kind::kDtype, DType::kF32},
    {"torch", "float16", Kind::kDtype, DType::kF16},
    {"torch", "bfloat16", Kind::kDtype, DType::kBF16},
    {"torch", "int64", Kind::kDtype, DType::kI64},
    {"torch", "int32", Kind::kDtype, DType::kI32},
    {"torch", "int16", Kind::kDtype, DType::kI16},
    {"torch", "int8", Kind::kDtype, DType::kI8},
    {"torch", "uint8", Kind::kDtype, DType::kU8},
    {"torch", "bool", Kind::kDtype, DType::kBool},
    {"torch", "device", Kind::kOpaque},
    // A NumPy scalar among the arguments or metrics: scalar(dtype(...), encode(...)).
    {"numpy.core.multiarray", "scalar", Kind::kOpaque},
    {"numpy._core.multiarray", "scalar", Kind::kOpaque},  // since NumPy 2
    {"numpy", "dtype", Kind::kOpaque},
    {"_codecs", "encode", Kind::kOpaque},
});

}  // namespace

const PickleGlobal* find_pickle_global(std::string_view module, std::string_view name) {
  if (module == "torch.cuda" && name.ends_with("Storage")) {
    module = "torch";  // before 0.4, tensors on a GPU
  }
  for (const PickleGlobal& global : kGlobals) {
    if (global.module == module && global.name == name) {
      return &global;
    }
  }
  return nullptr;
}

}  // namespace kinora::io
