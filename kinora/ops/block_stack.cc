#include "kinora/ops/block_stack.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "kinora/core/error.h"
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

/// The modulation linears of one bucket, and the columns of theirs among all vectors.
struct SlabGroup {
  size_t first = 0;  ///< in BlockStack::modulation
  size_t end = 0;
  int64_t column = 0;
  int64_t end_column = 0;
  int64_t bucket = -1;  ///< negative: that of the block
};

std::vector<SlabGroup> slab_groups(const BlockStack& stack) {
  std::vector<SlabGroup> groups;
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

/// Fills the group's columns of `vectors`; `silu_c` is SiLU(c) in the compute type.
void modulate(BlockKernels& kernels, const BlockStack& stack, const SlabGroup& group,
              const at::Tensor& silu_c, const at::Tensor& vectors) {
  call_hook(stack, BucketMoment::kBeforeForward, group);
  int64_t column = group.column;
  for (size_t i = group.first; i < group.end; ++i) {
    const LinearWeights& slab = stack.modulation[i];
    const int64_t count = slab.weight.size(0);
    const at::Tensor out = vectors.narrow(1, column, count);
    kernels.linear_into(silu_c, slab, out);
    if (!slab.updates.empty()) {
      at::Tensor(out).add_(raised(slab, low_of(slab, silu_c)));
    }
    column += count;
  }
  call_hook(stack, BucketMoment::kAfterForward, group);
}

/// Room for the vectors of all seams, of which those that are given are there.
at::Tensor vectors_with(const std::vector<SlabGroup>& groups, const at::Tensor& given) {
  const int64_t columns = groups.back().end_column;
  const int64_t last = given.size(1);
  at::Tensor vectors = at::empty({given.size(0), columns + last}, given.options());
  vectors.narrow(1, columns, last).copy_(given);
  return vectors;
}

at::Tensor typed_silu(const BlockStack& stack, const at::Tensor& c) {
  return at::silu(c).to(stack.modulation.front().weight.scalar_type());
}

// ---- a pass ----

/// Where a branch stands in a stack.
struct Place {
  const Branch* branch;
  int64_t block;
  int64_t column;  ///< of its block's first vector
  bool is_first;   ///< in its block
  bool is_last;
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
                 .overwrites_gradients = stack.overwrites_gradients},
        groups(slab_groups(stack)) {
    int64_t column = 0;
    for (size_t i = 0; i < stack.blocks.size(); ++i) {
      const Block& block = stack.blocks[i];
      for (const Branch& branch : block.branches) {
        places.push_back({&branch, static_cast<int64_t>(i), column,
                          &branch == &block.branches.front(), &branch == &block.branches.back()});
      }
      column += block.num_vectors * width;
    }
    final_column = column;
  }

  BlockKernels& kernels;
  const BlockStack stack;
  const int64_t width;  ///< C
  BranchPass branches;
  const std::vector<SlabGroup> groups;
  std::vector<Place> places;
  bool wants_x = true;         ///< the gradient of the stack's x
  bool wants_text = false;     ///< its gradient
  bool wants_vectors = true;   ///< their gradients, and so those of what makes them
  int64_t final_column = 0;    ///< of the final norm's vectors
  size_t modulated = 0;        ///< groups whose vectors are there
  std::vector<int64_t> shape;  ///< of x
  at::Tensor silu_c;           ///< [V, C] in the compute type
  at::Tensor vectors;          ///< fp32 [V, n C]
  at::Tensor ones;             ///< a gate: [V, C] of one value
  std::vector<KeptBranch> kept;
  at::Tensor x_out;
  NormStatistics norm_final;

  [[nodiscard]] bool keeps() const { return branches.keeps; }
  [[nodiscard]] size_t size() const { return places.size(); }
  [[nodiscard]] Recompute recompute_of(int64_t block) const {
    return block < stack.recomputed_blocks ? Recompute::kBlock : stack.recompute;
  }
  [[nodiscard]] bool modulates_in_blocks() const {
    return !groups.empty() && groups.front().bucket < 0;
  }

  /// Vector `which` of the block that `place` stands in; undefined where it is negative.
  [[nodiscard]] at::Tensor vector(const at::Tensor& all, const Place& place, int64_t which) const {
    return which < 0 ? at::Tensor() : all.narrow(1, place.column + which * width, width);
  }
  /// Of the seam behind branch k - 1 and before branch k (the final norm behind the last).
  [[nodiscard]] SeamVectors seam(const at::Tensor& all, size_t k) const {
    SeamVectors seam;
    if (k > 0) {
      seam.gate = vector(all, places[k - 1], places[k - 1].branch->gate);
    }
    if (k < size()) {
      seam.scale = vector(all, places[k], places[k].branch->scale);
      seam.shift = vector(all, places[k], places[k].branch->shift);
    } else if (stack.has_final_norm) {
      seam.shift = all.narrow(1, final_column, width);
      seam.scale = all.narrow(1, final_column + width, width);
    }
    seam.epsilon = stack.norm_epsilon;
    return seam;
  }
  /// What is added to the stream before branch k, besides the branch before it.
  [[nodiscard]] at::Tensor stream_offset(size_t k) const {
    return k < size() && places[k].is_first
               ? stack.blocks[static_cast<size_t>(places[k].block)].offset
               : at::Tensor();
  }
  [[nodiscard]] bool has_norm(size_t k) const {
    return k == size() ? stack.has_final_norm : places[k].branch->has_norm();
  }
  /// Whether the last product of branch k, which ends the stack, adds itself to the stream: one of
  /// the stack's own that nobody reads later.
  [[nodiscard]] bool ends_in_place(size_t k) const {
    const Branch& branch = *places[k].branch;
    const LinearWeights* linear = last_linear(branch);
    return !branches.trains && k + 1 == size() && !stack.has_final_norm && is_one_seam(k) &&
           branch.gate < 0 && linear != nullptr && linear->updates.empty();
  }
  /// Whether the sum behind branch k - 1 and the norm before branch k are one kernel.
  [[nodiscard]] bool is_one_seam(size_t k) const {
    return k > 0 && has_norm(k) && !stream_offset(k).defined();
  }
};

