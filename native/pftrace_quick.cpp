// Packets of a Perfetto trace that look like earlier ones: a begin whose annotations differ from those of an earlier slice of
// the same name in nothing but numbers, or a plain end. They are read in one go, without a look at what the parts mean.
// Whatever is unusual about a packet is left to the other reader, before anything of it is taken.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "pftrace.hpp"

namespace stepscope {

namespace {

constexpr ptrdiff_t kRoom = 10;  // bytes that may be looked at for a number
constexpr size_t kStamp = 10;    // bytes of a time and its tag
constexpr size_t kLookedAt = 32;  // bytes behind a packet that are looked at
constexpr int kBegin = 1, kEnd = 2;

constexpr unsigned tag_of(unsigned field, WireType type) { return field << 3 | static_cast<unsigned>(type); }
constexpr unsigned kAnnotation = tag_of(4, WireType::bytes);

}  // namespace

// A message, and up to where bytes may be looked at behind it.
struct PftraceReader::Quick {
  const char* p;
  const char* end;
  const char* readable;
  const char* first = p;
  // What was found of an event.
  uint64_t type = 0, track = 0, name = 0, category = 0;
  bool tracked = false, flows = false;
  const char* launched = nullptr;  // what stands behind the annotations, up to the end

  bool varint(uint64_t& out) { return readable - p >= kRoom ? read_varint_quickly(p, out) && p <= end : read_varint(p, end, out); }

  // The end of what has a length and begins at p; nullptr if it runs over the end.
  const char* length() {
    uint64_t size;
    return read_varint(p, end, size) && size <= static_cast<uint64_t>(end - p) ? p + size : nullptr;
  }

  bool read_fields() {
    while (p < end && static_cast<unsigned char>(*p) != kAnnotation) {
      bool fine = true;
      switch (static_cast<unsigned char>(*p++)) {
        case tag_of(9, WireType::varint): fine = varint(type); break;
        case tag_of(11, WireType::varint): fine = tracked = varint(track); break;
        case tag_of(10, WireType::varint): fine = name == 0 && varint(name) && name; break;
        case tag_of(3, WireType::varint): fine = category == 0 && varint(category) && category; break;
        case 0xf9:  // an arrow: field 47, in eight bytes
          if (end - p < 9 || *p != 2) return false;
          flows = true;
          p += 9;
          break;
        default: return false;
      }
      if (!fine) return false;
    }
    return tracked;
  }

  bool follows(const Pattern::Piece& piece, const std::string& text) const {
    if (piece.size <= 8 && readable - p >= 8) return ((load64(p) ^ piece.word) & piece.mask) == 0;
    const char* all = text.data() + piece.at;
    if (piece.kind == 0) return same_bytes(p, all, piece.size);
    return *p == *all && same_bytes(p + 2, all + 2, piece.size - 2);  // but for the length
  }

  // A number that takes all bytes up to `after`.
  bool number_until(const char* after, int64_t& out) {
    constexpr uint64_t kGoesOn = 0x8080808080808080ull;
    const auto size = static_cast<uint64_t>(after - p);
    if (size - 1 < 8 && readable - p >= 8) {
      const uint64_t all = ~uint64_t{0} >> (64 - 8 * size);
      const uint64_t bytes = load64(p) & all;
      out = static_cast<int64_t>(seven_bits_each(bytes));
      p = after;
      return (bytes & kGoesOn) == (kGoesOn & all >> 8);
    }
    uint64_t value;
    if (!varint(value) || value >= static_cast<uint64_t>(kPlainNumber)) return false;  // negative ones are rare
    out = static_cast<int64_t>(value);
    return p == after;
  }

  bool real_until(const char* after, int64_t& out) {
    if (after - p != 8) return false;
    std::memcpy(&out, p, 8);
    p = after;
    return is_plain(std::bit_cast<double>(out));
  }

  // The numbers of annotations that look like the pattern's, and of nothing else.
  bool read_numbers(const Pattern& pattern, int64_t* numbers, size_t& count) {
    int64_t* to = numbers;
    for (const Pattern::Piece& piece : pattern.pieces) {
      if (end - p < static_cast<ptrdiff_t>(piece.size) || !follows(piece, pattern.text)) return false;
      if (piece.kind == 0) {
        p += piece.size;
        continue;
      }
      const char* after = p + 2 + static_cast<unsigned char>(p[1]);
      p += piece.size;
      if (after > end) return false;
      if (piece.kind == 1) {
        if (!number_until(after, *to++)) return false;
      } else if (!real_until(after, *to++)) {
        return false;
      }
    }
    count = static_cast<size_t>(to - numbers);
    return p == end || (pattern.ties >= 0 && read_launched());
  }

