#include "event.hpp"

#include <algorithm>
#include <bit>

namespace stepscope {

namespace {

Scan scan_members(Cursor& c, std::vector<Member>& members, bool in_args);

// After a key: its value; `args` of the event opens into members of its own.
Scan scan_member_value(Cursor& c, std::vector<Member>& members, std::string_view key, bool in_args) {
  if (!in_args && key == "args" && *c.p == '{') return scan_members(c, members, true);
  std::string_view value;
  if (const Scan s = scan_value(c, value); s != Scan::ok) return s;
  members.push_back({key, value, in_args});
  return Scan::ok;
}

Scan scan_members(Cursor& c, std::vector<Member>& members, bool in_args) {
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
    if (const Scan s = scan_member_value(c, members, key, in_args); s != Scan::ok) return s;
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

bool plain_real(std::string_view value) {
  double ignored;
  return value.size() < 40 && !plain_string(value) && read_double_text(value, ignored);
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

// What a member's value is read for.
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

Part choose_slot(const Member& m, const TableSpec& table) {
  Part part;
  part.target = target_of(m, table, part.column);
  part.slot = part.target == Slot::literal || is_plain(part.target, m.value) ? part.target : Slot::opaque;
  return part;
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
      if (read_time_text(value, v)) out.start = v;
      else out.bad_time = true;
      break;
    case Slot::dur:
      if (read_time_text(value, v)) out.dur = v < 0 ? 0 : v;
      else out.bad_time = true;
      out.negative_dur = v != kNull && v < 0;
      break;
    case Slot::integer:
      if (read_int_text(value, v)) out.values[part.column] = v;
      break;
    case Slot::real:
      if (read_double_text(value, real)) out.values[part.column] = std::bit_cast<int64_t>(real);
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

const char* read_real(const char* p, const char* end, int64_t& out) {
  const char* q = p;
  while (q < end && (is_digit(*q) || *q == '-' || *q == '+' || *q == '.' || *q == 'e' || *q == 'E')) ++q;
  double v;
  if (!plain_real({p, static_cast<size_t>(q - p)}) || !read_double_text({p, static_cast<size_t>(q - p)}, v)) return nullptr;
  out = std::bit_cast<int64_t>(v);
  return q;
}

const char* read_slot(const Part& part, const char* p, const char* end, bool whole, bool lenient, Fields& out) {
  Cursor c{p, end, "", lenient};
  std::string_view value;
  switch (part.slot) {
    case Slot::name: {
      const char* q = find_special(p, end);
      if (q < end && *q == '"' && !lenient) {
        out.name = {p, static_cast<size_t>(q - p)};
      } else {
        c.p = p - 1;  // the literal before a name ends with its opening quote
        if (scan_string(c, out.name) != Scan::ok) return nullptr;
        q = c.p - 1;
      }
      out.has_name = true;
      return q;
    }
    case Slot::pid: return read_scalar(c, out.pid);
    case Slot::tid: return read_scalar(c, out.tid);
    case Slot::start: return read_time(p, end, out.start) ? p : nullptr;
    case Slot::dur: return read_time(p, end, out.dur) && out.dur >= 0 ? p : nullptr;
    case Slot::integer: return read_int(p, end, out.values[part.column]) ? p : nullptr;
    case Slot::real: return read_real(p, end, out.values[part.column]);
    default:
      // An odd value's layout must not take a plain one, which belongs into its column.
      if (scan_value(c, value) != Scan::ok || (!whole && is_plain(part.target, value))) return nullptr;
      read_opaque(part, value, out);
      return c.p;
  }
}

}  // namespace

Scan scan_event(Cursor& c, std::vector<Member>& members) {
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
    if (m.key.find('\\') != std::string_view::npos) return true;  // an escaped key may be anyone's twin
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
  t.plain = std::none_of(t.parts.begin(), t.parts.end(), [](const Part& p) { return p.slot == Slot::opaque; });
  return t;
}

const char* match(const Template& t, const char* p, const char* end, bool lenient, Fields& out) {
  for (const Part& part : t.parts) {
    if (static_cast<size_t>(end - p) < part.literal_size) return nullptr;
    if (std::memcmp(p, t.text.data() + part.literal_at, part.literal_size) != 0) return nullptr;
    p += part.literal_size;
    if (part.slot == Slot::literal) return p;
    p = read_slot(part, p, end, t.whole, lenient, out);
    if (!p) return nullptr;
  }
  return nullptr;
}

std::string shape_text(const Template& t, const Fields& fields) {
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