void call_hook(const Pass& pass, BucketMoment moment, int64_t block) {
  if (pass.stack.hook) {
    pass.stack.hook(moment, pass.stack.block_buckets[static_cast<size_t>(block)]);
  }
}

/// Makes the vectors of the blocks up to `block`, each group when the first of its blocks needs it:
/// its weights may still be on their way while blocks before it compute.
void modulate_up_to(Pass& pass, int64_t column) {
  while (pass.modulated < pass.groups.size() && pass.groups[pass.modulated].column <= column) {
    modulate(pass.kernels, pass.stack, pass.groups[pass.modulated++], pass.silu_c, pass.vectors);
  }
}

// ---- seams ----

/// rows [R, C] + offset [P, C] of row r % P.
at::Tensor with_offset(const at::Tensor& rows, const at::Tensor& offset) {
  return (rows.view({-1, offset.size(0), offset.size(1)}) + offset)
      .to(rows.scalar_type())
      .view(rows.sizes());
}

/// What branch k reads where it has no norm; what the stack returns, behind the last.
Operand unnormed(const Pass& pass, size_t k, const at::Tensor& x) {
  if (k == pass.size()) {
    return {.value = x};
  }
  const Branch& branch = *pass.places[k].branch;
  return pass.kernels.operand(branch.offset.defined() ? with_offset(x, branch.offset) : x,
                              pass.branches.number(first_linear(branch)), false);
}

/// From the stream x before branch k - 1 to the stream, and what is read of it, before branch k.
/// result: of branch k - 1.
SeamForward seam_before(Pass& pass, size_t k, const at::Tensor& x, const at::Tensor& result) {
  const at::ScalarType h_type = k == pass.size() && pass.has_norm(k) ? at::kFloat : x.scalar_type();
  const Consumer consumer =
      k == pass.size() ? Consumer{} : pass.branches.consumer(first_linear(*pass.places[k].branch));
  SeamVectors vectors = pass.seam(pass.vectors, k);
  if (pass.is_one_seam(k)) {
    if (!vectors.gate.defined()) {
      vectors.gate = pass.ones;
    }
    return pass.kernels.seam(x, result, vectors, h_type, pass.keeps(), consumer);
  }
  const at::Tensor offset = pass.stream_offset(k);
  const bool is_read_as_it_is = !pass.has_norm(k) && !offset.defined() &&
                                (k == pass.size() || !pass.places[k].branch->offset.defined());
  at::Tensor stream = x;
  if (k > 0 && vectors.gate.defined()) {
    SeamForward sum =
        pass.kernels.gated_add(x, result, vectors.gate, is_read_as_it_is ? consumer : Consumer{});
    if (is_read_as_it_is) {
      return sum;
    }
    stream = sum.x;
  } else if (k > 0) {
    stream = x + result;
  }
  if (offset.defined()) {
    stream = with_offset(stream, offset);
  }
  if (pass.has_norm(k)) {
    vectors.gate = at::Tensor();
    return pass.kernels.seam(stream, {}, vectors, h_type, pass.keeps(), consumer);
  }
  return {stream, unnormed(pass, k, stream), {}};
}

