#include "event.hpp"

#include <algorithm>
#include <bit>

namespace stepscope {

namespace {

Scan scan_members(Cursor& c, Members& members, bool in_args);

// After a key: its value; `args` of the event opens into members of its own.
Scan scan_member_value(Cursor& c, Members& members, std::string_view key, bool in_args) {
  if (!in_args && key == "args") {
    // Of two `args` the last one counts, as in Python's json; the first stays in the text.
    std::erase_if(members.all, [](const Member& m) { return m.in_args || m.key == "args"; });
    if (*c.p == '{') return scan_members(c, members, true);
  }
  std::string_view value;
  if (const Scan s = scan_value(c, value); s != Scan::ok) return s;
  if (members.all.size() >= kMaxMembers) return c.fail("an event with over 16,384 members");
  members.all.push_back({key, value, in_args});
  return Scan::ok;
}

std::string_view meant(std::string_view key, Members& members) {
  unsigned ignored = 0;
  return key.find('\\') == std::string_view::npos ? key : members.keys.emplace_back(unescape(key, ignored));
}

Scan scan_members(Cursor& c, Members& members, bool in_args) {
  ++c.p;
  for (bool first = true;; first = false) {
    c.p = skip_space(c.p, c.end);
    if (c.p == c.end) return Scan::more;
    if (first && *c.p == '}') break;
    std::string_view key;
    if (const Scan s = scan_string(c, key); s != Scan::ok) return s;
    c.p = skip_space(c.p, c.end);
    if (c.p == c.end) return Scan::more;
    if (*c.p != ':') return c.fail("expected ':' after a key");
    c.p = skip_space(c.p + 1, c.end);
    if (c.p == c.end) return Scan::more;
    if (const Scan s = scan_member_value(c, members, meant(key, members), in_args); s != Scan::ok) return s;
    c.p = skip_space(c.p, c.end);
    if (c.p == c.end) return Scan::more;
    if (*c.p == '}') break;
    if (*c.p != ',') return c.fail("expected ',' or '}' in an event");
    ++c.p;
  }
  ++c.p;
  return Scan::ok;
}

bool plain_string(std::string_view value) { return value.size() >= 2 && value.front() == '"'; }

bool plain_int(std::string_view value) {
  int64_t ignored;
  const char* p = value.data();
  const char* end = p + value.size();
  return read_int(p, end, ignored) && p == end;
}

bool plain_time(std::string_view value, bool may_be_negative) {
  int64_t ns;
  const char* p = value.data();
  const char* end = p + value.size();
  return read_time(p, end, ns) && p == end && (may_be_negative || ns >= 0);
}

// Minus zero has the bits of "absent", and a long integer would not come back the same.
bool plain_real(std::string_view value) {
  double v;
  if (value.size() >= 40 || plain_string(value) || !read_double_text(value, v)) return false;
  return std::bit_cast<int64_t>(v) != kNull && (value.size() <= 15 || value.find_first_of(".eE") != std::string_view::npos);
}

// Whether a value has the spelling that goes to its column and out of the text.
bool is_plain(Slot target, std::string_view value) {
  switch (target) {
    case Slot::name: return plain_string(value);
    case Slot::pid:
    case Slot::tid: return plain_int(value) || plain_string(value);
    case Slot::start: return plain_time(value, true);
    case Slot::dur: return plain_time(value, false);
    case Slot::integer: return plain_int(value);
    case Slot::real: return plain_real(value);
    default: return false;
  }
}

Part choose_slot(const Member& m, const TableSpec& table) {
  Part part;
  part.target = target_of(m, table, part.column);
  part.slot = part.target == Slot::literal || is_plain(part.target, m.value) ? part.target : Slot::opaque;
  return part;
}

constexpr unsigned kOfStart = 1, kOfDur = 2;

// A time in an odd spelling, or NULL with what is wrong with it.
int64_t time_of(std::string_view value, unsigned which, Fields& out) {
  int64_t ns;
  if (read_time_text(value, ns) && ns >= -kFarthest && ns <= kFarthest) return ns;
  (is_number_text(value) ? out.far_time : out.bad_time) |= which;
  return kNull;
}

// Reads what an opaque value is needed for; what it cannot be stays NULL.
void read_opaque(const Part& part, std::string_view value, Fields& out) {
  out.opaque.push_back(value);
  int64_t v = kNull;
  double real;
  switch (part.target) {
    case Slot::name:
      out.has_name = plain_string(value);
      if (out.has_name) out.name = value.substr(1, value.size() - 2);
      break;
    case Slot::pid: out.pid = value; break;
    case Slot::tid: out.tid = value; break;
    case Slot::start:
      out.start = time_of(value, kOfStart, out);
      break;
    case Slot::dur:
      v = time_of(value, kOfDur, out);
      out.dur = v == kNull ? v : std::max<int64_t>(v, 0);
      out.negative_dur = out.dur == 0 && v < 0;
      break;
    case Slot::integer:
      out.values[part.column] = read_int_text(value, v) ? v : kNull;
      break;
    case Slot::real:
      out.values[part.column] = read_double_text(value, real) ? std::bit_cast<int64_t>(real) : kNull;
      break;
    default: break;
  }
}

const char* read_scalar(Cursor& c, std::string_view& out) {
  const char* first = c.p;
  std::string_view inside;
  int64_t ignored;
  if (c.p < c.end && *c.p == '"' ? scan_string(c, inside) != Scan::ok : !read_int(c.p, c.end, ignored)) return nullptr;
  out = {first, static_cast<size_t>(c.p - first)};
  return c.p;
}

// Everything but the plain spellings that nearly every event has.
[[gnu::noinline]] const char* read_rare(const Part& part, const char* p, const char* end, bool whole, bool lenient, Fields& out) {
  Cursor c{p, end, "", lenient};
  std::string_view value;
  switch (part.slot) {
    case Slot::name:
      c.p = p - 1;  // the literal before a name ends with its opening quote
      if (scan_string(c, out.name) != Scan::ok) return nullptr;
      out.has_name = true;
      return c.p - 1;
    case Slot::pid: return read_scalar(c, out.pid);
    case Slot::tid: return read_scalar(c, out.tid);
    case Slot::real: return read_real(p, end, out.values[part.column]);
    default:
      // An odd value's layout must not take a plain one, which belongs into its column, nor blanks before it.
      if (p == end || is_space(*p)) return nullptr;
      if (scan_value(c, value) != Scan::ok || (!whole && is_plain(part.target, value))) return nullptr;
      read_opaque(part, value, out);
      return c.p;
  }
}

[[gnu::always_inline]] inline const char* read_slot(const Part& part, const char* p, const char* end, bool whole, bool lenient,
                                                    Fields& out) {
  int64_t number;
  const char* first = p;
  switch (part.slot) {
    case Slot::name: {
      const char* quote = find_special(p, end);
      if (quote == end || *quote != '"' || lenient) return read_rare(part, p, end, whole, lenient, out);
      out.name = {p, static_cast<size_t>(quote - p)};
      out.has_name = out.name_is_simple = true;
      return quote;
    }
    case Slot::pid:
    case Slot::tid:
      if (!read_int(p, end, number)) return read_rare(part, p, end, whole, lenient, out);
      (part.slot == Slot::pid ? out.pid : out.tid) = {first, static_cast<size_t>(p - first)};
      return p;
    case Slot::start: return read_time(p, end, out.start) ? p : nullptr;
    case Slot::dur: return read_time(p, end, out.dur) && out.dur >= 0 ? p : nullptr;
    case Slot::integer: return read_int(p, end, out.values[part.column]) ? p : nullptr;
    default: return read_rare(part, p, end, whole, lenient, out);
  }
}

}  // namespace

const char* read_real(const char* p, const char* end, int64_t& out) {
  const char* q = p;
  while (q < end && (is_digit(*q) || *q == '-' || *q == '+' || *q == '.' || *q == 'e' || *q == 'E')) ++q;
  double v;
  if (!plain_real({p, static_cast<size_t>(q - p)}) || !read_double_text({p, static_cast<size_t>(q - p)}, v)) return nullptr;
  out = std::bit_cast<int64_t>(v);
  return q;
}

Slot target_of(const Member& m, const TableSpec& table, uint8_t& column) {
  for (size_t i = 0; i < table.columns.size(); ++i) {
    if (table.columns[i].in_args != m.in_args || table.columns[i].key != m.key) continue;
    column = static_cast<uint8_t>(i);
    return table.columns[i].is_float ? Slot::real : Slot::integer;
  }
  if (m.in_args) return Slot::opaque;
  if (m.key == "name") return Slot::name;
  if (m.key == "pid") return Slot::pid;
  if (m.key == "tid") return Slot::tid;
  if (m.key == "ts") return Slot::start;
  if (m.key == "dur") return Slot::dur;
  return m.key == "ph" || m.key == "cat" ? Slot::literal : Slot::opaque;
}

Scan scan_event(Cursor& c, Members& members) {
  members.clear();
  return scan_members(c, members, false);
}

std::string_view member_value(const std::vector<Member>& members, std::string_view key) {
  std::string_view found;
  for (const Member& m : members)
    if (!m.in_args && m.key == key) found = m.value;  // the last one counts, as in Python's json
  return found;
}

bool has_twins(std::vector<Member>& members) {
  std::vector<std::pair<bool, std::string_view>> keys;
  keys.reserve(members.size());
  for (const Member& m : members) {
    keys.emplace_back(m.in_args, m.key);
  }
  std::sort(keys.begin(), keys.end());
  return std::adjacent_find(keys.begin(), keys.end()) != keys.end();
}

Template make_template(std::string_view event, const std::vector<Member>& members, const TableSpec& table, bool whole) {
  Template t;
  const char* from = event.data();
  const auto add = [&](Part part, const char* until) {
    part.literal_at = static_cast<uint32_t>(t.text.size());
    part.literal_size = static_cast<uint32_t>(until - from);
    t.text.append(from, until);
    t.text.append(16, '\0');
    t.parts.push_back(part);
  };
  for (const Member& m : members) {
    Part part = choose_slot(m, table);
    if (part.slot == Slot::literal) continue;
    const char* first = m.value.data();
    const char* last = first + m.value.size();
    if (whole) part.slot = Slot::opaque;
    if (part.slot == Slot::name) ++first, --last;
    add(part, first);
    from = last;
  }
  add(Part{}, event.data() + event.size());
  t.whole = whole;
  t.columns = table.columns.size();
  t.plain = std::none_of(t.parts.begin(), t.parts.end(), [](const Part& p) { return p.slot == Slot::opaque; });
  return t;
}

size_t shared_parts(const Template& a, const Template& b) {
  const size_t most = std::min({a.parts.size(), b.parts.size(), Progress::kParts - 1});
  for (size_t i = 0; i < most; ++i) {
    const Part &x = a.parts[i], &y = b.parts[i];
    if (x.slot != y.slot || x.target != y.target || x.column != y.column || a.literal(x) != b.literal(y)) return i;
  }
  return a.whole == b.whole ? most : 0;
}

const char* match(const Template& t, size_t from, const char* end, bool lenient, Fields& out, Progress& progress) {
  const char* text = t.text.data();
  const char* p = progress.at[from];
  const size_t parts = t.parts.size();
  for (size_t i = from; i < parts; ++i) {
    const Part& part = t.parts[i];
    if (i < Progress::kParts) progress.at[i] = p;
    progress.failed = i;
    const auto left = static_cast<size_t>(end - p);
    if (left < part.literal_size) return nullptr;
    const char* literal = text + part.literal_at;
    const bool same = left >= part.literal_size + 16 ? same_padded(p, literal, part.literal_size)
                                                    : same_bytes(p, literal, part.literal_size);
    if (!same) return nullptr;
    p += part.literal_size;
    if (part.slot == Slot::literal) return p;
    p = read_slot(part, p, end, t.whole, lenient, out);
    if (!p) return nullptr;
  }
  return nullptr;
}

void undo(const Template& t, size_t from, size_t to, Fields& out) {
  size_t opaque = 0;
  for (size_t i = 0; i < from; ++i) opaque += t.parts[i].slot == Slot::opaque;
  out.opaque.resize(std::min(out.opaque.size(), opaque));
  for (size_t i = from; i <= to && i < t.parts.size(); ++i) {
    switch (t.parts[i].target) {
      case Slot::name: out.has_name = out.name_is_simple = false; break;
      case Slot::pid: out.pid = {}; break;
      case Slot::tid: out.tid = {}; break;
      case Slot::start: out.start = kNull, out.bad_time &= ~kOfStart, out.far_time &= ~kOfStart; break;
      case Slot::dur: out.dur = kNull, out.negative_dur = false, out.bad_time &= ~kOfDur, out.far_time &= ~kOfDur; break;
      case Slot::integer:
      case Slot::real: out.values[t.parts[i].column] = kNull; break;
      default: break;
    }
  }
}

std::string skeleton_text(const Template& t, const Fields& fields) {
  std::string out;
  size_t next = 0;
  bool after_name = false;
  for (const Part& part : t.parts) {
    std::string_view literal = t.literal(part);
    if (after_name) literal.remove_prefix(1);  // null takes the place of the string, quotes included
    after_name = part.slot == Slot::name;
    if (after_name) literal.remove_suffix(1);
    out += literal;
    if (part.slot == Slot::opaque) out += fields.opaque[next++];
    else if (part.slot != Slot::literal) out += "null";
  }
  return out;
}

}  // namespace stepscope
