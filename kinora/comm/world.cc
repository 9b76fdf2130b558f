#include "kinora/comm/world.h"

#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <optional>

#include "kinora/core/error.h"
#include "kinora/core/text.h"

namespace kinora::comm {
namespace {

constexpr int64_t kDefaultPort = 29500;  // torchrun's, so that firewalls need one rule
constexpr int64_t kMaxPort = 65535;
constexpr int64_t kFirstSlurmPort = 20000;  // below Linux's ephemeral ports
constexpr int64_t kNumSlurmPorts = 10000;
constexpr int64_t kMaxNodes = 1 << 20;

std::optional<int64_t> parse(std::string_view text) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || error != std::errc() || stop != end || value < 0) {
    return std::nullopt;
  }
  return value;
}

/// Variables by name, with errors that name them.
class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(environment) {}

  /// Empty counts as not set, as exported by shell scripts.
  [[nodiscard]] std::string text(const char* name) const {
    const char* value = environment_(name);
    return value == nullptr ? "" : value;
  }

  [[nodiscard]] bool has(const char* name) const { return !text(name).empty(); }

  /// One of the numbers that `launcher` sets.
  [[nodiscard]] int64_t number(const char* name, std::string_view launcher) const {
    const std::string value = text(name);
    KINORA_CHECK(!value.empty(), kConfig, "[comm] ", launcher, " must set ", name,
                 ", which is missing. Hint: start through ", launcher,
                 " or unset its other variables.");
    const std::optional<int64_t> parsed = parse(value);
    KINORA_CHECK(parsed.has_value(), kConfig, "[comm] ", name,
                 " must be a whole number from 0, got ", quote(value), '.');
    return *parsed;
  }

  [[nodiscard]] int64_t number_or(const char* name, int64_t otherwise) const {
    return has(name) ? number(name, "the launcher") : otherwise;
  }

 private:
  const Environment& environment_;
};

/// A launcher's name and its variables, for error messages.
struct Names {
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

/// Rank, size and their local ones must fit together.
void check_numbers(const World& world, const Names& names) {
  KINORA_CHECK(world.size > 0, kConfig, "[comm] ", names.size, " must be at least 1, got 0.");
  KINORA_CHECK(world.rank < world.size, kConfig, "[comm] ", names.rank, " must be less than ",
               names.size, " (", world.size, "), got ", world.rank, '.');
  KINORA_CHECK(world.local_rank <= world.rank, kConfig, "[comm] ", names.local_rank,
               " must not exceed ", names.rank, " (", world.rank, "), got ", world.local_rank, '.');
  KINORA_CHECK(world.local_size <= world.size, kConfig, "[comm] ", names.local_size,
               " must not exceed ", names.size, " (", world.size, "), got ", world.local_size, '.');
  KINORA_CHECK(world.local_size == 0 || world.local_rank < world.local_size, kConfig, "[comm] ",
               names.local_rank, " must be less than ", names.local_size, " (", world.local_size,
               "), got ", world.local_rank, '.');
}

void check_port(int64_t port, std::string_view name) {
  KINORA_CHECK(port > 0 && port <= kMaxPort, kConfig, "[comm] ", name, " must be 1 to ", kMaxPort,
               ", got ", port, '.');
}

World torchrun_world(const Variables& variables) {
  constexpr std::string_view kLauncher = "torchrun";
  World world;
  world.rank = variables.number("RANK", kLauncher);
  world.size = variables.number("WORLD_SIZE", kLauncher);
  world.local_rank = variables.number("LOCAL_RANK", kLauncher);
  world.local_size = variables.number_or("LOCAL_WORLD_SIZE", world.size == 1 ? 1 : 0);
  check_numbers(world, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  world.store_port = variables.number("MASTER_PORT", kLauncher);
  check_port(world.store_port, "MASTER_PORT");
  world.store_host = variables.text("MASTER_ADDR");
  KINORA_CHECK(!world.store_host.empty(), kConfig, "[comm] ", kLauncher,
               " must set MASTER_ADDR, which is missing.");
  world.restart =
      variables.number_or("KINORA_RESTART", variables.number_or("TORCHELASTIC_RESTART_COUNT", 0));
  if (variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True") {
    world.store_is_hosted = true;
    world.store_prefix = store_prefix(world.restart);
  }
  return world;
}

World open_mpi_world(const Variables& variables) {
  constexpr std::string_view kLauncher = "Open MPI's mpirun";
  constexpr Names kNames = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
  World world;
  world.rank = variables.number(kNames.rank, kLauncher);
  world.size = variables.number(kNames.size, kLauncher);
  world.local_rank = variables.number(kNames.local_rank, kLauncher);
  world.local_size = variables.number(kNames.local_size, kLauncher);
  check_numbers(world, kNames);
  world.store_host = variables.text("MASTER_ADDR");
  if (world.store_host.empty()) {
    KINORA_CHECK(world.local_size == world.size, kConfig,
                 "[comm] MASTER_ADDR must name the host of rank 0, since mpirun started ",
                 world.size,
                 " ranks on several hosts and does not say. Hint: mpirun -x "
                 "MASTER_ADDR=HOST ...");
    world.store_host = "127.0.0.1";
  }
  world.store_port = variables.number_or("MASTER_PORT", kDefaultPort);
  check_port(world.store_port, "MASTER_PORT");
  return world;
}

/// Tasks on this task's node, 0 if SLURM does not say.
int64_t slurm_local_size(const Variables& variables) {
  const std::string tasks = variables.text("SLURM_STEP_TASKS_PER_NODE");
  if (tasks.empty() || !variables.has("SLURM_NODEID")) {
    return 0;
  }
  const std::vector<int64_t> nodes = slurm_tasks_per_node(tasks);
  const int64_t node = variables.number("SLURM_NODEID", "srun");
  KINORA_CHECK(node < static_cast<int64_t>(nodes.size()), kConfig, "[comm] SLURM_NODEID is ", node,
               ", but SLURM_STEP_TASKS_PER_NODE (", tasks, ") counts ", nodes.size(), " nodes.");
  return nodes[node];
}

World slurm_world(const Variables& variables) {
  constexpr std::string_view kLauncher = "srun";
  World world;
  world.rank = variables.number("SLURM_PROCID", kLauncher);
  world.size = variables.number("SLURM_NTASKS", kLauncher);
  world.local_rank = variables.number("SLURM_LOCALID", kLauncher);
  world.local_size = world.size == 1 ? 1 : slurm_local_size(variables);
  check_numbers(world,
                {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"});
  world.store_host = variables.text("MASTER_ADDR");
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    if (world.store_host.empty() && variables.has(name)) {
      world.store_host = first_slurm_host(variables.text(name));
    }
  }
  KINORA_CHECK(!world.store_host.empty() || world.size == 1, kConfig,
               "[comm] srun must set SLURM_NODELIST (or give MASTER_ADDR), which is missing.");
  world.store_port = variables.number_or(
      "MASTER_PORT", kFirstSlurmPort + variables.number_or("SLURM_JOB_ID", 0) % kNumSlurmPorts);
  check_port(world.store_port, "MASTER_PORT");
  return world;
}

/// Index after the ']' that closes the '[' at `open`.
size_t after_bracket(std::string_view list, size_t open, std::string_view whole) {
  const size_t close = list.find(']', open);
  KINORA_CHECK(close != std::string_view::npos, kConfig, "[comm] SLURM's list of nodes ",
               quote(whole), " has a '[' without its ']'.");
  return close + 1;
}

}  // namespace

std::string store_prefix(int64_t restart) {
  return "attempt" + std::to_string(restart);
}

Environment process_environment() {
  return [](const char* name) -> const char* { return std::getenv(name); };
}

World world_from_environment(const Environment& environment) {
  const Variables variables(environment);
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK"}) {
    if (variables.has(name)) {
      return torchrun_world(variables);
    }
  }
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}) {
    if (variables.has(name)) {
      return open_mpi_world(variables);
    }
  }
  if (variables.has("SLURM_PROCID")) {
    return slurm_world(variables);
  }
  return {};
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown host";
}