struct SeamGrad {
  at::Tensor dx;       ///< of the stream before branch k - 1
  ResultGrad dresult;  ///< of branch k - 1
};

/// Backward of seam_before(). dh: of what branch k reads; dx_out: of the stream behind the seam,
/// which is overwritten; x, statistics: of the norm before branch k. grads: of the vectors.
SeamGrad seam_backward(const Pass& pass, size_t k, const at::Tensor& dh, const at::Tensor& dx_out,
                       const at::Tensor& x, const NormStatistics& statistics,
                       const at::Tensor& result, const at::Tensor& grads) {
  SeamVectors vectors = pass.seam(pass.vectors, k);
  SeamVectors of_vectors = pass.wants_vectors ? pass.seam(grads, k) : SeamVectors();
  const LinearWeights* producer = k > 0 ? last_linear(*pass.places[k - 1].branch) : nullptr;
  if (pass.is_one_seam(k) && vectors.gate.defined()) {
    SeamBackward seam = pass.kernels.seam_backward(dh, dx_out, x, statistics, result, vectors,
                                                   of_vectors, producer);
    return {seam.dx, {std::move(seam.dbranch), {}}};
  }
  at::Tensor dx = dx_out;
  if (pass.has_norm(k)) {
    const at::Tensor gate = std::exchange(vectors.gate, at::Tensor());
    const at::Tensor dgate = std::exchange(of_vectors.gate, at::Tensor());
    dx = pass.kernels.seam_backward(dh, dx_out, x, statistics, {}, vectors, of_vectors, nullptr).dx;
    vectors.gate = gate;
    of_vectors.gate = dgate;
  } else if (dx.defined()) {
    dx = dx + dh;
  } else {
    dx = dh;
  }
  if (k == 0) {
    return {dx, {}};
  }
  const int64_t number = pass.branches.number(producer);
  const at::Tensor bias_grad = producer != nullptr ? producer->bias_grad : at::Tensor();
  return {dx, vectors.gate.defined()
                  ? pass.kernels.gated_add_backward(dx, result, vectors.gate, of_vectors.gate,
                                                    number, bias_grad)
                  : pass.kernels.result_grad(dx, number, bias_grad)};
}

// ---- forward ----

/// Drops what the block's level computes again, of the branches [first, end) of a block.
void forget(Pass& pass, Recompute level, size_t first, size_t end) {
  for (size_t k = first; k < end; ++k) {
    KeptBranch& kept = pass.kept[k];
    if (level == Recompute::kBlock) {
      // The last result belongs to the seam behind the block.
      KeptBranch rest;
      if (k == first) {
        rest.x = kept.x;
        rest.statistics = kept.statistics;
      }
      if (k + 1 == end && pass.stack.keeps_results) {
        rest.result = kept.result;
      }
      kept = std::move(rest);
      continue;
    }
    forget_inner(level, *pass.places[k].branch, kept);
    if (level != Recompute::kNone) {
      kept.h = {};
    }
  }
}

