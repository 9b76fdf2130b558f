#include "kinora/ops/block_stack.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/ops/activations_aside.h"
#include "kinora/ops/branch_pass.h"
#include "kinora/ops/bucket_hook.h"
#include "kinora/ops/parameter.h"
#include "kinora/ops/recompute.h"

// Shapes: R rows, C width, V vectors, B batch, L text tokens, n vectors of all blocks and the final
// norm.

namespace kinora::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// ---- modulation ----

/// What makes vectors at once, the modulation linears of one bucket or a block's function, and the
/// columns of theirs among all vectors.
struct SlabGroup {
  size_t first = 0;  ///< in BlockStack::modulation
  size_t end = 0;
  int64_t column = 0;
  int64_t end_column = 0;
  int64_t bucket = -1;                       ///< negative: that of the block
  const VectorFunction* function = nullptr;  ///< null: linears make them
};

/// Whether functions of the blocks make their vectors.
bool has_functions(const BlockStack& stack) {
  return !stack.blocks.empty() && stack.blocks.front().vectors.function != nullptr;
}

/// width: C.
std::vector<SlabGroup> slab_groups(const BlockStack& stack, int64_t width) {
  std::vector<SlabGroup> groups;
  if (has_functions(stack)) {
    int64_t column = 0;
    for (const Block& block : stack.blocks) {
      const int64_t end_column = column + block.num_vectors * width;
      groups.push_back({.column = column, .end_column = end_column, .function = &block.vectors});
      column = end_column;
    }
    return groups;
  }
  for (size_t i = 0; i < stack.modulation.size(); ++i) {
    const int64_t bucket = stack.modulation_buckets[i];
    if (groups.empty() || bucket < 0 || bucket != groups.back().bucket) {
      const int64_t column = groups.empty() ? 0 : groups.back().end_column;
      groups.push_back(
          {.first = i, .end = i, .column = column, .end_column = column, .bucket = bucket});
    }
    groups.back().end = i + 1;
    groups.back().end_column += stack.modulation[i].weight.size(0);
  }
  return groups;
}

void call_hook(const BlockStack& stack, BucketMoment moment, const SlabGroup& group) {
  if (stack.hook && group.bucket >= 0) {
    stack.hook(moment, group.bucket);
  }
}

/// Begins what the host multiplies, in the order in which it is used.
void begin_host_products(const BlockStack& stack, const at::Tensor& silu_c) {
  std::shared_ptr<HostProducts> products;
  std::vector<size_t> numbers;
  for (const LinearWeights& slab : stack.modulation) {
    if (slab.at_host) {
      products = slab.at_host.products;
      numbers.push_back(slab.at_host.number);
    }
  }
  if (products != nullptr) {
    products->begin(numbers, silu_c);
  }
}

/// out = silu_c W^T + b.
void multiply(BlockKernels& kernels, const LinearWeights& slab, const at::Tensor& silu_c,
              const at::Tensor& out) {
  if (!slab.at_host) {
    kernels.linear_into(silu_c, slab, out);
    return;
  }
  // By a kernel, which reads it over the link: a copy would wait for the copies of weights and
  // activations that were begun before.
  at::Tensor sum = out;
  at::add_out(sum, slab.at_host.result(), slab.bias.defined() ? slab.bias : sum.zero_());
}

/// Sums over ranks, in place.
void add_up(const BlockStack& stack, const at::Tensor& numbers) {
  (void)stack.ranks.sum(numbers, /*beside=*/false).result();
}

/// Fills the group's columns of `vectors`, of ranks with what this one adds; `silu_c` is
/// read_condition() of c.
void modulate(BlockKernels& kernels, const BlockStack& stack, const SlabGroup& group,
              const at::Tensor& silu_c, const at::Tensor& vectors) {
  if (group.function != nullptr) {
    vectors.narrow(1, group.column, group.end_column - group.column)
        .copy_(group.function->function(silu_c));
    return;
  }
  call_hook(stack, BucketMoment::kBeforeForward, group);
  int64_t column = group.column;
  for (size_t i = group.first; i < group.end; ++i) {
    const LinearWeights& slab = stack.modulation[i];
    const int64_t count = slab.weight.size(0);
    const at::Tensor out = vectors.narrow(1, column, count);
    multiply(kernels, slab, silu_c, out);
    if (!slab.updates.empty()) {
      at::Tensor(out).add_(raised(slab, low_of(slab, silu_c)));
    }
    column += count;
  }
  call_hook(stack, BucketMoment::kAfterForward, group);
}

/// Sums over ranks what modulate() made of `count` columns; functions have summed their own.
void add_up_vectors(const BlockStack& stack, const at::Tensor& vectors, int64_t column,
                    int64_t count) {
  if (stack.ranks.sum && count > 0 && !has_functions(stack)) {
    add_up(stack, vectors.narrow(1, column, count));
  }
}

/// Room for the vectors of all seams, of which those that are given are there.
at::Tensor vectors_with(const std::vector<SlabGroup>& groups, const at::Tensor& given) {
  const int64_t columns = groups.back().end_column;
  const int64_t last = given.size(1);
  at::Tensor vectors = at::empty({given.size(0), columns + last}, given.options());
  vectors.narrow(1, columns, last).copy_(given);
  return vectors;
}

/// Those columns of [V, C] that this rank's part of the modulation reads.
at::Tensor own_columns(const BlockStack& stack, const at::Tensor& all) {
  const int64_t count = all.size(1) / stack.ranks.size;
  return all.narrow(1, stack.ranks.rank * count, count);
}

/// What modulation reads of c: SiLU(c) in the compute type, of this rank's columns; functions c.
at::Tensor read_condition(const BlockStack& stack, const at::Tensor& c) {
  if (has_functions(stack)) {
    return c;
  }
  return at::silu(own_columns(stack, c).contiguous())
      .to(stack.modulation.front().weight.scalar_type());
}

// ---- a pass ----

/// Residual streams that a stack can have.
constexpr size_t kStreams = 2;
constexpr size_t kNone = static_cast<size_t>(-1);

/// Where a branch stands off a stream. One off both has two places, the second behind the first.
struct Place {
  const Branch* branch;
  SeamNumbers seam;
  size_t stream;
  int64_t block;
  int64_t column;           ///< of its block's first vector
  int64_t end_column;       ///< behind its block's last
  size_t before;            ///< the place before it on its stream, kNone: the stream begins there
  size_t behind = kNone;    ///< the place behind it
  bool is_first = false;    ///< of its block
  bool is_last = false;     ///< of its block
  bool is_begun = false;    ///< the second place of a branch off both streams
  bool has_second = false;  ///< the first of these

  /// Whether the branch computes here: all that it reads is there.
  [[nodiscard]] bool computes() const { return !has_second; }
};

