// Scanning and hashing of raw bytes: sixteen at a time where every chip of the family can, one by one elsewhere.
// NEON belongs to every 64-bit ARM and SSE2 to every x86-64, so no run-time dispatch is needed.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string_view>

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace stepscope {

inline bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
inline bool is_digit(char c) { return static_cast<unsigned char>(c - '0') < 10; }

inline const char* skip_space(const char* p, const char* end) {
  while (p < end && is_space(*p)) ++p;
  return p;
}

// True for the bytes that need a second look inside a JSON string: quote, backslash, control, non-ASCII.
inline bool is_special(unsigned char c) { return c == '"' || c == '\\' || c < 0x20 || c >= 0x80; }

template <class Keys>
bool among(const Keys& keys, std::string_view key) {
  return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
}

// First special byte in [p, end), or end.
inline const char* find_special(const char* p, const char* end) {
#if defined(__aarch64__) && !defined(STEPSCOPE_SCALAR)
  const uint8x16_t quote = vdupq_n_u8('"'), slash = vdupq_n_u8('\\');
  while (end - p >= 16) {
    const uint8x16_t v = vld1q_u8(reinterpret_cast<const uint8_t*>(p));
    const uint8x16_t odd = vcltq_s8(vreinterpretq_s8_u8(v), vdupq_n_s8(0x20));  // signed: also catches >= 0x80
    const uint8x16_t hit = vorrq_u8(vorrq_u8(vceqq_u8(v, quote), vceqq_u8(v, slash)), odd);
    const uint64_t mask = vget_lane_u64(vreinterpret_u64_u8(vshrn_n_u16(vreinterpretq_u16_u8(hit), 4)), 0);
    if (mask) return p + (__builtin_ctzll(mask) >> 2);
    p += 16;
  }
#elif defined(__SSE2__) && !defined(STEPSCOPE_SCALAR)
  const __m128i quote = _mm_set1_epi8('"'), slash = _mm_set1_epi8('\\'), low = _mm_set1_epi8(0x20);
  while (end - p >= 16) {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i odd = _mm_cmplt_epi8(v, low);  // signed: also catches >= 0x80
    const __m128i hit = _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(v, quote), _mm_cmpeq_epi8(v, slash)), odd);
    const int mask = _mm_movemask_epi8(hit);
    if (mask) return p + __builtin_ctz(static_cast<unsigned>(mask));
    p += 16;
  }
#endif
  while (p < end && !is_special(static_cast<unsigned char>(*p))) ++p;
  return p;
}

inline uint64_t load64(const char* p) {
  uint64_t v;
  std::memcpy(&v, p, 8);
  return v;
}

// memcmp() == 0 without the call: the literals of a template are short and compared all the time.
inline bool same_bytes(const char* a, const char* b, size_t n) {
  if (n < 8) {
    for (size_t i = 0; i < n; ++i)
      if (a[i] != b[i]) return false;
    return true;
  }
  size_t i = 0;
  for (; i + 16 <= n; i += 16)
    if ((load64(a + i) ^ load64(b + i)) | (load64(a + i + 8) ^ load64(b + i + 8))) return false;
  return (i + 8 > n || load64(a + i) == load64(b + i)) && load64(a + n - 8) == load64(b + n - 8);
}

inline bool same_64(const char* a, const char* b) {
#if defined(__aarch64__) && !defined(STEPSCOPE_SCALAR)
  const auto unlike = [&](size_t at) {
    return veorq_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(a + at)), vld1q_u8(reinterpret_cast<const uint8_t*>(b + at)));
  };
  const uint64x2_t any = vreinterpretq_u64_u8(vorrq_u8(vorrq_u8(unlike(0), unlike(16)), vorrq_u8(unlike(32), unlike(48))));
  return (vgetq_lane_u64(any, 0) | vgetq_lane_u64(any, 1)) == 0;
#elif defined(__SSE2__) && !defined(STEPSCOPE_SCALAR)
  const auto load = [](const char* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); };
  const auto unlike = [&](size_t at) { return _mm_xor_si128(load(a + at), load(b + at)); };
  const __m128i any = _mm_or_si128(_mm_or_si128(unlike(0), unlike(16)), _mm_or_si128(unlike(32), unlike(48)));
  return _mm_movemask_epi8(_mm_cmpeq_epi8(any, _mm_setzero_si128())) == 0xffff;
#else
  return same_bytes(a, b, 64);
#endif
}

// Sixteen bytes from here are n times 0xff and then zeros, for n = 16 - offset.
alignas(16) inline constexpr unsigned char kMasks[32] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
                                                         0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

// The same where sixteen bytes beyond the end of `a` may be read and `b` has zeros up to there: most literals take one
// comparison, and none a loop over its last bytes. A long text ends the comparison at the first stretch that differs.
inline bool same_padded(const char* a, const char* b, size_t n) {
  for (; n > 64; a += 64, b += 64, n -= 64)
    if (!same_64(a, b)) return false;
#if defined(__aarch64__) && !defined(STEPSCOPE_SCALAR)
  const auto load = [](const void* p) { return vld1q_u8(static_cast<const uint8_t*>(p)); };
  uint8x16_t differ = vdupq_n_u8(0);
  for (; n > 16; a += 16, b += 16, n -= 16) differ = vorrq_u8(differ, veorq_u8(load(a), load(b)));
  differ = vorrq_u8(differ, vandq_u8(veorq_u8(load(a), load(b)), load(kMasks + 16 - n)));
  const uint64x2_t halves = vreinterpretq_u64_u8(differ);
  return (vgetq_lane_u64(halves, 0) | vgetq_lane_u64(halves, 1)) == 0;
#elif defined(__SSE2__) && !defined(STEPSCOPE_SCALAR)
  const auto load = [](const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); };
  __m128i differ = _mm_setzero_si128();
  for (; n > 16; a += 16, b += 16, n -= 16) differ = _mm_or_si128(differ, _mm_xor_si128(load(a), load(b)));
  differ = _mm_or_si128(differ, _mm_and_si128(_mm_xor_si128(load(a), load(b)), load(kMasks + 16 - n)));
  return _mm_movemask_epi8(_mm_cmpeq_epi8(differ, _mm_setzero_si128())) == 0xffff;
