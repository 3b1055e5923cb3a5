#include "json.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

namespace stepscope {

namespace {

constexpr size_t kMaxDepth = 256;
constexpr char kHex[] = "0123456789abcdef";

// In lenient mode a quote closes the string only if what follows could follow a string.
Scan closes(const Cursor& c, const char* quote) {
  if (!c.lenient) return Scan::ok;
  const char* q = skip_space(quote + 1, c.end);
  if (q == c.end) return Scan::more;
  return *q == ',' || *q == ':' || *q == '}' || *q == ']' ? Scan::ok : Scan::bad;
}

bool is_word(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '+' || c == '-' || c == '.' || c == '/';
}

// A number or a bare word (true, null, NaN, inf, N/A): the caller or normalise() judges it.
Scan scan_word(Cursor& c) {
  const char* q = c.p;
  while (q < c.end && is_word(*q)) ++q;
  if (q == c.end) return Scan::more;
  if (q == c.p) return c.fail("expected a value");
  if (q - c.p > 400) return c.fail("a value that is neither number nor word");
  c.p = q;
  return Scan::ok;
}

// The length of the valid UTF-8 sequence at p, or 0.
size_t utf8_length(const char* p, const char* end) {
  const auto byte = [&](int i) { return static_cast<unsigned char>(p[i]); };
  const unsigned char a = byte(0);
  if (a < 0x80) return 1;
  const size_t n = a >= 0xf0 ? 4 : a >= 0xe0 ? 3 : 2;
  if (a < 0xc2 || a > 0xf4 || static_cast<size_t>(end - p) < n) return 0;
  for (size_t i = 1; i < n; ++i)
    if ((byte(static_cast<int>(i)) & 0xc0) != 0x80) return 0;
  if ((a == 0xe0 && byte(1) < 0xa0) || (a == 0xed && byte(1) > 0x9f)) return 0;  // overlong, surrogate
  if ((a == 0xf0 && byte(1) < 0x90) || (a == 0xf4 && byte(1) > 0x8f)) return 0;  // overlong, past the last
  return n;
}

void append_utf8(std::string& out, uint32_t code) {
  const auto put = [&](uint32_t v) { out.push_back(static_cast<char>(v)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0 | code >> 6), put(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    put(0xe0 | code >> 12), put(0x80 | (code >> 6 & 0x3f)), put(0x80 | (code & 0x3f));
  } else {
    put(0xf0 | code >> 18), put(0x80 | (code >> 12 & 0x3f)), put(0x80 | (code >> 6 & 0x3f)), put(0x80 | (code & 0x3f));
  }
}

bool read_hex4(const char* p, const char* end, uint32_t& out) {
  if (end - p < 4) return false;
  out = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = p[i];
    const int digit = is_digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return false;
    out = out << 4 | static_cast<uint32_t>(digit);
  }
  return true;
}

// At the 'u' of \uXXXX: appends the character (with its second half), returns how many bytes were used after the backslash.
size_t unescape_unicode(const char* p, const char* end, std::string& out, unsigned& repairs) {
  uint32_t code = 0, low = 0;
  if (!read_hex4(p + 1, end, code)) {
    repairs |= kBadEscape;
    out += "\\u";
    return 1;
  }
  if (code >= 0xd800 && code < 0xdc00 && end - p >= 11 && p[5] == '\\' && p[6] == 'u' && read_hex4(p + 7, end, low) &&
      low >= 0xdc00 && low < 0xe000) {
    append_utf8(out, 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00));
    return 11;
  }
  if (code >= 0xd800 && code < 0xe000) {
    repairs |= kBadUtf8;
    code = 0xfffd;
  }
  append_utf8(out, code);
  return 5;
}

char simple_escape(char c) {
  switch (c) {
    case 'n': return '\n';
    case 't': return '\t';
    case 'r': return '\r';
    case 'b': return '\b';
    case 'f': return '\f';
    case '"': case '\\': case '/': return c;
    default: return 0;
  }
}

bool is_json_number(std::string_view w) {
  const char* p = w.data();
  const char* end = p + w.size();
  if (p < end && *p == '-') ++p;
  if (p == end || !is_digit(*p)) return false;
  if (*p == '0' && p + 1 < end && is_digit(p[1])) return false;
  while (p < end && is_digit(*p)) ++p;
  if (p < end && *p == '.') {
    if (++p == end || !is_digit(*p)) return false;
    while (p < end && is_digit(*p)) ++p;
  }
  if (p < end && (*p == 'e' || *p == 'E')) {
    if (++p < end && (*p == '+' || *p == '-')) ++p;
    if (p == end || !is_digit(*p)) return false;
    while (p < end && is_digit(*p)) ++p;
  }
  return p == end;
}

// Words as other readers take them: Python's json knows NaN and Infinity; anything else becomes a string.
void append_word(std::string& out, std::string_view w, unsigned& repairs) {
  if (w == "true" || w == "false" || w == "null" || is_json_number(w)) {
    out += w;
    return;
  }
  repairs |= kBareWord;
  if (w == "NaN" || w == "Infinity" || w == "-Infinity") out += w;
  else if (w == "nan" || w == "-nan") out += "NaN";
  else if (w == "inf" || w == "+inf") out += "Infinity";
  else if (w == "-inf") out += "-Infinity";
  else append_quoted(out, w);
}

}  // namespace

