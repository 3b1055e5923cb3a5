// Packets of a Perfetto trace that look like earlier ones: a begin whose annotations differ from those of an earlier slice of
// the same name in nothing but numbers, or a plain end. They are read in one go, without a look at what the parts mean.
// Whatever is unusual about a packet is left to the other reader, before anything of it is taken.
#include <algorithm>

#include "pftrace_quick.hpp"

namespace stepscope {

namespace {

// The time that a packet begins with, which takes nine bytes since the year 1973; false if it does not.
inline bool read_stamp(const char* packet, int64_t& time) {
  constexpr uint64_t kGoesOn = 0x8080808080808080ull;
  const uint64_t bytes = load64(packet + 1), ninth = static_cast<unsigned char>(packet[9]);
  time = static_cast<int64_t>(seven_bits_each(bytes) | ninth << 56);
  return (static_cast<unsigned char>(packet[0]) == tag_of(8, WireType::varint)) & ((bytes & kGoesOn) == kGoesOn) & (ninth < 0x80) & (time <= kFarthest);
}

}  // namespace

// An end is like the one before it but for the time.
inline bool PftraceReader::read_same_end(std::string_view packet) {
  const Sequence::End& last = last_sequence_->second.last_end;
  if (packet.size() != last.size) return false;
  int64_t time;
  if (!read_stamp(packet.data(), time) || !same_padded(packet.data() + kStamp, last.text.data(), last.size - kStamp)) return false;
  const uint32_t clock = last_sequence_->second.default_clock;
  if (clock && clock != primary_clock_) return false;
  ++packets;
  latest_ = std::max(latest_, time);
  end_plainly(time, last.track);
  return true;
}

// A begin as it is expected after the last one: the whole packet is compared but for the time, a length and the numbers.
bool PftraceReader::read_expected(std::string_view packet, const char* readable) {
  Sequence& sequence = last_sequence_->second;
  Pattern* expected = sequence.last_pattern ? sequence.last_pattern->follower : nullptr;
  if (!expected || expected->around.track < 0) return false;
  const Pattern::Around& around = expected->around;
  const char* end = packet.data() + packet.size();
  Quick all{packet.data() + kStamp, end, readable};
  int64_t time;
  if (!read_stamp(packet.data(), time) || !same_padded(all.p, around.before.data(), around.before_size)) return false;
  all.p += around.before_size;
  if (all.p >= end) return false;
  const char* event_end = all.length();
  if (!event_end || end - event_end != around.behind_size || event_end - all.p < around.head_size) return false;
  if (!same_padded(all.p, around.head.data(), around.head_size) || !same_padded(event_end, around.behind.data(), around.behind_size)) return false;
  if (sequence.default_clock && sequence.default_clock != primary_clock_) return false;
  SliceRecord slice;
  size_t count;
  Quick annotations{all.p + around.head_size, event_end, readable};
  if (!annotations.read_numbers(*expected, slice.numbers.data(), count)) return false;
  slice.head = {time, kNull, static_cast<uint32_t>(around.track), expected->shape, expected->name, 0};
  ++packets, ++slices;
  uncategorised = false;
  latest_ = std::max(latest_, time);
  sequence.last_pattern = expected;
  tie_quickly(annotations, *expected, slice);
  begin(slice.head, slice.record(count));
  return true;
}

// Most slices are of a few kinds: those that have nothing but numbers in their annotations, as one before them on the same
// track, are read with a comparison for each number, whatever their name.
bool PftraceReader::read_layout(std::string_view packet, const char* readable) {
  constexpr ptrdiff_t kLength = 1;  // bytes of a length
  const char *at = packet.data() + kStamp, *end = packet.data() + packet.size();
  Sequence& sequence = last_sequence_->second;
  const std::vector<Layout>& layouts = sequence.layouts;
  if (layouts.empty() || (sequence.default_clock && sequence.default_clock != primary_clock_)) return false;
  int64_t time;
  if (!read_stamp(packet.data(), time)) return false;
  for (size_t i = 0, which = sequence.last_layout; i < layouts.size(); ++i, ++which) {
    if (which >= layouts.size()) which = 0;
    const Layout& layout = layouts[which];
    if (!layout.opens(at)) continue;
    const char* length = at + layout.length_at;
    Quick event{at + layout.open_size, length + kLength + static_cast<unsigned char>(*length), readable};
    if (event.p >= event.end || event.end + layout.behind_size != end || ((load64(event.end) ^ layout.behind) & layout.behind_mask)) continue;
    SliceRecord slice;
    size_t count;
    if (!event.short_number(event.name) || !event.read_steps(layout, slice.numbers.data(), count)) continue;
    const Text* text = sequence.names.find(event.name);
    if (!text || text->number < 0) return false;
    slice.head = {time, kNull, layout.track, layout.shape, text->number, 0};
    ++packets, ++slices;
    uncategorised = false;
    latest_ = std::max(latest_, slice.head.time);
    sequence.last_layout = which;
    begin(slice.head, slice.record(count));
    return true;
  }
  return false;
}

// Short packets one after the other, as nearly all are, up to one that is long or has something unusual around it, or that
// does not look like earlier ones: this one was `tried`.
const char* PftraceReader::read_short_packets(const char* p, const char* end, bool& tried) {
  constexpr ptrdiff_t kHead = 2, kLongest = 0x7f, kFetchedAhead = 1024;
  while (end - p > kHead + kLongest + static_cast<ptrdiff_t>(kLookedAt)) {
    const auto size = static_cast<unsigned char>(p[1]);
    const char* body = p + kHead;
    if (p[0] != '\n' || size > kLongest || body[size] != '\n') break;
    __builtin_prefetch(body + kFetchedAhead), __builtin_prefetch(body + kFetchedAhead + 64);
    if (!read_quickly({body, size}, end)) {
      tried = true;
      break;
    }
    p = body + size;
  }
  return p;
}

bool PftraceReader::read_quickly(std::string_view packet, const char* readable) {
  const bool room = packet.size() > kStamp && readable - packet.data() >= static_cast<ptrdiff_t>(packet.size() + kLookedAt);
  if (room && last_sequence_ && (read_same_end(packet) || read_layout(packet, readable) || read_expected(packet, readable))) return true;
  return read_alike(packet, readable);
}

// The same of a packet whose fields may come in any order: apart, because the way of most packets is to be short.
[[gnu::noinline]] bool PftraceReader::read_alike(std::string_view packet, const char* readable) {
  Quick all{packet.data(), packet.data() + packet.size(), readable}, event{};
  uint64_t stamp = 0, number = 0, flags = 0;
  bool stamped = false;
  while (all.p < all.end) {
    bool fine = true;
    switch (static_cast<unsigned char>(*all.p++)) {
      case tag_of(8, WireType::varint): fine = stamped = all.varint(stamp); break;
      case tag_of(10, WireType::varint): fine = all.varint(number); break;
      case tag_of(13, WireType::varint): fine = all.varint(flags); break;
      case tag_of(11, WireType::bytes): {
        const char* after = all.length();
        if (!after) return false;
        event = {all.p, after, readable};
        all.p = after;
        break;
      }
      default: return false;
    }
    if (!fine) return false;
  }
  if (!event.p || !stamped || flags & 1 || stamp > static_cast<uint64_t>(kFarthest)) return false;
  if (!last_sequence_ || last_sequence_->first != static_cast<uint32_t>(number)) {
    const auto it = sequences_.find(static_cast<uint32_t>(number));
    if (it == sequences_.end()) return false;
    last_sequence_ = &*it;
  }
  Sequence& sequence = last_sequence_->second;
  if (!sequence.epoch || (sequence.default_clock && sequence.default_clock != primary_clock_)) return false;
  if (!event.read_fields() || !read_event_quickly(event, sequence, static_cast<int64_t>(stamp))) return false;
  if (!any_track_ || last_uuid_ != event.track) return true;
  if (event.type == kEnd) learn_end(packet, sequence);
  else if (learn_around(packet, event, *sequence.last_pattern)) learn_layout(event, sequence);
  return true;
}

bool PftraceReader::read_event_quickly(Quick& event, Sequence& sequence, int64_t time) {
  SliceRecord slice;
  slice.head = {time, kIsEnd, 0, -1, 0, 0};
  size_t count = 0;
  if (event.type == kEnd) {
    if (event.name || event.category || event.flows || event.p < event.end) return false;
  } else {
    Pattern* found = event.type == kBegin && event.name && event.category ? find_pattern(event, sequence, slice, count) : nullptr;
    if (!found) return false;
    slice.head.dur = kNull, slice.head.shape = found->shape, slice.head.name = found->name;
    sequence.met(found);
    tie_quickly(event, *found, slice);
    uncategorised = false;
    ++slices;
  }
  ++packets;
  if (origin_ == kNull) origin_ = time;
  latest_ = std::max(latest_, time);
  slice.head.track = track_number(event.track);
  if (event.type == kEnd) end_plainly(time, slice.head.track);
  else begin(slice.head, slice.record(count));
  return true;
}

// The pattern that followed the last one before, the last one that looked like this, or another one of the name.
Pattern* PftraceReader::find_pattern(Quick& event, Sequence& sequence, SliceRecord& slice, size_t& count) {
  constexpr size_t kMostTried = 64;
  const auto fits = [&](const Pattern& pattern) {
    if (pattern.category_iid != event.category || (event.flows && !pattern.tied)) return false;
    Quick annotations{event.p, event.end, event.readable};
    if (!annotations.read_numbers(pattern, slice.numbers.data(), count)) return false;
    event.launched = annotations.launched;
    return true;
  };
  Pattern* expected = sequence.last_pattern ? sequence.last_pattern->follower : nullptr;
  if (expected && expected->name_iid == event.name && fits(*expected)) return expected;
  Recent& recent = recent_[event.fingerprint() % recent_.size()];
  if (recent.learning == sequence.learning && recent.pattern->name_iid == event.name && fits(*recent.pattern)) return recent.pattern;
  Text* text = sequence.names.find(event.name);
  if (!text) return nullptr;
  Pattern** from = &text->patterns;
  for (size_t tried = 0; *from && tried < kMostTried; ++tried, from = &(*from)->chained) {
    Pattern* pattern = *from;
    if (pattern == expected || !fits(*pattern)) continue;
    *from = pattern->chained;
    pattern->chained = text->patterns;
    recent = {pattern, sequence.learning};
    return text->patterns = pattern;
  }
  return nullptr;
}

void PftraceReader::tie_quickly(const Quick& event, const Pattern& pattern, const SliceRecord& slice) {
  if (!event.launched) return;
  ids_.clear();
  read_launched({event.launched, event.end});
  tie(slice.numbers[static_cast<size_t>(pattern.ties)]);
}

}  // namespace stepscope