#else
  return same_bytes(a, b, n);
#endif
}

// n times 0xff from 64 - n on, and then zeros.
inline constexpr auto kLongMasks = [] {
  std::array<unsigned char, 128> masks{};
  for (size_t i = 0; i < 64; ++i) masks[i] = 0xff;
  return masks;
}();

// The same where 64 bytes from both can be read. Names are of all lengths, and a loop that follows them would be guessed
// wrongly each time: so as many bytes are looked at for each.
inline bool same_name(const char* a, const char* b, size_t n) {
  if (n > 64) return same_64(a, b) && same_bytes(a + 64, b + 64, n - 64);
#if defined(__aarch64__) && !defined(STEPSCOPE_SCALAR)
  const auto load = [](const void* p, size_t at) { return vld1q_u8(static_cast<const uint8_t*>(p) + at); };
  const unsigned char* mask = kLongMasks.data() + 64 - n;
  const auto unlike = [&](size_t at) { return vandq_u8(veorq_u8(load(a, at), load(b, at)), load(mask, at)); };
  const uint64x2_t any = vreinterpretq_u64_u8(vorrq_u8(vorrq_u8(unlike(0), unlike(16)), vorrq_u8(unlike(32), unlike(48))));
  return (vgetq_lane_u64(any, 0) | vgetq_lane_u64(any, 1)) == 0;
#elif defined(__SSE2__) && !defined(STEPSCOPE_SCALAR)
  const auto load = [](const void* p, size_t at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(static_cast<const char*>(p) + at)); };
  const unsigned char* mask = kLongMasks.data() + 64 - n;
  const auto unlike = [&](size_t at) { return _mm_and_si128(_mm_xor_si128(load(a, at), load(b, at)), load(mask, at)); };
  const __m128i any = _mm_or_si128(_mm_or_si128(unlike(0), unlike(16)), _mm_or_si128(unlike(32), unlike(48)));
  return _mm_movemask_epi8(_mm_cmpeq_epi8(any, _mm_setzero_si128())) == 0xffff;
#else
  return same_bytes(a, b, n);
#endif
}

inline bool same_text(std::string_view a, std::string_view b) {
  return a.size() == b.size() && same_bytes(a.data(), b.data(), a.size());
}

// How many of the eight bytes of v, from the first on, are digits.
inline unsigned leading_digits(uint64_t v) {
  const uint64_t odd = ((v & 0xf0f0f0f0f0f0f0f0ull) ^ 0x3030303030303030ull) |
                       (((v + 0x0606060606060606ull) & 0xf0f0f0f0f0f0f0f0ull) ^ 0x3030303030303030ull);
  return odd ? static_cast<unsigned>(__builtin_ctzll(odd)) >> 3 : 8;
}

// Eight digits as a number, all at once; zero bytes before them count as zeros.
inline uint64_t eight_digits(uint64_t v) {
  v = (v & 0x0f0f0f0f0f0f0f0full) * 2561 >> 8;
  v = (v & 0x00ff00ff00ff00ffull) * 6553601 >> 16;
  return (v & 0x0000ffff0000ffffull) * 42949672960001ull >> 32;
}

inline uint64_t mix(uint64_t a, uint64_t b) {
  const unsigned __int128 m = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(m) ^ static_cast<uint64_t>(m >> 64);
}

inline uint64_t hash_bytes(const char* p, size_t n, uint64_t seed = 0x9e3779b97f4a7c15ull) {
  const size_t whole = n;
  uint64_t h = seed ^ (n * 0xff51afd7ed558ccdull);
  if (n >= 32) {  // two chains side by side: a chip multiplies faster than it waits
    uint64_t g = h;
    for (; n >= 32; p += 32, n -= 32) {
      h = mix(load64(p) ^ h, load64(p + 8) ^ 0xe7037ed1a0b428dbull);
      g = mix(load64(p + 16) ^ g, load64(p + 24) ^ 0xa0761d6478bd642full);
    }
    h ^= g;
  }
  if (n >= 16) {
    h = mix(load64(p) ^ h, load64(p + 8) ^ 0xe7037ed1a0b428dbull);
    p += 16;
    n -= 16;
  }
  uint64_t low = 0, high = 0;  // the last bytes; of a longer text some are taken twice
  if (n >= 8) {
    low = load64(p), high = load64(p + n - 8);
  } else if (whole >= 8 && n) {
    low = load64(p + n - 8);
  } else {
    for (size_t i = 0; i < n; ++i) low = low << 8 | static_cast<unsigned char>(p[i]);
  }
  h = mix(low ^ h, high ^ 0x8ebc6af09c88c6e3ull);
  return h ^ (h >> 29);
}

inline uint64_t hash_bytes(std::string_view s, uint64_t seed = 0x9e3779b97f4a7c15ull) {
  return hash_bytes(s.data(), s.size(), seed);
}

}  // namespace stepscope