  // The events of a GPU that a launch started: field 3000, with numbers one by one.
  bool read_launched() {
    constexpr std::string_view kTag = "\xc2\xbb\x01";
    if (end - p <= static_cast<ptrdiff_t>(kTag.size()) || std::string_view(p, kTag.size()) != kTag) return false;
    p += kTag.size();
    if (length() != end) return false;
    launched = p;
    for (uint64_t id; p < end;)
      if (static_cast<unsigned char>(*p++) != tag_of(1, WireType::varint) || !read_varint(p, end, id)) return false;
    return true;
  }

  // The same of a layout, where more bytes than it looks at can be read behind the end.
  bool read_steps(const Layout& layout, int64_t* numbers, size_t& count) {
    int64_t* to = numbers;
    for (const Layout::Step& step : layout.steps) {
      if ((load64(p) ^ step.word) & step.mask) return false;
      const char* after = p + step.length_at + 1 + static_cast<unsigned char>(p[step.length_at]);
      p += step.size;
      if (after > end || !(step.real ? real_until(after, *to++) : number_until(after, *to++))) return false;
    }
    count = static_cast<size_t>(to - numbers);
    return p == end;
  }
};

// An end is like the one before it but for the time, which comes first and takes nine bytes since the year 1973.
bool PftraceReader::read_same_end(std::string_view packet, const char* readable) {
  const Sequence::End& last = last_sequence_->second.last_end;
  const char* p = packet.data();
  if (packet.size() != last.size) return false;
  if (static_cast<unsigned char>(*p) != tag_of(8, WireType::varint)) return false;
  uint64_t stamp;
  ++p;
  if (!read_varint_quickly(p, stamp) || p != packet.data() + kStamp || !same_padded(p, last.text.data(), last.size - kStamp)) return false;
  const uint32_t clock = last_sequence_->second.default_clock;
  if (stamp > static_cast<uint64_t>(kFarthest) || (clock && clock != primary_clock_)) return false;
  const auto time = static_cast<int64_t>(stamp);
  ++packets;
  latest_ = std::max(latest_, time);
  const PackedSlice head{time, kIsEnd, last.track, -1, 0, 0};
  end(head, {reinterpret_cast<const char*>(&head), sizeof head});
  return true;
}

void PftraceReader::learn_end(std::string_view packet, Sequence& sequence) {
  Sequence::End& last = sequence.last_end;
  last.size = 0;
  Wire wire(packet);
  if (!wire.next() || wire.field != 8 || wire.p != packet.data() + kStamp || packet.size() > kStamp + last.text.size()) return;
  while (wire.next())
    if (wire.field == 8) return;  // the last one counts
  last.size = packet.size();
  last.text.fill(0);
  std::copy(packet.begin() + kStamp, packet.end(), last.text.begin());
  last.track = last_track_;
}

// A begin as it is expected after the last one: the whole packet is compared but for the time, a length and the numbers.
bool PftraceReader::read_expected(std::string_view packet, const char* readable) {
  Sequence& sequence = last_sequence_->second;
  Pattern* expected = sequence.last_pattern ? sequence.last_pattern->follower : nullptr;
  if (!expected || expected->around.track < 0) return false;
  const Pattern::Around& around = expected->around;
  const char* end = packet.data() + packet.size();
  Quick all{packet.data() + 1, end, readable};
  uint64_t stamp;
  if (static_cast<unsigned char>(packet[0]) != tag_of(8, WireType::varint) || !all.varint(stamp) || all.p != packet.data() + kStamp) return false;
  if (!same_padded(all.p, around.before.data(), around.before_size)) return false;
  all.p += around.before_size;
  if (all.p >= end) return false;
  const char* event_end = all.length();
  if (!event_end || end - event_end != around.behind_size || event_end - all.p < around.head_size) return false;
  if (!same_padded(all.p, around.head.data(), around.head_size) || !same_padded(event_end, around.behind.data(), around.behind_size)) return false;
  if (stamp > static_cast<uint64_t>(kFarthest)) return false;
  if (sequence.default_clock && sequence.default_clock != primary_clock_) return false;
  SliceRecord slice;
  size_t count;
  Quick annotations{all.p + around.head_size, event_end, readable};
  if (!annotations.read_numbers(*expected, slice.numbers.data(), count)) return false;
  const auto time = static_cast<int64_t>(stamp);
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
  const char *at = packet.data() + 1, *end = packet.data() + packet.size();
  Sequence& sequence = last_sequence_->second;
  const std::vector<Layout>& layouts = sequence.layouts;
  if (layouts.empty() || (sequence.default_clock && sequence.default_clock != primary_clock_)) return false;
  uint64_t stamp;
  if (static_cast<unsigned char>(packet[0]) != tag_of(8, WireType::varint) || !read_varint_quickly(at, stamp)) return false;
  if (at != packet.data() + kStamp || stamp > static_cast<uint64_t>(kFarthest)) return false;
  for (size_t i = 0, which = sequence.last_layout; i < layouts.size(); ++i, ++which) {
    if (which >= layouts.size()) which = 0;
    const Layout& layout = layouts[which];
    if (!layout.opens(at)) continue;
    const char* length = at + layout.length_at;
    Quick event{at + layout.open_size, length + kLength + static_cast<unsigned char>(*length), readable};
    if (event.p >= event.end || event.end + layout.behind_size != end || ((load64(event.end) ^ layout.behind) & layout.behind_mask)) continue;
    SliceRecord slice;
    size_t count;
    if (!event.varint(event.name) || !event.read_steps(layout, slice.numbers.data(), count)) continue;
    const Text* text = sequence.names.find(event.name);
    if (!text || text->number < 0) return false;
    slice.head = {static_cast<int64_t>(stamp), kNull, layout.track, layout.shape, text->number, 0};
    ++packets, ++slices;
    uncategorised = false;
    latest_ = std::max(latest_, slice.head.time);
    sequence.last_layout = which;
    begin(slice.head, slice.record(count));
    return true;
  }
  return false;
}

// Keeps the layout of a begin that was just read, if its fields are short and its annotations are numbers.
void PftraceReader::learn_layout(const Quick& event, Sequence& sequence) {
  constexpr size_t kMostLayouts = 8;
  const Pattern& like = *sequence.last_pattern;
  const Pattern::Around& around = like.around;
  if (like.pieces.empty() || sequence.layouts.size() >= kMostLayouts) return;
  Layout made;
  made.track = last_track_, made.shape = like.shape;
  Wire wire({event.first, static_cast<size_t>(event.p - event.first)});
  std::string_view before, after;  // the name
  for (const char* at = wire.p; wire.next(); at = wire.p)
    if (wire.field == 10) before = {event.first, at + 1}, after = {wire.p, event.p};
  if (before.empty() || !made.set_ends(around, before) || !made.set_steps(like, after)) return;
  if (std::find(sequence.layouts.begin(), sequence.layouts.end(), made) != sequence.layouts.end()) return;
  make_room(made.bytes(), sequence);
  sequence.layouts.push_back(std::move(made));
}

bool Layout::set_ends(const Pattern::Around& around, std::string_view before) {
  const size_t size = around.before_size + 1u + before.size();
  if (size > open.size() || around.behind_size > sizeof behind) return false;
  open_size = static_cast<uint8_t>(size), length_at = around.before_size, behind_size = around.behind_size;
  std::copy_n(around.before.data(), around.before_size, open.data());
  std::copy(before.begin(), before.end(), open.data() + length_at + 1);
  std::fill_n(mask.data(), size, '\xff');
  mask[length_at] = '\x80';  // a length of one byte
  std::memcpy(&behind, around.behind.data(), behind_size);
  behind_mask = behind_size == sizeof behind ? ~uint64_t{0} : (uint64_t{1} << 8 * behind_size) - 1;
  return true;
}

// What follows the name goes with the first annotation.
bool Layout::set_steps(const Pattern& like, std::string_view after) {
  for (const Pattern::Piece& piece : like.pieces) {
    if (piece.kind == 0 || piece.size + after.size() > 8) return false;
    const auto shift = 8 * after.size();
    Step step{piece.word << shift, piece.mask << shift | ((uint64_t{1} << shift) - 1), static_cast<uint8_t>(piece.size + after.size()),
              static_cast<uint8_t>(after.size() + 1), piece.kind == 2};
    for (size_t i = 0; i < after.size(); ++i) step.word |= static_cast<uint64_t>(static_cast<unsigned char>(after[i])) << 8 * i;
    steps.push_back(step);
    after = {};
  }
  return true;
}

// Keeps how the packet of a begin that was just read is written around its annotations; false if that is known, or unusual.
bool PftraceReader::learn_around(std::string_view packet, const Quick& event, Pattern& pattern) {
  if (pattern.around.track == last_track_) return false;
  Pattern::Around around;
  Wire wire(packet);
  if (event.flows || !wire.next() || wire.field != 8 || wire.p != packet.data() + kStamp) return false;
  size_t events = 0;
  const char* length = nullptr;  // where that of the event begins
  for (const char* at = wire.p; wire.next(); at = wire.p) {
    if (wire.field == 8) return false;  // the last one counts
    if (wire.field == 11) ++events, length = at + 1;
  }
  if (events != 1) return false;
  const char *from = packet.data() + kStamp, *end = packet.data() + packet.size();
  const auto keep = [](auto& to, uint8_t& size, const char* first, const char* last) {
    if (last - first > static_cast<ptrdiff_t>(to.size())) return false;
    std::copy(first, last, to.begin());
    size = static_cast<uint8_t>(last - first);
    return true;
  };
  if (!keep(around.before, around.before_size, from, length) || !keep(around.behind, around.behind_size, event.end, end) ||
      !keep(around.head, around.head_size, event.first, event.p)) return false;
  around.track = last_track_;
  pattern.around = around;
  return true;
}

bool PftraceReader::read_quickly(std::string_view packet, const char* readable) {
  const bool room = packet.size() > kStamp && readable - packet.data() >= static_cast<ptrdiff_t>(packet.size() + kLookedAt);
  if (room && last_sequence_ && (read_same_end(packet, readable) || read_layout(packet, readable) || read_expected(packet, readable))) return true;
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
  if (event.type == kEnd) end(slice.head, slice.record(0));
  else begin(slice.head, slice.record(count));
  return true;
}

// The pattern that followed the last one before, or another one of the name.
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
  Text* text = sequence.names.find(event.name);
  if (!text) return nullptr;
  Pattern** from = &text->patterns;
  for (size_t tried = 0; *from && tried < kMostTried; ++tried, from = &(*from)->chained) {
    Pattern* pattern = *from;
    if (pattern == expected || !fits(*pattern)) continue;
    *from = pattern->chained;
    pattern->chained = text->patterns;
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

// Keeps what the slice that was just read looks like, by raw_shape_.
void PftraceReader::learn_pattern(const TrackEvent& event, Sequence& sequence, const Slice& slice) {
  constexpr size_t kMostChained = 256;
  const bool usual = event.type == kBegin && event.name >= 0 && event.name_iid && event.category_iid && keys_known_;
  if (!usual) return;
  auto made = std::make_unique<Pattern>();
  made->name_iid = event.name_iid, made->category_iid = event.category_iid;
  made->shape = slice.shape, made->name = event.name;
  const bool runtime = categories_[static_cast<size_t>(event.category)].runtime;
  made->tied = event.correlation != kNull || !runtime;
  if (!add_pieces(*made)) return;
  if (!runtime || correlations_ != 1) made->ties = -1;
  if (made->ties < 0 && !ids_.empty()) return;
  Pattern*& first = sequence.names.at(event.name_iid).patterns;
  size_t others = 0;
  for (Pattern* one = first; one; one = one->chained, ++others)  // it may be there, behind those that are tried
    if (one->shape == made->shape && one->text == made->text && one->category_iid == made->category_iid) return sequence.met(one);
  if (others >= kMostChained) return;
  make_room(made->bytes(), sequence);
  made->chained = first;
  first = made.get();
  sequence.met(first);
  sequence.patterns.push_back(std::move(made));
}

// What its annotations look like, each with its tag and length; false if a number is not written as usual.
bool PftraceReader::add_pieces(Pattern& to) const {
  size_t at = 12;  // behind the head of raw_shape_
  int8_t numbers = 0;
  for (const std::string_view annotation : annotations_) {
    const auto kind = static_cast<uint8_t>(raw_shape_[at]);
    std::string_view kept = annotation;
    if (kind) {
      Wire wire(annotation);
      wire.next();
      const auto value = static_cast<size_t>(wire.p - annotation.data()) + 1;
      const unsigned tag = value < annotation.size() ? static_cast<unsigned char>(annotation[value - 1]) : 0;
      if (tag != tag_of(3, WireType::varint) && tag != tag_of(4, WireType::varint) && tag != tag_of(5, WireType::fixed64)) return false;
      kept = annotation.substr(0, value);
      uint32_t key;
      std::memcpy(&key, raw_shape_.data() + at + 1, sizeof key);
      if (kind == 1 && keys_[key].correlation) to.ties = numbers;
      ++numbers;
    }
    at += kind ? 5 : 5 + annotation.size();
    const size_t from = to.text.size();
    to.text += static_cast<char>(kAnnotation);
    for (size_t rest = annotation.size();; rest >>= 7) {
      to.text += static_cast<char>(rest < 0x80 ? rest : rest | 0x80);
      if (rest < 0x80) break;
    }
    if (kind && to.text.size() - from > 2) return false;
    if (kind) to.text.back() = 0;  // a length of one byte is skipped
    to.text += kept;
    Pattern::Piece piece{static_cast<uint32_t>(from), static_cast<uint32_t>(to.text.size() - from), kind, 0, 0};
    std::memcpy(&piece.word, to.text.data() + from, std::min<size_t>(piece.size, 8));
    piece.mask = piece.size >= 8 ? ~uint64_t{0} : (uint64_t{1} << 8 * piece.size) - 1;
    if (kind) piece.mask &= ~uint64_t{0xff00};
    to.pieces.push_back(piece);
  }
  return true;
}

}  // namespace stepscope
