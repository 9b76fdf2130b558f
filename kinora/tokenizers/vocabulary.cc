#include "kinora/tokenizers/vocabulary.h"

#include "kinora/core/error.h"
#include "kinora/core/text.h"

namespace kinora::tokenizers {

void Vocabulary::add(std::string_view token, int64_t id, std::string_view where) {
  KINORA_CHECK(id >= 0 && id < kMaxTokenId, kIo, where, ": the id of the token ", quote(token),
               " must be 0 to ", kMaxTokenId - 1, ", got ", id);
  const auto [found, is_new] = ids_.insert_or_assign(std::string(token), id);
  if (id >= size()) {
    tokens_.resize(static_cast<size_t>(id) + 1);
  }
  tokens_[static_cast<size_t>(id)] = &found->first;
}

std::vector<int64_t> Vocabulary::byte_ids() const {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::vector<int64_t> ids;
  for (size_t byte = 0; byte < 256; ++byte) {
    ids.push_back(id_of(std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">"));
  }
  return ids;
}

}  // namespace kinora::tokenizers
