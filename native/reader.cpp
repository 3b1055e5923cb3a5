#include "reader.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace stepscope {

namespace {

constexpr size_t kMaxMetadata = 16 << 20;  // bytes of the header's values; as much again for those that analyses look for
constexpr size_t kMaxMetadataKeys = 4096, kMaxMetadataKey = 1024, kCutMetadata = 128;
constexpr size_t kMaxMetadataValues = 1 << 20;  // each becomes an object in Python
constexpr size_t kPlaces = 5;  // how many places of a damage are remembered
constexpr const char* kNoComma = "a comma too few or too many in the header, so that its values may be wrong";
constexpr const char* kNoEvent = "something that is no event";

// Keys an event may begin with; `args` is none of them, or arguments would be taken for events.
constexpr std::array<std::string_view, 11> kEventKeys = {"ph", "name", "cat", "ts", "pid", "tid", "dur", "id", "s", "bp", "tts"};

// Whether a key says this, with escapes or without.
bool means(std::string_view key, std::string_view text) {
  unsigned ignored = 0;
  return key == text || (key.find('\\') != std::string_view::npos && unescape(key, ignored) == text);
}

}  // namespace

Reader::Reader(ReaderSpec spec) : spec_(std::move(spec)) {
  for (size_t i = 0; i < spec_.tables.size(); ++i) open_.push_back(nullptr);
  until_check_ = spec_.check_every;
  spec_.metadata_keys.emplace_back("traceEvents");  // after damage in the header
}

// ---- the stream

void Reader::feed(const char* piece, size_t size) {
  const int64_t before = bytes;
  bytes += static_cast<int64_t>(size);
  // The carry doubles with each try, so that an event of any length is read in linear time.
  if (!carry_.empty() && carry_.size() + size < wanted_) {
    carry_.append(piece, size);
    return;
  }
  size_t used = 0;
  size_t kept = carry_.size();
  while (!carry_.empty() && used < size) {
    const size_t take = std::min(size - used, std::max<size_t>(carry_.size(), 1 << 13));
    carry_.append(piece + used, take);
    used += take;
    piece_ = carry_.data();
    piece_offset_ = before + static_cast<int64_t>(used) - static_cast<int64_t>(carry_.size());
    const auto read = static_cast<size_t>(parse(carry_.data(), carry_.data() + carry_.size()) - carry_.data());
    if (read >= kept) {
      used = read - kept;
      carry_.clear();
    } else {
      carry_.erase(0, read);
      kept -= read;
    }
  }
  if (carry_.empty()) {
    piece_ = piece;
    piece_offset_ = before;
    const char* rest = parse(piece + used, piece + size);
    carry_.assign(rest, piece + size);
  }
  wanted_ = carry_.size() < 1 << 16 ? 0 : std::min<size_t>(2 * carry_.size(), kMaxEvent + 1);
}

void Reader::finish(bool source_cut) {
  final_ = true;
  piece_ = carry_.data();
  piece_offset_ = bytes - static_cast<int64_t>(carry_.size());
  const char* end = carry_.data() + carry_.size();
  const char* p = parse(carry_.data(), end);
  if (state_ == State::start) refusal = "it is empty";
  if (list_root_ && !saw_events && !events) refusal = "it is a list, but not one of events";
  if (state_ == State::resync) {
    note(lost_why_, offset_of(end) - lost_from_, lost_from_);
    note("the file ends inside damage", 0, bytes);
  } else if (state_ == State::root || state_ == State::events || source_cut) {
    p = skip_space(p, end);
    note("the file is cut short", end - p, offset_of(p));
  }
  settle();
  for (auto& batch : open_)
    if (batch && batch->rows()) ready_.push_back(std::move(batch));
}

// What the header says, as far as there is room. Other readers take a value apart, so what counts is also how many parts
// it has.
void Reader::keep_metadata(std::string_view key, std::string_view value, int64_t offset) {
  unsigned repairs = 0;
  std::string name = unescape(key, repairs);
  if (name.size() > kMaxMetadataKey) name = cut_text(name, kCutMetadata);
  const bool known = among(spec_.metadata_keys, name) && value.size() <= kMaxMetadata / 8;
  size_t& used = known ? known_metadata_bytes_ : metadata_bytes_;
  const auto parts = value.front() == '"' ? 1 : std::count_if(value.begin(), value.end(), [](char c) { return c == ',' || c == '[' || c == '{'; });
  if (metadata.size() >= kMaxMetadataKeys && !(known && used + value.size() <= kMaxMetadata)) {
    note("more than 4,096 values in the header; the rest are not kept", static_cast<int64_t>(value.size()), offset);
    return;
  }
  std::string text;
  if (used + value.size() > kMaxMetadata || metadata_values_ + static_cast<size_t>(parts) > kMaxMetadataValues) {
    append_quoted(text, cut_text(value, kCutMetadata));
    text = normalise(text, false, repairs);
    note("a value too large for the header, cut", static_cast<int64_t>(value.size() - std::min(value.size(), kCutMetadata)), offset);
  } else {
    text = normalise(value, false, repairs);
    metadata_values_ += static_cast<size_t>(parts);
  }
  used += text.size();
  metadata.emplace_back(std::move(name), std::move(text));
  note_repairs(repairs, offset);
}

