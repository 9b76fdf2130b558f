#include "kinora/checkpoint/frozen.h"

#include "kinora/core/error.h"

namespace kinora::checkpoint {

Arrays frozen_of(const optim::Arena& arena) {
  Arrays frozen;
  for (const optim::FrozenBucket& bucket : arena.frozen()) {
    for (const optim::Slot& slot : bucket.slots) {
      frozen[slot.path] =
          arena.export_parameter(slot.path, optim::Role::compute()).cpu().contiguous();
    }
  }
  return frozen;
}

void restore_frozen(const Arrays& frozen, const std::filesystem::path& checkpoint,
                    optim::Arena& arena) {
  size_t count = 0;
  for (const optim::FrozenBucket& bucket : arena.frozen()) {
    for (const optim::Slot& slot : bucket.slots) {
      const auto found = frozen.find(slot.path);
      KINORA_CHECK(found != frozen.end() && found->second.sizes() == at::IntArrayRef(slot.shape),
                   kIo, "[checkpoint] ", checkpoint, " is of another run: the frozen ", slot.path,
                   found == frozen.end() ? " is not in it" : " has another shape",
                   ". Hint: model.* and finetune.* must be as when it was saved");
      ++count;
    }
  }
  KINORA_CHECK(count == frozen.size(), kIo, "[checkpoint] ", checkpoint,
               " is of another run: it has ", frozen.size(), " frozen parameters, this run ", count,
               ". Hint: finetune.* must be as when it was saved");
  for (const auto& [path, values] : frozen) {
    arena.load_parameter(path, values);
  }
}

}  // namespace kinora::checkpoint
