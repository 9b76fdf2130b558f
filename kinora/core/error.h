#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace kinora {

/// What went wrong, by who can mend it. The command line turns each kind into an exit code.
enum class ErrorKind {
  kConfig,    ///< a setting, an argument, an unsuitable combination of them
  kShape,     ///< a tensor's shape or dtype
  kIo,        ///< a file or folder: missing, unreadable, not what it should be, no space
  kDamaged,   ///< a file that has lost what was written to it, as a checksum shows; of the user's
              ///< files an io error, too
  kCuda,      ///< the GPU or its libraries
  kComm,      ///< another rank
  kMemory,    ///< more memory is needed than there is
  kDiverged,  ///< training broke down: a loss or gradients are not finite, parameters do not move
  kInternal,  ///< a bug in Kinora
};

/// "config", "shape", ...
[[nodiscard]] std::string_view to_string(ErrorKind kind);

/// The one exception of Kinora. The message has the form
/// "[component] what must hold, got what. Hint: what to do."
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}

  [[nodiscard]] ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

/// Throws Error{kind, all parts streamed one after the other}.
template <typename... Parts>
[[noreturn]] void throw_error(ErrorKind kind, const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw Error(kind, message.str());
}

}  // namespace kinora

/// Throws kinora::Error of `kind` (an enumerator's name: kShape) with the streamed parts unless
/// `cond` holds.
#define KINORA_CHECK(cond, kind, ...)                                \
  do {                                                               \
    if (!(cond)) [[unlikely]] {                                      \
      ::kinora::throw_error(::kinora::ErrorKind::kind, __VA_ARGS__); \
    }                                                                \
  } while (false)

/// Marks a place that only a bug can reach.
#define KINORA_UNREACHABLE(...) ::kinora::throw_error(::kinora::ErrorKind::kInternal, __VA_ARGS__)
