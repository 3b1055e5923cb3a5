// A strict JSON tokeniser over a piece of a stream: it checks grammar, knows when it ran out of bytes, allocates nothing.
#pragma once

#include <string>
#include <string_view>

#include "text.hpp"

namespace stepscope {

enum class Scan { ok, more, bad };  // read; needs bytes that are not here yet; not JSON

// Where the scan stands. `why` explains `bad`, `p` is then the offending byte.
struct Cursor {
  const char* p;
  const char* end;
  const char* why = "";
  bool lenient = false;  // a quote ends a string only where one may: rescues names with raw quotes

  Scan fail(const char* reason) {
    why = reason;
    return Scan::bad;
  }
};

// What had to be put right in a text so that it is valid JSON or UTF-8; kept as a set of bits.
enum Repair : unsigned {
  kBadUtf8 = 1,
  kControl = 2,
  kBadEscape = 4,
  kBareWord = 8,
  kRawQuote = 16,
  // What was too long or too many to be kept.
  kCutName = 32,
  kNoName = 64,
  kCutValue = 128,
  kNoArguments = 256,
  kCutThread = 512,
  kNoThread = 1024,
  kNoCategory = 2048,
};

// All of these start at c.p and leave c.p behind what they read.
Scan scan_string(Cursor& c, std::string_view& raw);  // at the opening quote; raw excludes both quotes
Scan scan_value(Cursor& c, std::string_view& raw);   // any value

// The text of a JSON string's inside; what is not valid becomes U+FFFD or stands for itself, and is said in `repairs`.
std::string unescape(std::string_view raw, unsigned& repairs);

// The same JSON, valid: bad UTF-8, control characters, wrong escapes and bare words put right.
std::string normalise(std::string_view raw, bool lenient, unsigned& repairs);

// The first `most` bytes of a text that is too long, and a mark of the whole one, so that two that begin alike stay two:
// "begins so…0123456789abcdef…".
std::string cut_text(std::string_view text, size_t most);

void append_quoted(std::string& out, std::string_view text);  // text as a JSON string

}  // namespace stepscope
