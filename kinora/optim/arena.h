#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kinora/comm/group.h"
#include "kinora/kernels/block_codes.h"
#include "kinora/kernels/optimizer.h"
#include "kinora/kernels/weight_codes.h"
#include "kinora/nn/module.h"
#include "kinora/nn/plan.h"

/// The parameter arena: every parameter of a model lies in flat buckets, and so does everything
/// that belongs to it (gradient, master weights, moments, averages), in one layout. Optimizer,
/// clipping, communication, offload and checkpoints work on buckets or slices of them.
namespace kinora::optim {

/// One of the flat arrays that belong to a bucket.
struct Role {
  enum class Kind : uint8_t {
    kCompute,
    kMaster,
    kGrad,
    kExpAvg,
    kExpAvgSq,
    kEma,
    kExpAvgScales,    ///< of kExpAvg, where that is codes
    kExpAvgSqScales,  ///< of kExpAvgSq, likewise
    kFactors,         ///< of Adafactor and CAME (Slot::num_factors)
    kInstability,     ///< of CAME (Slot::num_instabilities)
    kBase,            ///< of Prodigy and Schedule-Free
    kGradSum,         ///< of Prodigy
  };
  Kind kind = Kind::kMaster;
  size_t ema = 0;  ///< kEma: which one

  [[nodiscard]] static Role compute() { return {Kind::kCompute}; }
  [[nodiscard]] static Role master() { return {Kind::kMaster}; }
  [[nodiscard]] static Role grad() { return {Kind::kGrad}; }
  [[nodiscard]] static Role exp_avg() { return {Kind::kExpAvg}; }
  [[nodiscard]] static Role exp_avg_sq() { return {Kind::kExpAvgSq}; }
  [[nodiscard]] static Role average(size_t k) { return {Kind::kEma, k}; }
  [[nodiscard]] static Role exp_avg_scales() { return {Kind::kExpAvgScales}; }
  [[nodiscard]] static Role exp_avg_sq_scales() { return {Kind::kExpAvgSqScales}; }
  [[nodiscard]] static Role factors() { return {Kind::kFactors}; }
  [[nodiscard]] static Role instability() { return {Kind::kInstability}; }
  [[nodiscard]] static Role base() { return {Kind::kBase}; }
  [[nodiscard]] static Role grad_sum() { return {Kind::kGradSum}; }

  /// Elements of a bucket that have one of the array's together (Bucket::count_of counts them).
  [[nodiscard]] int64_t elements_each() const;
  /// Whether the array is of rows and columns, and whole on every rank.
  [[nodiscard]] bool is_of_rows() const {
    return kind == Kind::kFactors || kind == Kind::kInstability;
  }
};

/// "compute", "master", "grad", "exp_avg", "exp_avg_sq", "exp_avg_scales", "exp_avg_sq_scales",
/// "factors", "instability", "base", "grad_sum", "ema.0", ...: the names in checkpoints.
[[nodiscard]] std::string to_string(Role role);

/// Elements that a slot's offset is a multiple of: no two parameters share a block of codes.
inline constexpr int64_t kSlotAlignment = kernels::kCodeBlock;
/// Elements that a bucket's size is a multiple of, whatever the world size: up to 384 ranks (powers
/// of two, and three times these) own equal slices that start on 64 bytes in every array.
inline constexpr int64_t kBucketAlignment = 12288;

/// How the state of a model is divided among ranks (Rajbhandari et al. 2020, "ZeRO", section 5).
/// Every bucket is cut in equal slices, one a rank.
struct Sharding {
  comm::Group group;  ///< those who divide; a group of one owns everything
  /// 0: nobody divides anything; 1: master, moments and EMAs are divided; 2: and gradients; 3: and
  /// what forward reads.
  int stage = 0;
  /// Stages 2 and 3 keep whole gradients all the same, so that several micro-batches need only one
  /// reduction.
  bool whole_gradients = false;

  [[nodiscard]] bool divides() const { return stage > 0 && group.size() > 1; }
  [[nodiscard]] bool divides_gradients() const {
    return divides() && stage >= 2 && !whole_gradients;
  }
  [[nodiscard]] bool divides_compute() const { return divides() && stage >= 3; }
};

/// A parameter's place in its bucket: elements [offset, offset + numel), in C order, or in that of
/// [shape[0], shape[2], ..., shape[1]].
struct Slot {
  std::string path;
  std::vector<int64_t> shape;
  int64_t offset = 0;
  int64_t numel = 0;
  double lr_factor = 1.0;      ///< nn::Parameter::lr_factor
  bool channels_last = false;  ///< nn::Parameter::channels_last
  int64_t room = 0;            ///< nn::Parameter::room
  /// Muon: its update takes it whole, as [shape[0], the others], and it has no exp_avg_sq.
  bool is_matrix = false;
  std::optional<nn::Box> box = {};    ///< nn::Parameter::box
  bool is_partial = false;            ///< nn::Parameter::is_partial
  std::optional<int64_t> stage = {};  ///< nn::Parameter::stage

