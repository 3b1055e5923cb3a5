#include "elements.hpp"

#include <stdexcept>

#include "json.hpp"

namespace stepscope {

namespace {

constexpr size_t kLongest = 64u << 20;  // of one element or member, in bytes
constexpr size_t kMostMembers = 10'000;
constexpr size_t kKeep = 1u << 16;  // longer members of the root are of no interest

}  // namespace

void ElementReader::feed(std::string_view piece) {
  read_bytes += piece.size();
  if (state_ == State::done || !trouble.empty()) return;
  buffer_.erase(0, at_);
  before_ += at_;
  at_ = 0;
  buffer_ += piece;
  while (step()) {
  }
}

void ElementReader::finish() {
  ended_ = true;
  while (trouble.empty() && state_ != State::done && step()) {
  }
  if (trouble.empty() && state_ != State::done) fail("it ends too early", buffer_.data() + at_);
}

bool ElementReader::fail(std::string why, const char* at) {
  trouble = std::move(why);
  trouble_at = before_ + static_cast<uint64_t>(at - buffer_.data());
  return false;
}

// Not enough bytes: true never, for the next piece has to come first.
bool ElementReader::more() {
  if (buffer_.size() - at_ > kLongest) return fail("a value is longer than 64 MiB", buffer_.data() + at_);
  return false;
}

bool ElementReader::step() {
  const char* end = buffer_.data() + buffer_.size();
  const char* p = skip_space(buffer_.data() + at_, end);
  at_ = static_cast<size_t>(p - buffer_.data());
  if (state_ == State::done || p == end) return false;
  switch (state_) {
    case State::start:
      if (*p != '{') return fail("it is no JSON object", p);
      ++at_;
      state_ = State::key;
      return true;
    case State::key: return begin_member();
    case State::element: return take_element();
    case State::after_element: return next_is(',', State::element, ']', State::after_member);
    case State::after_member: return next_is(',', State::key, '}', State::done);
    case State::done: return false;
  }
  return false;
}

bool ElementReader::next_is(char one, State then, char other, State otherwise) {
  const char c = buffer_[at_];
  if (c != one && c != other) return fail("it is not JSON", buffer_.data() + at_);
  ++at_;
  state_ = c == one ? then : otherwise;
  return true;
}

bool ElementReader::begin_member() {
  Cursor c{buffer_.data() + at_, buffer_.data() + buffer_.size()};
  if (*c.p == '}') {
    ++at_;
    state_ = State::done;
    return true;
  }
  std::string_view raw, value;
  if (*c.p != '"') return fail("it is not JSON", c.p);
  Scan found = scan_string(c, raw);
  if (found == Scan::more) return more();
  if (found == Scan::bad) return fail(c.why, c.p);
  c.p = skip_space(c.p, c.end);
  if (c.p == c.end) return more();
  if (*c.p != ':') return fail("it is not JSON", c.p);
  c.p = skip_space(c.p + 1, c.end);
  if (c.p == c.end) return more();
  if (raw == key_ && *c.p == '[') {
    at_ = static_cast<size_t>(c.p + 1 - buffer_.data());
    state_ = State::element;
    return true;
  }
  found = scan_value(c, value);
  if (found == Scan::more) return more();
  if (found == Scan::bad) return fail(c.why, c.p);
  unsigned repairs = 0;
  if (members.size() < kMostMembers && value.size() <= kKeep && raw.size() <= kKeep)
    members.emplace_back(unescape(raw, repairs), normalise(value, false, repairs));
  at_ = static_cast<size_t>(c.p - buffer_.data());
  state_ = State::after_member;
  return true;
}

bool ElementReader::take_element() {
  Cursor c{buffer_.data() + at_, buffer_.data() + buffer_.size()};
  if (*c.p == ']') {  // of an empty list, or behind a comma too many
    ++at_;
    state_ = State::after_member;
    return true;
  }
  std::string_view raw;
  const Scan found = scan_value(c, raw);
  if (found == Scan::more) return more();
  if (found == Scan::bad) return fail(c.why, c.p);
  unsigned repairs = 0;
  const std::string valid = normalise(raw, false, repairs);
  if (text.size() + valid.size() > 0x7fffffff) throw std::length_error("texts were not taken in time");
  text.insert(text.end(), valid.begin(), valid.end());
  offsets.push_back(static_cast<int32_t>(text.size()));
  ++elements;
  at_ = static_cast<size_t>(c.p - buffer_.data());
  state_ = State::after_element;
  return true;
}

}  // namespace stepscope
