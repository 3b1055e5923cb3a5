// The events of a trace: read by template or in general, numbered, and put into batches.
#include "reader.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace stepscope {

namespace {

constexpr uint8_t kNowhere = 0xff;  // in place of a place

constexpr size_t kMaxName = 128 << 10, kNameLeft = 4 << 10;     // bytes, and what is left of a longer one
constexpr size_t kMaxValue = 64 << 10, kValueLeft = 1 << 10;
constexpr size_t kMaxSkeleton = 512 << 10;
constexpr size_t kMaxId = 256, kIdLeft = 64;
constexpr size_t kMaxSmall = 4096, kMaxSmallText = 256;
constexpr size_t kMaxLayout = 64 << 10;   // a longer layout is not learned
constexpr size_t kMaxSpelling = 64 << 10, kMaxSpellings = 32 << 20;
constexpr size_t kMaxRawNames = 32 << 20;
constexpr std::string_view kOthers = "…";  // what stands for texts that are not kept
constexpr int32_t kNone = -1;
// Known events are read faster than their text comes from the memory, or from the core that decompressed it: so much of it
// is asked for so many bytes ahead. A count that followed the size of each event would be guessed wrongly too often.
constexpr ptrdiff_t kAhead = 2048, kUsualSize = 320, kLine = 64;

// Keys that an event with a raw quote in it must stick to, or the quote was read at the wrong place.
constexpr std::array<std::string_view, 22> kKnownKeys = {
    "ph", "name", "cat", "ts", "pid", "tid", "dur", "id", "s", "bp", "tts", "args", "tdur", "cname",
    "id2", "scope", "sf", "esf", "stack", "estack", "bind_id", "flow_out"};

std::string plain_text(std::string_view raw) {  // of a value that is a string; others as they stand
  unsigned ignored = 0;
  if (raw.size() >= 2 && raw.front() == '"') return unescape(raw.substr(1, raw.size() - 2), ignored);
  return normalise(raw, false, ignored);
}

std::string scalar_json(std::string_view raw, unsigned& repairs) {  // a string's inside may hold raw quotes
  if (raw.size() < 2 || raw.front() != '"') return normalise(raw, false, repairs);
  unsigned found = 0;
  std::string json;
  append_quoted(json, unescape(raw.substr(1, raw.size() - 2), found));
  repairs |= found;
  return found ? json : std::string(raw);
}

}  // namespace

// ---- events

Scan Reader::read_event(const char*& p, const char* end) {
  if (spec_.templates && read_by_template(p, end)) return Scan::ok;
  const char* q = p;
  Scan s = read_general(q, end, false, false);
  if (s == Scan::more && end - p > kMaxEvent) return broken(p, "an event of over 16 MiB");
  if (s == Scan::bad) {
    const char* again = p;
    const Scan lenient = read_general(again, end, true, true);
    if (lenient == Scan::more && !final_ && end - p <= kMaxEvent) return Scan::more;
    if (lenient != Scan::ok) return broken(p, lost_why_);
    q = again;
    s = Scan::ok;
  }
  if (s == Scan::ok) p = q;
  return s;
}

// Reads events that were seen before but for their numbers, as many as follow one another.
void Reader::read_known_events(const char*& p, const char* end) {
  for (;;) {
    while (p < end && (is_space(*p) || *p == ',')) ++p;
    if (p == end || *p != '{' || !read_known_event(p, end)) return;
  }
}

[[gnu::always_inline]] inline bool Reader::read_known_event(const char*& p, const char* end) {
  const char* after = nullptr;
  const auto fits = [&](const Known& known) {
    const Batch& batch = batch_of(known.is.table);
    return (after = read_known(known, p, end, batch.numbers.data(), batch.count)) != nullptr;
  };
  Known* known = known_.expected();
  const bool expected = known && fits(*known);
  if (!expected) known = known_.find(p, end, fits);
  if (!known) return false;
  Batch& batch = batch_of(known->is.table);
  ++template_hits, ++known_hits;
  if (--until_check_ == 0 && !agrees(*known, p, after, batch.count)) {
    disagreed(p);
    return false;
  }
  known_.found(known, expected);
  for (ptrdiff_t at = 0; at < kUsualSize; at += kLine) __builtin_prefetch(p + kAhead + at);
  if (!add_row(batch, known->is, batch.dur[batch.count])) note(not_admitted_, 0, offset_of(p));
  p = after;
  return true;
}