Scan scan_string(Cursor& c, std::string_view& raw) {
  if (c.p == c.end) return Scan::more;
  if (*c.p != '"') return c.fail("expected a string");
  const char* first = c.p + 1;
  for (const char* q = first;;) {
    q = find_special(q, c.end);
    if (q >= c.end) return Scan::more;
    if (*q == '\\') {
      q += 2;
      if (q > c.end) return Scan::more;
    } else if (*q == '"') {
      const Scan closing = closes(c, q);
      if (closing == Scan::more) return Scan::more;
      if (closing == Scan::ok) {
        raw = {first, static_cast<size_t>(q - first)};
        c.p = q + 1;
        return Scan::ok;
      }
      ++q;
    } else {
      ++q;
    }
  }
}

// The grammar as a loop: `open` is the stack of containers, and each turn reads one value or closes one container.
Scan scan_value(Cursor& c, std::string_view& raw) {
  const char* first = c.p;
  std::array<char, kMaxDepth> open;
  size_t depth = 0;
  std::string_view ignored;
  bool may_close = false;  // right after an opening bracket
  for (;;) {
    c.p = skip_space(c.p, c.end);
    if (c.p == c.end) return Scan::more;
    bool closed = false;
    if (may_close && *c.p == (open[depth - 1] == '{' ? '}' : ']')) {
      ++c.p;
      --depth;
      closed = true;
    } else if (depth && open[depth - 1] == '{') {
      if (const Scan s = scan_string(c, ignored); s != Scan::ok) return s;
      c.p = skip_space(c.p, c.end);
      if (c.p == c.end) return Scan::more;
      if (*c.p != ':') return c.fail("expected ':' after a key");
      c.p = skip_space(c.p + 1, c.end);
      if (c.p == c.end) return Scan::more;
    }
    may_close = false;
    if (!closed) {
      if (*c.p == '{' || *c.p == '[') {
        if (depth == kMaxDepth) return c.fail("nested too deeply");
        open[depth++] = *c.p++;
        may_close = true;
        continue;
      }
      const Scan s = *c.p == '"' ? scan_string(c, ignored) : scan_word(c);
      if (s != Scan::ok) return s;
    }
    // A value is complete: close what ends here, then a comma must follow.
    while (depth) {
      c.p = skip_space(c.p, c.end);
      if (c.p == c.end) return Scan::more;
      if (*c.p == ',') {
        ++c.p;
        break;
      }
      if (*c.p != (open[depth - 1] == '{' ? '}' : ']')) return c.fail("expected ',' or a closing bracket");
      ++c.p;
      --depth;
    }
    if (!depth) {
      raw = {first, static_cast<size_t>(c.p - first)};
      return Scan::ok;
    }
  }
}

std::string unescape(std::string_view raw, unsigned& repairs) {
  std::string out;
  out.reserve(raw.size());
  const char* p = raw.data();
  const char* end = p + raw.size();
  while (p < end) {
    const char* q = find_special(p, end);
    out.append(p, q);
    p = q;
    if (p == end) break;
    const auto c = static_cast<unsigned char>(*p);
    if (c == '\\' && p + 1 < end) {
      ++p;
      if (*p == 'u') {
        p += unescape_unicode(p, end, out, repairs);
      } else if (const char plain = simple_escape(*p)) {
        out.push_back(plain);
        ++p;
      } else {
        repairs |= kBadEscape;
        out.push_back('\\');
      }
    } else if (c >= 0x80) {
      const size_t n = utf8_length(p, end);
      if (n) out.append(p, n);
      else out += "\xef\xbf\xbd", repairs |= kBadUtf8;
      p += n ? n : 1;
    } else {
      if (c < 0x20) repairs |= kControl;
      if (c == '"') repairs |= kRawQuote;
      out.push_back(*p++);
    }
  }
  return out;
}

std::string cut_text(std::string_view text, size_t most) {
  size_t end = std::min(most, text.size());
  while (end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  std::string out(text.substr(0, end));
  out += "\u2026";
  uint64_t hash = hash_bytes(text);
  for (int i = 0; i < 16; ++i, hash <<= 4) out.push_back(kHex[hash >> 60]);
  return out += "\u2026";
}

void append_quoted(std::string& out, std::string_view text) {
  out.push_back('"');
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (u < 0x20) {
      out += "\\u00";
      out.push_back(kHex[u >> 4]);
      out.push_back(kHex[u & 15]);
    } else {
      out.push_back(c);
    }
  }
  out.push_back('"');
}

std::string normalise(std::string_view raw, bool lenient, unsigned& repairs) {
  std::string out;
  out.reserve(raw.size());
  Cursor c{raw.data(), raw.data() + raw.size(), "", lenient};
  while (c.p < c.end) {
    if (*c.p == '"') {
      const char* first = c.p;
      std::string_view inside;
      if (scan_string(c, inside) != Scan::ok) break;  // cannot happen: the text was scanned before
      unsigned found = 0;
      const std::string text = unescape(inside, found);
      if (found) append_quoted(out, text);
      else out.append(first, c.p);
      repairs |= found;
    } else if (is_word(*c.p)) {
      const char* first = c.p;
      while (c.p < c.end && is_word(*c.p)) ++c.p;
      append_word(out, {first, static_cast<size_t>(c.p - first)}, repairs);
    } else {
      out.push_back(*c.p++);
    }
  }
  return out;
}

}  // namespace stepscope
