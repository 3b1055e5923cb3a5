// Decimal text to integers: microseconds to nanoseconds without ever passing through a double.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <string_view>

#include "text.hpp"

namespace stepscope {

constexpr int64_t kNull = std::numeric_limits<int64_t>::min();  // "absent" in every int64 column below Python

// A time beyond this is none: it and the base time that is added to it are below 2^62, less some months for a duration, so
// that their sum fits into int64.
constexpr int64_t kFarthest = (int64_t{1} << 62) - (int64_t{1} << 53);

// All digits at p, as a number that wraps around if there are more than 19 of them.
inline const char* read_digits(const char* p, const char* end, uint64_t& v) {
  static constexpr uint64_t kTens[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};
  if constexpr (std::endian::native == std::endian::little) {
    while (end - p >= 8) {
      const uint64_t text = load64(p);
      const unsigned n = leading_digits(text);
      if (n == 0) return p;
      v = v * kTens[n] + eight_digits(text << (64 - 8 * n));
      p += n;
      if (n < 8) return p;
    }
  }
  while (p < end && is_digit(*p)) v = v * 10 + static_cast<unsigned char>(*p++ - '0');
  return p;
}

// Reads a plain integer; false (p unmoved) if there is none, it overflows, or its spelling would not come back
// the same (leading zeros, minus zero).
inline bool read_int(const char*& p, const char* end, int64_t& out) {
  const char* q = p;
  const bool negative = q < end && *q == '-';
  if (negative) ++q;
  const char* first = q;
  uint64_t v = 0;
  q = read_digits(q, end, v);
  const auto digits = q - first;
  if (digits == 0 || digits > 18 || (*first == '0' && (digits > 1 || negative))) return false;
  out = negative ? -static_cast<int64_t>(v) : static_cast<int64_t>(v);
  p = q;
  return true;
}

// Reads microseconds written as digits with at most three decimals into ns; false (p unmoved) for any other
// spelling, which read_time_text then takes, slowly.
inline bool read_time(const char*& p, const char* end, int64_t& out) {
  const char* q = p;
  const bool negative = q < end && *q == '-';
  if (negative) ++q;
  const char* first = q;
  uint64_t v = 0;
  q = read_digits(q, end, v);
  const auto digits = q - first;
  if (digits == 0 || digits > 16 || (*first == '0' && digits > 1)) return false;
  unsigned scale = 1000;
  if (q < end && *q == '.') {
    ++q;
    const char* dot = q;
    q = read_digits(q, end, v);
    if (q == dot || q - dot > 3) return false;
    scale = q - dot == 3 ? 1 : q - dot == 2 ? 10 : 100;
  }
  if (q < end && (*q == '.' || *q == 'e' || *q == 'E')) return false;
  uint64_t scaled;
  if (__builtin_mul_overflow(v, scale, &scaled) || scaled > static_cast<uint64_t>(kFarthest)) return false;
  const auto ns = static_cast<int64_t>(scaled);
  out = negative ? -ns : ns;
  p = q;
  return true;
}

// Eight bytes with each digit as its value; what is no digit is more than nine.
inline uint64_t digit_values(const char* p) { return load64(p) ^ 0x3030303030303030ull; }

// The high bit of the first of eight bytes that is no digit, and perhaps those of later ones; 0 if all are.
inline uint64_t not_digits(uint64_t values) { return ((values + 0x7676767676767676ull) | values) & 0x8080808080808080ull; }

constexpr ptrdiff_t kRoomForNumber = 32;  // bytes that the two below may look at

// read_int and read_time where so many bytes can be read: the spellings that nearly all numbers have at once, the others
// by the functions above. What follows the number is for the caller to look at.
inline bool read_int_quickly(const char*& p, const char* end, int64_t& out) {
  if constexpr (std::endian::native != std::endian::little) return read_int(p, end, out);
  const uint64_t values = digit_values(p), odd = not_digits(values);
  const auto bits = static_cast<unsigned>(__builtin_ctzll(odd | 1ull << 63)) & ~7u;  // of the digits before
  if (!odd | !bits | ((*p == '0') & (bits > 8))) [[unlikely]] return read_int(p, end, out);
  out = static_cast<int64_t>(eight_digits(values << (64 - bits)));
  p += bits >> 3;
  return true;
}

// At most five digits, a point and three digits, after `whole` microseconds of higher digits; else nothing is read.
inline bool read_last_digits(const char*& p, uint64_t whole, int64_t& out) {
  static constexpr uint64_t kTens[] = {1000, 10000, 100000, 1000000, 10000000, 100000000};
  const uint64_t values = digit_values(p);
  const uint64_t odd = not_digits(values);
  const auto bits = static_cast<unsigned>(__builtin_ctzll(odd | 1ull << 63)) & ~7u;
  const char* point = p + (bits >> 3);
  const uint64_t decimals = digit_values(point + 1) & 0xffffff;
  // Both parts side by side are one number of at most eight digits.
  const uint64_t both = (values & ((uint64_t{1} << bits) - 1)) | decimals << (bits & 63);
  if ((bits > 40) | (*point != '.') | (not_digits(decimals) != 0)) [[unlikely]] return false;
  out = static_cast<int64_t>(whole * kTens[bits >> 3] + eight_digits(both << (40 - bits)));
  p = point + 4;
  return true;
}

inline bool read_time_quickly(const char*& p, const char* end, int64_t& out) {
  if constexpr (std::endian::native != std::endian::little) return read_time(p, end, out);
  const uint64_t values = digit_values(p);
  const char* q = p;
  if (not_digits(values)) {
    const bool leading_zero = (*p == '0') & (p[1] != '.');
    if ((*p == '.') | leading_zero | !read_last_digits(q, 0, out)) [[unlikely]] return read_time(p, end, out);
  } else {
    q += 8;
    if ((*p == '0') | !read_last_digits(q, eight_digits(values), out)) [[unlikely]] return read_time(p, end, out);
  }
  p = q;
  return true;
}

// Any JSON number (also inside quotes) in microseconds to ns, rounded half to even; false if it is no number or
// does not fit.
bool read_time_text(std::string_view text, int64_t& out);

// Whether a text is a JSON number (also inside quotes), however large.
bool is_number_text(std::string_view text);

// Any JSON number (also inside quotes) that is an exact integer; false otherwise.
bool read_int_text(std::string_view text, int64_t& out);

// Any JSON number (also inside quotes), as a double; false if it is none.
bool read_double_text(std::string_view text, double& out);

// The shortest text that reads back as the same double.
std::string_view write_double(double v, char (&buffer)[40]);

// ns as microseconds with three decimals; returns the end of what was written (at most 24 characters).
char* write_time(int64_t ns, char* out);

inline int64_t saturating_add(int64_t a, int64_t b) {
  int64_t r;
  if (__builtin_add_overflow(a, b, &r)) return b > 0 ? std::numeric_limits<int64_t>::max() : kNull + 1;
  return r;
}

}  // namespace stepscope