  /// The parameter's shape where nobody divides it.
  [[nodiscard]] const std::vector<int64_t>& whole_shape() const { return box ? box->whole : shape; }

  /// Adafactor and CAME: whether they keep a number for each row and each column of [shape[0], the
  /// others] in place of a second moment for each element, and how many numbers they keep; and how
  /// many of CAME's instability, which vectors have none of.
  [[nodiscard]] bool is_factored() const;
  [[nodiscard]] int64_t num_factors() const;
  [[nodiscard]] int64_t num_instabilities() const { return is_factored() ? num_factors() : 0; }

  /// Elements between its rows in memory, and of all of it: with what is free beside them.
  [[nodiscard]] int64_t pitch() const;
  [[nodiscard]] int64_t memory() const;
};

/// Elements [numel] as they lie in a slot, in its shape: a view.
[[nodiscard]] at::Tensor in_shape(const at::Tensor& elements, const Slot& slot);
/// The slot's values in the memory of its bucket, in its shape: a view.
[[nodiscard]] at::Tensor slot_view(const at::Tensor& flat, const Slot& slot);
/// A tensor of the slot's shape as elements [numel] in the slot's order.
[[nodiscard]] at::Tensor in_order(const at::Tensor& tensor, const Slot& slot);

/// `whole` arrays have `numel` elements, the others those of this rank's slice,
/// [slice_begin, slice_begin + slice_numel), as count_of counts; zeros between the slots. Undefined
/// where the arena has no such role. Without a division a slice is everything, and each pair below
/// one tensor.
struct Bucket {
  std::string name;
  int64_t numel = 0;
  bool fp32_island = false;
  std::string ring;
  bool is_block = false;  ///< nn::BucketSpec::is_block
  std::vector<Slot> slots;
  int64_t slice_begin = 0;
  int64_t slice_numel = 0;

  /// What forward reads, and where backward adds. Buckets of a ring take turns in few buffers where
  /// these are divided (Sharding), or gradients are not kept (ArenaOptions::in_backward): then the
  /// content is theirs only while they are in use.
  at::Tensor whole_compute;
  at::Tensor whole_grad;  ///< fp32

  at::Tensor compute;     ///< what this rank contributes to whole_compute; may be `master` itself
  at::Tensor master;      ///< fp32, or bf16 (kernels::MasterFormat)
  at::Tensor grad;        ///< fp32
  at::Tensor exp_avg;     ///< fp32, or uint8: codes (kernels::MomentFormat)
  at::Tensor exp_avg_sq;  ///< likewise, of what is no matrix (Slot::is_matrix) alone
  at::Tensor exp_avg_scales;  ///< fp32, of codes
  at::Tensor exp_avg_sq_scales;
  /// fp32, of all parameters in turn, whole on every rank; of each its rows, then its columns.
  at::Tensor factors;
  at::Tensor instability;       ///< likewise, of matrices alone
  at::Tensor base;              ///< fp32: the weights that Prodigy began with; Schedule-Free's z
  at::Tensor grad_sum;          ///< fp32: of Prodigy
  std::vector<at::Tensor> ema;  ///< fp32
  /// Whether the arrays of the optimizer's state lie in the host's memory, or on a disk
  /// (Arena::fetched): exp_avg, exp_avg_sq, ema, and `master` where forward reads another copy.
  /// They are tensors of the arena's device all the same (device/host_memory.h).
  bool is_offloaded = false;
  /// Whether `compute` and `grad` lie in the host's memory, too: while the bucket is in use, a
  /// buffer of its ring holds what forward reads, and another its gradients. With
  /// ArenaOptions::in_backward `grad` is in that buffer alone.
  bool is_far = false;

