// The bytes of a pickle and the first pass over them.
#include <algorithm>
#include <bit>
#include <cstring>

#include "pickle.hpp"
#include "pickle_ops.hpp"

namespace stepscope {

namespace {

constexpr uint64_t kPiece = 1 << 20;
constexpr size_t kLongestName = 120;

}  // namespace

PickleBytes::PickleBytes(const std::filesystem::path& file) : file_(file, std::ios::binary), in_memory_(false) {
  file_.seekg(0, std::ios::end);
  const std::streamoff end = file_ ? static_cast<std::streamoff>(file_.tellg()) : -1;
  if (end < 0) throw std::runtime_error("the file cannot be read");
  size_ = static_cast<uint64_t>(end);
}

void PickleBytes::fill(uint64_t count) {
  const uint64_t wanted = std::min(std::max(count, kPiece), size_ - at_);
  buffer_.resize(wanted);
  file_.clear();
  file_.seekg(static_cast<std::streamoff>(at_));
  file_.read(buffer_.data(), static_cast<std::streamsize>(wanted));
  held_from_ = at_;
  held_ = static_cast<uint64_t>(file_.gcount());
  if (held_ < count) throw PickleCut("it ends too early");
}

const char* PickleBytes::next(uint64_t count) {
  if (count > size_ - at_) throw PickleCut("it ends too early");
  const char* found;
  if (in_memory_) {
    found = content_.data() + at_;
  } else {
    if (at_ < held_from_ || at_ + count > held_from_ + held_) fill(count);
    found = buffer_.data() + (at_ - held_from_);
  }
  at_ += count;
  return found;
}

void PickleBytes::skip(uint64_t count) {
  if (count > size_ - at_) throw PickleCut("it ends too early");
  at_ += count;
}

std::string PickleBytes::line(size_t most) {
  std::string found;
  for (char c = *next(1); c != '\n' && found.size() < most; c = *next(1)) found += c;
  return found;
}

template <class T>
T PickleBytes::little() {
  const auto* from = reinterpret_cast<const unsigned char*>(next(sizeof(T)));
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value = static_cast<T>(value | static_cast<T>(from[i]) << (8 * i));
  return value;
}
template uint16_t PickleBytes::little<uint16_t>();
template uint32_t PickleBytes::little<uint32_t>();
template uint64_t PickleBytes::little<uint64_t>();

void FetchedSlots::mark(uint64_t slot) {
  if (slot / 64 >= bits_.size()) bits_.resize(std::max<size_t>(slot / 64 + 1, bits_.size() * 2));
  bits_[slot / 64] |= uint64_t{1} << (slot % 64);
}

void FetchedSlots::finish() {
  before_.resize(bits_.size());
  for (size_t i = 0; i < bits_.size(); ++i) {
    before_[i] = static_cast<uint32_t>(places_);
    places_ += static_cast<size_t>(std::popcount(bits_[i]));
  }
}

int64_t FetchedSlots::place(uint64_t slot) const {
  const uint64_t word = slot / 64, bit = uint64_t{1} << (slot % 64);
  if (word >= bits_.size() || !(bits_[word] & bit)) return -1;
  return before_[word] + std::popcount(bits_[word] & (bit - 1));
}

namespace {

class Scanner {
 public:
  explicit Scanner(PickleBytes& bytes) : bytes_(bytes) {}

  PickleScan scan() {
    PickleScan found;
    uint64_t at = 0;
    try {
      do at = bytes_.at();
      while (step(found.fetched));
      at = bytes_.at();
    } catch (const PickleCut& cut) {
      found.cut = cut.what();
    }
    found.end = at;
    found.fetched.finish();
    return found;
  }

 private:
  bool step(FetchedSlots& fetched) {
    const uint8_t code = bytes_.byte();
    switch (code) {
      case op::stop: return false;
      case op::get1: fetch(fetched, bytes_.byte()); break;
      case op::get4: fetch(fetched, bytes_.little<uint32_t>()); break;
      case op::text1: remember(bytes_.byte()); return true;
      case op::text4: remember(bytes_.little<uint32_t>()); return true;
      case op::memoize: return true;
      case op::put1: bytes_.skip(1); return true;
      case op::put4: bytes_.skip(4); return true;
      default: operand(code);
    }
    texts_ = 0;
    return true;
  }

  void fetch(FetchedSlots& fetched, uint64_t slot) {
    if (slot >= bytes_.at()) throw PickleCut("it fetches what was never kept");
    fetched.mark(slot);
  }

  // Keeps the last two texts, for they name what STACK_GLOBAL loads.
  void remember(uint64_t length) {
    ++texts_;
    if (length > kLongestName) {
      texts_ = 0;
      bytes_.skip(length);
      return;
    }
    const char* from = bytes_.next(length);
    lengths_[0] = lengths_[1];
    std::memcpy(last_[0], last_[1], lengths_[0]);
    lengths_[1] = length;
    std::memcpy(last_[1], from, length);
  }

  void operand(uint8_t code) {
    switch (code) {
      case op::protocol: check_protocol(bytes_.byte()); return;
      case op::int1: bytes_.skip(1); return;
      case op::int2: bytes_.skip(2); return;
      case op::int4: bytes_.skip(4); return;
      case op::real: case op::frame: bytes_.skip(8); return;
      case op::long1: case op::string1: case op::bytes1: bytes_.skip(bytes_.byte()); return;
      case op::long4: case op::string4: case op::bytes4: bytes_.skip(bytes_.little<uint32_t>()); return;
      case op::text8: case op::bytes8: case op::byte_array8: bytes_.skip(bytes_.little<uint64_t>()); return;
      case op::mark: case op::pop: case op::pop_mark: case op::dup: case op::none: case op::new_true:
      case op::new_false: case op::empty_list: case op::append: case op::appends: case op::list:
      case op::empty_tuple: case op::tuple: case op::tuple1: case op::tuple2: case op::tuple3:
      case op::empty_dict: case op::dict: case op::set_item: case op::set_items: case op::empty_set:
      case op::add_items: case op::frozen_set: return;
      default: refuse(code);
    }
  }

  void check_protocol(uint8_t number) {
    if (number > 5) throw PickleCut("its protocol is " + std::to_string(number) + ", which nobody has defined");
  }

  [[noreturn]] void refuse(uint8_t code) {
    switch (code) {
      case op::global: case op::instance: {
        const std::string module = bytes_.line(kLongestName);
        throw PickleRefused("load " + module + "." + bytes_.line(kLongestName));
      }
      case op::stack_global:
        throw PickleRefused(texts_ >= 2 ? "load " + std::string(last_[0], lengths_[0]) + "." + std::string(last_[1], lengths_[1])
                                        : std::string("load a class or function"));
      case op::reduce: case op::object: case op::new_object: case op::new_object_ex:
        throw PickleRefused("call something");
      case op::build: throw PickleRefused("set up an object");
      case op::persistent: case op::persistent_binary: throw PickleRefused("load something from elsewhere");
      case op::extension1: case op::extension2: case op::extension4: throw PickleRefused("load a registered class");
      case op::next_buffer: case op::read_only: throw PickleRefused("take bytes from elsewhere");
      default: throw PickleCut("it has the unknown operation " + std::to_string(code));
    }
  }

  PickleBytes& bytes_;
  int texts_ = 0;
  char last_[2][kLongestName] = {};
  size_t lengths_[2] = {};
};

}  // namespace

PickleScan scan_pickle(PickleBytes& bytes) {
  bytes.rewind();
  return Scanner(bytes).scan();
}

}  // namespace stepscope
