#include "kinora/device/gpu_trace.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <new>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <cuda_runtime_api.h>
#include <cupti.h>

#include "kinora/core/cuda.h"
#include "kinora/core/error.h"

namespace kinora::device {
namespace {

/// CUPTI's functions, from the library that libtorch brings.
struct Cupti {
  decltype(&cuptiGetVersion) get_version;
  decltype(&cuptiGetErrorMessage) get_error_message;
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks;
  decltype(&cuptiActivityEnable) enable;
  decltype(&cuptiActivityDisable) disable;
  decltype(&cuptiActivityFlushAll) flush_all;
  decltype(&cuptiActivityGetNextRecord) get_next_record;
  decltype(&cuptiActivityGetNumDroppedRecords) get_num_dropped_records;
  decltype(&cuptiGetCallbackName) get_callback_name;
};

template <typename Function>
void find_function(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(::dlsym(library, name));
  KINORA_CHECK(*function != nullptr, kCuda, "[trace] CUPTI's library lacks ", name);
}

Cupti load_cupti() {
  const std::string file = "libcupti.so." + std::to_string(CUPTI_API_VERSION / 10000);
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = ::dlerror();
    throw_error(ErrorKind::kCuda,
                "[trace] CUPTI's library, which traces the GPU, cannot be loaded: ",
                reason != nullptr ? reason : file.c_str(),
                ". Hint: the torch wheel brings it in nvidia/cu13/lib, a toolkit in "
                "extras/CUPTI/lib64; LD_LIBRARY_PATH can name the folder");
  }
  Cupti cupti{};
  find_function(library, "cuptiGetVersion", &cupti.get_version);
  find_function(library, "cuptiGetErrorMessage", &cupti.get_error_message);
  find_function(library, "cuptiActivityRegisterCallbacks", &cupti.register_callbacks);
  find_function(library, "cuptiActivityEnable", &cupti.enable);
  find_function(library, "cuptiActivityDisable", &cupti.disable);
  find_function(library, "cuptiActivityFlushAll", &cupti.flush_all);
  find_function(library, "cuptiActivityGetNextRecord", &cupti.get_next_record);
  find_function(library, "cuptiActivityGetNumDroppedRecords", &cupti.get_num_dropped_records);
  find_function(library, "cuptiGetCallbackName", &cupti.get_callback_name);
  uint32_t version = 0;
  // Records have the layout of the library's version, and ours are read as the headers say.
  KINORA_CHECK(
      cupti.get_version(&version) == CUPTI_SUCCESS && version / 10000 == CUPTI_API_VERSION / 10000,
      kCuda, "[trace] CUPTI must be of version ", CUPTI_API_VERSION / 10000, ", got ", version);
  return cupti;
}

const Cupti& cupti() {
  static const Cupti kFunctions = load_cupti();  // tried again where it threw
  return kFunctions;
}

void check(CUptiResult result, const char* what) {
  if (result == CUPTI_SUCCESS) {
    return;
  }
  const char* message = nullptr;
  cupti().get_error_message(result, &message);
  throw_error(ErrorKind::kCuda, "[trace] ", what,
              " failed: ", message != nullptr ? message : "unknown error", " (CUPTI's error ",
              static_cast<int>(result), ")");
}

struct Buffer {
  std::unique_ptr<uint8_t[]> bytes;
  size_t valid = 0;
};

/// Where CUPTI's thread puts full buffers. Of the process, since CUPTI's callbacks know no caller.
struct Collector {
  std::mutex mutex;
  std::vector<Buffer> buffers;
};

Collector& collector() {
  static Collector value;
  return value;
}

std::atomic<bool>& trace_runs() {
  static std::atomic<bool> value = false;
  return value;
}

void CUPTIAPI request_buffer(uint8_t** buffer, size_t* size, size_t* max_records) {
  constexpr size_t kBytes = size_t{8} << 20;
  *buffer = new (std::nothrow) uint8_t[kBytes];  // null: CUPTI counts the records as dropped
  *size = *buffer == nullptr ? 0 : kBytes;
  *max_records = 0;
}

void CUPTIAPI take_buffer(CUcontext /*context*/, uint32_t /*stream*/, uint8_t* buffer,
                          size_t /*size*/, size_t valid) {
  Buffer full{std::unique_ptr<uint8_t[]>(buffer), valid};
  Collector& into = collector();
  const std::lock_guard lock(into.mutex);
  into.buffers.push_back(std::move(full));
}

// What the host does is left out first, so that the wait at the end of a trace is not in it.
constexpr std::array<CUpti_ActivityKind, 2> kHostKinds = {CUPTI_ACTIVITY_KIND_RUNTIME,
                                                          CUPTI_ACTIVITY_KIND_DRIVER};
constexpr std::array<CUpti_ActivityKind, 3> kDeviceKinds = {
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET};

std::string demangled(const char* name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string result = text != nullptr ? text : name;
  std::free(text);
  return result;
}

GpuEvent::Kind kind_of_copy(uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return GpuEvent::Kind::kHostToDevice;
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return GpuEvent::Kind::kDeviceToHost;
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP:
      return GpuEvent::Kind::kDeviceToDevice;
    default:
      return GpuEvent::Kind::kOtherCopy;
  }
}

