// Boxes of a list as bytes, a few hundred at a time.
#include <algorithm>
#include <cstring>

#include "timeline.hpp"

namespace stepscope {

namespace {

// How the boxes of a chunk are written, column after column: names, starts, durations, events, then counts and busy times.
enum Form : uint32_t {
  kSingle,  // differences of four bytes, all of one event
  kMerged,  // the same, with counts and busy times
  kWide,    // whole numbers
  kForms,
};
constexpr size_t kBytes[kForms] = {16, 24, 41};  // of a box
static_assert(kMostChunkBytes == kChunkBoxes * kBytes[kWide]);
constexpr uint32_t kNameBits = 28, kNarrowName = (1u << kNameBits) - 1;
constexpr uint64_t kNarrow = std::numeric_limits<uint32_t>::max();

void add_word(uint64_t& sum, uint64_t word) {
  sum = (sum ^ word) * 0xbf58476d1ce4e5b9u;
  sum ^= sum >> 31;
}

// Four sums side by side: each step of one waits for the step before.
uint64_t sum_of(const char* bytes, size_t size) {
  constexpr size_t kSums = 4;
  uint64_t sums[kSums] = {size * 0x9e3779b97f4a7c15u, 1, 2, 3}, words[kSums];
  size_t at = 0;
  for (; at + sizeof words <= size; at += sizeof words) {
    std::memcpy(words, bytes + at, sizeof words);
    for (size_t i = 0; i < kSums; ++i) add_word(sums[i], words[i]);
  }
  std::memset(words, 0, sizeof words);
  std::memcpy(words, bytes + at, size - at);
  for (size_t i = 0; i < kSums; ++i) add_word(sums[i], words[i]);
  for (size_t i = 1; i < kSums; ++i) add_word(sums[0], sums[i]);
  return sums[0];
}

int64_t busy_of(const Box& box) { return box.busy; }
int64_t busy_of(const LaneEvent& event) { return event.dur; }
uint32_t count_of(const Box& box) { return box.count; }
uint32_t count_of(const LaneEvent&) { return 1; }

uint64_t after(int64_t a, int64_t b) { return static_cast<uint64_t>(a) - static_cast<uint64_t>(b); }

// What is told of a chunk, and the form that its boxes fit into.
template <class T>
BoxChunk chunk_of(const std::vector<T>& boxes) {
  BoxChunk chunk{boxes[0].start, kNull, 0, boxes[0].event, 0, static_cast<uint32_t>(boxes.size()), kSingle};
  uint64_t widest = 0;
  int64_t last_event = kNull;
  bool wide_name = false, merged = false;
  for (const T& box : boxes) {
    chunk.event_from = std::min(chunk.event_from, box.event);
    last_event = std::max(last_event, box.event);
    chunk.last_end = std::max(chunk.last_end, saturating_add(box.start, box.dur));
    widest = std::max({widest, after(box.start, chunk.first), static_cast<uint64_t>(box.dur), static_cast<uint64_t>(busy_of(box))});
    wide_name |= box.name >= kNarrowName && box.name != kNoName;
    merged |= count_of(box) != 1;
  }
  if (wide_name || std::max(widest, after(last_event, chunk.event_from)) >= kNarrow)
    chunk.form = kWide;
  else if (merged)
    chunk.form = kMerged;
  return chunk;
}

template <class T, class Boxes, class Of>
char* put_column(char* to, const Boxes& boxes, Of of) {
  for (const auto& box : boxes) {
    const T value = static_cast<T>(of(box));
    std::memcpy(to, &value, sizeof(T));
    to += sizeof(T);
  }
  return to;
}

template <class T>
void put_columns(char* to, const std::vector<T>& boxes, const BoxChunk& chunk) {
  if (chunk.form == kWide) {
    to = put_column<uint32_t>(to, boxes, [](const T& box) { return box.name; });
    to = put_column<int64_t>(to, boxes, [](const T& box) { return box.start; });
    to = put_column<int64_t>(to, boxes, [](const T& box) { return box.dur; });
    to = put_column<int64_t>(to, boxes, [](const T& box) { return box.event; });
    to = put_column<uint32_t>(to, boxes, [](const T& box) { return count_of(box); });
    to = put_column<int64_t>(to, boxes, [](const T& box) { return busy_of(box); });
    put_column<uint8_t>(to, boxes, [](const T& box) { return box.kind; });
    return;
  }
  const int64_t from = chunk.first, event_from = chunk.event_from;
  to = put_column<uint32_t>(to, boxes, [](const T& box) { return (box.name == kNoName ? kNarrowName : box.name) | uint32_t{box.kind} << kNameBits; });
  to = put_column<uint32_t>(to, boxes, [from](const T& box) { return box.start - from; });
  to = put_column<uint32_t>(to, boxes, [](const T& box) { return box.dur; });
  to = put_column<uint32_t>(to, boxes, [event_from](const T& box) { return box.event - event_from; });
  if (chunk.form == kSingle) return;
  to = put_column<uint32_t>(to, boxes, [](const T& box) { return count_of(box); });
  put_column<uint32_t>(to, boxes, [](const T& box) { return busy_of(box); });
}

template <class T>
BoxChunk put_chunk(char* to, const std::vector<T>& boxes) {
  BoxChunk chunk = chunk_of(boxes);
  put_columns(to, boxes, chunk);
  chunk.sum = sum_of(to, bytes_of(chunk));
  return chunk;
}

template <class T, class To>
const char* take_column(const char* from, std::vector<Box>& boxes, To to) {
  for (Box& box : boxes) {
    T value;
    std::memcpy(&value, from, sizeof(T));
    to(box, value);
    from += sizeof(T);
  }
  return from;
}

// Numbers wrap around where a file was written to deceive: what comes out is wrong, not undefined.
int64_t plus(int64_t a, uint32_t b) { return static_cast<int64_t>(static_cast<uint64_t>(a) + b); }

}  // namespace

size_t bytes_of(const BoxChunk& chunk) { return kBytes[chunk.form] * chunk.boxes; }

bool is_possible(const BoxChunk& chunk) { return chunk.form < kForms && chunk.boxes > 0 && chunk.boxes <= kChunkBoxes && chunk.offset >= 0; }

BoxChunk encode(char* to, const std::vector<Box>& boxes) { return put_chunk(to, boxes); }
BoxChunk encode(char* to, const std::vector<LaneEvent>& events) { return put_chunk(to, events); }

void decode(const char* at, const BoxChunk& chunk, std::vector<Box>& boxes) {
  if (sum_of(at, bytes_of(chunk)) != chunk.sum) throw DamagedTimeline("it is not as it was written");
  boxes.resize(chunk.boxes);
  if (chunk.form == kWide) {
    at = take_column<uint32_t>(at, boxes, [](Box& box, uint32_t value) { box.name = value; });
    at = take_column<int64_t>(at, boxes, [](Box& box, int64_t value) { box.start = value; });
    at = take_column<int64_t>(at, boxes, [](Box& box, int64_t value) { box.dur = value; });
    at = take_column<int64_t>(at, boxes, [](Box& box, int64_t value) { box.event = value; });
    at = take_column<uint32_t>(at, boxes, [](Box& box, uint32_t value) { box.count = value; });
    at = take_column<int64_t>(at, boxes, [](Box& box, int64_t value) { box.busy = value; });
    take_column<uint8_t>(at, boxes, [](Box& box, uint8_t value) { box.kind = value; });
    return;
  }
  at = take_column<uint32_t>(at, boxes, [](Box& box, uint32_t value) {
    const uint32_t name = value & kNarrowName;
    box.name = name == kNarrowName ? kNoName : name, box.kind = static_cast<uint8_t>(value >> kNameBits), box.count = 1;
  });
  at = take_column<uint32_t>(at, boxes, [&chunk](Box& box, uint32_t value) { box.start = plus(chunk.first, value); });
  at = take_column<uint32_t>(at, boxes, [](Box& box, uint32_t value) { box.dur = box.busy = value; });
  at = take_column<uint32_t>(at, boxes, [&chunk](Box& box, uint32_t value) { box.event = plus(chunk.event_from, value); });
  if (chunk.form == kSingle) return;
  at = take_column<uint32_t>(at, boxes, [](Box& box, uint32_t value) { box.count = value; });
  take_column<uint32_t>(at, boxes, [](Box& box, uint32_t value) { box.busy = value; });
}

}  // namespace stepscope