void Reader::disagreed(const char* p) {
  ++template_mismatches;
  spec_.templates = false;
  note("the fast path disagreed with the general one and was switched off", 0, offset_of(p));
}

// Tries the layout that fitted last, then the others, nearest first: a hit moves one place to the front. What a layout
// that failed has read is kept for the next one with the same beginning.
bool Reader::read_by_template(const char*& p, const char* end) {
  const Template* tried = nullptr;
  fields_.clear(kMaxColumns);
  progress_.at[0] = p;
  for (size_t i = 0; i < templates_.size(); ++i) {
    const size_t at = i == 0 ? last_ : i <= last_ ? i - 1 : i;
    Template& t = *templates_[at];
    const size_t from = tried ? shared_[tried->seat][t.seat] : 0;
    if (tried && progress_.failed < from) continue;  // it would fail at the same part
    if (tried) undo(*tried, from, progress_.failed, fields_);
    const char* after = match(t, from, end, false, fields_, progress_);
    tried = &t;
    if (!after) continue;
    ++template_hits;
    if (--until_check_ == 0 && !agrees(t, p, end)) {
      disagreed(p);
      return false;
    }
    if (fields_.far_time) {
      note(kImpossible, 0, offset_of(p));
      known_.found_another();
      p = after;
      return true;
    }
    const Identity is = store(t, skeleton_of(t), offset_of(p));
    const bool repaired = skeleton_infos_[static_cast<size_t>(is.skeleton - skeletons_.first())].repairs != 0;
    if (!repaired && !limits_hit_ && !fields_.bad_time && !fields_.negative_dur && fields_.name_is_simple == fields_.has_name)
      known_.learn(t, progress_, after, fields_, is);
    else
      known_.found_another();
    last_ = at;
    if (at > 0 && i > 0) std::swap(templates_[at], templates_[at - 1]), --last_;
    p = after;
    return true;
  }
  return false;
}

void Reader::learn(Template t) {
  t.serial = ++templates_learned_;
  t.seat = templates_.size();
  if (templates_.size() == kMaxTemplates) {
    t.seat = templates_.back()->seat;
    templates_.pop_back();
  }
  for (const auto& other : templates_)
    shared_[t.seat][other->seat] = shared_[other->seat][t.seat] = static_cast<uint8_t>(shared_parts(t, *other));
  templates_.push_back(std::make_unique<Template>(std::move(t)));
  last_ = templates_.size() - 1;
}

bool Reader::agrees(const Template& t, const char* p, const char* end) {
  ++template_checks;
  until_check_ = spec_.check_every;
  const Fields fast = fields_;
  Cursor c{p, end};
  if (scan_event(c, members_) != Scan::ok) return false;
  const Template own = layout_of({p, static_cast<size_t>(c.p - p)});
  Fields slow;
  const size_t columns = spec_.tables[static_cast<size_t>(own.table)].columns.size();
  slow.clear(columns);
  progress_.at[0] = p;
  const bool same = own.table == t.table && match(own, 0, end, false, slow, progress_) == c.p && slow.name == fast.name &&
                    slow.pid == fast.pid && slow.tid == fast.tid && slow.start == fast.start && slow.dur == fast.dur &&
                    std::equal(slow.values.begin(), slow.values.begin() + static_cast<long>(columns), fast.values.begin()) &&
                    skeleton_text(own, slow) == skeleton_text(t, fast);
  return same;
}