at::Tensor run_forward(Pass& pass, const at::Tensor& given) {
  at::Tensor x = given.reshape({-1, pass.width});
  at::Tensor result;
  size_t first = 0;  // branch of the block
  for (size_t k = 0; k < pass.size(); ++k) {
    const Place& place = pass.places[k];
    if (place.is_first) {
      first = k;
      if (!pass.modulates_in_blocks()) {
        modulate_up_to(pass, place.column);
      }
      call_hook(pass, BucketMoment::kBeforeForward, place.block);
      modulate_up_to(pass, place.column);
    }
    SeamForward seam = seam_before(pass, k, x, result);
    KeptBranch kept{
        .x = std::move(seam.x), .statistics = std::move(seam.statistics), .h = std::move(seam.h)};
    x = kept.x;
    run_inner(pass.branches, *place.branch, kept);
    if (pass.ends_in_place(k)) {
      result = at::Tensor();
      (void)pass.kernels.linear(kept.last, *last_linear(*place.branch), x);
    } else {
      run_last(pass.branches, *place.branch, kept);
      result = kept.result;
    }
    if (pass.keeps()) {
      forget_unread(*place.branch, kept);
    }
    if (place.branch->gate < 0 || !pass.wants_vectors) {
      kept.result = at::Tensor();  // read for the gradient of the gate alone
    }
    if (pass.keeps()) {
      pass.kept.push_back(std::move(kept));
    }
    if (place.is_last) {
      call_hook(pass, BucketMoment::kAfterForward, place.block);
      if (pass.keeps()) {
        forget(pass, pass.recompute_of(place.block), first, k + 1);
      }
    }
  }
  if (!result.defined()) {  // the last product added it to the stream
    return x.view(pass.shape);
  }
  SeamForward seam = seam_before(pass, pass.size(), x, result);
  if (pass.keeps() && pass.has_norm(pass.size())) {
    pass.x_out = std::move(seam.x);
    pass.norm_final = std::move(seam.statistics);
  }
  return seam.h.value.view(pass.shape);
}

// ---- backward ----

/// Whether the last result of a block is made again, before the seam behind it goes back.
bool remakes_result(const Pass& pass, int64_t block) {
  return pass.recompute_of(block) == Recompute::kBlock && !pass.stack.keeps_results &&
         pass.wants_vectors;
}

