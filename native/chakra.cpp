#include "chakra.hpp"

#include <stdexcept>

#include "json.hpp"
#include "wire.hpp"

namespace stepscope {

namespace {

constexpr uint64_t kLongest = 64u << 20;  // of one message, in bytes

void append_text(std::string& out, std::string_view text) {
  std::string quoted;
  unsigned repairs = 0;
  append_quoted(quoted, text);
  out += normalise(quoted, false, repairs);  // the text may be no UTF-8
}

void append_key(std::string& out, const char* key) {
  if (out.back() != '{') out += ',';
  append_text(out, key);
  out += ':';
}

// The value of an attribute by its field: whole numbers, signed ones that are folded, texts, truths. Others are left out.
bool append_value(std::string& out, const Wire& wire) {
  switch (wire.field) {
    case 3: case 5:
      out += std::to_string(wire.field == 3 ? wire.real() : static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(wire.number))));
      return wire.has_number();
    case 7: case 9: case 23: case 25:
      out += std::to_string(wire.whole());
      return wire.has_number();
    case 11: case 13: case 19: case 21:
      out += std::to_string(wire.number);
      return wire.has_number();
    case 15: case 17:
      out += std::to_string(static_cast<int64_t>(wire.number >> 1) ^ -static_cast<int64_t>(wire.number & 1));
      return wire.has_number();
    case 27:
      out += wire.number ? "true" : "false";
      return wire.has_number();
    case 29:
      if (!wire.has_bytes()) return false;
      append_text(out, wire.bytes);
      return true;
    default: return false;
  }
}

bool append_attribute(std::string& out, std::string_view message) {
  Wire wire(message);
  std::string name, value;
  bool known = false;
  while (wire.next()) {
    if (wire.field == 1 && wire.has_bytes()) {
      name.clear();
      append_text(name, wire.bytes);
    } else if (wire.field != 2 && !known) {
      known = append_value(value, wire);
    }
  }
  if (known && !name.empty()) {
    if (out.back() != '[') out += ',';
    out += "{\"name\":" + name + ",\"value\":" + value + '}';
  }
  return !wire.bad;
}

bool append_side(std::string& out, const char* key, std::string_view message) {
  Wire wire(message);
  append_key(out, key);
  out += '{';
  constexpr const char* kParts[] = {"values", "shapes", "types"};
  while (wire.next())
    if (wire.field >= 1 && wire.field <= 3 && wire.has_bytes()) {
      append_key(out, kParts[wire.field - 1]);
      append_text(out, wire.bytes);
    }
  out += '}';
  return !wire.bad;
}

bool append_header(std::string& out, std::string_view message) {
  Wire wire(message);
  std::string attributes = "[";
  bool whole = true;
  out = "{";
  while (wire.next()) {
    if (wire.field == 1 && wire.has_bytes()) {
      append_key(out, "version");
      append_text(out, wire.bytes);
    } else if (wire.field == 2 && wire.has_bytes()) {
      whole &= append_attribute(attributes, wire.bytes);
    }
  }
  append_key(out, "attrs");
  out += attributes + "]}";
  return whole && !wire.bad;
}

struct Numbers {
  std::string text = "[";

  bool add(const Wire& wire) {
    return each_number(wire, [&](uint64_t number) {
      if (text.back() != '[') text += ',';
      text += std::to_string(number);
    });
  }
};

bool append_node(std::string& out, std::string_view message) {
  Wire wire(message);
  Numbers control, data;
  std::string attributes = "[";
  bool whole = true;
  uint64_t id = 0;  // what protobuf leaves out is zero
  out = "{";
  while (wire.next()) {
    switch (wire.field) {
      case 1: id = wire.number; break;
      case 2:
        if (!wire.has_bytes()) return false;
        append_key(out, "name");
        append_text(out, wire.bytes);
        break;
      case 4: whole &= control.add(wire); break;
      case 5: whole &= data.add(wire); break;
      case 7:
        append_key(out, "duration_micros");
        out += std::to_string(wire.number);
        break;
      case 8: case 9:
        if (!wire.has_bytes()) return false;
        whole &= append_side(out, wire.field == 8 ? "inputs" : "outputs", wire.bytes);
        break;
      case 10:
        if (!wire.has_bytes()) return false;
        whole &= append_attribute(attributes, wire.bytes);
        break;
      default: break;
    }
  }
  append_key(out, "id");
  out += std::to_string(id);
  append_key(out, "ctrl_deps");
  out += control.text + ']';
  append_key(out, "data_deps");
  out += data.text + ']';
  append_key(out, "attrs");
  out += attributes + "]}";
  return whole && !wire.bad;
}

}  // namespace

void ChakraReader::fail(const char* why) {
  trouble = why;
  trouble_at = before_ + at_;
}

void ChakraReader::feed(std::string_view piece) {
  read_bytes += piece.size();
  if (!trouble.empty()) return;
  buffer_.erase(0, at_);
  before_ += at_;
  at_ = 0;
  buffer_ += piece;
  const char* end = buffer_.data() + buffer_.size();
  while (true) {
    const char* p = buffer_.data() + at_;
    uint64_t size;
    if (!read_varint(p, end, size)) {
      if (end - p >= 10) fail("the length of a message is damaged");
      return;
    }
    if (size > kLongest) return fail("a message is longer than 64 MiB");
    if (size > static_cast<uint64_t>(end - p)) return;
    take({p, static_cast<size_t>(size)});
    at_ = static_cast<size_t>(p + size - buffer_.data());
  }
}

void ChakraReader::finish() {
  if (trouble.empty() && at_ < buffer_.size()) fail("it ends too early");
}

void ChakraReader::take(std::string_view message) {
  std::string written;
  if (!saw_header_) {
    saw_header_ = true;
    if (append_header(written, message)) header = written;
    return;
  }
  if (!append_node(written, message)) {
    ++damaged;
    return;
  }
  if (text.size() + written.size() > 0x7fffffff) throw std::length_error("texts were not taken in time");
  text.insert(text.end(), written.begin(), written.end());
  offsets.push_back(static_cast<int32_t>(text.size()));
  ++elements;
}

}  // namespace stepscope