/// Turns CUPTI's records into ours.
class Reader {
 public:
  void read(const Buffer& buffer) {
    CUpti_Activity* record = nullptr;
    while (cupti().get_next_record(buffer.bytes.get(), buffer.valid, &record) == CUPTI_SUCCESS) {
      switch (record->kind) {
        case CUPTI_ACTIVITY_KIND_KERNEL:
        case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
          add_kernel(*reinterpret_cast<const CUpti_ActivityKernel10*>(record));
          break;
        case CUPTI_ACTIVITY_KIND_MEMCPY:
          add_copy(*reinterpret_cast<const CUpti_ActivityMemcpy6*>(record));
          break;
        case CUPTI_ACTIVITY_KIND_MEMSET: {
          const auto& memset = *reinterpret_cast<const CUpti_ActivityMemset4*>(record);
          add({.kind = GpuEvent::Kind::kMemset,
               .stream = memset.streamId,
               .bytes = static_cast<int64_t>(memset.bytes)},
              memset.start, memset.end);
          break;
        }
        case CUPTI_ACTIVITY_KIND_RUNTIME:
          add_call(*reinterpret_cast<const CUpti_ActivityAPI*>(record),
                   CUPTI_CB_DOMAIN_RUNTIME_API);
          break;
        case CUPTI_ACTIVITY_KIND_DRIVER:
          add_call(*reinterpret_cast<const CUpti_ActivityAPI*>(record), CUPTI_CB_DOMAIN_DRIVER_API);
          break;
        default:
          break;
      }
    }
  }

  GpuRecords result() {
    for (auto& [correlation, call] : waits_) {
      records_.waits.push_back(std::move(call));
    }
    return std::move(records_);
  }

 private:
  /// A call's name where it waits, else empty.
  const std::string& waiting_call(CUpti_CallbackDomain domain, CUpti_CallbackId id) {
    const uint64_t key = static_cast<uint64_t>(domain) << 32U | id;
    const auto found = calls_.find(key);
    if (found != calls_.end()) {
      return found->second;
    }
    const char* name = nullptr;
    std::string& call = calls_[key];
    if (cupti().get_callback_name(domain, id, &name) == CUPTI_SUCCESS && name != nullptr &&
        waits_for_device(api_call_name(name))) {
      call = api_call_name(name);
    }
    return call;
  }

  void add(GpuEvent event, uint64_t start, uint64_t end) {
    if (start == 0 || end < start) {  // CUPTI got no time for it
      ++records_.dropped;
      return;
    }
    event.start_ns = static_cast<int64_t>(start);
    event.end_ns = static_cast<int64_t>(end);
    records_.events.push_back(event);
  }