  /// This rank's slice of a role's array; undefined if there is none.
  [[nodiscard]] at::Tensor tensor(Role role) const;
  /// Elements of a role's whole array that belong to the first `elements` of the bucket.
  [[nodiscard]] int64_t count_of(Role role, int64_t elements) const;
  /// Elements of tensor(role) before what belongs to the bucket's element `element`, which is in
  /// the slice.
  [[nodiscard]] int64_t place_of(Role role, int64_t element) const {
    return count_of(role, element) - (role.is_of_rows() ? 0 : count_of(role, slice_begin));
  }
  /// Whether the buffer of whole_compute (whole_grad) is this bucket's own for good.
  bool owns_compute = true;
  bool owns_grad = true;
};

/// What is done with that which makes the vectors that modulate blocks, where it is not trained.
enum class ModulationUse : uint8_t {
  kBothWays,      ///< forward and backward read it: something that the vectors depend on is trained
  kForward,       ///< forward alone
  kHostProducts,  ///< likewise, in products of few vectors, which the host can make
};

/// How weights of linears and convolutions that are not trained are held (held_weights.h).
struct HeldOptions {
  std::optional<kernels::WeightFormat> format = {};  ///< nothing: the compute type
  /// Share of them, in [0, 1], that lies in the host's memory, of each ring as much as its buckets
  /// compute: of what makes the vectors that modulate blocks first, then of the others, each that
  /// of every n-th bucket. What the host multiplies comes before all others.
  double offload = 0.0;
  ModulationUse modulation = ModulationUse::kBothWays;
  /// The model's, of which its hook is told by their numbers. What lies in those of rings is held.
  std::vector<nn::BucketSpec> buckets = {};

  /// Whether any are held otherwise than they are read.
  [[nodiscard]] bool any() const { return format.has_value() || offload > 0.0; }
};

/// Whether buckets have exp_avg_sq: of muon for what is no matrix.
[[nodiscard]] constexpr bool keeps_second_moments(kernels::UpdateRule rule) {
  return kernels::has_second_moment(rule) || rule == kernels::UpdateRule::kMuon;
}

/// Whether they have exp_avg.
[[nodiscard]] constexpr bool keeps_first_moments(kernels::UpdateRule rule) {
  return rule != kernels::UpdateRule::kAdafactor && rule != kernels::UpdateRule::kScheduleFree;
}

/// Whether they have `factors`.
[[nodiscard]] constexpr bool keeps_factors(kernels::UpdateRule rule) {
  return rule == kernels::UpdateRule::kAdafactor || rule == kernels::UpdateRule::kCame;
}

/// Whether they have `base`, which begins as the weights.
[[nodiscard]] constexpr bool keeps_base(kernels::UpdateRule rule) {
  return rule == kernels::UpdateRule::kProdigy || rule == kernels::UpdateRule::kScheduleFree;
}

/// Whether update_weights alone reads the moments.
[[nodiscard]] constexpr bool takes_one_pass(kernels::UpdateRule rule) {
  return rule != kernels::UpdateRule::kMuon && rule != kernels::UpdateRule::kCame &&
         rule != kernels::UpdateRule::kLamb && rule != kernels::UpdateRule::kProdigy;
}

struct ArenaOptions {
  at::Device device = at::kCPU;
  at::ScalarType compute_type = at::kFloat;  ///< kFloat, kBFloat16 or kHalf
  uint64_t seed = 0;                         ///< of the initial values
  /// false: only the compute copies, to sample with.
  bool train = true;
  kernels::UpdateRule rule = kernels::UpdateRule::kAdamW;  ///< whose moments there are
  kernels::MomentFormat moments = kernels::MomentFormat::kF32;
  /// kBF16 is for a compute_type of bf16; fp32 islands stay fp32.
  kernels::MasterFormat masters = kernels::MasterFormat::kF32;
  /// In [0, 1), at most 4; ema = ema * decay + weight * (1 - decay).
  std::vector<double> ema_decays;
  /// Averages that there are: that of Schedule-Free is the first, those of ema_decays follow.
  [[nodiscard]] size_t num_averages() const {
    return ema_decays.size() + static_cast<size_t>(kernels::first_ema(rule));
  }
  /// Share of the ring buckets' elements, in [0, 1], whose state lies in the host's memory: that of
  /// the buckets that are used last; with in_backward of every so many.
  double offload = 0.0;
  /// Share of them, at most `offload`, of which the host's memory has what forward reads and the
  /// gradients, too. For a model that says what it reads (parallel::DataParallel).
  double offload_weights = 0.0;
  /// Updates come during backward, each bucket's when its gradients are there: gradients of a
  /// ring's buckets take turns in its buffers, also where nobody divides them.
  bool in_backward = false;
  /// A folder in which a file of each rank's takes that state in place of the host's memory: its
  /// tensors are then names of bytes there (disk_state.h), of the CPU whatever the device. Empty:
  /// none.
  std::string disk = {};
  Sharding sharding = {};
  HeldOptions held = {};
  /// Ranks of which each has its box of the parameters that have one. One rank: there is none.
  comm::Group tensor = {};
  /// Ranks of which each has the parameters of its own stage (nn::Parameter::stage), and all that
  /// are of none.
  comm::Group pipeline = {};
};

/// Which weights forward reads.
struct WeightSet {
  std::optional<size_t> ema;  ///< nothing: the raw weights