const char* Reader::parse(const char* p, const char* end) {
  const char* first = p;
  while (step(p, end) == Scan::ok) {
  }
  const char* q = p;
  while (q > first && is_space(q[-1])) --q;
  if (q > first) before_ = q[-1];
  return p;
}

Scan Reader::step(const char*& p, const char* end) {
  switch (state_) {
    case State::start: return step_start(p, end);
    case State::root: return step_root(p, end);
    case State::events: return step_events(p, end);
    case State::resync: return step_resync(p, end);
    case State::done:
      p = skip_space(p, end);
      return p == end ? Scan::more : broken(p, "text after the end of the trace");
    default: p = end; return Scan::more;
  }
}

Scan Reader::step_start(const char*& p, const char* end) {
  if (offset_of(p) == 0) {
    if (end - p < 3 && !final_) return Scan::more;
    if (std::string_view(p, static_cast<size_t>(end - p)).substr(0, 3) == "\xef\xbb\xbf") p += 3;
  }
  p = skip_space(p, end);
  if (p == end) return Scan::more;
  const char* q = p + 1;
  if (*p == '[') {
    q = skip_space(q, end);
    if (q == end && !final_) return Scan::more;
    list_root_ = true;
    saw_events = q < end && (*q == '{' || *q == ']');  // else there may still be events among its elements
    state_ = State::events;
  } else if (*p == '{') {
    state_ = State::root;
  } else {
    refusal = *p == '<' ? "it is a web page, not JSON" : "it is not JSON";
    state_ = State::refused;
  }
  p = q;
  return Scan::ok;
}

Scan Reader::step_root(const char*& p, const char* end) {
  for (; p < end && (is_space(*p) || *p == ','); ++p) wants_comma_ &= *p != ',';
  if (p == end) return Scan::more;
  if (*p == '}') {
    if (!wants_comma_ && (saw_events || !metadata.empty())) note(kNoComma, 0, offset_of(p));
    ++p;
    state_ = State::done;
    return Scan::ok;
  }
  Cursor c{p, end};
  std::string_view key, value;
  Scan s = scan_string(c, key);
  if (s == Scan::ok) {
    c.p = skip_space(c.p, end);
    s = c.p == end ? Scan::more : *c.p == ':' ? Scan::ok : c.fail("expected ':' after a key of the trace");
  }
  if (s == Scan::ok) {
    c.p = skip_space(c.p + 1, end);
    if (c.p == end) s = Scan::more;
  }
  if (s == Scan::ok && means(key, "traceEvents") && *c.p == '[') {
    if (wants_comma_) note(kNoComma, 0, offset_of(p));
    if (saw_events) note("a second list of events, read as well", 0, offset_of(p));
    p = c.p + 1;
    state_ = State::events;
    saw_events = true;
    return Scan::ok;
  }
  if (s == Scan::ok) s = scan_value(c, value);
  if (s == Scan::more && end - p > kMaxEvent) s = c.fail("a header value of over 16 MiB");
  if (s == Scan::bad) return broken(p, c.why);
  if (s == Scan::ok) {
    keep_metadata(key, value, offset_of(p));
    if (wants_comma_) note(kNoComma, 0, offset_of(p));
    wants_comma_ = true;
    p = c.p;
  }
  return s;
}

Scan Reader::step_events(const char*& p, const char* end) {
  if (spec_.templates) read_known_events(p, end);
  while (p < end && (is_space(*p) || *p == ',')) ++p;
  if (p == end) return Scan::more;
  if (*p == '{') return read_event(p, end);
  if (*p == ']') {
    ++p;
    wants_comma_ = true;
    state_ = list_root_ ? State::done : State::root;
    return Scan::ok;
  }
  if (*p == '[') return broken(p, kNoEvent);  // never skipped as a whole: a stray bracket would take all events with it
  return skip_scalar(p, end);
}

// An element that is no object. What follows is sound, unless it is a key of the trace: then the list has lost its end.
Scan Reader::skip_scalar(const char*& p, const char* end) {
  if (*p == '"' && end - p < 64 && !final_) return Scan::more;
  if (*p == '"' && at_metadata(p, end)) {
    note("the list of events does not end", 0, offset_of(p));
    state_ = State::root;
    return Scan::ok;
  }
  Cursor c{p, end};
  std::string_view raw;
  Scan s = scan_value(c, raw);
  if (s == Scan::ok) c.p = skip_space(c.p, end);
  if (s == Scan::ok && c.p == end) s = Scan::more;
  if (s == Scan::more && !final_ && end - p <= kMaxEvent) return s;
  if (s != Scan::ok || (*c.p != ',' && *c.p != ']')) return broken(p, kNoEvent);
  note(kNoEvent, static_cast<int64_t>(raw.size()), offset_of(p));
  p = c.p;
  return Scan::ok;
}

// ---- after damage

