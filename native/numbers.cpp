#include "numbers.hpp"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace stepscope {

namespace {

std::string_view unquoted(std::string_view text) {
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"') return text.substr(1, text.size() - 2);
  return text;
}

// A decimal number as its digits and the power of ten of the last one.
struct Decimal {
  bool negative = false;
  std::string digits;  // no leading zeros
  int64_t exponent = 0;
};

bool split_decimal(std::string_view text, Decimal& d) {
  const char* p = text.data();
  const char* end = p + text.size();
  if (p < end && (*p == '-' || *p == '+')) d.negative = *p++ == '-';
  bool any = false, point = false;
  for (; p < end && (is_digit(*p) || (*p == '.' && !point)); ++p) {
    if (*p == '.') {
      point = true;
      continue;
    }
    any = true;
    if (point) --d.exponent;
    if (*p != '0' || !d.digits.empty()) d.digits.push_back(*p);
  }
  if (!any) return false;
  if (p < end && (*p == 'e' || *p == 'E')) {
    ++p;
    if (p < end && *p == '+' && (++p == end || !is_digit(*p))) return false;
    int exponent = 0;
    const auto [rest, error] = std::from_chars(p, end, exponent);
    if (error != std::errc() || rest == p) return false;
    d.exponent += exponent;
    p = rest;
  }
  return p == end;
}

// digits * 10^exponent, rounded half to even; false if it does not fit into int64.
bool to_integer(const Decimal& d, bool exact, int64_t& out) {
  const auto size = static_cast<int64_t>(d.digits.size());
  const int64_t whole = size + d.exponent;  // how many digits stand before the point
  if (d.digits.empty() || whole < 0) {
    out = 0;
    return !exact || d.digits.empty();
  }
  if (whole > 19) return false;
  uint64_t v = 0;
  for (int64_t i = 0; i < whole; ++i) v = v * 10 + static_cast<uint64_t>(i < size ? d.digits[static_cast<size_t>(i)] - '0' : 0);
  if (whole < size) {
    const std::string_view rest = std::string_view(d.digits).substr(static_cast<size_t>(whole));
    const bool beyond_half = rest.find_first_not_of('0', 1) != std::string_view::npos;
    const bool nonzero = rest[0] != '0' || beyond_half;
    if (exact && nonzero) return false;
    if (rest[0] > '5' || (rest[0] == '5' && (beyond_half || v % 2 == 1))) ++v;
  }
  if (v > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return false;
  out = d.negative ? -static_cast<int64_t>(v) : static_cast<int64_t>(v);
  return true;
}

}  // namespace

bool read_time_text(std::string_view text, int64_t& out) {
  Decimal d;
  if (!split_decimal(unquoted(text), d)) return false;
  d.exponent += 3;
  return to_integer(d, false, out);
}

bool is_number_text(std::string_view text) {
  Decimal d;
  return split_decimal(unquoted(text), d);
}

bool read_int_text(std::string_view text, int64_t& out) {
  Decimal d;
  return split_decimal(unquoted(text), d) && to_integer(d, true, out);
}

bool read_double_text(std::string_view text, double& out) {
  Decimal d;
  const std::string_view plain = unquoted(text);
  if (plain.size() > 64 || !split_decimal(plain, d)) return false;
#if defined(__cpp_lib_to_chars)
  // Not strtod: a process whose locale writes decimal commas would read 1.5 as 1.
  const char* first = plain.data() + (plain.front() == '+');
  if (std::from_chars(first, plain.data() + plain.size(), out).ec != std::errc()) return false;
#else
  char buffer[65];
  std::memcpy(buffer, plain.data(), plain.size());
  buffer[plain.size()] = 0;
  out = std::strtod(buffer, nullptr);
#endif
  return std::isfinite(out);
}

std::string_view write_double(double v, char (&buffer)[40]) {
  for (int precision = 15; precision <= 17; ++precision) {
    const int n = std::snprintf(buffer, sizeof buffer, "%.*g", precision, v);
    if (precision == 17 || std::strtod(buffer, nullptr) == v) return {buffer, static_cast<size_t>(n)};
  }
  return {};
}

char* write_time(int64_t ns, char* out) {
  uint64_t v = ns < 0 ? 0 - static_cast<uint64_t>(ns) : static_cast<uint64_t>(ns);
  if (ns < 0) *out++ = '-';
  out = std::to_chars(out, out + 20, v / 1000).ptr;
  const unsigned rest = static_cast<unsigned>(v % 1000);
  *out++ = '.';
  *out++ = static_cast<char>('0' + rest / 100);
  *out++ = static_cast<char>('0' + rest / 10 % 10);
  *out++ = static_cast<char>('0' + rest % 10);
  return out;
}

}  // namespace stepscope