/// One pass through a stack: the sizes, the vectors and what is kept.
struct Pass : torch::CustomClassHolder {
  Pass(BlockKernels& kernels, BlockStack given, int64_t width, bool keeps)
      : kernels(kernels),
        stack(std::move(given)),
        width(width),
        branches{.kernels = kernels,
                 .keeps = keeps,
                 .trains = keeps || will_recompute(),
                 .overwrites_gradients = stack.overwrites_gradients,
                 .ranks = stack.ranks},
        groups(slab_groups(stack, width)) {
    last.fill(kNone);
    int64_t column = 0;
    for (size_t i = 0; i < stack.blocks.size(); ++i) {
      const Block& block = stack.blocks[i];
      const size_t first = places.size();
      const int64_t end_column = column + block.num_vectors * width;
      const auto add = [&](const Branch& branch, const SeamNumbers& seam, size_t stream) {
        if (last[stream] != kNone) {
          places[last[stream]].behind = places.size();
        }
        places.push_back({.branch = &branch,
                          .seam = seam,
                          .stream = stream,
                          .block = static_cast<int64_t>(i),
                          .column = column,
                          .end_column = end_column,
                          .before = last[stream]});
        last[stream] = places.size() - 1;
      };
      for (const Branch& branch : block.branches) {
        if (std::holds_alternative<JointAttentionBody>(branch.body)) {
          add(branch, branch.seam, 0);
          places.back().has_second = true;
          add(branch, branch.second_seam, 1);
          places.back().is_begun = true;
        } else {
          add(branch, branch.seam, static_cast<size_t>(branch.stream));
        }
      }
      places[first].is_first = true;
      places.back().is_last = true;
      column = end_column;
    }
    final_column = column;
    if (keeps && (stack.host_activations != nullptr || stack.fp8_activations)) {
      aside.emplace(stack.host_activations, stack.blocks.size());
    }
  }

  BlockKernels& kernels;
  const BlockStack stack;
  const int64_t width;  ///< C
  BranchPass branches;
  const std::vector<SlabGroup> groups;
  std::vector<Place> places;
  std::array<size_t, kStreams> last{};  ///< place of each stream
  bool wants_x = true;                  ///< the gradient of the streams' inputs
  bool wants_text = false;              ///< its gradient
  bool wants_vectors = true;            ///< their gradients, and so those of what makes them
  int64_t final_column = 0;             ///< of the final norm's vectors
  int64_t first_rows = 0;               ///< StackInputs::first_rows
  int64_t first_vector = 0;             ///< that of this rank's rows, where ranks divide them
  int64_t num_vectors = 0;              ///< so many are of these
  size_t modulated = 0;                 ///< groups whose vectors are there
  std::array<std::vector<int64_t>, kStreams> shapes;  ///< of the streams
  at::Tensor silu_c;                                  ///< read_condition()
  at::Tensor vectors;                                 ///< fp32 [V, n C]
  at::Tensor ones;                                    ///< a gate: [V, C] of one value
  std::vector<KeptBranch> kept;                       ///< by place
  std::optional<ActivationsAside> aside;              ///< what of it is put aside
  at::Tensor x_out;
  NormStatistics norm_final;

  [[nodiscard]] bool keeps() const { return branches.keeps; }
  [[nodiscard]] size_t size() const { return places.size(); }
  [[nodiscard]] bool has_stream(size_t stream) const { return last[stream] != kNone; }
  /// Whether nothing is behind the last place of the stream.
  [[nodiscard]] bool has_ended(size_t stream) const {
    return !has_stream(stream) || !has_result(places[last[stream]]);
  }
  /// Whether the branch adds anything to the stream of that place.
  [[nodiscard]] static bool has_result(const Place& place) {
    const auto* joint = std::get_if<JointAttentionBody>(&place.branch->body);
    return joint == nullptr || joint->parts[place.stream].proj.weight.defined();
  }
  [[nodiscard]] Recompute recompute_of(int64_t block) const {
    return !stack.recomputed.empty() && stack.recomputed[static_cast<size_t>(block)]
               ? Recompute::kBlock
               : stack.recompute;
  }
  /// Where what the block keeps is until backward: that of the last one is needed at once.
  [[nodiscard]] ActivationsAside::Place place_of(int64_t block) const {
    const bool is_last = block + 1 == std::ssize(stack.blocks);
    return {.at_host = !is_last && stack.host_activations != nullptr &&
                       stack.offloaded[static_cast<size_t>(block)],
            .in_fp8 = !is_last && stack.fp8_activations};
  }
  [[nodiscard]] bool modulates_in_blocks() const {
    return !groups.empty() && groups.front().bucket < 0;
  }
  /// Whether the place is the last of its block on its stream.
  [[nodiscard]] bool ends_block(size_t k) const {
    return places[k].behind == kNone || places[places[k].behind].block != places[k].block;
  }
  [[nodiscard]] bool begins_block(size_t k) const {
    return places[k].before == kNone || places[places[k].before].block != places[k].block;
  }

  [[nodiscard]] bool divides_rows() const { return stack.ranks.divides_rows(); }
  /// What is of this rank's rows, of all vectors or their gradients: those from a column on.
  [[nodiscard]] at::Tensor vector_at(const at::Tensor& all, int64_t column) const {
    return all.narrow(0, first_vector, num_vectors).narrow(1, column, width);
  }
  /// Of two vectors a sample stream 1 has the second.
  [[nodiscard]] at::Tensor of_stream(const at::Tensor& vectors, size_t stream) const {
    return stream == 0 || first_rows == 0 ? vectors : vectors.slice(0, 1, std::nullopt, 2);
  }
  /// Vector `which` of the block that `place` stands in; undefined where it is negative.
  [[nodiscard]] at::Tensor vector(const at::Tensor& all, const Place& place, int64_t which) const {
    return which < 0 ? at::Tensor()
                     : of_stream(vector_at(all, place.column + which * width), place.stream);
  }
  /// All rows of what a rank has its part of.
  [[nodiscard]] at::Tensor all_rows(const at::Tensor& part) const {
    return divides_rows() ? stack.ranks.gather(part, /*beside=*/false).result() : part;
  }
};

/// Between two places of a stream, of which one may be its end.
struct Seam {
  const Place* before;  ///< null: the stream begins
  const Place* behind;  ///< null: it ends
  size_t stream;
};

Seam seam_before(const Pass& pass, size_t k) {
  const Place& place = pass.places[k];
  return {place.before == kNone ? nullptr : &pass.places[place.before], &place, place.stream};
}

Seam seam_behind(const Pass& pass, size_t k) {
  const Place& place = pass.places[k];
  return {&place, place.behind == kNone ? nullptr : &pass.places[place.behind], place.stream};
}