/// Computes again what forget() dropped, of the block whose last branch is `last`.
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
  for (size_t k = first; k <= last; ++k) {
    KeptBranch& kept = pass.kept[k];
    const Branch& branch = *pass.places[k].branch;
    if (level != Recompute::kBlock && std::holds_alternative<FunctionBody>(branch.body)) {
      continue;
    }
    if (level == Recompute::kBlock && k > first) {
      SeamForward seam = seam_before(pass, k, pass.kept[k - 1].x, pass.kept[k - 1].result);
      kept.x = std::move(seam.x);
      kept.statistics = std::move(seam.statistics);
      kept.h = std::move(seam.h);
    } else if (pass.has_norm(k)) {
      kept.h = pass.kernels.modulated_norm(kept.x, pass.seam(pass.vectors, k),
                                           pass.branches.consumer(first_linear(branch)));
    } else {
      kept.h = unnormed(pass, k, kept.x);
    }
    if (level != Recompute::kBlock) {
      remember_inner(pass.branches, branch, kept);
      continue;
    }
    run_inner(pass.branches, branch, kept);
    if (k < last || remakes_result(pass, block)) {
      run_last(pass.branches, branch, kept);
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
  at::Tensor x;
  at::Tensor condition;  ///< fp32 [V, C]; undefined without
  at::Tensor vectors;    ///< fp32: of those that were given
};

/// What blocks add to the gradient of the modulation's input, as their gradients become complete.
class ModulationBackward {
 public:
  /// `grads`: of the vectors of all seams. dsilu: fp32 [V, C], added to.
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
      add_gradients(group);
    }
    call_hook(stack, BucketMoment::kAfterBackward, group);
  }

  void add_gradients(const SlabGroup& group) {
    const BlockStack& stack = pass_.stack;
    const at::Tensor typed = grads_.narrow(1, group.column, group.end_column - group.column)
                                 .to(pass_.silu_c.scalar_type());
    int64_t column = group.column;
    for (size_t i = group.first; i < group.end; ++i) {
      const LinearWeights& slab = stack.modulation[i];
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

  Pass& pass_;
  at::Tensor grads_;
  at::Tensor dsilu_;
  size_t pending_;
};

StackGradients run_stack_backward(Pass& pass, const at::Tensor& c, const at::Tensor& incoming) {
  const bool wants_vectors = pass.wants_vectors;
  const at::Tensor grads = wants_vectors ? at::empty_like(pass.vectors) : at::Tensor();
  const at::Tensor dsilu =
      c.defined() && wants_vectors ? at::zeros(c.sizes(), c.options()) : at::Tensor();
  ModulationBackward modulation(pass, grads, dsilu);
  at::Tensor dh = incoming.reshape({-1, pass.width});
  at::Tensor dx;  // of the residual stream
  at::Tensor x = std::move(pass.x_out);
  NormStatistics statistics = std::move(pass.norm_final);
  // What is complete behind the seam before branch k.
  const auto complete = [&](size_t k) {
    if (k == pass.size() || !pass.places[k].is_first) {
      return;
    }
    modulation.complete(pass.places[k].column);
    if (pass.modulates_in_blocks()) {
      call_hook(pass, BucketMoment::kAfterBackward, pass.places[k].block);
    }
  };
  for (size_t k = pass.size(); k > 0;) {
    const size_t behind = k--;
    const Place& place = pass.places[k];
    KeptBranch& kept = pass.kept[k];
    if (place.is_last) {
      call_hook(pass, BucketMoment::kBeforeBackward, place.block);
      if (pass.stack.overwrites_gradients) {  // not before: they may be elsewhere until then
        zero_gradients(added_gradients(pass, static_cast<size_t>(place.block)));
      }
      if (remakes_result(pass, place.block)) {
        remember(pass, k);
      }
    }
    SeamGrad seam = seam_backward(pass, behind, dh, dx, x, statistics, kept.result, grads);
    dx = seam.dx;
    complete(behind);
    x = at::Tensor();
    kept.result = at::Tensor();
    if (place.is_last && !remakes_result(pass, place.block)) {
      remember(pass, k);
    }
    pass.branches.wants_dh = k > 0 || pass.wants_x || wants_vectors;
    dh = run_backward(pass.branches, *place.branch, std::move(seam.dresult), kept);
    if (place.is_first) {
      pass.branches.update_gradients.add();
      if (!pass.modulates_in_blocks()) {
        call_hook(pass, BucketMoment::kAfterBackward, place.block);
      }
    }
    x = std::move(kept.x);
    statistics = std::move(kept.statistics);
    kept.x = at::Tensor();
  }
  if (!pass.wants_x && !wants_vectors) {
    complete(0);
    return {};
  }
  const SeamGrad first = seam_backward(pass, 0, dh, dx, x, statistics, {}, grads);
  complete(0);
  if (!wants_vectors) {
    return {first.dx.view(pass.shape), {}, {}};
  }
  const int64_t given = pass.groups.empty() ? 0 : pass.groups.back().end_column;
  return {first.dx.view(pass.shape), c.defined() ? at::silu_backward(dsilu, c) : at::Tensor(),
          grads.narrow(1, given, grads.size(1) - given)};
}

// ---- the autograd node ----

/// Takes the sizes and vectors of a pass. Those that modulation makes come when their block does,
/// whose weights may not be there before.
void start(Pass& pass, const StackInputs& inputs) {
  at::Tensor vectors = inputs.vectors.contiguous();
  if (inputs.condition.defined()) {
    pass.silu_c = typed_silu(pass.stack, inputs.condition);
    vectors = vectors_with(pass.groups, vectors);
  } else {
    pass.modulated = pass.groups.size();
  }
  const int64_t width = pass.width;
  const int64_t rows = inputs.x.numel() / width;
  const int64_t columns = pass.final_column + (pass.stack.has_final_norm ? 2 * width : 0);
  KINORA_CHECK(inputs.x.size(-1) == width && vectors.dim() == 2 && vectors.size(0) > 0 &&
                   rows % vectors.size(0) == 0 && vectors.size(1) == columns &&
                   vectors.scalar_type() == at::kFloat,
               kShape, "[block_stack] x must be [.., ", width, "] and have vectors float32 [V, ",
               columns, "] with V a divisor of its rows, got ", inputs.x.sizes(), " and ",
               vectors.scalar_type(), " ", vectors.sizes());
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
  pass.shape = inputs.x.sizes().vec();
  pass.vectors = vectors;
  pass.ones = at::ones({1, width}, vectors.options()).expand({vectors.size(0), width});
  pass.branches.text = text.defined() ? text.contiguous() : text;
  pass.branches.text_lengths = lengths;
}

void check_condition(const BlockStack& stack, const at::Tensor& c, const at::Tensor& given) {
  const int64_t width = stack.modulation.front().weight.size(1);
  KINORA_CHECK(c.dim() == 2 && c.size(1) == width && given.dim() == 2 && given.size(0) == c.size(0),
               kShape, "[block_stack] the condition must be [V, ", width,
               "] and given vectors [V, ..], got ", c.sizes(), " and ", given.sizes());
}

/// Functions take and return what may be undefined so.
std::optional<at::Tensor> optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

struct RunBlocks : torch::autograd::Function<RunBlocks> {
  static at::Tensor forward(AutogradContext* context, const c10::intrusive_ptr<Pass>& pass,
                            const at::Tensor& x, const std::optional<at::Tensor>& c,
                            const at::Tensor& vectors, const std::optional<at::Tensor>& text,
                            const std::optional<at::Tensor>& text_lengths) {
    context->saved_data["pass"] = c10::IValue::make_capsule(pass);
    context->save_for_backward({c.value_or(at::Tensor())});
    start(*pass, {.x = x,
                  .condition = c.value_or(at::Tensor()),
                  .vectors = vectors,
                  .text = text.value_or(at::Tensor()),
                  .text_lengths = text_lengths.value_or(at::Tensor())});
    return run_forward(*pass, x);
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
        run_stack_backward(pass, context->get_saved_variables()[0], incoming[0]);
    at::Tensor dtext;
    if (pass.wants_text) {
      dtext = std::exchange(text_grad, at::Tensor()).to(text.scalar_type()).view(text.sizes());
    }
    return {at::Tensor(), grads.x, grads.condition, grads.vectors, dtext, at::Tensor()};
  }
};

/// Whether anything that makes the vectors is trained.
bool wants_vectors(const BlockStack& stack, const StackInputs& inputs) {
  return inputs.vectors.requires_grad() ||
         (inputs.condition.defined() && inputs.condition.requires_grad()) ||
         std::any_of(stack.modulation.begin(), stack.modulation.end(), [](const auto& slab) {
           return slab.weight_grad.defined() || slab.bias_grad.defined() || !slab.updates.empty();
         });
}

}  // namespace

