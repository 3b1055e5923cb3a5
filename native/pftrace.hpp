// Perfetto's protobuf traces: packets are found in a stream of bytes, and their slices, GPU work and counters become events
// of a Kineto trace. The first of its kind is written as text, which the other reader takes apart; those that look the same
// but for their numbers go into the columns at once. Nothing here knows what a category means to analyses.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "numbers.hpp"
#include "pftrace_learned.hpp"
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
  // So many bytes of slices are sorted before any is written. Tracks that were in order until then are taken to stay so,
  // and their slices are written as they end.
  size_t streams_after = 32 << 20;
  std::string left_out;               // category, as JSON, of slices that are not the program's
};

// A text as JSON, and its number among names, categories or keys.
struct Text {
  std::string json;
  int32_t number = -1;
  Pattern* patterns = nullptr;  // of slices of this name; the one that was met last comes first
};

// Texts by number, as one sequence of packets defines them; an empty one is none.
class Numbered {
 public:
  const Text* find(uint64_t iid) const {
    if (iid >= dense_.size()) return find_far(iid);
    return dense_[iid].json.empty() ? nullptr : &dense_[iid];
  }
  Text* find(uint64_t iid) { return const_cast<Text*>(std::as_const(*this).find(iid)); }
  Text& at(uint64_t iid);
  void clear() { *this = Numbered(); }  // with its room: clearing what is empty again takes no time

 private:
  const Text* find_far(uint64_t iid) const;
  std::vector<Text> dense_;  // at most a few times as many as there are texts
  std::unordered_map<uint64_t, Text> sparse_;
  uint64_t texts_ = 0;
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
  uint32_t epoch = 0;         // another one when a number may mean another text
  // How its packets look, as long as numbers mean what they do.
  std::vector<std::unique_ptr<Pattern>> patterns;
  Pattern* last_pattern = nullptr;
  uint64_t learning = 0;  // another one when patterns are forgotten
  std::vector<Layout> layouts;
  size_t last_layout = 0, learned_bytes = 0, interned_bytes = 0;
  // An end that was read: what follows its time, and its track.
  struct End {
    size_t size = 0;  // of the whole packet; 0 for none
    std::array<char, 16> text{};
    uint32_t track = 0;
  } last_end;

  void forget();
  void unlearn(uint64_t again);
  void met(Pattern* pattern);  // the next one of a slice
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
  bool overhead = false, known = false, plain = true;
  std::array<int32_t, 2> threads = {-1, -1};  // the reader's number of it, as a thread and as a stream
  uint64_t version = 0;  // of the descriptors it was worked out from
};

// A track event as it was read: what it looks like by number, or in texts that are JSON.
struct Slice {
  int64_t time = 0, dur = kNull;
  uint32_t track = 0;
  int32_t shape = -1, name = -1;  // -1: in texts
  uint32_t count = 0;             // of its numbers
  std::array<int64_t, kMaxColumns> numbers;
  std::string_view title, category;
  std::string args;

  Slice() {}  // the numbers are set as far as there are any
};

constexpr int64_t kPlainNumber = 1'000'000'000'000'000'000;  // longer numbers are not put into a column, but kept as text
inline bool is_plain(double value) { return std::abs(value) < 1e15 && std::abs(value) > 1e-15; }  // no other spelling, either

// The beginning of a record of a slice. Numbers follow if it has a shape, three texts if it has none.
struct PackedSlice {
  int64_t time, dur;
  uint32_t track;
  int32_t shape, name;  // the size of the name, without a shape
  uint32_t category;    // its size
};

constexpr int64_t kIsEnd = kNull + 1, kIsInstant = kNull + 2, kIsOpen = kNull + 3;  // in place of a duration

// The whole record of one with a shape.
struct SliceRecord {
  PackedSlice head;
  std::array<int64_t, kMaxColumns> numbers;

  std::string_view record(size_t count) const { return {reinterpret_cast<const char*>(this), sizeof head + count * sizeof(int64_t)}; }
};

// Fields of a track event.
struct TrackEvent {
  int64_t time = kNull, dur = kNull, correlation = kNull;
  uint64_t track = 0;
  int type = 0;
  bool has_track = false, counted = false, api = false;
  double value = 0;
  int32_t name = -1, category = -1;  // -1: in texts, if at all
  std::string_view title, group;     // as JSON: name and category
  uint64_t name_iid = 0, category_iid = 0;  // 0: not given by number
};

// Records of slices that are inside one another, the innermost last.
class Nest {
 public:
  size_t depth() const { return marks_.size(); }
  std::string_view at(size_t depth) const { return {bytes_.data() + marks_[depth].first, marks_[depth].second}; }