bool has_norm(const Pass& pass, const Seam& here) {
  return here.behind != nullptr ? here.behind->seam.scale >= 0
                                : here.stream == 0 && pass.stack.has_final_norm;
}

/// What is added to the stream there, besides the branch before.
at::Tensor stream_offset(const Pass& pass, const Seam& here) {
  return here.behind != nullptr && here.behind->is_first
             ? pass.stack.blocks[static_cast<size_t>(here.behind->block)].offset
             : at::Tensor();
}

/// Whether the branch behind reads the stream without the branch before.
bool is_beside(const Seam& here) {
  return here.before != nullptr && here.before->branch->is_beside;
}

/// Whether the sum behind the branch before and the norm of the one behind are one kernel.
bool is_one_seam(const Pass& pass, const Seam& here) {
  return here.before != nullptr && has_norm(pass, here) && !is_beside(here) &&
         !stream_offset(pass, here).defined();
}

SeamVectors vectors_of(const Pass& pass, const at::Tensor& all, const Seam& here) {
  SeamVectors seam;
  if (here.before != nullptr) {
    seam.gate = pass.vector(all, *here.before, here.before->seam.gate);
  }
  if (here.behind != nullptr) {
    seam.scale = pass.vector(all, *here.behind, here.behind->seam.scale);
    seam.shift = pass.vector(all, *here.behind, here.behind->seam.shift);
    seam.centres = pass.stack.centres;
  } else if (has_norm(pass, here)) {
    seam.shift = pass.vector_at(all, pass.final_column);
    seam.scale = pass.vector_at(all, pass.final_column + pass.width);
  }
  seam.epsilon = pass.stack.norm_epsilon;
  seam.first_rows = here.stream == 0 ? pass.first_rows : 0;
  return seam;
}

/// Whether the last product of the branch, which ends its stream, adds itself to it: one of the
/// stack's own that nobody reads later.
bool ends_in_place(const Pass& pass, const Place& place) {
  const LinearWeights* linear = last_linear(*place.branch, place.stream);
  return !pass.branches.trains && !pass.stack.ranks.sum && place.branch->kept == nullptr &&
         place.behind == kNone && !pass.stack.has_final_norm && place.before != kNone &&
         place.seam.scale >= 0 && place.seam.gate < 0 && ends_in_product(*place.branch) &&
         linear->updates.empty();
}

void call_hook(Pass& pass, BucketMoment moment, int64_t block) {
  if (pass.stack.hook) {
    compute_late(pass.branches);  // the hook may use the gradients
    pass.stack.hook(moment, pass.stack.block_buckets[static_cast<size_t>(block)]);
  }
}

/// Before forward or backward of a block: its weights are there, in 8 bits, too, where it computes
/// so.
void begin_block(Pass& pass, BucketMoment moment, int64_t block) {
  call_hook(pass, moment, block);
  Fp8* const fp8 = pass.kernels.fp8();
  if (!pass.branches.trains || fp8 == nullptr) {
    return;
  }
  std::vector<LinearWeights> linears;
  for (const Branch& branch : pass.stack.blocks[static_cast<size_t>(block)].branches) {
    for (const LinearWeights* linear : linears_of(branch)) {
      linears.push_back(*linear);
    }
  }
  fp8->begin_block(linears, moment == BucketMoment::kBeforeForward, pass.stack.new_weights);
}

/// Makes the vectors before that column, each group when the first of its blocks needs it: its
/// weights may still be on their way while blocks before it compute. Ranks that need not wait for
/// weights make them all, for one sum in place of one a group.
void modulate_up_to(Pass& pass, int64_t end_column) {
  const bool makes_all = pass.stack.ranks.sum && !pass.stack.hook;
  const size_t first = pass.modulated;
  while (pass.modulated < pass.groups.size() &&
         (makes_all || pass.groups[pass.modulated].column < end_column)) {
    modulate(pass.kernels, pass.stack, pass.groups[pass.modulated++], pass.silu_c, pass.vectors);
  }
  if (pass.modulated > first) {
    const int64_t column = pass.groups[first].column;
    add_up_vectors(pass.stack, pass.vectors, column,
                   pass.groups[pass.modulated - 1].end_column - column);
  }
}

// ---- seams ----

/// This rank's rows [R, C] + offset [P, C] of row r % P of all rows.
at::Tensor with_offset(const Pass& pass, const at::Tensor& rows, const at::Tensor& offset) {
  at::Tensor own = offset;
  if (pass.divides_rows()) {
    const int64_t first = pass.stack.ranks.rank * rows.size(0);
    const at::Tensor numbers =
        at::arange(first, first + rows.size(0), offset.options().dtype(at::kLong));
    own = offset.index_select(0, numbers.remainder(offset.size(0)));
  }
  return (rows.view({-1, own.size(0), own.size(1)}) + own)
      .to(rows.scalar_type())
      .view(rows.sizes());
}

/// A stream on its way: what it was before its last branch, and what that adds to it.
struct Stream {
  at::Tensor x{};
  at::Tensor result{};
};

/// Of a part of the rows there is none: what the branch behind reads is gathered first.
Consumer consumer_of(const Pass& pass, const Seam& here) {
  return here.behind == nullptr || pass.divides_rows()
             ? Consumer{}
             : pass.branches.consumer(first_linear(*here.behind->branch, here.stream));
}

/// What the branch behind reads where it has no norm; what the stack returns, behind the last.
Operand unnormed(const Pass& pass, const Seam& here, const at::Tensor& x) {
  if (here.behind == nullptr) {
    return {.value = x};
  }
  const at::Tensor& offset = here.behind->branch->offset;
  return pass.kernels.operand(offset.defined() ? with_offset(pass, x, offset) : x,
                              consumer_of(pass, here).number, false);
}

/// Takes the stream to the branch behind. The result's x is what the norm is of.
SeamForward pass_seam(Pass& pass, const Seam& here, Stream& stream) {
  const bool is_end = here.behind == nullptr;
  const at::ScalarType h_type =
      is_end && has_norm(pass, here) ? at::kFloat : stream.x.scalar_type();
  const Consumer consumer = consumer_of(pass, here);
  SeamVectors vectors = vectors_of(pass, pass.vectors, here);
  const at::Tensor x = stream.x;
  const at::Tensor result = std::exchange(stream.result, at::Tensor());
  if (is_one_seam(pass, here)) {
    if (!vectors.gate.defined()) {
      vectors.gate = pass.of_stream(pass.ones, here.stream);
    }
    SeamForward seam = pass.kernels.seam(x, result, vectors, h_type, pass.keeps(), consumer);
    stream.x = seam.x;
    return seam;
  }
  const at::Tensor offset = stream_offset(pass, here);
  const bool is_normed = has_norm(pass, here);
  const bool is_read_as_it_is =
      !is_normed && !offset.defined() && (is_end || !here.behind->branch->offset.defined());
  if (here.before != nullptr && vectors.gate.defined()) {
    SeamForward sum =
        pass.kernels.gated_add(x, result, vectors, is_read_as_it_is ? consumer : Consumer{});
    stream.x = sum.x;
    if (is_read_as_it_is) {
      return sum;
    }
  } else if (here.before != nullptr) {
    stream.x = x + result;
  }
  if (offset.defined()) {
    stream.x = with_offset(pass, stream.x, offset);
  }
  if (is_normed) {
    vectors.gate = at::Tensor();
    return pass.kernels.seam(is_beside(here) ? x : stream.x, {}, vectors, h_type, pass.keeps(),
                             consumer);
  }
  return {stream.x, unnormed(pass, here, stream.x), {}};
}

