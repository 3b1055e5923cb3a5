// Perfetto's protobuf traces: packets are found in a stream of bytes, and their slices, GPU work and counters are written as
// events of a Kineto trace, which the other reader takes from there. Nothing here knows what a category means to analyses.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "numbers.hpp"
#include "reader.hpp"
#include "spool.hpp"
#include "wire.hpp"

namespace stepscope {

constexpr size_t kMaxPacket = 64 << 20;  // a longer one is taken for damage

struct PftraceSpec {
  std::string folder;                 // for what does not fit into memory
  size_t memory_bytes = 48 << 20;     // of slices that wait for their end
  size_t most_interned = 256 << 20;   // bytes of texts that are referred to by number
  size_t most_open = 256;             // slices of one track that may be left open at the end
  std::string left_out;               // category, as JSON, of slices that are not the program's
};

// Texts by number, as one sequence of packets defines them; stored as JSON strings, so that an empty one is none.
class Numbered {
 public:
  const std::string* find(uint64_t iid) const;
  std::string& at(uint64_t iid);
  void clear() { dense_.clear(), sparse_.clear(); }

 private:
  static constexpr uint64_t kDense = 1 << 16;
  std::vector<std::string> dense_;
  std::unordered_map<uint64_t, std::string> sparse_;
};

// A stage or a queue of a GPU: what runs there.
struct StageSpec {
  std::string name;               // as it stands
  const char* category = nullptr;  // of its work, if its name tells
  int64_t stream = kNull;         // that its name tells
};

// What a sequence of packets says by number, and what it takes for granted.
struct Sequence {
  Numbered names, categories, keys, strings, kernels, arguments;
  std::unordered_map<uint64_t, StageSpec> stages;
  std::unordered_map<uint64_t, std::pair<int64_t, std::unordered_map<uint32_t, int32_t>>> counters;
  uint64_t default_track = 0;
  uint64_t thread_track = 0;  // of its old descriptor
  uint32_t default_clock = 0;
  int64_t legacy_us = kNull;  // what the old kind of time counts on from

  void forget();
};

struct Clock {
  int64_t offset = 0;  // what makes its time the trace's
  int64_t unit = 1, last = 0;
  bool incremental = false;
};

struct Track {
  uint64_t parent = 0;
  int64_t pid = kNull, tid = kNull;
  std::string name, process_name, thread_name, unit;
  bool described = false, counts = false, adds_up = false;
  int64_t factor = 1, sum = 0;
  int32_t counter = -1;
};

// Where the slices of a track are shown: process and thread as JSON, or a device and its stream.
struct Place {
  std::string pid, tid;
  int64_t device = kNull, stream = kNull;
  bool overhead = false, known = false;
  uint64_t version = 0;  // of the descriptors it was worked out from
};

// A track event as it was read: texts are JSON already.
struct Slice {
  int64_t time = 0, dur = kNull;
  uint64_t track = 0;
  std::string_view name, category;
  std::string args;
};

class PftraceReader {
 public:
  PftraceReader(Reader& events, PftraceSpec spec);
  PftraceReader(const PftraceReader&) = delete;
  PftraceReader& operator=(const PftraceReader&) = delete;

  void feed(const char* bytes, size_t size);
  void finish(bool source_cut);

  struct Readings {
    std::vector<int64_t> counter, time, value;  // values as bits of doubles
  };
  Readings take_readings() { return std::exchange(readings_, {}); }
  size_t waiting() const { return readings_.time.size(); }

  struct Counter {
    int64_t device;
    std::string name, unit;
  };
  std::vector<Counter> counters;
  std::vector<std::string> gpus;  // their names, in order
  std::vector<Damage> damage;
  int64_t base_ns() const;
  int64_t packets = 0, bytes = 0, stages = 0, slices = 0;
  bool epoch_known = false, uncategorised = true;

