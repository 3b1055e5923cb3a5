// A message of a Perfetto trace that is read quickly, for those files that do so.
#pragma once

#include <bit>
#include <cstring>

#include "pftrace.hpp"

namespace stepscope {

constexpr ptrdiff_t kRoom = 10;  // bytes that may be looked at for a number
constexpr size_t kStamp = 10;    // bytes of a time and its tag
constexpr size_t kLookedAt = 32;  // bytes behind a packet that are looked at
constexpr int kBegin = 1, kEnd = 2;

constexpr unsigned tag_of(unsigned field, WireType type) { return field << 3 | static_cast<unsigned>(type); }
constexpr unsigned kAnnotation = tag_of(4, WireType::bytes);

// A message, and up to where bytes may be looked at behind it.
struct PftraceReader::Quick {
  const char* p;
  const char* end;
  const char* readable;
  const char* first = p;
  // What was found of an event.
  uint64_t type = 0, track = 0, name = 0, category = 0;
  bool tracked = false, flows = false;
  const char* launched = nullptr;  // what stands behind the annotations, up to the end

  bool varint(uint64_t& out) { return readable - p >= kRoom ? read_varint_quickly(p, out) && p <= end : read_varint(p, end, out); }

  // The same of a number that mostly takes two bytes at most, where more can be looked at.
  bool short_number(uint64_t& out) {
    const unsigned first = static_cast<unsigned char>(p[0]), second = static_cast<unsigned char>(p[1]), longer = first >> 7;
    if (longer & second >> 7) return read_varint_quickly(p, out) && p <= end;
    out = (first & 0x7f) | (second << 7 & -longer);
    p += 1 + longer;
    return p <= end;
  }

  // The end of what has a length and begins at p; nullptr if it runs over the end.
  const char* length() {
    uint64_t size;
    return read_varint(p, end, size) && size <= static_cast<uint64_t>(end - p) ? p + size : nullptr;
  }

  bool read_fields() {
    while (p < end && static_cast<unsigned char>(*p) != kAnnotation) {
      bool fine = true;
      switch (static_cast<unsigned char>(*p++)) {
        case tag_of(9, WireType::varint): fine = varint(type); break;
        case tag_of(11, WireType::varint): fine = tracked = varint(track); break;
        case tag_of(10, WireType::varint): fine = name == 0 && varint(name) && name; break;
        case tag_of(3, WireType::varint): fine = category == 0 && varint(category) && category; break;
        case 0xf9:  // an arrow: field 47, in eight bytes
          if (end - p < 9 || *p != 2) return false;
          flows = true;
          p += 9;
          break;
        default: return false;
      }
      if (!fine) return false;
    }
    return tracked;
  }

  bool follows(const Pattern::Piece& piece, const std::string& text) const {
    if (piece.size <= 8 && readable - p >= 8) return ((load64(p) ^ piece.word) & piece.mask) == 0;
    const char* all = text.data() + piece.at;
    if (piece.kind == 0) return same_bytes(p, all, piece.size);
    return *p == *all && same_bytes(p + 2, all + 2, piece.size - 2);  // but for the length
  }

  // A number that takes all bytes up to `after`.
  template <bool kHasRoom = false>
  bool number_until(const char* after, int64_t& out) {
    constexpr uint64_t kGoesOn = 0x8080808080808080ull;
    const auto size = static_cast<uint64_t>(after - p);
    if (size - 1 < 8 && (kHasRoom || readable - p >= 8)) {
      const uint64_t all = ~uint64_t{0} >> (64 - 8 * size);
      const uint64_t bytes = load64(p) & all;
      out = static_cast<int64_t>(seven_bits_each(bytes));
      p = after;
      return (bytes & kGoesOn) == (kGoesOn & all >> 8);
    }
    uint64_t value;
    if (!varint(value) || value >= static_cast<uint64_t>(kPlainNumber)) return false;  // negative ones are rare
    out = static_cast<int64_t>(value);
    return p == after;
  }

  bool real_until(const char* after, int64_t& out) {
    if (after - p != 8) return false;
    std::memcpy(&out, p, 8);
    p = after;
    return is_plain(std::bit_cast<double>(out));
  }

  // The numbers of annotations that look like the pattern's, and of nothing else.
  bool read_numbers(const Pattern& pattern, int64_t* numbers, size_t& count) {
    int64_t* to = numbers;
    for (const Pattern::Piece& piece : pattern.pieces) {
      if (end - p < static_cast<ptrdiff_t>(piece.size) || !follows(piece, pattern.text)) return false;
      if (piece.kind == 0) {
        p += piece.size;
        continue;
      }
      const char* after = p + 2 + static_cast<unsigned char>(p[1]);
      p += piece.size;
      if (after > end) return false;
      if (piece.kind == 1) {
        if (!number_until(after, *to++)) return false;
      } else if (!real_until(after, *to++)) {
        return false;
      }
    }
    count = static_cast<size_t>(to - numbers);
    return p == end || (pattern.ties >= 0 && read_launched());
  }

  // A number that is the same of slices that look alike, and of few others: only a hint where to look.
  uint64_t fingerprint() const {
    uint64_t all = mix(name ^ 0xe7037ed1a0b428dbull, category ^ 0xa0761d6478bd642full);
    for (const char* at = p; end - at > 4 && static_cast<unsigned char>(*at) == kAnnotation;) {
      ptrdiff_t size = static_cast<unsigned char>(at[1]);
      at += 2;
      if (size & 0x80) size = (size & 0x7f) | static_cast<unsigned char>(*at++) << 7;
      if (size > end - at) break;
      // The number of a key, then a whole number or a real one.
      const bool number = size > 2 && size < 16 && at[0] == 8 && (at[2] == 0x20 || at[2] == 0x18 || at[2] == 0x29);
      all = hash_bytes(at, number ? 2 : static_cast<size_t>(size), all);
      at += size;
    }
    return all;
  }

  // The events of a GPU that a launch started: field 3000, with numbers one by one.
  bool read_launched() {
    constexpr std::string_view kTag = "\xc2\xbb\x01";
    if (end - p <= static_cast<ptrdiff_t>(kTag.size()) || std::string_view(p, kTag.size()) != kTag) return false;
    p += kTag.size();
    if (length() != end) return false;
    launched = p;
    for (uint64_t id; p < end;)
      if (static_cast<unsigned char>(*p++) != tag_of(1, WireType::varint) || !read_varint(p, end, id)) return false;
    return true;
  }

  // The same of a layout, where more bytes than it looks at can be read behind the end.
  bool read_steps(const Layout& layout, int64_t* numbers, size_t& count) {
    int64_t* to = numbers;
    for (const Layout::Step& step : layout.steps) {
      const uint64_t bytes = load64(p);
      if ((bytes ^ step.word) & step.mask) return false;
      const char* after = p + step.length_at + 1 + (bytes >> 8 * step.length_at & 0xff);
      p += step.size;
      if (after > end || !(step.real ? real_until(after, *to++) : number_until<true>(after, *to++))) return false;
    }
    count = static_cast<size_t>(to - numbers);
    return p == end;
  }
};

}  // namespace stepscope