bool Reader::agrees(const Known& known, const char* p, const char* after, size_t row) {
  ++template_checks;
  until_check_ = spec_.check_every;
  Cursor c{p, after};
  if (scan_event(c, members_) != Scan::ok || c.p != after) return false;
  const Template own = layout_of({p, static_cast<size_t>(after - p)});
  fields_.clear(own.columns);
  progress_.at[0] = p;
  const Batch& batch = batch_of(known.is.table);
  if (own.table != known.is.table || match(own, 0, after, false, fields_, progress_) != after) return false;
  for (size_t i = 0; i < own.columns; ++i)
    if (fields_.values[i] != batch.values[i][row]) return false;
  unsigned repairs = 0;
  const std::string skeleton = normalise(skeleton_text(own, fields_), false, repairs);
  return fields_.start == batch.start[row] && fields_.dur == batch.dur[row] &&
         thread_of(fields_.pid, fields_.tid) == known.is.thread &&
         (fields_.has_name ? name_of(fields_.name) : kNone) == known.is.name && repairs == 0 &&
         skeleton == skeletons_.texts()[static_cast<size_t>(known.is.skeleton - skeletons_.first())];
}

// Whether members_ may stand for an event that was found or mended after damage.
bool Reader::accepts(bool lenient, bool must_be_event) const {
  if (must_be_event && member_value(members_.all, "ph").empty()) return false;
  return !lenient || std::all_of(members_.all.begin(), members_.all.end(),
                                 [](const Member& m) { return m.in_args || among(kKnownKeys, m.key); });
}

Scan Reader::read_general(const char*& p, const char* end, bool lenient, bool must_be_event) {
  Cursor c{p, end, "", lenient};
  const Scan s = scan_event(c, members_);
  if (s == Scan::bad && !must_be_event) lost_why_ = c.why;
  if (s != Scan::ok) return s;
  if (!accepts(lenient, must_be_event)) return Scan::bad;
  const std::string_view event(p, static_cast<size_t>(c.p - p));
  Template t = layout_of(event);
  fields_.clear(spec_.tables[static_cast<size_t>(t.table)].columns.size());
  progress_.at[0] = p;
  if (match(t, 0, c.p, lenient, fields_, progress_) != c.p) return Scan::bad;
  if (fields_.far_time) note(kImpossible, 0, offset_of(p));
  else store(t, new_skeleton(t, lenient), offset_of(p));
  known_.found_another();
  p = c.p;
  if (spec_.templates && !lenient && !must_be_event && !t.whole && t.text.size() <= kMaxLayout) learn(std::move(t));
  return Scan::ok;
}

Template Reader::layout_of(std::string_view event) {
  const std::string_view phase = member_value(members_.all, "ph");
  const std::string_view category = member_value(members_.all, "cat");
  Template head;
  head.has_phase = !phase.empty() && phase != "null";
  head.has_category = !category.empty() && category != "null";
  if (head.has_phase) head.phase = plain_text(phase);
  if (head.has_category) head.category = plain_text(category);
  head.table = table_of(head);
  Template t = make_template(event, members_.all, spec_.tables[static_cast<size_t>(head.table)], has_twins(members_.all));
  t.table = head.table;
  t.has_phase = head.has_phase, t.has_category = head.has_category;
  t.phase = std::move(head.phase), t.category = std::move(head.category);
  return t;
}

int Reader::table_of(const Template& t) const {
  if (const auto it = spec_.by_phase.find(t.phase); t.has_phase && it != spec_.by_phase.end()) return it->second;
  const auto it = spec_.by_kind.find(t.phase + ' ' + t.category);
  return t.has_phase && t.has_category && it != spec_.by_kind.end() ? it->second : static_cast<int>(spec_.tables.size()) - 1;
}

Batch& Reader::open_batch(int table) {
  auto& batch = open_[static_cast<size_t>(table)];
  batch = std::make_unique<Batch>();
  batch->table = table;
  batch->make_room(spec_.batch_rows, spec_.tables[static_cast<size_t>(table)].columns.size());
  return *batch;
}