  void add_kernel(const CUpti_ActivityKernel10& kernel) {
    const char* name = kernel.name != nullptr ? kernel.name : "?";
    const auto [place, is_new] = names_.try_emplace(name, records_.names.size());
    if (is_new) {
      records_.names.push_back(demangled(name));
    }
    add({.kind = GpuEvent::Kind::kKernel, .name = place->second, .stream = kernel.streamId},
        kernel.start, kernel.end);
  }

  void add_copy(const CUpti_ActivityMemcpy6& copy) {
    add({.kind = kind_of_copy(copy.copyKind),
         .stream = copy.streamId,
         .bytes = static_cast<int64_t>(copy.bytes),
         .pageable = copy.srcKind == CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE ||
                     copy.dstKind == CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE},
        copy.start, copy.end);
  }

  /// The runtime calls the driver: both are recorded, under one correlation.
  void add_call(const CUpti_ActivityAPI& call, CUpti_CallbackDomain domain) {
    const std::string& name = waiting_call(domain, call.cbid);
    if (!name.empty()) {
      std::string& known = waits_[call.correlationId];
      if (known.empty() || domain == CUPTI_CB_DOMAIN_RUNTIME_API) {
        known = name;
      }
    }
  }

  GpuRecords records_;
  std::unordered_map<std::string_view, size_t> names_;  // CUPTI's strings live as long as it
  std::unordered_map<uint64_t, std::string> calls_;
  std::unordered_map<uint32_t, std::string> waits_;  // by correlation
};

}  // namespace

struct GpuTrace::Impl {
  bool runs = false;

  void start() {
    KINORA_CUDA_CHECK(cudaDeviceSynchronize());
    KINORA_CHECK(!runs && !trace_runs().exchange(true), kInternal, "[trace] a trace runs already");
    runs = true;
    check(cupti().register_callbacks(request_buffer, take_buffer),
          "cuptiActivityRegisterCallbacks");
    for (const CUpti_ActivityKind kind : kDeviceKinds) {
      check(cupti().enable(kind), "cuptiActivityEnable");
    }
    for (const CUpti_ActivityKind kind : kHostKinds) {
      check(cupti().enable(kind), "cuptiActivityEnable");
    }
  }

  void disable() {
    for (const CUpti_ActivityKind kind : kHostKinds) {
      check(cupti().disable(kind), "cuptiActivityDisable");
    }
    KINORA_CUDA_CHECK(cudaDeviceSynchronize());
    for (const CUpti_ActivityKind kind : kDeviceKinds) {
      check(cupti().disable(kind), "cuptiActivityDisable");
    }
    check(cupti().flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll");
  }

  std::vector<Buffer> take_buffers() {
    runs = false;
    Collector& from = collector();
    const std::lock_guard lock(from.mutex);
    trace_runs() = false;
    return std::exchange(from.buffers, {});
  }
};

GpuTrace::GpuTrace() : impl_(std::make_unique<Impl>()) {}

GpuTrace::~GpuTrace() {
  if (impl_->runs) {
    try {
      impl_->disable();
    } catch (const Error&) {
      // A destructor: whatever it was that broke the trace is under way already.
    }
    (void)impl_->take_buffers();
  }
}

void GpuTrace::start() {
  (void)cupti();  // before anything has to be undone
  impl_->start();
}

GpuRecords GpuTrace::stop() {
  KINORA_CHECK(impl_->runs, kInternal, "[trace] no trace runs");
  impl_->disable();
  Reader reader;
  for (const Buffer& buffer : impl_->take_buffers()) {
    reader.read(buffer);
  }
  GpuRecords records = reader.result();
  size_t dropped = 0;
  check(cupti().get_num_dropped_records(nullptr, 0, &dropped), "cuptiActivityGetNumDroppedRecords");
  records.dropped += static_cast<int64_t>(dropped);
  return records;
}

}  // namespace kinora::device
