#include "stacks.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>

namespace stepscope {

namespace {

constexpr size_t kLongestLine = 1 << 20;
constexpr size_t kLongestText = 4000;
constexpr size_t kDeepest = 4096;
constexpr size_t kMostText = size_t{1} << 30;  // offsets of texts have 32 bits

bool is_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool is_hex(std::string_view text) {
  return !text.empty() && text.size() <= 16 && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
  });
}

int64_t whole(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0) return StackReader::kNone;
  return value;
}

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

// A time in seconds with decimals and a colon, as ns; kNone for anything else.
int64_t clock_of(std::string_view word) {
  if (word.size() < 4 || word.back() != ':') return StackReader::kNone;
  word.remove_suffix(1);
  const auto dot = word.find('.');
  if (dot == std::string_view::npos || dot == 0) return StackReader::kNone;
  const auto decimals = word.substr(dot + 1);
  if (!is_digits(word.substr(0, dot)) || !is_digits(decimals) || dot > 9 || decimals.size() > 9) return StackReader::kNone;
  int64_t ns = whole(decimals);
  for (size_t i = decimals.size(); i < 9; ++i) ns *= 10;
  return whole(word.substr(0, dot)) * 1'000'000'000 + ns;
}

std::vector<std::string_view> words_of(std::string_view text, size_t most) {
  std::vector<std::string_view> words;
  size_t at = 0;
  while (at < text.size() && words.size() < most) {
    while (at < text.size() && is_blank(text[at])) ++at;
    const size_t begin = at;
    while (at < text.size() && !is_blank(text[at])) ++at;
    if (at > begin) words.push_back(text.substr(begin, at - begin));
  }
  return words;
}

}  // namespace

int64_t NumberedTexts::number(std::string_view one) {
  one = one.substr(0, kLongestText);
  if (const auto found = known_.find(one); found != known_.end()) return found->second;
  if (text.size() + one.size() > kMostText) return 0;
  const auto number = static_cast<int64_t>(known_.size());
  known_.emplace(one, number);
  text.insert(text.end(), one.begin(), one.end());
  offsets.push_back(static_cast<int32_t>(text.size()));
  return number;
}

void StackReader::feed(std::string_view piece) {
  while (!piece.empty()) {
    const auto* end = static_cast<const char*>(std::memchr(piece.data(), '\n', piece.size()));
    if (end == nullptr) {
      if (rest_.size() + piece.size() > kLongestLine) {
        too_long_ = true;
        rest_.clear();
      } else if (!too_long_) {
        rest_.append(piece);
      }
      return;
    }
    const auto size = static_cast<size_t>(end - piece.data());
    if (too_long_) {
      ++odd_lines;
      too_long_ = false;
    } else if (rest_.empty()) {
      line(piece.substr(0, size));
    } else {
      rest_.append(piece.substr(0, size));
      line(rest_);
    }
    rest_.clear();
    piece.remove_prefix(size + 1);
  }
}

void StackReader::finish() {
  if (!rest_.empty()) line(rest_);
  rest_.clear();
  end_sample();
}

void StackReader::line(std::string_view text) {
  if (text.size() > kLongestLine) {
    ++odd_lines;
    return;
  }
  if (collapsed_) {
    collapsed_line(trimmed(text));
  } else {
    perf_line(text);
  }
}

void StackReader::perf_line(std::string_view text) {
  const auto plain = trimmed(text);
  if (plain.empty()) {
    end_sample();
  } else if (text.front() == '#') {
    return;
  } else if (text.front() == '\t' || (is_blank(text.front()) && open_)) {
    // A line of source code below a frame has no address.
    if (!open_ || !frame(plain)) odd_lines += !open_;
  } else {
    end_sample();
    head(text);
  }
}