at::Tensor run_blocks(BlockKernels& kernels, BlockStack stack, StackInputs inputs) {
  const int64_t width = inputs.x.size(-1);
  if (inputs.condition.defined()) {
    check_condition(stack, inputs.condition, inputs.vectors);
  }
  if (at::GradMode::is_enabled()) {
    const bool wants = wants_vectors(stack, inputs);
    auto pass = c10::make_intrusive<Pass>(kernels, std::move(stack), width, /*keeps=*/true);
    pass->wants_x = inputs.x.requires_grad();
    pass->wants_text = inputs.text.defined() && inputs.text.requires_grad();
    pass->wants_vectors = wants;
    return RunBlocks::apply(std::move(pass), wanting_gradient(inputs.x), optional(inputs.condition),
                            inputs.vectors, optional(inputs.text), optional(inputs.text_lengths));
  }
  Pass pass(kernels, std::move(stack), width, /*keeps=*/false);
  start(pass, inputs);
  return run_forward(pass, inputs.x);
}

at::Tensor stack_vectors(BlockKernels& kernels, const BlockStack& stack,
                         const at::Tensor& condition, const at::Tensor& vectors) {
  const at::NoGradGuard no_grad;
  check_condition(stack, condition, vectors);
  const std::vector<SlabGroup> groups = slab_groups(stack);
  const at::Tensor silu_c = typed_silu(stack, condition);
  at::Tensor all = vectors_with(groups, vectors);
  for (const SlabGroup& group : groups) {
    modulate(kernels, stack, group, silu_c, all);
  }
  return all;
}

at::Tensor packed_text(BlockKernels& kernels, const CrossAttentionBody& body,
                       const at::Tensor& text) {
  const at::NoGradGuard no_grad;
  KeptBranch kept;
  pack_text({.kernels = kernels, .text = text.contiguous()}, body, kept);
  return kept.text_packed;
}

}  // namespace kinora::ops