  [[nodiscard]] static WeightSet raw() { return {}; }
  [[nodiscard]] static WeightSet average(size_t k) { return {k}; }
};

/// Frozen parameters of one nn::BucketSpec, whole on every rank.
struct FrozenBucket {
  std::string name;
  int64_t numel = 0;
  bool fp32_island = false;
  std::vector<Slot> slots;
  at::Tensor compute;  ///< what forward reads
};

class Arena;
class DiskState;
class HeldWeights;

/// While it lives, forward reads the weights that Arena::bind was asked for; then the raw ones
/// again, the same bits as before.
class BoundWeights {
 public:
  BoundWeights(BoundWeights&& other) noexcept : arena_(std::exchange(other.arena_, nullptr)) {}
  BoundWeights& operator=(BoundWeights&&) = delete;
  ~BoundWeights();

 private:
  friend class Arena;
  explicit BoundWeights(Arena* arena) : arena_(arena) {}

  Arena* arena_;  // null: nothing to undo
};

class Arena {
 public:
  /// Lays out and creates all arrays, bucket by bucket straight on the device, and points every
  /// parameter's `value` and `grad` into them. Initial values depend on (seed, path) alone: not on
  /// the buckets, their order, the device or who creates them. EMAs start as the weights.
  ///
  /// The parameters must outlive the arena, and lie in exactly one bucket each, islands in buckets
  /// marked as such. Frozen ones have compute copies alone, and no place in buckets(): a spec with
  /// nothing else makes no bucket. Throws kConfig, also where nothing is trained, and kShape.
  Arena(const std::vector<nn::NamedParameter>& parameters,
        const std::vector<nn::BucketSpec>& buckets, const ArenaOptions& options);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  [[nodiscard]] const std::vector<Bucket>& buckets() const { return buckets_; }
  [[nodiscard]] const std::vector<FrozenBucket>& frozen() const { return frozen_; }
  /// Of the frozen parameters of all stages but those that are held(): the same order on all ranks.
  [[nodiscard]] std::vector<std::string> frozen_paths() const;
  /// What is held otherwise than it is read, in neither of them; null: nothing.
  [[nodiscard]] HeldWeights* held() const { return held_.get(); }
  /// Of an arena to sample with all that the weights lie in, held() too: uint8 [n] each.
  [[nodiscard]] std::vector<at::Tensor> weight_bytes() const;
  [[nodiscard]] const ArenaOptions& options() const { return options_; }
  /// Trained parameters of other ranks' stages.
  [[nodiscard]] int64_t count_elsewhere() const;
  /// Elements of all parameters, those that are on other ranks included, without padding.
  [[nodiscard]] int64_t num_elements() const { return num_trained() + num_frozen(); }
  [[nodiscard]] int64_t num_trained() const;
  [[nodiscard]] int64_t num_frozen() const;
  /// Buffers in which gradients of a ring's buckets take turns; 0: each has its own.
  [[nodiscard]] size_t gradient_buffers(const std::string& ring) const;
  /// Bytes of this rank's arrays of a role, padding and the buffers of rings included; without what
  /// is a part of another role's array (a compute copy that is the master itself), and without
  /// held().
  [[nodiscard]] int64_t bytes(Role role) const;
  /// Of these the bytes that lie in the host's memory, or on the disk.
  [[nodiscard]] int64_t offloaded_bytes(Role role) const;
  /// State on a disk (ArenaOptions::disk); null: none, or a dry run.
  [[nodiscard]] DiskState* disk() const { return disk_.get(); }
  /// Bytes of the file, and of the memory through which updates of it go; of a dry run, too.
  [[nodiscard]] int64_t disk_bytes() const { return disk_bytes_; }
  [[nodiscard]] int64_t disk_memory() const { return disk_memory_; }
  /// A bucket's array of state, or a contiguous part of it, to be read on the arena's device:
  /// itself, or where it lies on a disk a copy. And what makes it `values`, of its size. kIo.
  [[nodiscard]] at::Tensor fetched(const at::Tensor& state) const;
  void store(const at::Tensor& state, const at::Tensor& values) const;
  /// What a training checkpoint has to keep: master, the rule's moments and the EMAs.
  [[nodiscard]] std::vector<Role> state_roles() const;