Scan Reader::broken(const char*& p, const char* why) {
  lost_from_ = offset_of(p);
  lost_why_ = why;
  state_ = State::resync;
  wants_comma_ = false;
  if (*p != '{') ++p;  // a brace may start an event that only stands in the wrong place
  return Scan::ok;
}

bool Reader::may_start_event(const char* brace, const char* end) const {
  const char* q = brace;
  while (q > piece_ && is_space(q[-1])) --q;
  if ((q > piece_ ? q[-1] : before_) == ':') return false;  // the value of a key, not an event
  Cursor c{skip_space(brace + 1, end), end};
  std::string_view key;
  const Scan s = scan_string(c, key);
  return s == Scan::more || (s == Scan::ok && among(kEventKeys, key));
}

bool Reader::at_metadata(const char* quote, const char* end) const {
  const std::string_view rest(quote + 1, static_cast<size_t>(end - quote - 1));
  for (const std::string& key : spec_.metadata_keys) {
    if (rest.size() <= key.size() || rest.substr(0, key.size()) != key || rest[key.size()] != '"') continue;
    const char* q = skip_space(quote + key.size() + 2, end);
    return q < end && *q == ':';
  }
  return false;
}

Scan Reader::step_resync(const char*& p, const char* end) {
  for (const char* q = p; q < end; ++q) {
    if (*q == '"') {
      if (end - q < 64 && !final_) {
        p = q;
        return Scan::more;
      }
      if (!at_metadata(q, end)) continue;
      state_ = State::root;
    } else if (*q == '{' && may_start_event(q, end)) {
      const char* after = q;
      const Scan s = read_general(after, end, false, true);
      if (s == Scan::more && end - q <= kMaxEvent && !final_) {
        p = q;
        return Scan::more;
      }
      if (s != Scan::ok) continue;
      state_ = State::events;
      note(lost_why_, offset_of(q) - lost_from_, lost_from_);
      p = after;
      return Scan::ok;
    } else {
      continue;
    }
    note(lost_why_, offset_of(q) - lost_from_, lost_from_);
    p = q;
    return Scan::ok;
  }
  p = end;
  return Scan::more;
}

void Reader::note(const char* reason, int64_t lost, int64_t offset) {
  auto it = std::find_if(damage.begin(), damage.end(), [&](const Damage& d) { return d.reason == reason; });
  if (it == damage.end()) it = damage.insert(damage.end(), Damage{reason, 0, 0, {}});
  ++it->count;
  it->bytes += lost;
  if (offset >= 0 && it->offsets.size() < kPlaces) it->offsets.push_back(offset);
}

void Reader::note_repairs(unsigned repairs, int64_t offset) {
  if (repairs & kBadUtf8) note("repaired: text that is not UTF-8", 0, offset);
  if (repairs & kControl) note("repaired: control characters in a text", 0, offset);
  if (repairs & kBadEscape) note("repaired: a backslash that escapes nothing", 0, offset);
  if (repairs & kBareWord) note("repaired: a bare word such as NaN", 0, offset);
  if (repairs & kRawQuote) note("repaired: a quote without its backslash", 0, offset);
  if (repairs < kCutName) return;
  if (repairs & kCutName) note("a name of over 128 KiB, cut", 0, offset);
  if (repairs & kNoName) note("a name after the first 131,072, not kept", 0, offset);
  if (repairs & kCutValue) note("an argument of over 64 KiB, cut", 0, offset);
  if (repairs & kNoArguments) note("arguments that are too many to be kept", 0, offset);
  if (repairs & kCutThread) note("a process or thread with an id of over 256 bytes, cut", 0, offset);
  if (repairs & kNoThread) note("a thread after the first 4,096, counted as the last one", 0, offset);
  if (repairs & kNoCategory) note("a category that is too long, or after the first 4,096, not kept", 0, offset);
}

// ---- handing over

void DrainedTexts::take(const std::vector<std::string_view>& texts) {
  size_t size = 0;
  for (const std::string_view text : texts) size += text.size();
  bytes.reserve(size);
  offsets.reserve(texts.size() + 1);
  for (const std::string_view text : texts) {
    bytes.insert(bytes.end(), text.begin(), text.end());
    offsets.push_back(static_cast<int32_t>(bytes.size()));
  }
}

Dictionary Reader::take_dictionary(bool last) {
  Dictionary d;
  d.first_name = names_.first();
  d.first_skeleton = skeletons_.first();
  if (last || names_full()) {
    d.names.take(names_.texts());
    names_.drain(), raw_names_.drain();
    raw_name_ids_.clear(), raw_name_repairs_.clear();
  }
  d.skeletons.take(skeletons_.texts());
  d.small.assign(small_.texts().begin(), small_.texts().end());
  for (const SkeletonInfo& info : skeleton_infos_) {
    d.phases.push_back(info.phase);
    d.categories.push_back(info.category);
    d.tables.push_back(info.table);
    d.events.push_back(info.events);
    d.total.push_back(info.total);
  }
  skeletons_.drain(), spellings_.drain();
  spelling_ids_.clear(), skeleton_infos_.clear();
  for (auto& t : templates_) t->plain_skeleton = -1;
  known_.forget();
  ++numberings_;
  return d;
}

}  // namespace stepscope
