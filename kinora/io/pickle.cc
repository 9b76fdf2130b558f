#include "kinora/io/pickle.h"

#include <algorithm>
#include <bit>
#include <type_traits>
#include <unordered_map>

#include "kinora/core/error.h"
#include "kinora/io/file.h"

namespace kinora::io {
namespace {

constexpr int64_t kMaxOpcodes = 50'000'000;
constexpr size_t kMaxRank = 64;  // as in PyTorch
constexpr size_t kMaxGlobalName = 256;

/// Opcodes of protocols 2 to 5 that torch.save writes, named as in Lib/pickletools.py.
enum Opcode : uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersId = 'Q',
  kReduce = 'R',
  kBinString = 'T',
  kShortBinString = 'U',
  kBinUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kEmptyList = ']',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kEmptyTuple = ')',
  kSetItems = 'u',
  kEmptyDict = '}',
  kProto = 0x80,
  kNewObj = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
};

std::string full_name(const PickleGlobal& global) {
  return std::string(global.module) + "." + std::string(global.name);
}

class Machine {
 public:
  Machine(std::span<const std::byte> bytes, size_t position, const std::string& file)
      : bytes_(bytes), position_(position), file_(file) {}

  PickleDocument run() {
    int64_t num_opcodes = 0;
    for (;;) {
      check(++num_opcodes <= kMaxOpcodes, "must have at most ", kMaxOpcodes, " opcodes, got more");
      const auto opcode = take_number<uint8_t>();
      if (opcode == kStop) {
        check(stack_.size() == 1 && marks_.empty(), "must end with one value, got ", stack_.size(),
              " values and ", marks_.size(), " marks");
        document_.root = stack_.back();
        check_pickle_tree(document_.root, file_);
        return std::move(document_);
      }
      step(opcode);
    }
  }

  [[nodiscard]] size_t position() const { return position_; }

 private:
  template <typename... Parts>
  void check(bool condition, const Parts&... parts) const {
    KINORA_CHECK(condition, kIo, "[torch_file] ", file_, ": the pickle ", parts..., " (at byte ",
                 position_, ")");
  }

  std::string_view take(uint64_t size) {
    check(size <= bytes_.size() - position_, "must go on for ", size, " bytes, got only ",
          bytes_.size() - position_, ": damaged or cut off");
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + position_, size);
    position_ += size;
    return text;
  }

  /// Little-endian.
  template <typename T>
  T take_number() {
    const std::string_view text = take(sizeof(T));
    std::make_unsigned_t<T> value = 0;
    for (size_t i = sizeof(T); i-- > 0;) {
      value = static_cast<decltype(value)>(static_cast<uint64_t>(value) << 8 |
                                           static_cast<uint8_t>(text[i]));
    }
    return static_cast<T>(value);
  }

  std::string_view take_line() {
    const auto rest = std::string_view(reinterpret_cast<const char*>(bytes_.data()), bytes_.size())
                          .substr(position_, kMaxGlobalName);
    const size_t end = rest.find('\n');
    check(end != std::string_view::npos, "must end a line within ", kMaxGlobalName,
          " bytes, got none");
    return take(end + 1).substr(0, end);
  }

  template <typename T>
  PickleValue* make(T value) {
    check(std::cmp_less(document_.values.size(), kMaxPickleValues), "must have at most ",
          kMaxPickleValues, " values, got more");
    return &document_.values.emplace_back(PickleValue{std::move(value)});
  }

  template <typename T>
  void push(T value) {
    stack_.push_back(make(std::move(value)));
  }

  PickleValue* pop() {
    PickleValue* value = top();
    stack_.pop_back();
    return value;
  }

  /// The last value above the last mark.
  PickleValue* top() {
    check(stack_.size() > (marks_.empty() ? 0 : marks_.back()), "must have a value here, got none");
    return stack_.back();
  }