/// Where ranks divide rows, what the branch at `place` reads becomes that of all.
void gather_input(const Pass& pass, const Place& place, Operand& h) {
  if (pass.divides_rows() && !is_kept(*place.branch)) {
    h = gathered_input(pass.branches, h.value, first_linear(*place.branch, place.stream));
  }
}

struct SeamGrad {
  at::Tensor dx;       ///< of the stream before the branch before
  ResultGrad dresult;  ///< of that branch, of the own rows
};

/// Backward of pass_seam(). dh: of what the branch behind reads; dx_out: of the stream behind the
/// seam, which is overwritten; x, statistics: of the norm. grads: of the vectors.
SeamGrad seam_backward(const Pass& pass, const Seam& here, const at::Tensor& dh,
                       const at::Tensor& dx_out, const at::Tensor& x,
                       const NormStatistics& statistics, const at::Tensor& result,
                       const at::Tensor& grads) {
  SeamVectors vectors = vectors_of(pass, pass.vectors, here);
  SeamVectors of_vectors = pass.wants_vectors ? vectors_of(pass, grads, here) : SeamVectors();
  const LinearWeights* producer = here.before != nullptr && !pass.divides_rows()
                                      ? last_linear(*here.before->branch, here.stream)
                                      : nullptr;
  if (is_one_seam(pass, here) && vectors.gate.defined()) {
    SeamBackward seam = pass.kernels.seam_backward(dh, dx_out, x, statistics, result, vectors,
                                                   of_vectors, producer);
    return {seam.dx, {std::move(seam.dbranch), {}}};
  }
  const int64_t number = pass.branches.number(producer);
  const at::Tensor bias_grad = producer != nullptr ? producer->bias_grad : at::Tensor();
  // The gradient of the sum of the stream and the branch before. Where it is that of the branch,
  // too, which waits, it has to outlive that of the stream, which is overwritten.
  const auto of_result = [&](const at::Tensor& dsum) {
    if (vectors.gate.defined()) {
      return pass.kernels.gated_add_backward(dsum, result, vectors, of_vectors.gate, number,
                                             bias_grad);
    }
    return pass.kernels.result_grad(pass.kernels.puts_off_weight_grads() ? dsum.clone() : dsum,
                                    number, bias_grad);
  };
  ResultGrad dresult;
  if (is_beside(here)) {  // the norm is of the stream before the sum
    dresult = of_result(dx_out);
  }
  at::Tensor dx = dx_out;
  if (has_norm(pass, here)) {
    SeamVectors norm = vectors;
    SeamVectors of_norm = of_vectors;
    norm.gate = at::Tensor();
    of_norm.gate = at::Tensor();
    dx = pass.kernels.seam_backward(dh, dx_out, x, statistics, {}, norm, of_norm, nullptr).dx;
  } else if (dx.defined() && dh.defined()) {
    dx = dx + dh;
  } else if (dh.defined()) {
    dx = dh;
  }
  if (here.before != nullptr && !is_beside(here)) {
    dresult = of_result(dx);
  }
  return {dx, std::move(dresult)};
}

// ---- forward ----

/// What a branch keeps by the streams that it is off: of place k, where it computes.
std::array<KeptBranch*, kStreams> kept_of(std::vector<KeptBranch>& kept, const Place& place,
                                          size_t k) {
  return place.is_begun ? std::array{&kept[k - 1], &kept[k]} : std::array{&kept[k], &kept[k]};
}

/// Drops what the block's level computes again, of the places [first, end) of a block.
void forget(Pass& pass, Recompute level, size_t first, size_t end) {
  for (size_t k = first; k < end; ++k) {
    KeptBranch& kept = pass.kept[k];
    if (level == Recompute::kBlock) {
      // The last results belong to the seams behind the block.
      KeptBranch rest;
      if (pass.begins_block(k)) {
        rest.x = kept.x;
        rest.statistics = kept.statistics;
      }
      if (pass.ends_block(k) && pass.stack.keeps_results) {
        rest.result = kept.result;
      }
      kept = std::move(rest);
      continue;
    }
    forget_inner(level, *pass.places[k].branch, kept);
    if (level != Recompute::kNone) {
      kept.h = {};
    }
    if (level != Recompute::kNone && pass.places[k].computes()) {
      forget_attended(*pass.places[k].branch, kept_of(pass.kept, pass.places[k], k));
    }
  }
}

/// Puts aside what the block keeps, of the places [first, end), while the next ones compute.
void put_aside(Pass& pass, int64_t block, size_t first, size_t end) {
  if (!pass.aside) {
    return;
  }
  if (block + 1 == std::ssize(pass.stack.blocks)) {
    pass.aside->finish_putting();
  }
  const ActivationsAside::Place place = pass.place_of(block);
  if (!place.is_elsewhere()) {
    return;
  }
  std::vector<at::Tensor*> tensors;
  std::vector<at::Tensor> fixed{pass.branches.text};
  for (size_t k = first; k < end; ++k) {
    push_tensors(pass.kept[k], tensors);
    fixed.insert(fixed.end(), {pass.kept[k].leaf, pass.kept[k].graph});
  }
  pass.aside->put(static_cast<size_t>(block), tensors, fixed, place);
}