  void push(std::string_view record) {
    if (bytes_.size() < used_ + record.size()) bytes_.resize(2 * (used_ + record.size()));
    copy_record(bytes_.data() + used_, record.data(), record.size());
    marks_.emplace_back(used_, record.size());
    used_ += record.size();
  }

  // The innermost; what is given back holds until the next one is added.
  std::string_view pop() {
    const auto [at, size] = marks_.back();
    marks_.pop_back();
    used_ = at;
    return {bytes_.data() + at, size};
  }

 private:
  Column<char> bytes_;  // the first `used_` of them
  size_t used_ = 0;
  std::vector<std::pair<size_t, size_t>> marks_;  // where each begins, and its size
};

// How the slices of a track come, and those that are open.
struct Line {
  int64_t latest = kNull;   // time of any of them
  int64_t reached = 0;      // the same in the present group
  uint64_t group = 0;
  bool in_order = true, streams = false, waits = false;  // written as they come; sorted
  Nest open;
  // Those that ended last, with their depth, if what encloses them may turn out to be as long.
  std::vector<std::pair<std::string, size_t>> held;
  size_t too_deep = 0;
};

class PftraceReader {
 public:
  PftraceReader(Reader& events, PftraceSpec spec);
  PftraceReader(const PftraceReader&) = delete;
  PftraceReader& operator=(const PftraceReader&) = delete;

  void feed(const char* bytes, size_t size);
  void finish(bool source_cut) { while (finish_some(source_cut)) {} }
  bool finish_some(bool source_cut);  // the same in pieces: true while there is more to write

  struct Readings {
    std::vector<int64_t> counter, time, value;  // values as bits of doubles
  };
  Readings take_readings() { return std::exchange(readings_, {}); }

  // Packets that are compressed inside the trace. Reading stops behind them, and goes on with the next call of feed or
  // finish_some: whoever feeds the trace takes them, unpacks them and gives back what was in them, before that.
  std::string take_packed();
  bool feed_packed(const char* bytes, size_t size);  // false if it is damaged, and no more is wanted
  void end_packed(bool whole);
  size_t waiting() const { return readings_.time.size(); }

  struct Counter {
    int64_t device;
    std::string name, unit;
  };
  std::vector<Counter> counters;
  std::vector<std::string> gpus;  // their names, in order
  std::vector<Damage> damage;
  int64_t base_ns() const { return origin_ == kNull ? 0 : saturating_add(origin_, epoch_offset_); }
  int64_t packets = 0, bytes = 0, stages = 0, slices = 0;
  bool epoch_known = false, uncategorised = true;