  std::vector<PickleRef> pop_to_mark() {
    check(!marks_.empty(), "must have a mark here, got none");
    std::vector<PickleRef> values(stack_.begin() + static_cast<ptrdiff_t>(marks_.back()),
                                  stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return values;
  }

  void push_tuple(size_t size) {
    std::vector<PickleRef> items(size);
    for (size_t i = size; i-- > 0;) {
      items[i] = pop();
    }
    push(PickleTuple{std::move(items)});
  }

  template <typename T>
  T& as(PickleValue* value, const char* what) const {
    T* found = std::get_if<T>(&value->value);
    check(found != nullptr, "must have ", what, " here, got ", type_name(*value));
    return *found;
  }

  template <typename T>
  const T& as(PickleRef value, const char* what) const {
    return as<T>(const_cast<PickleValue*>(value), what);
  }

  void push_integer(std::string_view bytes) {
    if (bytes.size() > sizeof(int64_t)) {
      push(PickleBigInt{bytes});
      return;
    }
    uint64_t value = !bytes.empty() && static_cast<int8_t>(bytes.back()) < 0 ? ~uint64_t{0} : 0;
    for (size_t i = bytes.size(); i-- > 0;) {
      value = value << 8 | static_cast<uint8_t>(bytes[i]);
    }
    push(static_cast<int64_t>(value));
  }

  void push_global(std::string_view module, std::string_view name) {
    const PickleGlobal* global = find_pickle_global(module, name);
    if (global != nullptr) {
      push(global);
    } else {
      push(PickleName{module, name});
    }
  }

  /// A name that is used.
  const PickleGlobal& known_global(PickleRef value, const char* what) const {
    if (const auto* unknown = value->get_if<PickleName>()) {
      check(false, "must make tensors and plain containers only, got the Python object ",
            in_quotes(std::string(unknown->module.substr(0, kMaxGlobalName)) + "." +
                      std::string(unknown->name.substr(0, kMaxGlobalName))),
            ". None of its code was run. Hint: save the state_dict() alone, in a supported dtype.");
    }
    return *as<const PickleGlobal*>(value, what);
  }

  void append(PickleValue* list, std::span<const PickleRef> items) {
    auto& target = as<PickleList>(list, "a list to append to").items;
    target.insert(target.end(), items.begin(), items.end());
  }

  void set_items(PickleValue* dict, std::span<const PickleRef> items) {
    auto& target = as<PickleDict>(dict, "a dict to set items of").items;
    check(items.size() % 2 == 0, "must have keys and values in pairs, got ", items.size());
    for (size_t i = 0; i < items.size(); i += 2) {
      target.emplace_back(items[i], items[i + 1]);
    }
  }

  void get(uint32_t index) {
    const auto found = memo_.find(index);
    check(found != memo_.end(), "must use known memo numbers, got ", index);
    stack_.push_back(found->second);
  }

  void step(uint8_t opcode);
  void persistent_load();
  void new_object();
  void reduce();
  void build();
  PickleValue* rebuild_tensor(const PickleGlobal& function, const PickleTuple& arguments);
  std::vector<int64_t> dims(PickleRef value);

  std::span<const std::byte> bytes_;
  size_t position_;
  const std::string& file_;
  PickleDocument document_;
  std::vector<PickleValue*> stack_;
  std::vector<size_t> marks_;  // sizes of stack_
  std::unordered_map<uint32_t, PickleValue*> memo_;
  std::unordered_map<std::string_view, size_t> storage_index_;
};

void Machine::step(uint8_t opcode) {
  switch (opcode) {
    case kProto: {
      const auto version = take_number<uint8_t>();
      check(version >= 2 && version <= 5, "must be of protocol 2 to 5, got ", version + 0);
      break;
    }
    case kFrame: {
      const auto size = take_number<uint64_t>();
      check(size <= bytes_.size() - position_, "must hold a frame of ", size, " bytes, got only ",
            bytes_.size() - position_, ": damaged or cut off");
      break;
    }
    case kMark:
      marks_.push_back(stack_.size());
      break;
    case kPop:
      // As in Python, a mark goes like a value.
      if (!marks_.empty() && marks_.back() == stack_.size()) {
        marks_.pop_back();
      } else {
        pop();
      }
      break;
    case kPopMark:
      pop_to_mark();
      break;
    case kDup:
      stack_.push_back(top());
      break;
    case kNone:
      push(PickleNone{});
      break;
    case kNewTrue:
      push(true);
      break;
    case kNewFalse:
      push(false);
      break;
    case kBinInt:
      push(int64_t{take_number<int32_t>()});
      break;
    case kBinInt1:
      push(int64_t{take_number<uint8_t>()});
      break;
    case kBinInt2:
      push(int64_t{take_number<uint16_t>()});
      break;
    case kLong1:
      push_integer(take(take_number<uint8_t>()));
      break;
    case kLong4: {
      const auto size = take_number<int32_t>();
      check(size >= 0, "must have integers of a size from 0 on, got ", size);
      push_integer(take(static_cast<uint64_t>(size)));
      break;
    }
    case kBinFloat: {
      uint64_t bits = 0;
      for (const char byte : take(sizeof(bits))) {
        bits = bits << 8 | static_cast<uint8_t>(byte);
      }
      push(std::bit_cast<double>(bits));
      break;
    }
    case kBinString:
    case kBinUnicode:
      push(take(take_number<uint32_t>()));
      break;
    case kShortBinString:
    case kShortBinUnicode:
      push(take(take_number<uint8_t>()));
      break;
    case kBinUnicode8:
      push(take(take_number<uint64_t>()));
      break;
    case kBinBytes:
      push(PickleBytes{take(take_number<uint32_t>())});
      break;
    case kShortBinBytes:
      push(PickleBytes{take(take_number<uint8_t>())});
      break;
    case kBinBytes8:
      push(PickleBytes{take(take_number<uint64_t>())});
      break;
    case kEmptyList:
      push(PickleList{});
      break;
    case kAppend: {
      const PickleRef item = pop();
      append(top(), {&item, 1});
      break;
    }
    case kAppends: {
      const std::vector<PickleRef> items = pop_to_mark();
      append(top(), items);
      break;
    }
    case kEmptyTuple:
      push(PickleTuple{});
      break;
    case kTuple1:
    case kTuple2:
    case kTuple3:
      push_tuple(static_cast<size_t>(opcode) - kTuple1 + 1);
      break;
    case kTuple:
      push(PickleTuple{pop_to_mark()});
      break;
    case kEmptyDict:
      push(PickleDict{});
      break;
    case kSetItem: {
      const PickleRef value = pop();
      const PickleRef pair[] = {pop(), value};
      set_items(top(), pair);
      break;
    }
    case kSetItems: {
      const std::vector<PickleRef> items = pop_to_mark();
      set_items(top(), items);
      break;
    }
    case kBinPut:
      memo_[take_number<uint8_t>()] = top();
      break;
    case kLongBinPut:
      memo_[take_number<uint32_t>()] = top();
      break;
    case kMemoize:
      memo_[static_cast<uint32_t>(memo_.size())] = top();
      break;
    case kBinGet:
      get(take_number<uint8_t>());
      break;
    case kLongBinGet:
      get(take_number<uint32_t>());
      break;
    case kGlobal: {
      const std::string_view module = take_line();
      push_global(module, take_line());
      break;
    }
    case kStackGlobal: {
      const auto name = as<std::string_view>(pop(), "a name");
      push_global(as<std::string_view>(pop(), "a module's name"), name);
      break;
    }
    case kBinPersId:
      persistent_load();
      break;
    case kReduce:
      reduce();
      break;
    case kNewObj:
      new_object();
      break;
    case kBuild:
      build();
      break;
    default:
      check(false, "must have opcodes for plain data, got opcode ", opcode + 0,
            ". Hint: Kinora reads protocols 2 to 5 as torch.save writes them.");
  }
}

/// ("storage", type, key, device, number of elements[, view]), view = (key, offset, size) or None.
void Machine::persistent_load() {
  const auto& id = as<PickleTuple>(pop(), "a storage's tuple").items;
  check(id.size() == 5 || id.size() == 6, "must name a storage by 5 or 6 values, got ", id.size());
  check(as<std::string_view>(id[0], "a kind of object") == "storage",
        "must refer to storages only, got ",
        in_quotes(as<std::string_view>(id[0], "a kind of object")));
  const PickleGlobal& type = known_global(id[1], "a storage type");
  check(type.kind == PickleGlobal::Kind::kStorage, "must have a storage type here, got ",
        full_name(type));
  const auto key = as<std::string_view>(id[2], "a storage's key");
  const auto num_elements = as<int64_t>(id[4], "a number of elements");
  TorchStorage storage{key, 0, static_cast<int64_t>(size_of(type.dtype))};
  check(num_elements >= 0 &&
            !__builtin_mul_overflow(num_elements, storage.element_size, &storage.num_bytes),
        "must have storages of 0 to 2^63 bytes, got ", num_elements, " elements");

  const auto [found, is_new] = storage_index_.emplace(key, document_.storages.size());
  if (is_new) {
    document_.storages.push_back(storage);
  }
  check(document_.storages[found->second].num_bytes == storage.num_bytes, "must give storage ",
        in_quotes(key), " one size, got ", document_.storages[found->second].num_bytes, " and ",
        storage.num_bytes, " bytes");
  PickleStorage part{found->second, type.dtype, 0, num_elements};
  if (id.size() == 6 && id[5]->get_if<PickleNone>() == nullptr) {
    const auto& view = as<PickleTuple>(id[5], "a view's tuple").items;
    check(view.size() == 3, "must describe a view by 3 values, got ", view.size());
    part.offset = as<int64_t>(view[1], "a view's offset");
    part.num_elements = as<int64_t>(view[2], "a view's size");
    check(part.offset >= 0 && part.num_elements >= 0 && part.offset <= num_elements &&
              part.num_elements <= num_elements - part.offset,
          "must have views within their storage of ", num_elements, " elements, got ",
          part.num_elements, " from ", part.offset);
  }
  push(part);
}

void Machine::new_object() {
  const auto& arguments = as<PickleTuple>(pop(), "arguments").items;
  const PickleGlobal& type = known_global(pop(), "a class");
  const bool is_namespace = type.kind == PickleGlobal::Kind::kNamespace;
  check((is_namespace || type.kind == PickleGlobal::Kind::kOrderedDict) && arguments.empty(),
        "must make plain containers only, got ", full_name(type), " with ", arguments.size(),
        " arguments");
  push(
      PickleDict{is_namespace ? PickleDict::Kind::kNamespace : PickleDict::Kind::kOrderedDict, {}});
}

void Machine::reduce() {
  const auto& arguments = as<PickleTuple>(pop(), "arguments");
  const PickleGlobal& function = known_global(pop(), "a function");
  switch (function.kind) {
    case PickleGlobal::Kind::kRebuildTensor:
    case PickleGlobal::Kind::kRebuildTyped:
      stack_.push_back(rebuild_tensor(function, arguments));
      break;
    case PickleGlobal::Kind::kRebuildParameter:
      check(!arguments.items.empty(), "must make a parameter of a tensor, got nothing");
      push(as<const TorchTensor*>(arguments.items[0], "a tensor"));
      break;
    case PickleGlobal::Kind::kOrderedDict:
      check(arguments.items.empty(), "must make an OrderedDict empty, got ", arguments.items.size(),
            " arguments");
      push(PickleDict{PickleDict::Kind::kOrderedDict, {}});
      break;
    case PickleGlobal::Kind::kSize:
      check(arguments.items.size() == 1, "must make torch.Size of 1 tuple, got ",
            arguments.items.size(), " arguments");
      push(PickleTuple{as<PickleTuple>(arguments.items[0], "a tuple").items});
      break;
    case PickleGlobal::Kind::kOpaque:
      push(PickleOpaque{function.name});
      break;
    case PickleGlobal::Kind::kNamespace:
    case PickleGlobal::Kind::kStorage:
    case PickleGlobal::Kind::kDtype:
      check(false, "must call known functions only, got ", full_name(function));
  }
}

void Machine::build() {
  PickleValue* state = pop();
  PickleValue* object = top();
  if (object->get_if<PickleOpaque>() != nullptr) {
    return;
  }
  auto* dict = std::get_if<PickleDict>(&object->value);
  check(dict != nullptr && dict->kind != PickleDict::Kind::kDict,
        "must give attributes to OrderedDict and Namespace only, got ", type_name(*object));
  const auto& attributes = as<PickleDict>(state, "a dict of attributes").items;
  // An OrderedDict has attributes besides its items: state_dict()'s _metadata, not needed here.
  if (dict->kind == PickleDict::Kind::kNamespace && state != object) {
    dict->items.insert(dict->items.end(), attributes.begin(), attributes.end());
  }
}

std::vector<int64_t> Machine::dims(PickleRef value) {
  const auto& items = as<PickleTuple>(value, "a shape or strides").items;
  check(items.size() <= kMaxRank, "must have at most ", kMaxRank, " dims, got ", items.size());
  std::vector<int64_t> result;
  for (const PickleRef item : items) {
    result.push_back(as<int64_t>(item, "a dim or stride"));
    check(result.back() >= 0, "must have dims and strides from 0 on, got ", result.back());
  }
  return result;
}

PickleValue* Machine::rebuild_tensor(const PickleGlobal& function, const PickleTuple& arguments) {
  const auto& items = arguments.items;
  const bool is_typed = function.kind == PickleGlobal::Kind::kRebuildTyped;
  check(items.size() >= (is_typed ? 7 : 4), "must make a tensor of at least 4 values, got ",
        items.size());
  const auto& storage = as<PickleStorage>(items[0], "a storage");
  TorchTensor tensor;
  tensor.dtype = storage.dtype;
  tensor.offset = as<int64_t>(items[1], "an offset");
  tensor.shape = dims(items[2]);
  tensor.strides = dims(items[3]);
  tensor.storage_index = storage.index;
  check(tensor.offset >= 0 && tensor.shape.size() == tensor.strides.size(),
        "must have as many strides as dims and an offset from 0 on, got ", tensor.strides.size(),
        ", ", tensor.shape.size(), " and ", tensor.offset);
  int64_t base = storage.offset;
  int64_t available = storage.num_elements;
  if (is_typed) {
    const PickleGlobal& dtype = known_global(items[6], "a dtype");
    check(dtype.kind == PickleGlobal::Kind::kDtype, "must have a dtype here, got ",
          full_name(dtype));
    const auto ratio = static_cast<int64_t>(size_of(dtype.dtype) / size_of(storage.dtype));
    check(ratio > 0 && base % ratio == 0, "must have whole elements of ", full_name(dtype),
          " in a storage, got smaller ones");
    tensor.dtype = dtype.dtype;
    base /= ratio;
    available /= ratio;
  }

  // Zeros are left out of the products, so that an empty tensor has sane dims, too.
  tensor.num_elements = 1;
  bool empty = false;
  bool overflow = false;
  int64_t last = tensor.offset;  // the largest index
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    const int64_t dim = std::max<int64_t>(tensor.shape[i], 1);
    int64_t reach = 0;
    empty = empty || tensor.shape[i] == 0;
    overflow = overflow || __builtin_mul_overflow(tensor.num_elements, dim, &tensor.num_elements) ||
               __builtin_mul_overflow(dim - 1, tensor.strides[i], &reach) ||
               __builtin_add_overflow(last, reach, &last);
  }
  int64_t num_bytes = 0;
  overflow =
      overflow || __builtin_mul_overflow(tensor.num_elements,
                                         static_cast<int64_t>(size_of(tensor.dtype)), &num_bytes);
  check(!overflow && (empty || last < available), "must have tensors within their storage of ",
        available, " elements, got one that reaches ", overflow ? "beyond 2^63" : "index ",
        overflow ? "" : std::to_string(last));
  tensor.num_elements = empty ? 0 : tensor.num_elements;
  tensor.offset = empty ? 0 : tensor.offset + base;
  const TorchTensor* kept = &document_.tensors.emplace_back(std::move(tensor));
  return make(kept);
}

}  // namespace

PickleDocument read_pickle(std::span<const std::byte> bytes, size_t* position,
                           const std::string& file) {
  Machine machine(bytes, *position, file);
  PickleDocument document = machine.run();
  *position = machine.position();
  return document;
}

}  // namespace kinora::io
