#include "apps/kinora/error_report.h"

#include <c10/util/Exception.h>

#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <utility>

#include "apps/kinora/options/user_error.h"
#include "kinora/core/error.h"
#include "kinora/device/out_of_memory.h"
#include "kinora/train/out_of_memory.h"

namespace kinora::apps {
namespace {

constexpr int kExitFailure = 1;

/// That of set_memory_hint(), or of training.
std::string& memory_hint() {
  static std::string hint =
      "a smaller train.micro_batch (the global batch stays), or train.recompute=block";
  return hint;
}

}  // namespace

void set_memory_hint(std::string hint) {
  memory_hint() = std::move(hint);
}

ErrorReport report_current_error() {
  try {
    throw;
  } catch (const Error& error) {
    const bool starts_again = dynamic_cast<const train::StartAgain*>(&error) != nullptr;
    return {error_text(error), starts_again ? kExitStartAgain : exit_code(error.kind())};
  } catch (const c10::OutOfMemoryError& error) {
    return {std::string("out of GPU memory: ") + error.what_without_backtrace() +
                "\nHint: " + memory_hint(),
            kExitOutOfMemory};
  } catch (const std::bad_alloc&) {
    return {"out of memory. Hint: " + memory_hint(), kExitOutOfMemory};
  } catch (const c10::Error& error) {
    if (const auto message = device::out_of_memory_text(error)) {
      return {"out of memory: " + *message + "\nHint: " + memory_hint(), kExitOutOfMemory};
    }
    return {std::string("error in libtorch: ") + error.what_without_backtrace(), kExitFailure};
  } catch (const std::filesystem::filesystem_error& error) {
    const Error io_error(ErrorKind::kIo, error.what());
    return {error_text(io_error), exit_code(io_error.kind())};
  } catch (const std::exception& error) {
    return {std::string("error: ") + error.what(), kExitFailure};
  }
}

}  // namespace kinora::apps
