#include "pftrace_writer.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

namespace stepscope {

namespace {

constexpr int64_t kOpenEnd = std::numeric_limits<int64_t>::max();
constexpr int kDeepest = 16;
constexpr size_t kPiece = 1 << 20;

struct Written {
  int64_t dur, flow;
};

bool is_string(std::string_view json) { return json.size() >= 2 && json.front() == '"'; }

std::string plain(std::string_view json) {
  unsigned ignored = 0;
  return is_string(json) ? unescape(json.substr(1, json.size() - 2), ignored) : std::string(json);
}

}  // namespace

void WireWriter::varint(uint64_t value) {
  for (; value > 0x7f; value >>= 7) out.push_back(static_cast<char>((value & 0x7f) | 0x80));
  out.push_back(static_cast<char>(value));
}

void WireWriter::fixed(uint32_t field, uint64_t value) {
  key(field, 1);
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void WireWriter::real(uint32_t field, double value) { fixed(field, std::bit_cast<uint64_t>(value)); }

// ---- in

void PftraceWriter::add(const WrittenEvents& events) {
  for (size_t i = 0; i < events.rows; ++i) {
    if (events.start[i] == kNull || events.track[i] < 0 || events.track[i] > std::numeric_limits<uint32_t>::max()) {
      ++odd;
      continue;
    }
    const Written head{events.dur[i], events.flow[i]};
    record_.assign(reinterpret_cast<const char*>(&head), sizeof head);
    record_.append(events.text + events.offsets[i], static_cast<size_t>(events.offsets[i + 1] - events.offsets[i]));
    sorter_.add({static_cast<uint32_t>(events.track[i]), events.start[i], -std::max<int64_t>(head.dur, 0), static_cast<uint64_t>(events.event[i])}, record_);
  }
}

// ---- out

std::string PftraceWriter::next() {
  if (!std::exchange(sorted_, true)) sorter_.finish();
  SortKey key;
  std::string_view record;
  bool more = true;
  while (out_.size() < kPiece && (more = sorter_.next(key, record))) {
    if (key.track != track_) end_track();
    track_ = key.track;
    write(key, record);
  }
  if (!more) end_track();
  return std::exchange(out_, {});
}

void PftraceWriter::write(const SortKey& key, std::string_view record) {
  Written head;
  std::memcpy(&head, record.data(), sizeof head);
  record.remove_prefix(sizeof head);
  ++slices;
  if (head.dur == kNull) return begin(record, uuid_of(key.track), key.time, head.flow, true);
  const int64_t end = saturating_add(key.time, head.dur);
  const size_t lane = lane_for(key.time, end);
  lanes_[lane].ends.push_back(end);
  begin(record, uuid_of(key.track) + lane, key.time, head.flow, false);
}

// The first lane where it is inside what is open there, or where nothing is open.
size_t PftraceWriter::lane_for(int64_t start, int64_t end) {
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    close(lane, start);
    if (lanes_[lane].ends.empty() || lanes_[lane].ends.back() >= end) return lane;
  }
  if (lanes_.size() >= kMostLanes) return kMostLanes - 1;
  lanes_.emplace_back();
  if (lanes_.size() > 1) describe(lanes_.size() - 1);
  return lanes_.size() - 1;
}

void PftraceWriter::close(size_t lane, int64_t until) {
  auto& ends = lanes_[lane].ends;
  while (!ends.empty() && ends.back() <= until) {
    event_.clear();
    event_.number(9, 2);
    event_.number(11, uuid_of(track_) + lane);
    packet(ends.back(), event_, false);
    ends.pop_back();
  }
}

void PftraceWriter::end_track() {
  for (size_t lane = 0; lane < lanes_.size(); ++lane) close(lane, kOpenEnd);
  lanes_.clear();
}

void PftraceWriter::describe(size_t lane) {
  ++lanes;
  WireWriter track, whole;
  track.number(1, uuid_of(track_) + lane);
  track.number(5, uuid_of(track_));
  track.text(2, "overlapping " + std::to_string(lane + 1));
  whole.text(60, track.out);
  WireWriter trace;
  trace.text(1, whole.out);
  out_ += trace.out;
}

int32_t PftraceWriter::numbered(Interner& texts, uint32_t field, std::string_view text) {
  const uint64_t hash = hash_bytes(text);
  int32_t known = texts.find(text, hash);
  if (known >= 0) return known + 1;
  known = texts.add(text, hash);
  WireWriter entry;
  entry.number(1, static_cast<uint64_t>(known) + 1);
  entry.text(2, text);
  texts_.text(field, entry.out);
  return known + 1;
}

void PftraceWriter::begin(std::string_view text, uint64_t uuid, int64_t start, int64_t flow, bool instant) {
  const size_t brace = text.find('{');
  if (brace == std::string_view::npos) return;
  Cursor c{text.data() + brace, text.data() + text.size()};
  if (scan_event(c, members_) != Scan::ok) members_.clear();
  event_.clear();
  event_.number(9, instant ? 3 : 1);
  event_.number(11, uuid);
  const std::string_view name = member_value(members_.all, "name"), category = member_value(members_.all, "cat");
  if (is_string(name)) event_.number(10, static_cast<uint64_t>(numbered(names_, 2, plain(name))));
  if (is_string(category)) event_.number(3, static_cast<uint64_t>(numbered(categories_, 1, plain(category))));
  if (flow != kNull) event_.fixed(47, static_cast<uint64_t>(flow));
  for (const Member& member : members_.all) {
    if (!member.in_args) continue;
    WireWriter annotation;
    annotation.number(1, static_cast<uint64_t>(numbered(keys_, 3, member.key)));
    annotate(annotation, member.value, 0);
    event_.text(4, annotation.out);
  }
  packet(start, event_, true);
}

// A JSON value as an annotation: numbers as what they are, lists and objects element by element.
void PftraceWriter::annotate(WireWriter& to, std::string_view json, int depth) {
  if (json.empty()) return;
  const char first = json.front();
  if (first == '"') return to.text(6, plain(json));
  if (json == "true" || json == "false") return to.number(2, json == "true");
  if (json == "null") return to.text(6, "null");
  if ((first == '[' || first == '{') && depth < kDeepest) {
    Cursor c{json.data() + 1, json.data() + json.size()};
    while (true) {
      while (c.p < c.end && (is_space(*c.p) || *c.p == ',')) ++c.p;
      if (c.p >= c.end || *c.p == ']' || *c.p == '}') return;
      WireWriter inner;
      std::string_view key, value;
      if (first == '{') {
        if (scan_string(c, key) != Scan::ok) return;
        while (c.p < c.end && (is_space(*c.p) || *c.p == ':')) ++c.p;
        unsigned ignored = 0;
        inner.text(10, unescape(key, ignored));
      }
      if (scan_value(c, value) != Scan::ok) return;
      annotate(inner, value, depth + 1);
      to.text(first == '{' ? 11 : 12, inner.out);
    }
  }
  const char* p = json.data();
  int64_t whole;
  double real;
  if (read_int(p, json.data() + json.size(), whole) && p == json.data() + json.size()) to.number(4, static_cast<uint64_t>(whole));
  else if (json.find_first_of(".eE") != std::string_view::npos && read_double_text(json, real)) to.real(5, real);
  else to.text(6, json);
}

void PftraceWriter::packet(int64_t time, const WireWriter& event, bool needs_texts) {
  packet_.clear();
  packet_.number(8, static_cast<uint64_t>(saturating_add(base_, time)));
  packet_.number(10, 1);
  if (!texts_.out.empty()) packet_.text(12, texts_.out), texts_.clear();
  packet_.text(11, event.out);
  if (first_ || needs_texts) packet_.number(13, std::exchange(first_, false) ? 1 : 2);
  WireWriter trace;
  trace.text(1, packet_.out);
  out_ += trace.out;
}

std::string PftraceWriter::readings(const int64_t* descriptor, const int64_t* counter, const int64_t* time, const int64_t* value,
                                    size_t rows) const {
  std::string out;
  for (size_t i = 0; i < rows; ++i) {
    WireWriter reading, event, whole, trace;
    reading.number(1, static_cast<uint64_t>(counter[i]));
    reading.real(3, std::bit_cast<double>(value[i]));
    event.number(4, static_cast<uint64_t>(descriptor[i]));
    event.text(2, reading.out);
    whole.number(8, static_cast<uint64_t>(saturating_add(base_, time[i])));
    whole.number(10, 2);
    whole.text(52, event.out);
    whole.number(13, 2);
    trace.text(1, whole.out);
    out += trace.out;
  }
  return out;
}

}  // namespace stepscope
