#include "kinora/ops/norm_inputs.h"

#include <utility>

namespace kinora::ops {

void NormInputs::add(const at::Tensor& h, NormInput input) {
  forget_gone();
  const c10::Storage& memory = h.storage();
  entries_.insert_or_assign(memory.unsafeGetStorageImpl(),
                            Entry{memory.getWeakStorageImpl(), std::move(input)});
}

void NormInputs::forget_gone() {
  std::erase_if(entries_, [](const auto& entry) { return entry.second.memory.expired(); });
}

const NormInput* NormInputs::find(const at::Tensor& rows) const {
  const auto found = entries_.find(rows.storage().unsafeGetStorageImpl());
  if (found == entries_.end() || rows.storage_offset() != 0 ||
      rows.sizes() != found->second.input.x.sizes()) {
    return nullptr;
  }
  return &found->second.input;
}

}  // namespace kinora::ops
