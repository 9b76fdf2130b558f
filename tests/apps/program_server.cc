#include "tests/apps/program_server.h"

#include <ATen/ops/ones.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/kinora/program.h"
#include "kinora/core/error.h"
#include "kinora/models/families.h"
#include "kinora/models/transformers/dit.h"

namespace kinora::apps {
namespace {

void redirect(const char* file, int descriptor) {
  const int opened = ::open(file, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (opened < 0 || ::dup2(opened, descriptor) < 0) {
    ::_exit(126);
  }
  ::close(opened);
}

/// What the environment says, "0" where it says nothing.
std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "0";
}

bool awaits_operation = false;
thread_local bool is_hungry = false;

/// The allocator of the CPU, which has nothing for the next tensor of a thread that is_hungry.
class HungryAllocator : public c10::Allocator {
 public:
  at::DataPtr allocate(size_t bytes) override {
    if (std::exchange(is_hungry, false)) {
      TORCH_CHECK_WITH(OutOfMemoryError, false, "planted: no memory");
    }
    return base_->allocate(bytes);
  }
  [[nodiscard]] at::DeleterFnPtr raw_deleter() const override { return base_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    base_->copy_data(to, from, bytes);
  }

 private:
  c10::Allocator* base_ = c10::GetAllocator(c10::kCPU);
};

/// The next operation of that name finds no memory.
void plant(const std::string& operation) {
  static HungryAllocator allocator;
  static const std::string awaited = operation;
  c10::SetAllocator(c10::kCPU, &allocator);
  awaits_operation = true;
  at::addGlobalCallback(at::RecordFunctionCallback(
      [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
        if (awaits_operation && function.name() == awaited) {
          awaits_operation = false;
          is_hungry = true;
        }
        return nullptr;
      }));
}

/// The fork that is to be the program.
[[noreturn]] void become_program(std::string& request) {
  std::vector<char*> strings;
  for (size_t at = 0; at < request.size(); at = request.find('\0', at) + 1) {
    strings.push_back(request.data() + at);
  }
  redirect(strings.at(0), STDOUT_FILENO);
  redirect(strings.at(1), STDERR_FILENO);
  const auto first_word = strings.begin() + 3;
  const auto first_variable = first_word + std::atoi(strings.at(2));
  std::vector<char*> argv(first_word, first_variable);
  argv.push_back(nullptr);
  ::clearenv();
  for (auto variable = first_variable; variable != strings.end(); ++variable) {
    ::putenv(*variable);
  }
  if (std::getenv(kHungryStep) != nullptr && variable(kHungryStep) == "0") {
    plant(variable(kHungryOperation));
  }
  run_program(static_cast<int>(argv.size()) - 1, argv.data());
}

/// A DiT that finds no memory, in one step of the first start of one rank (program_server.h).
class HungryDiT : public models::DiT {
 public:
  using models::DiT::DiT;

  void begin_step() override {
    DiT::begin_step();
    static int steps = 0;
    const bool is_planned = named_parameters().front().parameter->value.is_meta();
    steps += is_planned ? 0 : 1;
    if (!is_planned && steps == std::stoi(variable(kHungryStep)) &&
        variable("RANK") == variable(kHungryRank) && variable("KINORA_RESTART") == "0") {
      plant(variable(kHungryOperation));
    }
  }
};

/// A DiT that keeps 16 KiB of each step.
class LeakyDiT : public models::DiT {
 public:
  using models::DiT::DiT;

  void begin_step() override {
    DiT::begin_step();
    constexpr int64_t kKept = 4096;
    static std::vector<at::Tensor> kept;
    kept.push_back(
        at::ones({kKept}, named_parameters().front().parameter->value.options().dtype(at::kFloat)));
  }
};

void add_family(const char* key, const char* name,
                std::unique_ptr<models::Model> (*make)(const models::ModelConfig& config)) {
  models::Family row = models::families().front();
  row.key = key;
  row.name = name;
  row.diffusers.reset();
  row.sizes.clear();
  row.patches.clear();
  row.make = make;
  models::add_family(std::move(row));
}

/// Starts programs as long as there is somebody who asks for them.
[[noreturn]] void serve() {
  const auto tasks = std::filesystem::directory_iterator("/proc/self/task");
  KINORA_CHECK(std::distance(begin(tasks), end(tasks)) == 1, kInternal,
               "[program server] a process that is forked must have one thread");
  auto* const program = static_cast<pid_t*>(
      ::mmap(nullptr, sizeof(pid_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  KINORA_CHECK(program != MAP_FAILED, kIo, "[program server] mmap failed");
  for (std::string request;;) {
    request.resize(1 << 18);
    const ssize_t size = ::recv(STDOUT_FILENO, request.data(), request.size(), 0);
    if (size <= 0) {
      std::_Exit(0);
    }
    request.resize(static_cast<size_t>(size));
    *program = -1;
    // Once the process between has ended, the program is a child of the test, a subreaper now.
    const pid_t between = ::fork();
    if (between == 0) {
      const pid_t forked = ::fork();
      if (forked == 0) {
        become_program(request);
      }
      *program = forked;
      ::_exit(0);
    }
    ::waitpid(between, nullptr, 0);
    ::send(STDOUT_FILENO, program, sizeof(pid_t), 0);
  }
}

}  // namespace
}  // namespace kinora::apps

int main(int argc, char** argv) {
  kinora::apps::add_family(kinora::apps::kHungryFamily, "Hungry",
                           kinora::models::make<kinora::apps::HungryDiT>);
  kinora::apps::add_family(kinora::apps::kLeakyFamily, "Leaky",
                           kinora::models::make<kinora::apps::LeakyDiT>);
  if (std::getenv(kinora::apps::kProgramServerVariable) != nullptr) {
    kinora::apps::serve();
  }
  kinora::apps::run_program(argc, argv);  // a rank, which the program starts by /proc/self/exe
}
