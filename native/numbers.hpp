// Decimal text to integers: microseconds to nanoseconds without ever passing through a double.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <string_view>

#include "text.hpp"

namespace stepscope {

constexpr int64_t kNull = std::numeric_limits<int64_t>::min();  // "absent" in every int64 column below Python

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
  if (__builtin_mul_overflow(v, scale, &scaled) || scaled > std::numeric_limits<int64_t>::max()) return false;
  const auto ns = static_cast<int64_t>(scaled);
  out = negative ? -ns : ns;
  p = q;
  return true;
}

// Any JSON number (also inside quotes) in microseconds to ns, rounded half to even; false if it is no number or
// does not fit.
bool read_time_text(std::string_view text, int64_t& out);

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