std::array<at::Tensor, kStreams> run_forward(Pass& pass, const at::Tensor& x,
                                             const at::Tensor& second) {
  const auto own_rows = [&](const at::Tensor& tokens) {
    return pass.stack.ranks.part_of(tokens.reshape({-1, pass.width}));
  };
  std::array<Stream, kStreams> streams{Stream{.x = own_rows(x)}};
  if (pass.has_stream(1)) {
    streams[1].x = own_rows(second);
  }
  pass.kept.resize(pass.size());
  size_t first = 0;  // place of the block
  for (size_t k = 0; k < pass.size(); ++k) {
    const Place& place = pass.places[k];
    const Branch& branch = *place.branch;
    if (place.is_first) {
      first = k;
      if (!pass.modulates_in_blocks()) {
        modulate_up_to(pass, place.end_column);
      }
      begin_block(pass, BucketMoment::kBeforeForward, place.block);
      modulate_up_to(pass, place.end_column);
    }
    SeamForward seam = pass_seam(pass, seam_before(pass, k), streams[place.stream]);
    pass.kept[k] = {
        .x = std::move(seam.x), .statistics = std::move(seam.statistics), .h = std::move(seam.h)};
    gather_input(pass, place, pass.kept[k].h);
    if (!place.computes()) {
      continue;
    }
    const auto kept = kept_of(pass.kept, place, k);
    if (!is_kept(branch)) {
      run_inner(pass.branches, branch, *kept[0], *kept[1]);
    }
    for (size_t j = place.is_begun ? k - 1 : k; j <= k; ++j) {
      const Place& own = pass.places[j];
      KeptBranch& its = pass.kept[j];
      Stream& stream = streams[own.stream];
      if (ends_in_place(pass, own)) {
        (void)pass.kernels.linear(its.last, *last_linear(branch, own.stream), stream.x);
      } else if (Pass::has_result(own)) {
        run_last(pass.branches, branch, its, own.stream);
        stream.result = its.result;
      }
      if (pass.keeps()) {
        forget_unread(branch, its, own.stream);
      }
      if (own.seam.gate < 0 || !pass.wants_vectors) {
        its.result = at::Tensor();  // read for the gradient of the gate alone
      }
      if (!pass.keeps()) {
        its = {};
      }
    }
    if (place.is_last) {
      call_hook(pass, BucketMoment::kAfterForward, place.block);
      if (pass.keeps()) {
        forget(pass, pass.recompute_of(place.block), first, k + 1);
        put_aside(pass, place.block, first, k + 1);
      }
    }
  }
  std::array<at::Tensor, kStreams> out;
  for (size_t i = 0; i < kStreams; ++i) {
    Stream& stream = streams[i];
    if (pass.has_ended(i)) {
      continue;
    }
    if (!stream.result.defined()) {  // the last product added it to the stream
      out[i] = pass.all_rows(stream.x).view(pass.shapes[i]);
      continue;
    }
    const Seam end = seam_behind(pass, pass.last[i]);
    SeamForward seam = pass_seam(pass, end, stream);
    if (pass.keeps() && has_norm(pass, end)) {
      pass.x_out = std::move(seam.x);
      pass.norm_final = std::move(seam.statistics);
    }
    out[i] = pass.all_rows(seam.h.value).view(pass.shapes[i]);
  }
  return out;
}

// ---- backward ----

/// Whether the last results of a block are made again, before the seams behind it go back.
bool remakes_result(const Pass& pass, int64_t block) {
  return pass.recompute_of(block) == Recompute::kBlock && !pass.stack.keeps_results &&
         pass.wants_vectors;
}

/// Computes again what forget() dropped, of the block whose last place is `last`.
void remember(Pass& pass, size_t last) {
  const int64_t block = pass.places[last].block;
  const Recompute level = pass.recompute_of(block);
  if (level == Recompute::kNone) {
    return;
  }
  size_t first = last;
  while (!pass.places[first].is_first) {
    --first;
  }
  std::array<Stream, kStreams> streams;
  for (size_t k = first; k <= last; ++k) {
    const Place& place = pass.places[k];
    KeptBranch& kept = pass.kept[k];
    const Branch& branch = *place.branch;
    if (level != Recompute::kBlock && std::holds_alternative<FunctionBody>(branch.body)) {
      continue;
    }
    const Seam here = seam_before(pass, k);
    Stream& stream = streams[place.stream];
    if (level == Recompute::kBlock && !pass.begins_block(k)) {
      SeamForward seam = pass_seam(pass, here, stream);
      kept.x = std::move(seam.x);
      kept.statistics = std::move(seam.statistics);
      kept.h = std::move(seam.h);
    } else if (has_norm(pass, here)) {
      kept.h = pass.kernels.modulated_norm(kept.x, vectors_of(pass, pass.vectors, here),
                                           consumer_of(pass, here));
    } else {
      kept.h = unnormed(pass, here, kept.x);
    }
    gather_input(pass, place, kept.h);
    if (pass.begins_block(k)) {
      stream.x = kept.x;
    }
    if (!place.computes()) {
      continue;
    }
    const auto both = kept_of(pass.kept, place, k);
    if (level != Recompute::kBlock) {
      remember_inner(pass.branches, branch, kept);
      continue;
    }
    run_inner(pass.branches, branch, *both[0], *both[1]);
    for (size_t j = place.is_begun ? k - 1 : k; j <= k; ++j) {
      const Place& own = pass.places[j];
      if (Pass::has_result(own) && (!pass.ends_block(j) || remakes_result(pass, block))) {
        run_last(pass.branches, branch, pass.kept[j], own.stream);
        streams[own.stream].result = pass.kept[j].result;
      }
    }
  }
}

/// The gradients that backward adds to where it overwrites those of weights: of a block.
std::vector<at::Tensor> added_gradients(const Pass& pass, size_t block) {
  std::vector<at::Tensor> gradients;
  for (const Branch& branch : pass.stack.blocks[block].branches) {
    const std::vector<at::Tensor> of_branch = added_gradients(branch);
    gradients.insert(gradients.end(), of_branch.begin(), of_branch.end());
  }
  return gradients;
}

std::vector<at::Tensor> added_gradients(const LinearWeights& slab) {
  std::vector<at::Tensor> gradients = {slab.bias_grad};
  push_update_gradients(slab, gradients);
  std::erase_if(gradients, [](const at::Tensor& gradient) { return !gradient.defined(); });
  return gradients;
}

struct StackGradients {
  std::array<at::Tensor, kStreams> streams;  ///< undefined where it is not wanted
  at::Tensor condition;                      ///< fp32 [V, C]; undefined without
  at::Tensor vectors;                        ///< fp32: of those that were given
};

/// What blocks add to the gradient of the modulation's input, as their gradients become complete.
class ModulationBackward {
 public:
  /// `grads`: of the vectors of all seams. dsilu: fp32, of what the modulation reads, added to.
  ModulationBackward(Pass& pass, const at::Tensor& grads, const at::Tensor& dsilu)
      : pass_(pass), grads_(grads), dsilu_(dsilu), pending_(pass.groups.size()) {}

  /// The gradients of the vectors from this column on are complete.
  void complete(int64_t column) {
    while (pending_ > 0 && pass_.groups[pending_ - 1].column >= column) {
      finish(pass_.groups[--pending_]);
    }
  }

