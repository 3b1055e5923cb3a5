#include "writeback.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <stdexcept>

namespace stepscope {

namespace {

constexpr size_t kLayoutBytes = 64 << 20;  // layouts kept at the same time; beyond that they are read again

void append_int(std::string& out, int64_t v) {
  char buffer[24];
  out.append(buffer, std::to_chars(buffer, buffer + sizeof buffer, v).ptr);
}

void append_name(std::string& out, std::string_view name) {
  if (find_special(name.data(), name.data() + name.size()) != name.data() + name.size()) return append_quoted(out, name);
  out.push_back('"');
  out += name;
  out.push_back('"');
}

// An event lacks what it has no text for.
void append_json(std::string& out, const std::string& text) { out += text.empty() ? "null" : text; }

}  // namespace

// ---- texts

void TextPieces::add(int64_t first, const int32_t* offsets, size_t rows, const char* bytes, size_t size) {
  if (!pieces_.empty() && first < pieces_.back().first + static_cast<int64_t>(pieces_.back().rows))
    throw std::invalid_argument("texts must be numbered upwards");
  if (rows) pieces_.push_back({first, offsets, rows, bytes, size});
}

std::string_view TextPieces::at(int64_t id) const {
  auto it = std::upper_bound(pieces_.begin(), pieces_.end(), id, [](int64_t wanted, const Piece& p) { return wanted < p.first; });
  if (it == pieces_.begin()) throw std::out_of_range("a number without its text");
  const Piece& piece = *--it;
  const auto row = static_cast<size_t>(id - piece.first);
  if (row >= piece.rows) throw std::out_of_range("a number without its text");
  const int32_t from = piece.offsets[row], to = piece.offsets[row + 1];
  if (from < 0 || to < from || static_cast<size_t>(to) > piece.size) throw std::out_of_range("a text beyond its file");
  return {piece.bytes + from, static_cast<size_t>(to - from)};
}

// ---- events

void EventWriter::add_skeletons(int64_t first, std::vector<int32_t> tables) {
  if (first < 0 || static_cast<size_t>(first) != skeleton_tables_.size()) throw std::invalid_argument("skeletons must be numbered from 0, without gaps");
  for (const int32_t table : tables)
    if (table < 0 || static_cast<size_t>(table) >= tables_.size()) throw std::out_of_range("a skeleton of no table");
  skeleton_tables_.insert(skeleton_tables_.end(), tables.begin(), tables.end());
}

// A null stands for a column's value unless its key stands twice in one object: such an event kept all of its text.
// A null of the profile itself is filled with a NULL, that is with null.
const EventWriter::Layout& EventWriter::layout_of(int64_t skeleton) {
  if (const auto known = layouts_.find(skeleton); known != layouts_.end()) return known->second;
  if (skeleton < 0 || static_cast<size_t>(skeleton) >= skeleton_tables_.size()) throw std::out_of_range("an event without its skeleton");
  const int32_t table = skeleton_tables_[static_cast<size_t>(skeleton)];
  Layout layout{table, std::string(skeletons.at(skeleton)), {}};
  const char* text = layout.text.data();
  Cursor c{text, text + layout.text.size()};
  if (layout.text.empty() || *text != '{' || scan_event(c, members_) != Scan::ok) throw std::invalid_argument("a skeleton that is no event");
  for (const Member& m : members_.all) {
    if (m.value != "null") continue;
    const auto twin = [&](const Member& other) { return other.in_args == m.in_args && other.key == m.key; };
    if (std::count_if(members_.all.begin(), members_.all.end(), twin) > 1) continue;
    uint8_t column = 0;
    const Slot slot = target_of(m, tables_[static_cast<size_t>(table)], column);
    if (slot == Slot::literal || slot == Slot::opaque) continue;
    layout.gaps.push_back({static_cast<uint32_t>(m.value.data() - text), slot, column});
  }
  if (layout_bytes_ > kLayoutBytes) layouts_.clear(), layout_bytes_ = 0;
  layout_bytes_ += layout.text.size() + layout.gaps.size() * sizeof(Gap) + sizeof(Layout);
  return layouts_.emplace(skeleton, std::move(layout)).first->second;
}

void EventWriter::append(std::string& out, const EventColumns& columns, size_t row, const Gap& gap) const {
  char buffer[40];
  const auto write_ns = [&](int64_t ns) { out.append(buffer, write_time(ns, buffer)); };
  const auto value = [&] { return columns.values.at(gap.column)[row]; };
  const auto thread = [&]() -> const auto& { return threads.at(static_cast<size_t>(columns.thread[row])); };
  switch (gap.slot) {
    case Slot::name:
      if (columns.name[row] < 0) out += "null";
      else append_name(out, names.at(columns.name[row]));
      return;
    case Slot::pid: return append_json(out, thread().first);
    case Slot::tid: return append_json(out, thread().second);
    case Slot::start: return columns.start[row] == kNull ? void(out += "null") : write_ns(columns.start[row]);
    case Slot::dur: return columns.dur[row] == kNull ? void(out += "null") : write_ns(columns.dur[row]);
    case Slot::real:
      if (value() == kNull) out += "null";
      else out += write_double(std::bit_cast<double>(value()), buffer);
      return;
    default: return value() == kNull ? void(out += "null") : append_int(out, value());
  }
}

Written EventWriter::write(const EventColumns& columns) {
  Written out;
  out.text.reserve(columns.rows * 256);
  out.offsets.reserve(columns.rows + 1);
  for (size_t row = 0; row < columns.rows; ++row) {
    out.offsets.push_back(static_cast<int64_t>(out.text.size()));
    out.text += ",\n";
    const Layout& layout = layout_of(columns.skeleton[row]);
    if (layout.table != columns.table) throw std::out_of_range("an event with a skeleton of another table");
    size_t from = 0;
    for (const Gap& gap : layout.gaps) {
      out.text.append(layout.text, from, gap.at - from);
      append(out.text, columns, row, gap);
      from = gap.at + 4;  // behind the null
    }
    out.text.append(layout.text, from);
  }
  out.offsets.push_back(static_cast<int64_t>(out.text.size()));
  return out;
}

}  // namespace stepscope
