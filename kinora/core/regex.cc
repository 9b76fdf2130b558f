#include "kinora/core/regex.h"

#include "kinora/core/error.h"
#include "kinora/core/text.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <utility>

namespace kinora {
namespace {

// Members of a class; PCRE2's own \s has U+180E, too, and its \w lacks marks and connectors.
constexpr std::string_view kSpaces =
    R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr std::string_view kWords = R"(\p{L}\p{M}\p{N}\p{Pc})";
constexpr std::string_view kHexadecimal = "0-9a-fA-F";

constexpr size_t kMaxExpressionBytes = 1 << 16;
constexpr uint32_t kMinSteps = 10'000'000;
constexpr size_t kMaxStepsPerByte = 64;
constexpr size_t kMinJitStack = size_t{32} << 10;
constexpr size_t kMaxJitStack = size_t{8} << 20;

/// An expression of Oniguruma in PCRE2's words.
std::string to_pcre(std::string_view regex, std::string_view where) {
  std::string pcre;
  bool in_class = false;
  for (size_t i = 0; i < regex.size(); ++i) {
    const char c = regex[i];
    if (c == '\\' && i + 1 < regex.size()) {
      const char escaped = regex[++i];
      const char kind = static_cast<char>(escaped | 0x20);
      const std::string_view members = kind == 's'   ? kSpaces
                                       : kind == 'w' ? kWords
                                       : kind == 'h' ? kHexadecimal
                                                     : std::string_view();
      const bool negated = escaped != kind;
      KINORA_CHECK(members.empty() || !(in_class && negated), kIo, where,
                   ": a regular expression must not have \\", escaped, " within [...], got ",
                   quote(regex));
      if (members.empty()) {
        pcre += c;
        pcre += escaped;
      } else if (in_class) {
        pcre += members;
      } else {
        (pcre += negated ? "[^" : "[").append(members) += "]";
      }
      continue;
    }
    if (in_class) {
      const bool posix = regex.substr(i, 2) == "[:";
      KINORA_CHECK((c != '[' || posix) && regex.substr(i, 2) != "&&", kIo, where,
                   ": a regular expression must not have [ or && within [...], got ", quote(regex));
      if (posix) {
        const size_t end = std::min(regex.find(":]", i), regex.size() - 2);
        pcre += regex.substr(i, end + 2 - i);
        i = end + 1;
        continue;
      }
      in_class = c != ']';
    } else if (c == '[') {
      in_class = true;
      pcre += c;
      if (i + 1 < regex.size() && regex[i + 1] == '^') {
        pcre += regex[++i];
      }
      if (i + 1 < regex.size() && regex[i + 1] == ']') {
        pcre += regex[++i];
      }
      continue;
    }
    pcre += c;
  }
  return pcre;
}

template <auto kFree>
struct Freer {
  template <typename T>
  void operator()(T* handle) const {
    kFree(handle);
  }
};
using MatchData = std::unique_ptr<pcre2_match_data, Freer<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Freer<pcre2_match_context_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Freer<pcre2_compile_context_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Freer<pcre2_jit_stack_free>>;

/// What a search writes to; each thread has its own.
struct Matcher {
  MatchData data{pcre2_match_data_create(1, nullptr)};
  MatchContext context{pcre2_match_context_create(nullptr)};
  JitStack stack{pcre2_jit_stack_create(kMinJitStack, kMaxJitStack, nullptr)};

  Matcher() {
    KINORA_CHECK(data && context && stack, kMemory, "[regex] no memory for a search");
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

/// This thread's, for a text of `bytes`: what takes more steps from one place is made to take long.
Matcher& matcher_for(size_t bytes) {
  thread_local Matcher matcher;
  const size_t steps = std::max<size_t>(kMinSteps, kMaxStepsPerByte * bytes);
  pcre2_set_match_limit(matcher.context.get(),
                        static_cast<uint32_t>(std::min<size_t>(steps, UINT32_MAX)));
  return matcher;
}

PCRE2_SPTR bytes_of(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

std::string pcre_message(int code) {
  std::array<unsigned char, 256> text = {};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

void check_search(int code, std::string_view text, const std::string& expression) {
  KINORA_CHECK(code >= 0, kConfig, "[regex] searching ", text.size(), " bytes of text for ",
               quote(expression), " must take few steps, got: ", pcre_message(code));
}

}  // namespace

struct Regex::Compiled {
  std::unique_ptr<pcre2_code, Freer<pcre2_code_free>> code;
};

Regex::Regex(std::string_view expression, Dialect dialect, std::string_view where)
    : expression_(expression), compiled_(std::make_unique<Compiled>()) {
  KINORA_CHECK(expression.size() <= kMaxExpressionBytes, kIo, where,
               ": a regular expression must have at most ", kMaxExpressionBytes, " bytes, got ",
               expression.size());
  const bool is_python = dialect == Dialect::kPython;
  const std::string pcre = is_python ? expression_ : to_pcre(expression, where);
  const uint32_t lines = is_python ? 0 : PCRE2_MULTILINE;
  const CompileContext context(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int code = 0;
  size_t offset = 0;
  compiled_->code.reset(pcre2_compile(bytes_of(pcre), pcre.size(),
                                      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | lines,
                                      &code, &offset, context.get()));
  KINORA_CHECK(compiled_->code, kIo, where, ": the regular expression ", quote(expression),
               " cannot be used: ", pcre_message(code));
  // Where there is no compiler for this machine, the interpreter does.
  static_cast<void>(pcre2_jit_compile(compiled_->code.get(), PCRE2_JIT_COMPLETE));
}

Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

void Regex::find(std::string_view text, std::vector<TextRange>& matches) const {
  matches.clear();
  const Matcher& matcher = matcher_for(text.size());
  const size_t* found = pcre2_get_ovector_pointer(matcher.data.get());
  for (size_t at = 0; at <= text.size();) {
    const int code = pcre2_match(compiled_->code.get(), bytes_of(text), text.size(), at,
                                 PCRE2_NO_UTF_CHECK, matcher.data.get(), matcher.context.get());
    if (code == PCRE2_ERROR_NOMATCH) {
      return;
    }
    check_search(code, text, expression_);
    // \K could put the begin behind the end.
    const TextRange match{std::min(found[0], found[1]), found[1]};
    at = match.end;
    if (match.begin < match.end) {
      matches.push_back(match);
      continue;
    }
    // As Oniguruma's iterator: an empty match right behind a match is none.
    if (matches.empty() || matches.back().end != match.begin) {
      matches.push_back(match);
    }
    do {
      ++at;  // to the next character
    } while (at < text.size() && (static_cast<uint8_t>(text[at]) & 0xC0U) == 0x80U);
  }
}

std::string Regex::replaced(std::string_view text, std::string_view replacement) const {
  std::string result(2 * text.size() + 64, '\0');
  PCRE2_SIZE size = result.size();
  const auto substitute = [&] {
    constexpr uint32_t kOptions = PCRE2_SUBSTITUTE_GLOBAL | PCRE2_SUBSTITUTE_OVERFLOW_LENGTH;
    return pcre2_substitute(compiled_->code.get(), bytes_of(text), text.size(), 0, kOptions,
                            nullptr, matcher_for(text.size()).context.get(), bytes_of(replacement),
                            replacement.size(), reinterpret_cast<PCRE2_UCHAR*>(result.data()),
                            &size);
  };
  int code = substitute();
  if (code == PCRE2_ERROR_NOMEMORY) {
    result.resize(size);  // what it needs
    code = substitute();
  }
  check_search(code, text, expression_);
  result.resize(size);
  return result;
}

}  // namespace kinora