// Adds an event to a batch that has its numbers already; false if its times are none, and why is in not_admitted_.
[[gnu::always_inline]] inline bool Reader::add_row(Batch& batch, const Identity& is, int64_t dur) {
  const int64_t start = batch.start[batch.count];
  int64_t summed;
  const bool overflows = __builtin_add_overflow(summed_, std::max<int64_t>(dur, 0), &summed);
  if ((static_cast<uint64_t>(start) - earliest_ > span_) | (dur > spec_.most_apart_ns) | (summed > spec_.most_summed_ns) | overflows) [[unlikely]]
    if (!admits(is, start, dur)) return false;
  summed_ = summed;
  SkeletonInfo& info = skeleton_infos_[static_cast<size_t>(is.skeleton - skeletons_.first())];
  ++info.events;
  info.total += std::max<int64_t>(dur, 0);
  const size_t row = batch.count++;
  batch.event[row] = events++;
  batch.thread[row] = is.thread;
  batch.name[row] = is.name;
  batch.skeleton[row] = is.skeleton;
  if (batch.count >= spec_.batch_rows) full(is.table);
  return true;
}

Identity Reader::store(const Template& t, int32_t skeleton, int64_t offset) {
  Batch& batch = batch_of(t.table);
  const SkeletonInfo& info = skeleton_infos_[static_cast<size_t>(skeleton - skeletons_.first())];
  if (info.repairs) note_repairs(info.repairs, offset);
  if (fields_.negative_dur) note("a negative duration, counted as 0", 0, offset);
  if (fields_.bad_time) note("a time that is no number", 0, offset);
  limits_hit_ = 0;
  const int32_t thread = thread_of(fields_.pid, fields_.tid);
  const Identity is{t.table, thread, fields_.has_name ? name_of(fields_.name) : kNone, skeleton};
  const size_t row = batch.count;
  batch.start[row] = fields_.start;
  batch.dur[row] = fields_.dur;
  for (size_t i = 0; i < t.columns; ++i) batch.values[i][row] = fields_.values[i];
  if (limits_hit_) note_repairs(limits_hit_, offset);
  const bool plain = !info.repairs && !limits_hit_ && !fields_.bad_time && !fields_.negative_dur && !t.whole;
  alike_ = plain && fields_.name_is_simple == fields_.has_name ? std::optional(is) : std::nullopt;
  if (!add_row(batch, is, fields_.dur)) note(not_admitted_, 0, offset);
  return is;
}

void Reader::add(const Identity& is, int64_t start, int64_t dur, const std::vector<uint8_t>& places, const char* values) {
  Batch& batch = batch_of(is.table);
  const size_t row = batch.count;
  batch.start[row] = start;
  batch.dur[row] = dur;
  int64_t* const* numbers = batch.numbers.data() + 2;  // behind start and duration
  for (const uint8_t place : places) {
    int64_t value = kNull;
    if (place != kNowhere) std::memcpy(&value, values + place * sizeof value, sizeof value);
    (*numbers++)[row] = value;
  }
  if (!add_row(batch, is, dur)) note(not_admitted_, 0, -1);
}

std::vector<uint8_t> Reader::places_of(int table, const std::vector<uint8_t>& columns) const {
  std::vector<uint8_t> places(spec_.tables[static_cast<size_t>(table)].columns.size(), kNowhere);
  for (size_t i = 0; i < columns.size(); ++i) places[columns[i]] = static_cast<uint8_t>(i);  // of the same twice the last one
  return places;
}

// ---- numbering

// The skeleton of the event just matched: by its template alone, or by the template and the values that stay in the text.
int32_t Reader::skeleton_of(Template& t) {
  if (t.plain && t.plain_skeleton >= 0) return t.plain_skeleton;
  spelling_.assign(reinterpret_cast<const char*>(&t.serial), sizeof t.serial);
  for (const std::string_view value : fields_.opaque) {
    spelling_.push_back('\0');
    spelling_ += value;
  }
  if (spelling_.size() > kMaxSpelling) return new_skeleton(t, false);
  const uint64_t hash = hash_bytes(spelling_);
  int32_t known = spellings_.find(spelling_, hash);
  if (known < 0) {
    if (spellings_.bytes() > kMaxSpellings) spellings_.drain(), spelling_ids_.clear();
    known = spellings_.add(spelling_, hash);
    spelling_ids_.push_back(new_skeleton(t, false));
  }
  const int32_t skeleton = spelling_ids_[static_cast<size_t>(known - spellings_.first())];
  if (t.plain) t.plain_skeleton = skeleton;
  return skeleton;
}