 private:
  void finish(const SlabGroup& group) {
    const BlockStack& stack = pass_.stack;
    call_hook(stack, BucketMoment::kBeforeBackward, group);
    if (pass_.wants_vectors) {
      if (stack.ranks.divides_rows()) {  // each has what its rows add
        add_up(stack, grads_.narrow(1, group.column, group.end_column - group.column));
      }
      add_gradients(group);
    }
    call_hook(stack, BucketMoment::kAfterBackward, group);
  }

  void add_gradients(const SlabGroup& group) {
    const BlockStack& stack = pass_.stack;
    if (group.function != nullptr) {
      add_gradients(*group.function,
                    grads_.narrow(1, group.column, group.end_column - group.column));
      return;
    }
    const at::Tensor typed = grads_.narrow(1, group.column, group.end_column - group.column)
                                 .to(pass_.silu_c.scalar_type());
    int64_t column = group.column;
    for (size_t i = group.first; i < group.end; ++i) {
      const LinearWeights& slab = stack.modulation[i];
      KINORA_CHECK(!slab.at_host, kInternal,
                   "[block_stack] backward asks for a weight that stays in the host's memory");
      const int64_t count = slab.weight.size(0);
      const at::Tensor dy = typed.narrow(1, column - group.column, count);
      if (stack.overwrites_gradients) {
        zero_gradients(added_gradients(slab));
      }
      if (slab.weight_grad.defined()) {
        pass_.kernels.weight_grad({.value = dy}, {.value = pass_.silu_c}, slab,
                                  stack.overwrites_gradients);
      }
      if (slab.bias_grad.defined()) {
        pass_.kernels.add_column_sums(grads_.narrow(1, column, count), slab.bias_grad);
      }
      pass_.kernels.add_input_grad(dy, slab.weight, dsilu_);
      if (!slab.updates.empty()) {
        dsilu_.add_(update_backward(slab, dy, pass_.silu_c, low_of(slab, pass_.silu_c)));
      }
      column += count;
    }
  }

  void add_gradients(const VectorFunction& vectors, const at::Tensor& grads) {
    if (pass_.stack.overwrites_gradients) {
      zero_gradients(vectors.gradients);
    }
    const at::AutoGradMode with_gradients(true);
    const at::Tensor leaf = pass_.silu_c.detach().set_requires_grad(true);
    torch::autograd::backward({vectors.function(leaf)}, {grads});
    dsilu_.add_(leaf.grad());
  }

  Pass& pass_;
  at::Tensor grads_;
  at::Tensor dsilu_;
  size_t pending_;
};

/// A stream on its way back: the gradients behind the seam that comes next, and its norm.
struct StreamGrad {
  at::Tensor dh{};  ///< of what the branch behind reads
  at::Tensor dx{};  ///< of the stream
  at::Tensor x{};
  NormStatistics statistics{};
};

StackGradients run_stack_backward(Pass& pass, const at::Tensor& c,
                                  const std::array<at::Tensor, kStreams>& incoming) {
  const bool wants_vectors = pass.wants_vectors;
  at::Tensor grads;
  if (wants_vectors) {  // those of other ranks' rows, and that stream 1 does not have, stay zero
    const bool are_all_read = !pass.divides_rows() && (pass.first_rows == 0 || !pass.has_stream(1));
    grads = are_all_read ? at::empty_like(pass.vectors) : at::zeros_like(pass.vectors);
  }
  const at::Tensor dsilu =
      c.defined() && wants_vectors ? at::zeros(c.sizes(), c.options()) : at::Tensor();  // [V, C]
  const bool by_functions = has_functions(pass.stack);  // which know of ranks, and read c itself
  const at::Tensor own_dsilu =
      dsilu.defined() && !by_functions ? own_columns(pass.stack, dsilu) : dsilu;
  ModulationBackward modulation(pass, grads, own_dsilu);
  std::array<StreamGrad, kStreams> streams;
  for (size_t i = 0; i < kStreams; ++i) {
    if (!pass.has_ended(i)) {
      streams[i].dh = pass.stack.ranks.part_of(incoming[i].reshape({-1, pass.width}));
    }
  }
  streams[0].x = std::move(pass.x_out);
  streams[0].statistics = std::move(pass.norm_final);
  // A block's vectors are complete behind its first seams of all streams.
  std::vector<int64_t> open(pass.stack.blocks.size(), 0);
  for (size_t k = 0; k < pass.size(); ++k) {
    open[static_cast<size_t>(pass.places[k].block)] += pass.begins_block(k) ? 1 : 0;
  }
  const auto complete = [&](size_t k) {
    if (k == kNone || !pass.begins_block(k)) {
      return;
    }
    const Place& place = pass.places[k];
    if (--open[static_cast<size_t>(place.block)] > 0) {
      return;
    }
    modulation.complete(place.column);
    if (pass.modulates_in_blocks()) {
      call_hook(pass, BucketMoment::kAfterBackward, place.block);
    }
  };
  ResultGrad begun;  // of stream 1, whose branch computes with stream 0's
  for (size_t k = pass.size(); k-- > 0;) {
    const Place& place = pass.places[k];
    const Branch& branch = *place.branch;
    KeptBranch& kept = pass.kept[k];
    if (place.is_last) {
      begin_block(pass, BucketMoment::kBeforeBackward, place.block);
      if (pass.aside) {
        pass.aside->fetch(static_cast<size_t>(place.block));
      }
      if (pass.stack.overwrites_gradients) {  // not before: they may be elsewhere until then
        zero_gradients(added_gradients(pass, static_cast<size_t>(place.block)));
      }
      if (remakes_result(pass, place.block)) {
        remember(pass, k);
      }
    }
    StreamGrad& stream = streams[place.stream];
    ResultGrad dresult;
    if (Pass::has_result(place)) {
      SeamGrad seam = seam_backward(pass, seam_behind(pass, k), stream.dh, stream.dx, stream.x,
                                    stream.statistics, kept.result, grads);
      stream.dx = seam.dx;
      dresult = pass.divides_rows() ? gathered_grad(pass.branches, seam.dresult.operand.value,
                                                    last_linear(branch, place.stream))
                                    : std::move(seam.dresult);
      complete(place.behind);
    }
    stream.x = at::Tensor();
    kept.result = at::Tensor();
    if (place.is_last && !remakes_result(pass, place.block)) {
      remember(pass, k);
    }
    if (place.is_begun) {
      begun = std::move(dresult);
      continue;
    }
    pass.branches.wants_dh = place.before != kNone || pass.wants_x || wants_vectors;
    if (place.has_second) {
      KeptBranch& second = pass.kept[k + 1];
      const auto dh = run_joint_backward(pass.branches, branch,
                                         {std::move(dresult), std::move(begun)}, {&kept, &second});
      stream.dh = dh[0];
      streams[1].dh = dh[1];
      streams[1].x = std::move(second.x);
      streams[1].statistics = std::move(second.statistics);
      second.x = at::Tensor();
    } else {
      stream.dh = run_backward(pass.branches, branch, std::move(dresult), kept);
    }
    if (place.is_first) {
      pass.branches.update_gradients.add();
      if (!pass.modulates_in_blocks()) {
        call_hook(pass, BucketMoment::kAfterBackward, place.block);
      }
    }
    stream.x = std::move(kept.x);
    stream.statistics = std::move(kept.statistics);
    kept.x = at::Tensor();
  }
  StackGradients result;
  for (size_t i = 0; i < kStreams; ++i) {
    if (!pass.has_stream(i)) {
      continue;
    }
    const auto first = static_cast<size_t>(std::ranges::find(pass.places, i, &Place::stream) -
                                           pass.places.begin());
    if (pass.wants_x || wants_vectors) {
      const StreamGrad& stream = streams[i];
      const SeamGrad seam = seam_backward(pass, seam_before(pass, first), stream.dh, stream.dx,
                                          stream.x, stream.statistics, {}, grads);
      if (pass.wants_x) {
        result.streams[i] = pass.all_rows(seam.dx).view(pass.shapes[i]);
      }
    }
    complete(first);
  }
  compute_late(pass.branches);
  pass.aside.reset();  // other passes can have its place
  if (!wants_vectors) {
    return result;
  }
  const int64_t given = pass.groups.empty() ? 0 : pass.groups.back().end_column;
  if (by_functions) {
    result.condition = dsilu;
  } else if (c.defined()) {
    if (pass.stack.ranks.sum) {
      add_up(pass.stack, dsilu);
    }
    result.condition = at::silu_backward(dsilu, c);
  }
  result.vectors = grads.narrow(1, given, grads.size(1) - given);
  if (pass.divides_rows()) {
    add_up(pass.stack, result.vectors);
  }
  return result;
}

