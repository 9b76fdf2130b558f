#include "apps/kinora/error_report.h"

#include <c10/util/Exception.h>

#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <string_view>

#include "apps/kinora/options/user_error.h"
#include "kinora/core/error.h"

namespace kinora::apps {
namespace {

constexpr int kExitFailure = 1;

/// How libtorch says that the host has no more memory: by an error without a type of its own.
constexpr std::string_view kNoHostMemory = "can't allocate memory";

}  // namespace

ErrorReport report_current_error() {
  try {
    throw;
  } catch (const Error& error) {
    return {error_text(error), exit_code(error.kind())};
  } catch (const c10::OutOfMemoryError& error) {
    return {std::string("out of GPU memory: ") + error.what_without_backtrace() +
                "\nHint: a smaller train.micro_batch (the global batch stays), or "
                "train.recompute=block",
            kExitOutOfMemory};
  } catch (const std::bad_alloc&) {
    return {"out of memory. Hint: a smaller train.micro_batch", kExitOutOfMemory};
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    if (message.find(kNoHostMemory) != std::string::npos) {
      return {"out of memory: " + message + "\nHint: a smaller train.micro_batch",
              kExitOutOfMemory};
    }
    return {"error in libtorch: " + message, kExitFailure};
  } catch (const std::filesystem::filesystem_error& error) {
    const Error io_error(ErrorKind::kIo, error.what());
    return {error_text(io_error), exit_code(io_error.kind())};
  } catch (const std::exception& error) {
    return {std::string("error: ") + error.what(), kExitFailure};
  }
}

}  // namespace kinora::apps