int32_t Reader::new_skeleton(const Template& t, bool lenient) {
  unsigned repairs = 0;
  shorten_values(repairs);
  std::string text = normalise(skeleton_text(t, fields_), lenient, repairs);
  uint64_t hash = hash_bytes(text);
  int32_t skeleton = text.size() > kMaxSkeleton ? kNone : skeletons_.find(text, hash);
  const bool room = static_cast<size_t>(skeletons_.first()) + skeletons_.texts().size() < spec_.most_texts &&
                    skeleton_bytes_ + text.size() <= spec_.most_skeleton_bytes && text.size() <= kMaxSkeleton;
  if (skeleton < 0 && !room) {
    repairs |= kNoArguments;
    text = bare_skeleton(t);
    hash = hash_bytes(text);
    skeleton = skeletons_.find(text, hash);
  }
  if (skeleton >= 0) {
    // The same text may have come from another spelling; what was repaired is counted by event all the same.
    skeleton_infos_[static_cast<size_t>(skeleton - skeletons_.first())].repairs |= repairs;
    return skeleton;
  }
  skeleton = skeletons_.add(text, hash);
  skeleton_bytes_ += text.size();
  const bool known = t.table + 1 < static_cast<int>(spec_.tables.size());
  const int32_t phase = t.has_phase ? small_of(t.phase, known) : kNone, category = t.has_category ? small_of(t.category, known) : kNone;
  const auto limited = [&](int32_t number, const std::string& meant) { return number >= 0 && small_.texts()[static_cast<size_t>(number)] != meant; };
  if (limited(phase, t.phase) || limited(category, t.category)) repairs |= kNoCategory;
  skeleton_infos_.push_back({phase, category, t.table, 0, 0, repairs});
  return skeleton;
}

// The number of a phase or category. Those that a table is known by have few different texts.
int32_t Reader::small_of(const std::string& text, bool known) {
  if (text.size() > kMaxSmallText) return small_of(cut_text(text, kIdLeft), known);
  const uint64_t hash = hash_bytes(text);
  const int32_t number = small_.find(text, hash);
  if (number >= 0) return number;
  return known || small_.texts().size() < kMaxSmall ? small_.add(text, hash) : small_.intern(kOthers);
}

// What an event says in its columns, and nothing else of it.
std::string Reader::bare_skeleton(const Template& t) {
  std::string out = "{";
  const auto add = [&](std::string_view key, std::string_view value) {
    if (out.back() != '{') out += ", ";
    append_quoted(out, key);
    (out += ": ") += value;
  };
  const auto quoted = [](const std::string& text) {
    std::string json;
    append_quoted(json, text.size() > kMaxSmallText ? cut_text(text, kIdLeft) : text);
    return json;
  };
  if (t.has_phase) add("ph", quoted(t.phase));
  if (t.has_category) add("cat", t.table + 1 < static_cast<int>(spec_.tables.size()) ? quoted(t.category) : quoted(std::string(kOthers)));
  for (const std::string_view key : {"name", "pid", "tid", "ts", "dur"}) add(key, "null");
  for (const bool in_args : {false, true}) {
    if (in_args) out += ", \"args\": {";
    for (const ColumnSpec& column : spec_.tables[static_cast<size_t>(t.table)].columns)
      if (column.in_args == in_args) add(column.key, "null");
  }
  add(kOthers, "\"not kept\"");
  return out += "}}";
}

// Cuts the values that are too long for a skeleton.
void Reader::shorten_values(unsigned& repairs) {
  shortened_.clear();
  for (std::string_view& value : fields_.opaque) {
    if (value.size() <= kMaxValue) continue;
    repairs |= kCutValue;
    append_quoted(shortened_.emplace_back(), cut_text(value, kValueLeft));
    value = shortened_.back();
  }
}

