// Protobuf's wire format: the fields of one message, one after the other. No schema, no allocation, every length checked.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace stepscope {

enum class WireType : uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

// Reads a varint of at most ten bytes; false (p unmoved) if it runs over the end or is longer.
inline bool read_varint(const char*& p, const char* end, uint64_t& out) {
  if (p < end && static_cast<unsigned char>(*p) < 0x80) {  // as nearly all are
    out = static_cast<unsigned char>(*p++);
    return true;
  }
  uint64_t v = 0;
  const char* q = p;
  for (unsigned shift = 0; shift < 70 && q < end; shift += 7) {
    const auto byte = static_cast<unsigned char>(*q++);
    v |= shift < 64 ? static_cast<uint64_t>(byte & 0x7f) << shift : 0;
    if (byte < 0x80) {
      out = v;
      p = q;
      return true;
    }
  }
  return false;
}

// The lower seven bits of each of eight bytes, as one number.
inline uint64_t seven_bits_each(uint64_t v) {
  static_assert(std::endian::native == std::endian::little);
  v = (v & 0x007f007f007f007full) | (v & 0x7f007f007f007f00ull) >> 1;
  v = (v & 0x00003fff00003fffull) | (v & 0x3fff00003fff0000ull) >> 2;
  return (v & 0x000000000fffffffull) | (v & 0x0fffffff00000000ull) >> 4;
}

// The same where at least ten bytes can be read from p on. Numbers are of all lengths, and a loop that follows them would be
// guessed wrongly each time: so eight bytes are looked at for each.
inline bool read_varint_quickly(const char*& p, uint64_t& out) {
  uint64_t v;
  std::memcpy(&v, p, sizeof v);
  const uint64_t ends = ~v & 0x8080808080808080ull;
  v &= ends ^ (ends - 1);  // up to the first byte that ends a number; all of them if there is none
  v = seven_bits_each(v);
  if (ends) {
    p += (__builtin_ctzll(ends) >> 3) + 1;
    out = v;
    return true;
  }
  const auto ninth = static_cast<unsigned char>(p[8]);
  if (ninth >= 0x80) return false;  // a negative one: the other reader takes it
  out = v | static_cast<uint64_t>(ninth) << 56;
  p += 9;
  return true;
}

// Where the reading of a message stands, and the field it read last.
struct Wire {
  const char* p;
  const char* end;
  uint32_t field = 0;
  WireType type = WireType::varint;
  uint64_t number = 0;     // of a varint or a fixed one
  std::string_view bytes;  // of a field with a length
  bool bad = false;        // the message is damaged from p on

  explicit Wire(std::string_view message) : p(message.data()), end(message.data() + message.size()) {}

  // The next field; false at the end, or where `bad` is set.
  bool next() {
    if (p == end) return false;
    uint64_t key;
    if (!read_varint(p, end, key) || key >> 32 || key < 8) return fail();
    field = static_cast<uint32_t>(key >> 3);
    switch (key & 7) {
      case 0:
        type = WireType::varint;
        return read_varint(p, end, number) || fail();
      case 1: return fixed<uint64_t>(WireType::fixed64);
      case 5: return fixed<uint32_t>(WireType::fixed32);
      case 2: {
        uint64_t size;
        type = WireType::bytes;
        if (!read_varint(p, end, size) || size > static_cast<uint64_t>(end - p)) return fail();
        bytes = {p, static_cast<size_t>(size)};
        p += size;
        return true;
      }
      default: return fail();  // groups went out of use long before any profiler wrote them
    }
  }

  bool is(WireType wanted) const { return type == wanted; }
  bool has_bytes() const { return type == WireType::bytes; }
  bool has_number() const { return type != WireType::bytes; }
  int64_t whole() const { return static_cast<int64_t>(number); }
  double real() const { return type == WireType::fixed64 ? std::bit_cast<double>(number) : static_cast<double>(number); }

 private:
  template <class T>
  bool fixed(WireType as) {
    if (end - p < static_cast<ptrdiff_t>(sizeof(T))) return fail();
    T v;
    std::memcpy(&v, p, sizeof v);
    type = as;
    number = v;
    p += sizeof v;
    return true;
  }

  bool fail() {
    bad = true;
    return false;
  }
};

// Whether a message can be read to its end, at its own level.
inline bool well_formed(std::string_view message) {
  Wire wire(message);
  while (wire.next()) {
  }
  return !wire.bad;
}

// Every number of a repeated field, packed or one by one.
template <class Each>
bool each_number(const Wire& wire, Each&& each) {
  if (wire.has_number()) {
    each(wire.number);
    return true;
  }
  const char* p = wire.bytes.data();
  const char* end = p + wire.bytes.size();
  for (uint64_t v; p < end;) {
    if (!read_varint(p, end, v)) return false;
    each(v);
  }
  return true;
}

}  // namespace stepscope