// ---- the autograd node ----

/// Finds the vectors of this rank's rows. samples: that have vectors of their own, two of each
/// where inputs.first_rows says so.
void divide_vectors(Pass& pass, const StackInputs& inputs, int64_t samples) {
  const LinearRanks& ranks = pass.stack.ranks;
  const int64_t a_sample = pass.vectors.size(0) / samples;
  for (const at::Tensor& stream : {inputs.x, inputs.second}) {
    const int64_t rows = stream.defined() ? stream.numel() / pass.width : 0;
    KINORA_CHECK(rows % ranks.size == 0, kConfig, "[tensor] parallel.divided_norms divides the ",
                 rows, " tokens of a micro-batch among ", ranks.size,
                 " ranks, which does not come out even. Hint: train.micro_batch a multiple of ",
                 ranks.size, ", or parallel.divided_norms=false");
  }
  const bool has_whole_samples = samples % ranks.size == 0;
  KINORA_CHECK(has_whole_samples || (ranks.size % samples == 0 && a_sample == 1), kConfig,
               "[tensor] parallel.divided_norms divides the ", samples,
               " samples of a micro-batch among ", ranks.size,
               " ranks, which does not come out even. Hint: train.micro_batch a multiple of ",
               ranks.size, ", or parallel.divided_norms=false");
  pass.num_vectors = has_whole_samples ? samples / ranks.size * a_sample : 1;
  pass.first_vector =
      has_whole_samples ? ranks.rank * pass.num_vectors : ranks.rank / (ranks.size / samples);
}

/// Takes the sizes and vectors of a pass. Those that modulation makes come when their block does,
/// whose weights may not be there before.
void start(Pass& pass, const StackInputs& inputs) {
  at::Tensor vectors = inputs.vectors.contiguous();
  if (inputs.condition.defined()) {
    pass.silu_c = read_condition(pass.stack, inputs.condition);
    begin_host_products(pass.stack, pass.silu_c);
    vectors = vectors_with(pass.groups, vectors);
  } else {
    pass.modulated = pass.groups.size();
  }
  const int64_t width = pass.width;
  const int64_t rows = inputs.x.numel() / width;
  const int64_t columns = pass.final_column + (pass.stack.has_final_norm ? 2 * width : 0);
  const bool has_parts = inputs.first_rows > 0;
  const int64_t samples = has_parts ? vectors.size(0) / 2 : vectors.size(0);
  KINORA_CHECK(inputs.x.size(-1) == width && vectors.dim() == 2 && samples > 0 &&
                   rows % samples == 0 && vectors.size(1) == columns &&
                   vectors.scalar_type() == at::kFloat,
               kShape, "[block_stack] x must be [.., ", width, "] and have vectors float32 [V, ",
               columns, "] with V a divisor of its rows, got ", inputs.x.sizes(), " and ",
               vectors.scalar_type(), " ", vectors.sizes());
  KINORA_CHECK(!has_parts || (vectors.size(0) % 2 == 0 && inputs.first_rows < rows / samples),
               kShape,
               "[block_stack] the two parts of a sample of stream 0 have a vector each, "
               "got vectors ",
               vectors.sizes(), " and ", inputs.first_rows, " rows of ", rows / samples);
  pass.first_rows = inputs.first_rows;
  const at::Tensor& text = inputs.text;
  const at::Tensor& lengths = inputs.text_lengths;
  const bool has_lengths = lengths.defined() && lengths.scalar_type() == at::kInt &&
                           lengths.is_contiguous() && lengths.dim() == 1 &&
                           rows % lengths.size(0) == 0;
  pass.branches.batch = lengths.defined() ? lengths.size(0) : inputs.x.size(0);
  KINORA_CHECK((!lengths.defined() || has_lengths) &&
                   (!text.defined() || (text.dim() == 3 && text.size(0) == pass.branches.batch)),
               kShape, "[block_stack] text and its lengths must be [B, L, C] and int32 [B], got ",
               text.defined() ? text.sizes() : at::IntArrayRef(), " and ",
               lengths.defined() ? lengths.sizes() : at::IntArrayRef());
  pass.shapes[0] = inputs.x.sizes().vec();
  KINORA_CHECK(
      pass.has_stream(1) == inputs.second.defined() &&
          (!pass.has_stream(1) || (inputs.second.size(-1) == width && inputs.second.numel() > 0 &&
                                   inputs.second.numel() / width % samples == 0)),
      kShape, "[block_stack] the second stream must be [.., ", width,
      "] where branches are off it, got ",
      inputs.second.defined() ? inputs.second.sizes() : at::IntArrayRef());
  if (pass.has_stream(1)) {
    pass.shapes[1] = inputs.second.sizes().vec();
  }
  pass.vectors = vectors;
  pass.num_vectors = vectors.size(0);
  if (pass.divides_rows()) {
    divide_vectors(pass, inputs, samples);
  }
  pass.ones = at::ones({1, width}, vectors.options()).expand({pass.num_vectors, width});
  pass.branches.text = text.defined() ? text.contiguous() : text;
  pass.branches.text_lengths = lengths;
}

