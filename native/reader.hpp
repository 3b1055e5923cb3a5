// Reads a trace as a stream of text pieces: finds the events, fills batches, keeps an account of what was damaged.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "batch.hpp"
#include "event.hpp"
#include "intern.hpp"
#include "known.hpp"

namespace stepscope {

struct ReaderSpec {
  std::vector<TableSpec> tables;
  std::unordered_map<std::string, int> by_phase, by_kind;  // by "phase" or "phase category"; else the last table
  std::vector<std::string> metadata_keys;  // keys of the root by which it is found again after damage
  size_t batch_rows = 1 << 17;
  size_t dictionary_bytes = 512 << 20;  // more than the limits below let in: texts are drained in tests alone
  // Real traces have thousands of texts. What comes after so many is counted, and not kept.
  size_t most_texts = 1 << 17;  // names, and skeletons
  size_t most_name_bytes = 64 << 20, most_skeleton_bytes = 128 << 20;
  size_t most_threads = 1 << 12;
  // No recording lasts longer than ten days: an event that does, or that is further than that from the others, was
  // written by a broken clock. And all durations together leave room for sums of sums.
  int64_t most_apart_ns = int64_t{10} * 24 * 3600 * 1'000'000'000;
  int64_t most_summed_ns = int64_t{1} << 57;
  // Scripts count exactly up to 2^53 ns, which is 104 days: times since 1970 are counted from the day before instead.
  bool from_day_before = false;
  bool templates = true;
  unsigned check_every = 1024;  // of so many template hits one is read again by the general path
};

// Why an event is set aside: a number that no clock shows.
constexpr const char* kImpossible = "an event with an impossible time, set aside";

// One kind of damage or oddity: how often, how much of the text it cost, and where it was first seen.
struct Damage {
  std::string reason;
  int64_t count = 0, bytes = 0;
  std::vector<int64_t> offsets;  // of the first few, as far as they are known
};

// Texts one after the other, and where each begins: what Arrow wants.
struct DrainedTexts {
  std::vector<uint8_t> bytes;
  std::vector<int32_t> offsets{0};

  void take(const std::vector<std::string_view>& texts);
  size_t size() const { return offsets.size() - 1; }
};

// The texts numbered since the last draining; skeletons come with what was counted for them.
struct Dictionary {
  int32_t first_name = 0, first_skeleton = 0;
  DrainedTexts names, skeletons;
  std::vector<std::string> small;  // what phases and categories are numbers of; -1 is none
  std::vector<int32_t> phases, categories, tables;
  std::vector<int64_t> events, total;
};

constexpr int64_t kMaxEvent = 16 << 20;  // a longer event or header value is taken for damage

enum class State { start, root, events, resync, done, refused };

class Reader {
 public:
  explicit Reader(ReaderSpec spec);
  Reader(const Reader&) = delete;  // Python asks
  Reader& operator=(const Reader&) = delete;

  void feed(const char* bytes, size_t size);
  void finish(bool source_cut);  // source_cut: the bytes ended too early (a broken gzip stream, say)

  // For readers of other formats, which know events by their parts. The text of one event, alone; what it is, if others may
  // be added as the same: nothing about it had to be repaired, cut or left out.
  std::optional<Identity> read_one(std::string& text);
  // An event whose text would say the same but for these numbers, of eight bytes each, wherever they lie. Of each column of
  // its table it is given which of them belongs there, as places_of() tells it for the columns that the numbers are of.
  void add(const Identity& is, int64_t start, int64_t dur, const std::vector<uint8_t>& places, const char* values);
  std::vector<uint8_t> places_of(int table, const std::vector<uint8_t>& columns) const;
  int table_for(const std::string& phase, const std::string& category) const;
  int tables() const { return static_cast<int>(spec_.tables.size()); }
  const TableSpec& table(int number) const { return spec_.tables[static_cast<size_t>(number)]; }
  uint64_t numberings() const { return numberings_; }  // numbers of names and skeletons hold until this changes

  std::vector<std::unique_ptr<Batch>> take_batches();
  int64_t origin() const { return origin_; }  // what the times of all batches count from
  // Never before it is settled which times are believed: what was counted for a skeleton may still change.
  bool dictionary_full() const { return settled_ && dictionary_exceeded(); }
  bool dictionary_exceeded() const { return skeletons_.bytes() + spellings_.bytes() > spec_.dictionary_bytes || names_full(); }
  // Names keep their numbers as long as memory allows, because events are told apart by them; skeletons do not matter so.
  Dictionary take_dictionary(bool last);

  std::vector<std::pair<std::string, std::string>> metadata;  // key and raw JSON of the root's other members
  std::vector<std::pair<std::string, std::string>> threads;   // raw pid and tid
  std::vector<Damage> damage;
  std::string refusal;  // why this is no trace, if so
  int64_t events = 0, bytes = 0;
  int64_t known_hits = 0, template_hits = 0, template_checks = 0, template_mismatches = 0;
  bool saw_events = false;  // a list of events was found

 private:
  struct SkeletonInfo {
    int32_t phase, category, table;  // numbers in small_, -1 for none
    int64_t events, total;
    unsigned repairs;
  };