// comm pid/tid [cpu] time: period event: … — each part but comm and event may be missing, and comm may have blanks.
void StackReader::head(std::string_view text) {
  const auto words = words_of(text, 64);
  size_t event_at = words.size(), before = words.size();
  int64_t clock = kNone;
  for (size_t i = 1; i < words.size() && clock == kNone; ++i) {
    clock = clock_of(words[i]);
    if (clock != kNone) before = i, event_at = i + 1;
  }
  if (clock == kNone) {
    for (size_t i = 2; i < words.size(); ++i)
      if (words[i].back() == ':') {
        event_at = before = i;
        break;
      }
  }
  if (before >= words.size() && event_at >= words.size()) {
    ++odd_lines;
    return;
  }
  int64_t period = kNone;
  if (event_at + 1 < words.size() && is_digits(words[event_at])) period = whole(words[event_at++]);
  int64_t on_cpu = kNone, pid = kNone, tid = kNone;
  size_t named = before;
  if (named > 1 && words[named - 1].size() > 2 && words[named - 1].front() == '[') {
    on_cpu = whole(words[named - 1].substr(1, words[named - 1].size() - 2));
    --named;
  }
  if (named > 1) {
    const auto word = words[named - 1];
    const auto slash = word.find('/');
    if (slash != std::string_view::npos) {
      pid = whole(word.substr(0, slash));
      tid = whole(word.substr(slash + 1));
    } else {
      tid = whole(word);
    }
    if (tid != kNone) --named;
  }
  if (event_at >= words.size() || named == 0) {
    ++odd_lines;
    return;
  }
  auto happened = words[event_at];
  while (!happened.empty() && happened.back() == ':') happened.remove_suffix(1);
  const auto* first = words[0].data();
  const auto* last = words[named - 1].data() + words[named - 1].size();
  process.push_back(pid);
  thread.push_back(tid);
  cpu.push_back(on_cpu);
  time_ns.push_back(clock);
  weight.push_back(period == kNone ? 1 : period);
  command.push_back(commands.number({first, static_cast<size_t>(last - first)}));
  event.push_back(events.number(happened));
  open_ = true;
  const auto* after = words[event_at].data() + words[event_at].size();
  const auto left = trimmed({after, static_cast<size_t>(text.data() + text.size() - after)});
  if (!left.empty() && left.back() == ')') frame(left);  // recorded without stacks: the place is on the same line
}

bool StackReader::frame(std::string_view text) {
  const auto blank = text.find_first_of(" \t");
  if (blank == std::string_view::npos || !is_hex(text.substr(0, blank)) || current_.size() >= kDeepest) return false;
  auto symbol = trimmed(text.substr(blank + 1));
  std::string_view module;
  if (!symbol.empty() && symbol.back() == ')') {
    const auto open = symbol.rfind(" (");
    const auto begins = open != std::string_view::npos ? open + 1 : symbol.front() == '(' ? 0 : std::string_view::npos;
    if (begins != std::string_view::npos) {
      module = symbol.substr(begins + 1, symbol.size() - begins - 2);
      symbol = trimmed(symbol.substr(0, begins));
    }
  }
  const auto offset = symbol.rfind("+0x");
  if (offset != std::string_view::npos && offset > 0 && is_hex(symbol.substr(offset + 3))) symbol = symbol.substr(0, offset);
  key_.assign(symbol.substr(0, kLongestText / 2));
  key_.push_back('\x01');
  key_.append(module.substr(0, kLongestText / 4));
  current_.push_back(frames.number(key_));
  return true;
}

// root;inner;innermost 12
void StackReader::collapsed_line(std::string_view text) {
  if (text.empty() || text.front() == '#') return;
  const auto blank = text.find_last_of(" \t");
  const auto count = blank == std::string_view::npos ? kNone : whole(text.substr(blank + 1));
  if (count == kNone) {
    ++odd_lines;
    return;
  }
  auto stack_text = trimmed(text.substr(0, blank));
  while (!stack_text.empty() && current_.size() < kDeepest) {
    const auto cut = stack_text.rfind(';');
    const auto one = cut == std::string_view::npos ? stack_text : stack_text.substr(cut + 1);
    current_.push_back(frames.number(one));
    stack_text = cut == std::string_view::npos ? std::string_view{} : stack_text.substr(0, cut);
  }
  process.push_back(kNone);
  thread.push_back(kNone);
  cpu.push_back(kNone);
  time_ns.push_back(kNone);
  weight.push_back(count);
  command.push_back(kNone);
  event.push_back(kNone);
  open_ = true;
  end_sample();
}

void StackReader::end_sample() {
  if (!open_) return;
  open_ = false;
  ++samples;
  stack.push_back(stack_number());
  current_.clear();
}

int64_t StackReader::stack_number() {
  key_.assign(reinterpret_cast<const char*>(current_.data()), current_.size() * sizeof(int64_t));
  const auto [found, is_new] = stacks_.try_emplace(key_, static_cast<int64_t>(stack_offsets.size()) - 1);
  if (is_new) {
    stack_frames.insert(stack_frames.end(), current_.begin(), current_.end());
    stack_offsets.push_back(static_cast<int64_t>(stack_frames.size()));
  }
  return found->second;
}

}  // namespace stepscope