 private:
  // -- packets
  void read_piece(const char* bytes, size_t size);
  const char* parse(const char* p, const char* end);
  bool resync(const char*& p, const char* end);
  bool is_packet(const char*& p, const char* end, bool& more);
  void leave_packed();
  bool read_packet(std::string_view packet);
  bool read_interned(std::string_view message, Sequence& sequence);
  bool read_named(std::string_view message, Sequence& sequence, Numbered& to, uint32_t field = 2);
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
  bool read_fields(std::string_view message, Sequence& sequence, TrackEvent& event);
  bool read_legacy(std::string_view message, Sequence& sequence, TrackEvent& event);
  bool read_old_time(const Wire& wire, Sequence& sequence, TrackEvent& event);
  void read_counter_value(const TrackEvent& event, uint32_t track);
  bool append_arguments(std::string& out, TrackEvent& event, const Sequence& sequence);
  bool append_annotation_key(std::string& out, std::string_view annotation, const Sequence& sequence);
  bool append_annotation(std::string& out, std::string_view message, const Sequence& sequence, int depth);
  bool append_value(std::string& out, const Wire& wire, const Sequence& sequence, int depth);
  bool read_stage_event(std::string_view message, Sequence& sequence, int64_t time);
  bool read_known_work(std::string_view message, const Sequence& sequence, int64_t time);
  bool spell_work(std::string_view message, const Sequence& sequence, int64_t& dur, int64_t& correlation);
  void learn_work(const Identity& is, std::string_view args, const std::array<int64_t, 4>& told);
  bool read_old_specs(std::string_view message);
  bool append_launch(std::string& out, std::string_view message, const Sequence& sequence);
  bool append_launch_argument(std::string& out, std::string_view message, const Sequence& sequence);
  bool read_counter_event(std::string_view message, Sequence& sequence, int64_t time);
  bool read_launched(std::string_view message);
  void tie(int64_t correlation);
  bool makes_up(const TrackEvent& event) const;
  void note_launch(TrackEvent& event, Slice& slice);
  // -- packets that look like earlier ones: false if they do not, and nothing was read
  struct Quick;
  const char* read_short_packets(const char* p, const char* end, bool& tried);
  bool read_quickly(std::string_view packet, const char* readable);
  bool read_alike(std::string_view packet, const char* readable);
  bool read_event_quickly(Quick& event, Sequence& sequence, int64_t time);
  Pattern* find_pattern(Quick& event, Sequence& sequence, SliceRecord& slice, size_t& count);
  void tie_quickly(const Quick& event, const Pattern& pattern, const SliceRecord& slice);
  bool read_expected(std::string_view packet, const char* readable);
  bool read_layout(std::string_view packet, const char* readable);
  void learn_layout(const Quick& event, Sequence& sequence);
  bool learn_around(std::string_view packet, const Quick& event, Pattern& pattern);
  bool read_same_end(std::string_view packet);
  void learn_end(std::string_view packet, Sequence& sequence);
  bool add_pieces(Pattern& to) const;
  void learn_pattern(const TrackEvent& event, Sequence& sequence, const Slice& slice);
  void make_room(size_t bytes, Sequence& sequence);
  void begin_epoch(Sequence& sequence);
  void add_reading(int32_t counter, int64_t time, double value);
  // -- what slices look like
  struct Category {
    std::string json;
    bool runtime = false, left_out = false;
    std::array<int, 2> tables{};  // of slices and of instants
  };
  struct Key {
    bool correlation = false;
    std::vector<int8_t> columns;  // by table; -1 if it is none there
  };
  // All but the name and the numbers that have a column.
  struct Shape {
    int32_t category = -1;
    int table = 0;
    bool has_device = false, has_stream = false;
    bool odd = false;                // a column has no plain number in it, or it is left out
    int32_t skeleton = -1;           // the reader's number of it
    std::vector<std::string> texts;  // before each number, and after the last one
    std::vector<uint8_t> columns;    // of the numbers
    std::vector<uint8_t> places;     // the same the other way round
  };
  int32_t category_number(std::string_view json, std::string_view text);
  int32_t key_number(std::string_view json, std::string_view text);
  int32_t name_number(std::string_view json);
  int32_t key_of(const Wire& wire, const Sequence& sequence);
  bool read_shape(TrackEvent& event, Sequence& sequence, Slice& slice);
  bool take_number(std::string_view annotation, TrackEvent& event, const Sequence& sequence, int table, Slice& slice);
  bool new_shape(const TrackEvent& event, const Sequence& sequence, int table, int32_t& shape);
  void spell(Slice& slice) const;
  bool is_quick(const PackedSlice& slice, const Place& place) const;
  bool write_quickly(const PackedSlice& slice, const char* numbers, const Place& place);
  void learn(const Slice& slice, Place& place, const Identity& is);
  // -- slices
  void begin(const PackedSlice& head, std::string_view record);
  void end(const PackedSlice& head, std::string_view record);
  void end_plainly(int64_t time, uint32_t track);
  void spool_ends();
  void complete(const Slice& slice);
  void end_group(bool last);
  void take_back();
  size_t begun() const { return group_waits_ ? begins_.size() : begun_.size(); }
  bool by_position(bool last);
  void write_paired(bool last);
  void sort_group();
  void sort(const PackedSlice& head, std::string_view record);
  bool may_stream(uint32_t track);
  void stream_tracks();
  bool streams(uint32_t track);
  void step_out(Line& line, int64_t time, std::string_view more);
  void step(Line& line, const PackedSlice& head, std::string_view record);
  void close(Line& line, int64_t time, std::string_view more);
  void release(Line& line);
  void end_track(Line& line);
  bool write_open(const Slice& slice);
  bool write_sorted(size_t most);
  bool write_late(size_t most);
  void write(const Slice& slice);
  void write_record(const PackedSlice& head, std::string_view record);
  std::optional<Identity> write_on_device(const Slice& slice, const Place& place);
  std::optional<Identity> put(const Slice& slice, const Place& place, std::string_view category);
  uint32_t track_number(uint64_t uuid);
  Place& place_of(uint32_t track) { return places_[track].version == version_ ? places_[track] : find_place(track); }
  Place& find_place(uint32_t track);
  void note(const char* reason, int64_t lost, int64_t offset);

