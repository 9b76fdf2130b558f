#include "kinora/prompts/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "kinora/core/error.h"

namespace kinora::prompts {
namespace {

struct Free {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

// Steps from one place of a text. A text that takes more is made to take long.
constexpr uint32_t kMostSteps = 1000000;

PCRE2_SPTR bytes_of(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

std::string message_of(int error) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(error, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

[[noreturn]] void fail(int error) {
  throw_error(ErrorKind::kConfig, "[prompt] a text cannot be cleaned: ", message_of(error));
}

}  // namespace

struct Regex::Compiled {
  std::unique_ptr<pcre2_code, Free> code;
  std::unique_ptr<pcre2_match_context, Free> context;
};

Regex::Regex(std::string_view pattern) : compiled_(std::make_unique<Compiled>()) {
  int error = 0;
  PCRE2_SIZE place = 0;
  compiled_->code.reset(pcre2_compile(bytes_of(pattern), pattern.size(), PCRE2_UTF | PCRE2_UCP,
                                      &error, &place, nullptr));
  KINORA_CHECK(compiled_->code != nullptr, kInternal, "[prompt] a pattern must be valid, got ",
               pattern, ": ", message_of(error), " at ", place);
  (void)pcre2_jit_compile(compiled_->code.get(), PCRE2_JIT_COMPLETE);  // else it is interpreted
  compiled_->context.reset(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(compiled_->context.get(), kMostSteps);
}

Regex::Regex(Regex&&) noexcept = default;
Regex::~Regex() = default;

std::string Regex::replaced(std::string_view text, std::string_view replacement) const {
  std::string result(2 * text.size() + 64, '\0');
  constexpr uint32_t kOptions = PCRE2_SUBSTITUTE_GLOBAL | PCRE2_SUBSTITUTE_OVERFLOW_LENGTH;
  int code = PCRE2_ERROR_NOMEMORY;
  for (int attempt = 0; attempt < 2 && code == PCRE2_ERROR_NOMEMORY; ++attempt) {
    PCRE2_SIZE size = result.size();
    code =
        pcre2_substitute(compiled_->code.get(), bytes_of(text), text.size(), 0, kOptions, nullptr,
                         compiled_->context.get(), bytes_of(replacement), replacement.size(),
                         reinterpret_cast<PCRE2_UCHAR*>(result.data()), &size);
    result.resize(size);
  }
  if (code < 0) {
    fail(code);
  }
  return result;
}

int64_t Regex::count(std::string_view text) const {
  const std::unique_ptr<pcre2_match_data, Free> data(
      pcre2_match_data_create_from_pattern(compiled_->code.get(), nullptr));
  int64_t matches = 0;
  PCRE2_SIZE at = 0;
  while (at <= text.size()) {
    const int code = pcre2_match(compiled_->code.get(), bytes_of(text), text.size(), at, 0,
                                 data.get(), compiled_->context.get());
    if (code == PCRE2_ERROR_NOMATCH) {
      break;
    }
    if (code < 0) {
      fail(code);
    }
    ++matches;
    const PCRE2_SIZE* const range = pcre2_get_ovector_pointer(data.get());
    at = range[1] > range[0] ? range[1] : range[1] + 1;
  }
  return matches;
}

}  // namespace kinora::prompts
