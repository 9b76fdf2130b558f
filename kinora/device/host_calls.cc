#include "kinora/device/host_calls.h"

#include <ATen/Parallel.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "kinora/device/host_calls_launch.h"

namespace kinora::device {
namespace {

/// The cores of a list such as "0-3,8".
cpu_set_t cores_of(const std::string& list) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  std::istringstream ranges(list);
  std::string range;
  while (std::getline(ranges, range, ',')) {
    std::istringstream text(range);
    int first = 0;
    if (!(text >> first)) {
      continue;
    }
    int last = first;
    if (text.get() == '-') {
      text >> last;
    }
    for (int core = std::max(first, 0); core <= std::min(last, CPU_SETSIZE - 1); ++core) {
      CPU_SET(core, &cores);
    }
  }
  return cores;
}

/// Those near the device, as the system says; none where it does not.
cpu_set_t cores_near(c10::Device device) {
  std::string list;
  if (device.is_cuda()) {
    std::ifstream file("/sys/bus/pci/devices/" + cuda::bus_address(device) + "/local_cpulist");
    std::getline(file, list);
  }
  return cores_of(list);
}

/// This thread, and those that it starts, keep to these cores, if it may use any of them.
void keep_to(const cpu_set_t& cores) {
  cpu_set_t allowed;
  if (::pthread_getaffinity_np(::pthread_self(), sizeof(allowed), &allowed) != 0) {
    return;
  }
  cpu_set_t both;
  CPU_AND(&both, &cores, &allowed);
  const int count = CPU_COUNT(&both);
  if (count > 0) {
    (void)::pthread_setaffinity_np(::pthread_self(), sizeof(both), &both);
    at::set_num_threads(std::min(at::get_num_threads(), count));
  }
}

}  // namespace

class HostCalls::Thread {
 public:
  explicit Thread(c10::Device device) : num_threads_(at::get_num_threads()) {
    thread_ = std::thread([this, cores = cores_near(device)] {
      at::set_num_threads(num_threads_);
      keep_to(cores);
      serve();
    });
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_ready_; });
    at::set_num_threads(num_threads_);  // what threads that start later take on
  }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;
  ~Thread() { end(); }

  /// Returns when `function` has, or has been left out.
  void call(const std::function<void()>& function) {
    std::unique_lock lock(mutex_);
    next_ = &function;
    changed_.notify_all();
    changed_.wait(lock, [this] { return next_ == nullptr || (ends_ && !is_running_); });
    next_ = nullptr;
  }

  void end() {
    {
      const std::scoped_lock lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) {
      thread_.join();
    }
  }

  void check() const {
    const std::scoped_lock lock(mutex_);
    if (error_) {
      std::rethrow_exception(error_);
    }
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    is_ready_ = true;
    changed_.notify_all();
    while (true) {
      changed_.wait(lock, [this] { return next_ != nullptr || ends_; });
      if (ends_) {
        return;
      }
      if (!error_) {
        const std::function<void()>& function = *next_;
        is_running_ = true;
        lock.unlock();
        std::exception_ptr error;
        try {
          function();
        } catch (...) {
          error = std::current_exception();
        }
        lock.lock();
        is_running_ = false;
        error_ = error;
      }
      next_ = nullptr;
      changed_.notify_all();
    }
  }

  const int num_threads_;     // of a computation
  mutable std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  bool is_ready_ = false;
  const std::function<void()>* next_ = nullptr;
  bool is_running_ = false;  // what next_ is
  bool ends_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // begins when the others are there
};

HostCalls::HostCalls(c10::Device device)
    : device_(device), thread_(std::make_shared<Thread>(device)) {}

HostCalls::~HostCalls() {
  thread_->end();
}

void HostCalls::enqueue(std::function<void()> function) {
  auto call = [thread = thread_, function = std::move(function)] { thread->call(function); };
  if (device_.is_cuda()) {
    cuda::call_on_host(device_, std::move(call));
  } else {
    call();
  }
}

size_t HostCalls::keep(std::function<void()> function) {
  kept_.push_back([thread = thread_, function = std::move(function)] { thread->call(function); });
  return kept_.size() - 1;
}

void HostCalls::enqueue_kept(size_t number) {
  if (device_.is_cuda()) {
    cuda::call_kept_on_host(device_, kept_[number]);
  } else {
    kept_[number]();
  }
}

void HostCalls::check() const {
  thread_->check();
}

}  // namespace kinora::device
