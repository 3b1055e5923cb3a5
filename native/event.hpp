// One event of a trace: its members as spans of the text (general path), and templates that were learned from them
// (fast path). Both fill the same Fields, and both read values with the same functions.
#pragma once

#include <array>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "json.hpp"
#include "numbers.hpp"

namespace stepscope {

// A column that is filled from a member of the event or of its `args`.
struct ColumnSpec {
  std::string key;
  bool in_args = true;
  bool is_float = false;
};

// Where events of some categories or phases go.
struct TableSpec {
  std::string name;
  std::vector<ColumnSpec> columns;
};

constexpr size_t kMaxColumns = 16;

enum class Slot : uint8_t { literal, name, pid, tid, start, dur, integer, real, opaque };

struct Member {
  std::string_view key;    // without quotes and escapes
  std::string_view value;  // raw; a string's with its quotes
  bool in_args = false;
};

// The members of one event. Keys with escapes in them are kept here as they are meant, so that they are found by name.
struct Members {
  std::vector<Member> all;
  std::deque<std::string> keys;

  void clear() { all.clear(), keys.clear(); }
};

constexpr size_t kMaxMembers = 1 << 14;  // an event with more of them is taken for damage

// What the columns take from one event; views into the text that was read.
struct Fields {
  std::string_view name;     // raw inside of the string
  bool has_name = false, name_is_simple = false;  // simple: nothing in it to unescape or mend
  std::string_view pid, tid;  // raw, empty if absent
  int64_t start = kNull, dur = kNull;
  bool negative_dur = false;
  unsigned bad_time = 0, far_time = 0;  // of start (1) and duration (2): no number; a number, but no time
  std::array<int64_t, kMaxColumns> values;
  std::vector<std::string_view> opaque;  // the values that stay in the text

  void clear(size_t columns) {
    name = pid = tid = {};
    has_name = name_is_simple = negative_dur = false;
    bad_time = far_time = 0;
    start = dur = kNull;
    for (size_t i = 0; i < columns; ++i) values[i] = kNull;
    opaque.clear();
  }
};

struct Part {
  uint32_t literal_at = 0, literal_size = 0;  // the bytes before the value, in Template::text, which pads them
  Slot slot = Slot::literal;                  // literal: the end of the event
  Slot target = Slot::literal;                // what the value is read for, also if it is odd and stays in the text
  uint8_t column = 0;
};

// The layout of an event: literal bytes with slots between them.
struct Template {
  std::string text;
  std::vector<Part> parts;
  int table = 0;
  size_t columns = 0;  // of its table
  std::string phase, category;
  bool has_phase = false, has_category = false;
  bool whole = false;  // twin keys: every value stays in the text
  uint64_t serial = 0;
  size_t seat = 0;  // its place in the table of shared beginnings
  bool plain = false;        // no opaque slot: one skeleton for all
  int32_t plain_skeleton = -1;  // that skeleton, if numbered since the dictionary was drained

  std::string_view literal(const Part& part) const { return {text.data() + part.literal_at, part.literal_size}; }
};

// The event at c.p ('{'), split into members; leaves c.p behind it.
Scan scan_event(Cursor& c, Members& members);

// The value of a top-level member, or an empty view.
std::string_view member_value(const std::vector<Member>& members, std::string_view key);

// True if some key stands twice in the same object.
bool has_twins(std::vector<Member>& members);

// What a member's value is read for in a table, and for which of its columns.
Slot target_of(const Member& m, const TableSpec& table, uint8_t& column);

// The layout of a scanned event of `table`. An event with twin keys pulls nothing out of its text (`whole`).
Template make_template(std::string_view event, const std::vector<Member>& members, const TableSpec& table, bool whole);

// How far a layout was followed: many have the same beginning, which then need not be read twice.
struct Progress {
  static constexpr size_t kParts = 48;
  std::array<const char*, kParts> at;  // where each part begins, up to the one that failed
  size_t failed = 0;                   // the part that did not fit
};

// How many leading parts two layouts have in common.
size_t shared_parts(const Template& a, const Template& b);

// Reads an event with the layout, from part `from` on, which begins at progress.at[from]; its end, or nullptr if the
// layout does not fit.
const char* match(const Template& t, size_t from, const char* end, bool lenient, Fields& out, Progress& progress);

// Forgets what the parts from `from` to `to` have put into the fields.
void undo(const Template& t, size_t from, size_t to, Fields& out);

// Reads a double in a spelling that comes back the same; the end of it, or nullptr.
const char* read_real(const char* p, const char* end, int64_t& out);

// The event's text with null for every value that went to a column.
std::string skeleton_text(const Template& t, const Fields& fields);

}  // namespace stepscope
