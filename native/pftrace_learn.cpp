// What is kept of packets of a Perfetto trace that were read, so that those that look like them are read quickly.
#include <algorithm>
#include <cstring>

#include "pftrace_quick.hpp"

namespace stepscope {

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
