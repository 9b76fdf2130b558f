#include "apps/kinora/error_report.h"

#include <c10/util/Exception.h>

#include <exception>
#include <new>

#include "apps/kinora/options/user_error.h"
#include "kinora/core/error.h"

namespace kinora::apps {
namespace {

constexpr int kExitFailure = 1;
constexpr int kExitOutOfMemory = 8;

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
    return {std::string("error in libtorch: ") + error.what_without_backtrace(), kExitFailure};
  } catch (const std::exception& error) {
    return {std::string("error: ") + error.what(), kExitFailure};
  }
}

}  // namespace kinora::apps