  bool names_full() const { return names_.bytes() + raw_names_.bytes() > 2 * spec_.dictionary_bytes; }
  const char* parse(const char* p, const char* end);
  Scan step(const char*& p, const char* end);
  Scan step_start(const char*& p, const char* end);
  Scan step_root(const char*& p, const char* end);
  Scan step_events(const char*& p, const char* end);
  Scan skip_scalar(const char*& p, const char* end);
  Scan step_resync(const char*& p, const char* end);
  Scan read_event(const char*& p, const char* end);
  Scan read_general(const char*& p, const char* end, bool lenient, bool must_be_event);
  void read_known_events(const char*& p, const char* end);
  bool read_known_event(const char*& p, const char* end);
  bool read_by_template(const char*& p, const char* end);
  bool agrees(const Template& t, const char* p, const char* end);
  bool agrees(const Known& known, const char* p, const char* after, size_t row);
  void disagreed(const char* p);
  bool accepts(bool lenient, bool must_be_event) const;
  bool at_metadata(const char* quote, const char* end) const;
  bool may_start_event(const char* brace, const char* end) const;
  Identity store(const Template& t, int32_t skeleton, int64_t offset);
  bool add_row(Batch& batch, const Identity& is, int64_t dur);
  bool admits(const Identity& is, int64_t start, int64_t dur);
  void full(int table);
  void settle();
  void drop_far(Batch& batch, std::vector<int64_t>& dropped);
  bool is_metadata(int32_t skeleton) const;
  Batch& batch_of(int table) {
    const auto& batch = open_[static_cast<size_t>(table)];
    return batch ? *batch : open_batch(table);
  }
  Batch& open_batch(int table);
  int32_t skeleton_of(Template& t);
  int32_t new_skeleton(const Template& t, bool lenient);
  std::string bare_skeleton(const Template& t);
  void shorten_values(unsigned& repairs);
  int32_t small_of(const std::string& text, bool known);
  int32_t name_of(std::string_view raw);
  int32_t new_name(std::string_view text);
  int32_t thread_of(std::string_view pid, std::string_view tid);
  int32_t long_thread_of(std::string_view pid, std::string_view tid);
  int32_t new_thread(std::string_view key, uint64_t hash, std::string pid, std::string tid);
  void keep_metadata(std::string_view key, std::string_view value, int64_t offset);
  int table_of(const Template& t) const;
  Template layout_of(std::string_view event);
  void learn(Template t);
  Scan broken(const char*& p, const char* why);
  void note(const char* reason, int64_t bytes, int64_t offset);
  void note_repairs(unsigned repairs, int64_t offset);
  int64_t offset_of(const char* p) const { return piece_offset_ + (p - piece_); }

  ReaderSpec spec_;
  State state_ = State::start;
  bool list_root_ = false, final_ = false;
  bool wants_comma_ = false;  // before the next member of the root
  std::string carry_;
  size_t wanted_ = 0;  // the carry is tried again when it has so many bytes
  char before_ = 0;    // the last byte before the piece that is no blank
  const char* piece_ = nullptr;
  int64_t piece_offset_ = 0;
  int64_t lost_from_ = 0;  // where the damage being skipped began
  const char* lost_why_ = "";

  Members members_;
  Fields fields_;
  std::string spelling_;  // the opaque values of an event, joined: with its template they determine the skeleton
  std::vector<std::unique_ptr<Template>> templates_;
  KnownEvents known_;
  uint64_t templates_learned_ = 0;
  unsigned until_check_ = 0;  // hits until the next one is read twice
  static constexpr size_t kMaxTemplates = 128;
  std::array<std::array<uint8_t, kMaxTemplates>, kMaxTemplates> shared_{};  // by seat: leading parts in common
  Progress progress_;
  size_t last_ = 0;  // the template that fitted last

  Interner names_, raw_names_, skeletons_, spellings_, small_, thread_keys_;
  std::vector<int32_t> raw_name_ids_, spelling_ids_;
  std::vector<unsigned> raw_name_repairs_;
  std::vector<SkeletonInfo> skeleton_infos_;
  std::string last_pid_, last_tid_;
  int32_t last_thread_ = -1;
  size_t name_bytes_ = 0, skeleton_bytes_ = 0;  // of all that were numbered
  size_t metadata_bytes_ = 0, metadata_values_ = 0, known_metadata_bytes_ = 0;
  unsigned limits_hit_ = 0;  // what of the last event was too long or too many: bits of Repair
  std::deque<std::string> shortened_;

  // Times are judged by those of the first full batch: until it is there, all are taken.
  bool settled_ = false;
  uint64_t earliest_ = static_cast<uint64_t>(-kFarthest), span_ = 2 * static_cast<uint64_t>(kFarthest);
  int64_t origin_ = 0;
  int64_t summed_ = 0;  // of all durations
  const char* not_admitted_ = "";
  std::optional<Identity> alike_;  // of the event stored last, if others may be added as the same
  uint64_t numberings_ = 1;
  std::vector<std::unique_ptr<Batch>> open_, ready_;
};

}  // namespace stepscope