int32_t Reader::name_of(std::string_view raw) {
  const uint64_t hash = hash_bytes(raw);
  if (fields_.name_is_simple || find_special(raw.data(), raw.data() + raw.size()) == raw.data() + raw.size()) {
    const int32_t known = names_.find(raw, hash);
    return known >= 0 ? known : new_name(raw);
  }
  int32_t known = raw_names_.find(raw, hash);
  if (known < 0) {
    unsigned repairs = 0;
    const unsigned before = std::exchange(limits_hit_, 0);
    const int32_t name = new_name(unescape(raw, repairs));
    repairs |= std::exchange(limits_hit_, before);
    if (raw.size() > kMaxName || raw_names_.bytes() > kMaxRawNames) raw_names_.drain(), raw_name_ids_.clear(), raw_name_repairs_.clear();
    known = raw_names_.add(raw, hash);
    raw_name_ids_.push_back(name);
    raw_name_repairs_.push_back(repairs);
  }
  const auto at = static_cast<size_t>(known - raw_names_.first());
  if (raw_name_repairs_[at]) note_repairs(raw_name_repairs_[at], offset_of(raw.data()));
  return raw_name_ids_[at];
}

// The number of a name that may be new; of one that is too long or comes too late, the number of what stands for it.
int32_t Reader::new_name(std::string_view text) {
  std::string cut;
  if (text.size() > kMaxName) {
    limits_hit_ |= kCutName;
    text = cut = cut_text(text, kNameLeft);
  }
  uint64_t hash = hash_bytes(text);
  int32_t name = names_.find(text, hash);
  const size_t numbered = static_cast<size_t>(names_.first()) + names_.texts().size();
  if (name < 0 && (numbered >= spec_.most_texts || name_bytes_ + text.size() > spec_.most_name_bytes)) {
    limits_hit_ |= kNoName;
    text = kOthers;
    hash = hash_bytes(text);
    name = names_.find(text, hash);
  }
  if (name >= 0) return name;
  name_bytes_ += text.size();
  return names_.add(text, hash);
}

int32_t Reader::thread_of(std::string_view pid, std::string_view tid) {
  if (last_thread_ >= 0 && same_text(pid, last_pid_) && same_text(tid, last_tid_)) return last_thread_;
  if (pid.size() + tid.size() > kMaxId) [[unlikely]] return long_thread_of(pid, tid);
  std::string key(pid);
  key.push_back('\0');
  key += tid;
  const uint64_t hash = hash_bytes(key);
  int32_t thread = thread_keys_.find(key, hash);
  if (thread < 0) {
    unsigned repairs = 0;
    thread = new_thread(key, hash, scalar_json(pid, repairs), scalar_json(tid, repairs));
    repairs &= ~static_cast<unsigned>(kBareWord);  // which stays in the skeleton, and is noted there
    if (repairs) note_repairs(repairs, offset_of(pid.empty() ? tid.data() : pid.data()));
    if (limits_hit_ & kNoThread) return thread;  // not remembered, so that every event on it is counted
  }
  last_pid_ = pid, last_tid_ = tid, last_thread_ = thread;
  return thread;
}

int32_t Reader::long_thread_of(std::string_view pid, std::string_view tid) {
  unsigned repairs = 0;
  const auto cut = [&](std::string_view id) {
    std::string json = scalar_json(id, repairs);
    if (json.size() <= kMaxId / 2) return json;
    std::string left;
    append_quoted(left, cut_text(json, kIdLeft));
    return normalise(left, false, repairs);
  };
  std::string first = cut(pid), second = cut(tid);
  limits_hit_ |= repairs & ~static_cast<unsigned>(kBareWord);
  limits_hit_ |= kCutThread;
  const std::string key = first + '\0' + second;
  const uint64_t hash = hash_bytes(key);
  const int32_t thread = thread_keys_.find(key, hash);
  return thread >= 0 ? thread : new_thread(key, hash, std::move(first), std::move(second));
}

int32_t Reader::new_thread(std::string_view key, uint64_t hash, std::string pid, std::string tid) {
  if (threads.size() >= spec_.most_threads) {
    limits_hit_ |= kNoThread;
    return static_cast<int32_t>(spec_.most_threads - 1);
  }
  threads.emplace_back(std::move(pid), std::move(tid));
  return thread_keys_.add(key, hash);
}

}  // namespace stepscope