void check_condition(const BlockStack& stack, const at::Tensor& c, const at::Tensor& given) {
  if (has_functions(stack)) {
    return;
  }
  const int64_t width = stack.modulation.front().weight.size(1) * stack.ranks.size;
  KINORA_CHECK(c.dim() == 2 && c.size(1) == width && given.dim() == 2 && given.size(0) == c.size(0),
               kShape, "[block_stack] the condition must be [V, ", width,
               "] and given vectors [V, ..], got ", c.sizes(), " and ", given.sizes());
}

/// Functions take and return what may be undefined so.
std::optional<at::Tensor> optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

struct RunBlocks : torch::autograd::Function<RunBlocks> {
  /// Returns the streams that have not ended.
  static variable_list forward(AutogradContext* context, const c10::intrusive_ptr<Pass>& pass,
                               const at::Tensor& x, const std::optional<at::Tensor>& second,
                               const std::optional<at::Tensor>& c, const at::Tensor& vectors,
                               const std::optional<at::Tensor>& text,
                               const std::optional<at::Tensor>& text_lengths, int64_t first_rows) {
    context->saved_data["pass"] = c10::IValue::make_capsule(pass);
    context->save_for_backward({c.value_or(at::Tensor())});
    start(*pass, {.x = x,
                  .second = second.value_or(at::Tensor()),
                  .condition = c.value_or(at::Tensor()),
                  .vectors = vectors,
                  .text = text.value_or(at::Tensor()),
                  .text_lengths = text_lengths.value_or(at::Tensor()),
                  .first_rows = first_rows});
    const auto out = run_forward(*pass, x, second.value_or(at::Tensor()));
    return out[1].defined() ? variable_list{out[0], out[1]} : variable_list{out[0]};
  }

  static variable_list backward(AutogradContext* context, const variable_list& incoming) {
    const auto holder = context->saved_data["pass"].toCapsule();
    Pass& pass = *static_cast<Pass*>(holder.get());
    at::Tensor& text_grad = pass.branches.text_grad;
    const at::Tensor& text = pass.branches.text;
    if (pass.wants_text) {
      text_grad =
          at::zeros({text.size(0) * text.size(1), text.size(2)}, text.options().dtype(at::kFloat));
    }
    const StackGradients grads =
        run_stack_backward(pass, context->get_saved_variables()[0],
                           {incoming[0], incoming.size() > 1 ? incoming[1] : at::Tensor()});
    at::Tensor dtext;
    if (pass.wants_text) {
      if (pass.stack.ranks.sum) {
        add_up(pass.stack, text_grad);
      }
      dtext = std::exchange(text_grad, at::Tensor()).to(text.scalar_type()).view(text.sizes());
    }
    return {at::Tensor(), grads.streams[0], grads.streams[1], grads.condition, grads.vectors,
            dtext,        at::Tensor(),     at::Tensor()};
  }
};

/// Whether anything that makes the vectors is trained.
bool wants_vectors(const BlockStack& stack, const StackInputs& inputs) {
  return inputs.vectors.requires_grad() ||
         (inputs.condition.defined() && inputs.condition.requires_grad()) ||
         std::ranges::any_of(stack.modulation,
                             [](const LinearWeights& slab) {
                               return slab.weight_grad.defined() || slab.bias_grad.defined() ||
                                      !slab.updates.empty();
                             }) ||
         std::ranges::any_of(stack.blocks,
                             [](const Block& block) { return !block.vectors.gradients.empty(); });
}

}  // namespace

std::array<at::Tensor, kStreams> run_joint_blocks(BlockKernels& kernels, BlockStack stack,
                                                  StackInputs inputs) {
  const int64_t width = inputs.x.size(-1);
  if (inputs.condition.defined()) {
    check_condition(stack, inputs.condition, inputs.vectors);
  }
  if (!at::GradMode::is_enabled()) {
    Pass pass(kernels, std::move(stack), width, /*keeps=*/false);
    start(pass, inputs);
    return run_forward(pass, inputs.x, inputs.second);
  }
  const bool wants = wants_vectors(stack, inputs);
  auto pass = c10::make_intrusive<Pass>(kernels, std::move(stack), width, /*keeps=*/true);
  pass->wants_x =
      inputs.x.requires_grad() || (inputs.second.defined() && inputs.second.requires_grad());
  pass->wants_text = inputs.text.defined() && inputs.text.requires_grad();
  pass->wants_vectors = wants;
  const variable_list out =
      RunBlocks::apply(std::move(pass), wanting_gradient(inputs.x), optional(inputs.second),
                       optional(inputs.condition), inputs.vectors, optional(inputs.text),
                       optional(inputs.text_lengths), inputs.first_rows);
  return {out[0], out.size() > 1 ? out[1] : at::Tensor()};
}

at::Tensor run_blocks(BlockKernels& kernels, BlockStack stack, StackInputs inputs) {
  return run_joint_blocks(kernels, std::move(stack), std::move(inputs))[0];
}

at::Tensor stack_vectors(BlockKernels& kernels, const BlockStack& stack, int64_t width,
                         const at::Tensor& condition, const at::Tensor& vectors) {
  const at::NoGradGuard no_grad;
  check_condition(stack, condition, vectors);
  const std::vector<SlabGroup> groups = slab_groups(stack, width);
  const at::Tensor silu_c = read_condition(stack, condition);
  begin_host_products(stack, silu_c);
  at::Tensor all = vectors_with(groups, vectors);
  const auto call_block = [&stack](BucketMoment moment, size_t block, const SlabGroup& group) {
    if (stack.hook && group.bucket < 0) {
      stack.hook(moment, stack.block_buckets[block]);
    }
  };
  auto group = groups.begin();
  int64_t end_column = 0;
  for (size_t block = 0; block < stack.blocks.size() && group != groups.end(); ++block) {
    end_column += stack.blocks[block].num_vectors * width;
    const SlabGroup& first = *group;
    call_block(BucketMoment::kBeforeForward, block, first);
    for (; group != groups.end() && group->column < end_column; ++group) {
      modulate(kernels, stack, *group, silu_c, all);
    }
    call_block(BucketMoment::kAfterForward, block, first);
  }
  add_up_vectors(stack, all, 0, groups.empty() ? 0 : groups.back().end_column);
  return all;
}

at::Tensor packed_text(BlockKernels& kernels, const CrossAttentionBody& body,
                       const at::Tensor& text) {
  const at::NoGradGuard no_grad;
  KeptBranch kept;
  pack_text({.kernels = kernels, .text = text.contiguous()}, body, kept);
  return kept.text.packed;
}

}  // namespace kinora::ops