  /// One parameter's part of an array (no scales, no means of rows), in its whole shape: a view, or
  /// where ranks divide it, or another rank's stage has it, a copy that they make together (all
  /// call it). The master and every average of a frozen parameter are its compute copy. kConfig for
  /// an unknown path or role.
  [[nodiscard]] at::Tensor export_parameter(const std::string& path, Role role) const;
  /// This rank's part of one trained parameter, of what its box has: a flat view, without elements
  /// where others own it all, and the place of its first element in the parameter.
  struct Part {
    at::Tensor values;
    int64_t begin = 0;  ///< of scales: that of the first's block; of rows, which are all here: 0
  };
  [[nodiscard]] Part own_part(const std::string& path, Role role) const;
  /// Sets a parameter's master and compute copy (without `train`: the compute copy) from a tensor
  /// of its whole shape, of any floating type and device; nothing to do where it is another
  /// stage's. EMAs stay; see reset_averages. Where state is divided every rank calls it with the
  /// same tensor. kConfig, kShape.
  void load_parameter(const std::string& path, const at::Tensor& value);
  /// Writes all compute copies from the masters: after the buckets' masters were written. Together
  /// with gather().
  void refresh_compute();
  /// Fills the whole_compute of every bucket that owns one from the slices of all ranks.
  void gather() const;
  /// Starts every EMA, and what else begins as the weights, again from the master.
  void reset_averages();
  /// Zeros every gradient.
  void zero_grad();

  /// Lets forward read other weights, without extra memory: fp32 parameters are pointed to the
  /// EMA's array, 16-bit copies are written anew from it. Where state is divided all ranks call it,
  /// and fp32 masters are kept in a copy meanwhile. Until the guard dies the arena can neither be
  /// trained nor loaded into. kConfig for an unknown EMA.
  [[nodiscard]] BoundWeights bind(WeightSet weights);
  /// Whether forward now reads an EMA.
  [[nodiscard]] bool is_bound() const { return is_bound_; }

 private:
  friend class BoundWeights;
  /// What a slot of the same position belongs to.
  struct Owner {
    nn::Parameter* parameter;
    at::Tensor value;  // over the raw weights, while an EMA is bound
  };
  struct Place {
    size_t bucket;  // of frozen_ where it is_frozen
    size_t slot;
    bool is_frozen = false;
  };

  /// A parameter of another rank's stage.
  struct Elsewhere {
    int64_t stage = 0;
    std::vector<int64_t> shape;  // whole
    bool is_frozen = false;
    bool fp32_island = false;
  };

  /// The buffers of one ring, each as large as the largest of its buckets.
  struct Ring {
    std::vector<at::Tensor> compute;
    std::vector<at::Tensor> grad;
    size_t next = 0;  // whose turn it is while buckets are given their buffers
  };

  void open_disk();
  /// Whether a bucket's master is an array besides what forward reads, and lies with other
  /// offloaded state.
  [[nodiscard]] bool has_far_master(const Bucket& bucket) const;
  void make_rings();
  void materialise(Bucket* bucket, std::vector<Owner>* owners);
  void materialise(FrozenBucket* bucket, const std::vector<nn::Parameter*>& owners);
  [[nodiscard]] at::ScalarType type_of(bool fp32_island) const;
  [[nodiscard]] Place find(const std::string& path) const;
  /// Elements of what other stages have.
  [[nodiscard]] int64_t num_elsewhere(bool frozen) const;
  /// export_parameter() of what this stage has.
  [[nodiscard]] at::Tensor from_boxes(const std::string& path, Role role) const;
  [[nodiscard]] const Slot& slot_of(const std::string& path) const;
  /// export_parameter() of what is in this rank's box.
  [[nodiscard]] at::Tensor own_box(const std::string& path, Role role) const;
  /// find(), which must be trained.
  [[nodiscard]] Place find_trained(const std::string& path) const;
  void check_raw(const char* action) const;
  void unbind();

  ArenaOptions options_;
  std::unique_ptr<HeldWeights> held_;
  std::unique_ptr<DiskState> disk_;
  int64_t disk_bytes_ = 0;
  int64_t disk_memory_ = 0;
  std::vector<Bucket> buckets_;
  std::vector<FrozenBucket> frozen_;
  std::vector<std::vector<Owner>> owners_;  // [bucket][slot]
  std::unordered_map<std::string, Place> places_;
  std::unordered_map<std::string, Elsewhere> elsewhere_;
  std::unordered_map<std::string, Ring> rings_;
  bool is_bound_ = false;
  std::vector<at::Tensor> kept_masters_;  // [bucket], of what bind() wrote an EMA over
};

/// Buffers of a ring of buckets: one in use, the other on its way.
inline constexpr size_t kRingBuffers = 2;

}  // namespace kinora::optim