  Reader& events_;
  PftraceSpec spec_;
  std::string carry_, out_;
  size_t done_ = 0;  // bytes of what is carried that were read
  std::string packed_, inside_;  // compressed packets that wait; of unpacked ones what is no whole packet yet
  bool unpacking_ = false, inside_bad_ = false;
  uint64_t last_uuid_ = 0;
  uint32_t last_track_ = 0;
  bool any_track_ = false;
  size_t wanted_ = 0;
  int64_t offset_ = 0;      // of the first byte that parse() was given
  int64_t lost_from_ = -1;  // where the damage being skipped began
  int64_t searched_ = 0;    // bytes looked at for the next packet after damage
  bool final_ = false;

  std::unordered_map<uint32_t, Sequence> sequences_;
  std::pair<const uint32_t, Sequence>* last_sequence_ = nullptr;
  size_t interned_ = 0;
  std::map<std::pair<uint32_t, uint32_t>, Clock> clocks_;
  uint32_t primary_clock_ = 6;
  int64_t origin_ = kNull, epoch_offset_ = 0, latest_ = kNull;

  std::unordered_map<uint64_t, uint32_t> track_numbers_;
  std::vector<Track> tracks_;
  std::vector<Place> places_;
  std::vector<Line> lines_;
  uint64_t version_ = 1;
  std::unordered_map<int64_t, std::string> process_names_;
  std::vector<StageSpec> old_stages_, old_queues_;
  std::map<std::pair<int64_t, uint32_t>, int32_t> inline_counters_;
  Readings readings_;

  Spool begins_, ends_, late_;
  Sorter sorter_;
  uint64_t order_ = 0, group_ = 1;
  bool group_in_order_ = true, streaming_ = false;
  // Of each begin of the group its track, if it is open there already, or kSpooled; not kept once all wait in begins_.
  std::vector<uint32_t> begun_;
  size_t ended_ = 0;                                // slices of the group
  struct PlainEnd {
    int64_t time;
    uint32_t track;
  };
  // Ends of the group that wait for the others, if it has no other kind and all are on tracks that are written as they come.
  std::vector<PlainEnd> plain_ends_;
  bool group_waits_ = false, group_sorted_ = false;  // all begins wait; nothing does
  std::unique_ptr<Spool::Pass> late_pass_;
  uint32_t sorted_track_ = 0;
  int phase_ = 0;  // of the end: what is written next
  std::vector<std::pair<uint64_t, int64_t>> launched_;  // event of a GPU, and the correlation of its launch
  bool made_up_ = false;  // some launches have a correlation of ours
  std::string record_, event_record_;  // the second one is not that of a slice of a group before

  std::vector<std::string_view> annotations_;
  std::vector<uint64_t> flows_, ids_;
  std::string title_, group_text_, key_text_, raw_shape_;
  uint32_t epochs_ = 0;
  Interner categories_by_text_, keys_by_text_, names_, raw_shapes_, shapes_by_text_;
  std::vector<Category> categories_;
  std::vector<Key> keys_;
  std::vector<Shape> shapes_;
  std::vector<int32_t> raw_shape_ids_, name_ids_;  // shapes; the reader's numbers of names
  uint64_t numbering_ = 0;                          // that these are of
  size_t learned_bytes_ = 0;  // of all sequences
  // Patterns that were found last, by what they look like. One is there as long as its sequence has forgotten none since.
  struct Recent {
    Pattern* pattern = nullptr;
    uint64_t learning = ~uint64_t{0};
  };
  std::vector<Recent> recent_ = std::vector<Recent>(1 << 12);
  uint64_t learnings_ = 0;  // of all sequences, one for each time that some was forgotten
  bool keys_known_ = false;  // of all annotations of the event that was read last
  int correlations_ = 0;     // among them
  // Work of a GPU that was read before: what it is, and its numbers, that of its launch at `correlation`.
  struct Work {
    Identity is;
    std::vector<uint8_t> places;
    std::array<int64_t, 4> numbers;
    size_t correlation;
  };
  Interner works_by_text_;
  std::vector<Work> works_;
  uint64_t works_numbering_ = 0;
  std::string work_text_;    // of the work that is read: all but its event, duration and correlation; empty if that is not known
  bool work_known_ = false;  // all that it refers to
};

// Records of slices: fixed numbers, and three texts.
PackedSlice pack(std::string& to, const Slice& slice);
Slice unpack(std::string_view record);

// A text as JSON, a number, or one that may be none, at the end of another.
void append_number(std::string& out, int64_t number);
void append_unsigned(std::string& out, uint64_t number);
void append_real(std::string& out, double number);
void append_key(std::string& args, std::string_view quoted);

}  // namespace stepscope