void check_world(const World& world) {
  KINORA_CHECK(world.rank >= 0 && world.local_rank >= 0 && world.local_size >= 0, kConfig,
               "[comm] ranks and sizes must not be negative, got rank ", world.rank,
               ", local_rank ", world.local_rank, ", local_size ", world.local_size, '.');
  check_numbers(world, {"rank", "size", "local_rank", "local_size"});
  if (world.size > 1) {
    KINORA_CHECK(!world.store_host.empty(), kConfig, "[comm] a world of ", world.size,
                 " ranks must have a store_host.");
    check_port(world.store_port, "store_port");
  }
}

std::string first_slurm_host(std::string_view list) {
  const std::string_view whole = list;
  std::string host;
  while (!list.empty() && list.front() != ',') {
    if (list.front() != '[') {
      host += list.front();
      list.remove_prefix(1);
      continue;
    }
    const size_t after = after_bracket(list, 0, whole);
    const std::string_view numbers = list.substr(1, after - 2);
    const std::string_view first = numbers.substr(0, numbers.find_first_of(",-"));
    // Leading zeros belong to the name.
    KINORA_CHECK(parse(first).has_value(), kConfig, "[comm] SLURM's list of nodes ", quote(whole),
                 " must have a number after '[', got ", quote(first), '.');
    host += first;
    list.remove_prefix(after);
  }
  KINORA_CHECK(!host.empty() && host.find(']') == std::string::npos, kConfig,
               "[comm] SLURM's list of nodes must start with a host, got ", quote(whole), '.');
  return host;
}

std::vector<int64_t> slurm_tasks_per_node(std::string_view text) {
  std::vector<int64_t> nodes;
  for (std::string_view piece : split(text, ',')) {
    const size_t open = piece.find("(x");
    std::optional<int64_t> repeat = 1;
    if (open != std::string_view::npos) {
      const bool closed = piece.back() == ')';
      repeat = closed ? parse(piece.substr(open + 2, piece.size() - open - 3)) : std::nullopt;
      piece = piece.substr(0, open);
    }
    const std::optional<int64_t> tasks = parse(piece);
    KINORA_CHECK(tasks && repeat && *repeat > 0 && *repeat <= kMaxNodes, kConfig,
                 "[comm] SLURM's tasks per node must look like 4(x2),3, got ", quote(text), '.');
    nodes.insert(nodes.end(), *repeat, *tasks);
  }
  return nodes;
}

}  // namespace kinora::comm
