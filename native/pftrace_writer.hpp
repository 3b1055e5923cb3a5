// Events as packets of a Perfetto trace. Slices that overlap without one being inside the other get lanes of their own,
// for a viewer takes what is on one track to be nested, and drops what is not.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "event.hpp"
#include "intern.hpp"
#include "spool.hpp"

namespace stepscope {

// A message under construction; those inside it are put together first.
class WireWriter {
 public:
  void number(uint32_t field, uint64_t value) { key(field, 0), varint(value); }
  void real(uint32_t field, double value);
  void fixed(uint32_t field, uint64_t value);
  void text(uint32_t field, std::string_view bytes) { key(field, 2), varint(bytes.size()), out += bytes; }
  void clear() { out.clear(); }

  std::string out;

 private:
  void key(uint32_t field, uint32_t type) { varint(uint64_t{field} << 3 | type); }
  void varint(uint64_t value);
};

// One batch of events: their JSON texts, and what they are ordered by; kNull is NULL.
struct WrittenEvents {
  size_t rows = 0;
  const char* text = nullptr;
  const int64_t *offsets = nullptr, *track = nullptr, *start = nullptr, *dur = nullptr, *event = nullptr, *flow = nullptr;
};

class PftraceWriter {
 public:
  PftraceWriter(std::string folder, size_t memory_bytes, int64_t base_ns)
      : sorter_(std::move(folder), memory_bytes), base_(base_ns) {}
  PftraceWriter(const PftraceWriter&) = delete;
  PftraceWriter& operator=(const PftraceWriter&) = delete;

  static constexpr uint64_t kMostLanes = 1024;
  // The identity of a track's first lane; others follow it.
  static uint64_t uuid_of(uint64_t track) { return (track + 1) * kMostLanes; }

  void add(const WrittenEvents& events);
  // The next packets, about a mebibyte of them; nothing at the end.
  std::string next();
  // Readings of counters as packets, one each: device's descriptor, counter, time after the base, value.
  std::string readings(const int64_t* descriptor, const int64_t* counter, const int64_t* time, const int64_t* value, size_t rows) const;

  int64_t slices = 0, lanes = 0, odd = 0;  // odd: what is no slice, or has no time

 private:
  struct Lane {
    std::vector<int64_t> ends;
  };
  void write(const SortKey& key, std::string_view record);
  size_t lane_for(int64_t start, int64_t end);
  void close(size_t lane, int64_t until);
  void end_track();
  void begin(std::string_view text, uint64_t uuid, int64_t start, int64_t flow, bool instant);
  void describe(size_t lane);
  void annotate(WireWriter& to, std::string_view json, int depth);
  int32_t numbered(Interner& texts, uint32_t field, std::string_view text);
  void packet(int64_t time, const WireWriter& event, bool needs_texts);

  Sorter sorter_;
  int64_t base_;
  bool sorted_ = false, first_ = true;
  uint32_t track_ = 0;
  std::vector<Lane> lanes_;
  Members members_;
  Interner names_, categories_, keys_;
  WireWriter texts_, event_, packet_;
  std::string out_, record_;
};

}  // namespace stepscope