 private:
  // -- packets
  const char* parse(const char* p, const char* end);
  bool resync(const char*& p, const char* end);
  bool is_packet(const char*& p, const char* end, bool& more);
  bool read_packet(std::string_view packet);
  bool read_interned(std::string_view message, Sequence& sequence);
  bool read_named(std::string_view message, Numbered& to, uint32_t field = 2);
  bool read_stage(std::string_view message, Sequence& sequence);
  bool read_counters(std::string_view message, Sequence& sequence);
  bool read_specs(std::string_view message, int64_t device, std::unordered_map<uint32_t, int32_t>& to);
  bool read_defaults(std::string_view message, Sequence& sequence);
  bool read_clocks(std::string_view message, uint32_t sequence);
  bool read_gpus(std::string_view message);
  bool read_track(std::string_view message);
  bool read_thread(std::string_view message, Track& track, Sequence* sequence);
  bool read_process(std::string_view message, Track& track);
  bool read_counter_track(std::string_view message, Track& track);
  bool time_of(uint64_t stamp, uint32_t clock, uint32_t sequence, int64_t& out);
  // -- events
  bool read_track_event(std::string_view message, Sequence& sequence, int64_t time);
  bool read_legacy(std::string_view message, Sequence& sequence, Slice& slice, int& type);
  bool append_annotation(std::string& out, std::string_view message, const Sequence& sequence, int depth);
  bool append_value(std::string& out, const Wire& wire, const Sequence& sequence, int depth);
  bool read_stage_event(std::string_view message, Sequence& sequence, int64_t time);
  bool read_old_specs(std::string_view message);
  bool append_launch(std::string& out, std::string_view message, const Sequence& sequence);
  bool append_launch_argument(std::string& out, std::string_view message, const Sequence& sequence);
  bool read_counter_event(std::string_view message, Sequence& sequence, int64_t time);
  void note_launch(Slice& slice, const std::vector<uint64_t>& ids, const std::vector<uint64_t>& flows, int64_t correlation);
  void add_reading(int32_t counter, int64_t time, double value);
  // -- slices
  void begin(const Slice& slice);
  void end(const Slice& slice);
  void complete(const Slice& slice);
  void end_group(bool last);
  bool by_position(bool last);
  void write_paired(bool last);
  void sort_group();
  void write_sorted();
  void write_late();
  void write(const Slice& slice, const char* phase = "X");
  void write_on_device(const Slice& slice, const Place& place);
  void put(const Slice& slice, const Place& place, std::string_view category, const char* phase);
  void flush();
  uint32_t track_number(uint64_t uuid);
  const Place& place_of(uint32_t track);
  void note(const char* reason, int64_t lost, int64_t offset);

  Reader& events_;
  PftraceSpec spec_;
  std::string carry_, out_;
  size_t wanted_ = 0;
  int64_t offset_ = 0;      // of the first byte that parse() was given
  int64_t lost_from_ = -1;  // where the damage being skipped began
  int64_t searched_ = 0;    // bytes looked at for the next packet after damage
  bool final_ = false;

  std::unordered_map<uint32_t, Sequence> sequences_;
  size_t interned_ = 0;
  std::map<std::pair<uint32_t, uint32_t>, Clock> clocks_;
  uint32_t primary_clock_ = 6;
  int64_t origin_ = kNull, epoch_offset_ = 0, latest_ = kNull;

  std::unordered_map<uint64_t, uint32_t> track_numbers_;
  std::vector<Track> tracks_;
  std::vector<Place> places_;
  uint64_t version_ = 1;
  std::unordered_map<int64_t, std::string> process_names_;
  std::vector<StageSpec> old_stages_, old_queues_;
  std::map<std::pair<int64_t, uint32_t>, int32_t> inline_counters_;
  Readings readings_;

  Spool begins_, ends_, late_;
  Sorter sorter_;
  uint64_t order_ = 0;
  int64_t events_written_ = 0;
  std::vector<std::pair<uint64_t, int64_t>> launched_;  // event of a GPU, and the correlation of its launch
  bool made_up_ = false;  // some launches have a correlation of ours
  std::string record_;
};

// Records of slices: fixed numbers, and three texts.
void pack(std::string& to, const Slice& slice);
Slice unpack(std::string_view record);

}  // namespace stepscope
