// What slices of a Perfetto trace look like: those that differ in nothing but numbers are told from their bytes, and go into
// the columns without being written as text.
#include <algorithm>
#include <bit>

#include "pftrace.hpp"

namespace stepscope {

namespace {

constexpr size_t kMostBytes = 32 << 20, kMostCategories = 1 << 12, kMostKeys = 1 << 14, kMostShapes = 1 << 17, kLongest = 1 << 14;
constexpr int32_t kUnknown = -2;  // the reader's number of a name

bool contains(const std::vector<std::string>& texts, std::string_view quoted) {
  return std::any_of(texts.begin(), texts.end(), [&](const std::string& text) { return text.find(quoted) != std::string::npos; });
}

bool is_column(const TableSpec& table, std::string_view key) {  // quoted, and a colon behind it
  return std::any_of(table.columns.begin(), table.columns.end(), [&](const ColumnSpec& one) { return one.in_args && key == '"' + one.key + "\": "; });
}

}  // namespace

// ---- texts by number

int32_t PftraceReader::name_number(std::string_view json) {
  const uint64_t hash = hash_bytes(json);
  int32_t name = names_.find(json, hash);
  if (name < 0 && names_.bytes() + json.size() < kMostBytes) {
    name = names_.add(json, hash);
    name_ids_.push_back(kUnknown);
  }
  return name;
}

int32_t PftraceReader::category_number(std::string_view json, std::string_view text) {
  const uint64_t hash = hash_bytes(json);
  int32_t category = categories_by_text_.find(json, hash);
  if (category >= 0 || categories_.size() >= kMostCategories || json.size() > kLongest) return category;
  category = categories_by_text_.add(json, hash);
  Category& made = categories_.emplace_back();
  made.json = json;
  made.runtime = json.find("runtime") != std::string_view::npos || json.find("driver") != std::string_view::npos;
  made.left_out = json == spec_.left_out;
  made.tables = {events_.table_for("X", std::string(text)), events_.table_for("i", std::string(text))};
  return category;
}

int32_t PftraceReader::key_number(std::string_view json, std::string_view text) {
  const uint64_t hash = hash_bytes(json);
  int32_t key = keys_by_text_.find(json, hash);
  if (key >= 0 || keys_.size() >= kMostKeys || json.size() > kLongest) return key;
  key = keys_by_text_.add(json, hash);
  Key& made = keys_.emplace_back();
  made.correlation = json == "\"correlation\"";
  for (int table = 0; table < events_.tables(); ++table) {
    const auto& columns = events_.table(table).columns;
    const auto it = std::find_if(columns.begin(), columns.end(), [&](const ColumnSpec& one) { return one.in_args && one.key == text; });
    made.columns.push_back(it == columns.end() ? int8_t{-1} : static_cast<int8_t>(it - columns.begin()));
  }
  return key;
}

// ---- reading

// The number of an annotation's key, which comes first in it, by number or as text; -1 if it has none.
int32_t PftraceReader::key_of(const Wire& wire, const Sequence& sequence) {
  if (wire.field == 1 && wire.is(WireType::varint)) {
    const Text* text = sequence.keys.find(wire.number);
    return text ? text->number : -1;
  }
  if (wire.field != 10 || !wire.has_bytes()) return -1;
  key_text_.clear();
  append_quoted(key_text_, wire.bytes);
  return key_number(key_text_, wire.bytes);
}

// Adds an annotation to raw_shape_: of a number that has a column its key alone. False if it is damaged.
bool PftraceReader::take_number(std::string_view annotation, TrackEvent& event, const Sequence& sequence, int table, Slice& slice) {
  Wire wire(annotation);
  const int32_t key_is = wire.next() ? key_of(wire, sequence) : -1;
  const Key* key = key_is >= 0 ? &keys_[static_cast<size_t>(key_is)] : nullptr;
  const bool one = key && wire.next() && wire.p == wire.end;
  keys_known_ &= key != nullptr;
  if (one && (wire.field == 3 || wire.field == 4) && wire.is(WireType::varint)) {
    const int64_t value = wire.whole();
    const int8_t column = key->columns[static_cast<size_t>(table)];
    if (key->correlation) event.correlation = value, ++correlations_;
    const bool plain = wire.field == 3 ? wire.number < static_cast<uint64_t>(kPlainNumber) : value < kPlainNumber && value > -kPlainNumber;
    if (column >= 0 && plain && slice.count < kMaxColumns && !events_.table(table).columns[static_cast<size_t>(column)].is_float) {
      slice.numbers[slice.count++] = value;
      const auto number = static_cast<uint32_t>(key_is);
      raw_shape_.push_back(static_cast<char>(1));
      raw_shape_.append(reinterpret_cast<const char*>(&number), sizeof number);
      return true;
    }
  } else if (one && wire.field == 5 && wire.is(WireType::fixed64)) {
    const double value = wire.real();
    const int8_t column = key->columns[static_cast<size_t>(table)];
    if (column >= 0 && is_plain(value) && slice.count < kMaxColumns && events_.table(table).columns[static_cast<size_t>(column)].is_float) {
      slice.numbers[slice.count++] = std::bit_cast<int64_t>(value);
      const auto number = static_cast<uint32_t>(key_is);
      raw_shape_.push_back(static_cast<char>(2));
      raw_shape_.append(reinterpret_cast<const char*>(&number), sizeof number);
      return true;
    }
  } else {
    int64_t last = kNull;
    Wire all(annotation);
    const Text* named = nullptr;
    std::string_view plain;
    while (all.next()) {
      if (all.field == 10 && all.has_bytes()) plain = all.bytes;
      if (all.field == 1 && all.has_number()) named = sequence.keys.find(all.number);
      if ((all.field == 3 || all.field == 4) && all.has_number()) last = all.whole();
    }
    if (all.bad) return false;
    if (named ? named->json == "\"correlation\"" : plain == "correlation") event.correlation = last, ++correlations_;
  }
  const auto size = static_cast<uint32_t>(annotation.size());
  raw_shape_.push_back(static_cast<char>(0));
  raw_shape_.append(reinterpret_cast<const char*>(&size), sizeof size);
  raw_shape_ += annotation;
  return true;
}

// The shape and the numbers of a slice with a category; without a shape if it is too long, or there are too many.
bool PftraceReader::read_shape(TrackEvent& event, Sequence& sequence, Slice& slice) {
  const bool instant = slice.dur == kNull && event.type == 3;
  const Category& category = categories_[static_cast<size_t>(event.category)];
  const int table = category.tables[instant];
  const uint32_t head[] = {static_cast<uint32_t>(event.category), sequence.epoch, static_cast<uint32_t>(event.name >= 0) | (instant ? 2u : 0u)};
  raw_shape_.assign(reinterpret_cast<const char*>(head), sizeof head);
  slice.count = 0;
  keys_known_ = true, correlations_ = 0;
  for (const std::string_view annotation : annotations_)
    if (!take_number(annotation, event, sequence, table, slice)) return false;
  if (raw_shape_.size() > kLongest) return true;
  const uint64_t hash = hash_bytes(raw_shape_);
  int32_t raw = raw_shapes_.find(raw_shape_, hash);
  const bool again = raw >= 0;
  if (!again) {
    int32_t shape = -1;
    if (!new_shape(event, sequence, table, shape)) return false;
    if (raw_shapes_.bytes() > kMostBytes) raw_shapes_.drain(), raw_shape_ids_.clear();
    raw = raw_shapes_.add(raw_shape_, hash);
    raw_shape_ids_.push_back(shape);
  }
  slice.shape = raw_shape_ids_[static_cast<size_t>(raw - raw_shapes_.first())];
  slice.name = event.name;
  if (again && slice.shape >= 0) learn_pattern(event, sequence, slice);
  return true;
}

// Follows raw_shape_ through the annotations, and writes what is no number as text.
bool PftraceReader::new_shape(const TrackEvent& event, const Sequence& sequence, int table, int32_t& shape) {
  Shape made;
  made.category = event.category;
  made.table = table;
  made.odd = categories_[static_cast<size_t>(event.category)].left_out;
  std::string before, key(raw_shape_, 8, 4);
  key += categories_[static_cast<size_t>(event.category)].json;
  size_t at = 12;
  bool first = true;
  for (const std::string_view annotation : annotations_) {
    const int kind = raw_shape_[at];
    if (!std::exchange(first, false)) before += ", ";
    const size_t key_at = before.size();
    if (!append_annotation_key(before, annotation, sequence)) return false;
    if (kind == 0) {
      const std::string name = before.substr(key_at);
      if (!append_annotation(before, annotation, sequence, 0)) return false;
      const std::string_view value = std::string_view(before).substr(key_at + name.size());
      made.odd |= value != "null" && is_column(events_.table(table), name);
      at += 5 + annotation.size();
      continue;
    }
    uint32_t number;
    std::memcpy(&number, raw_shape_.data() + at + 1, sizeof number);
    at += 5;
    made.columns.push_back(static_cast<uint8_t>(keys_[number].columns[static_cast<size_t>(table)]));
    ((key += '\0') += before) += static_cast<char>(made.columns.back() + 1);
    made.texts.push_back(std::exchange(before, {}));
  }
  ((key += '\0') += before) += '\0';
  made.texts.push_back(std::move(before));
  const uint64_t hash = hash_bytes(key);
  shape = shapes_by_text_.find(key, hash);
  if (shape >= 0 || shapes_.size() >= kMostShapes || shapes_by_text_.bytes() + key.size() > kMostBytes) return true;
  shape = shapes_by_text_.add(key, hash);
  made.has_device = contains(made.texts, "\"device\"");
  made.has_stream = contains(made.texts, "\"stream\"");
  made.places = events_.places_of(table, made.columns);
  shapes_.push_back(std::move(made));
  return true;
}

// ---- writing

// A slice with a shape, in texts.
void PftraceReader::spell(Slice& slice) const {
  if (slice.shape < 0) return;
  const Shape& shape = shapes_[static_cast<size_t>(slice.shape)];
  const auto& columns = events_.table(shape.table).columns;
  slice.title = slice.name < 0 ? std::string_view() : names_.texts()[static_cast<size_t>(slice.name)];
  slice.category = categories_[static_cast<size_t>(shape.category)].json;
  slice.args = shape.texts[0];
  for (size_t i = 0; i < shape.columns.size(); ++i) {
    if (columns[shape.columns[i]].is_float) append_real(slice.args, std::bit_cast<double>(slice.numbers[i]));
    else append_number(slice.args, slice.numbers[i]);
    slice.args += shape.texts[i + 1];
  }
  slice.shape = slice.name = -1;
}

// Whether its text would have nothing in it but what its shape, name and place say, and plain numbers.
bool PftraceReader::is_quick(const PackedSlice& slice, const Place& place) const {
  const Shape& shape = shapes_[static_cast<size_t>(slice.shape)];
  const bool on_device = place.device != kNull && slice.dur != kNull;
  if (shape.odd) return false;
  if (on_device && !(shape.has_device && (shape.has_stream || place.stream == kNull))) return false;
  const int64_t start = slice.time - origin_;
  return place.plain && start < kFarthest / 4 && start > -kFarthest / 4 && slice.dur < kFarthest / 4;
}

bool PftraceReader::write_quickly(const PackedSlice& slice, const char* numbers, const Place& place) {
  if (numbering_ != events_.numberings()) {
    numbering_ = events_.numberings();
    for (Shape& shape : shapes_) shape.skeleton = -1;
    std::fill(name_ids_.begin(), name_ids_.end(), kUnknown);
  }
  const Shape& shape = shapes_[static_cast<size_t>(slice.shape)];
  const int32_t thread = place.threads[place.device != kNull && slice.dur != kNull];
  const int32_t name = slice.name < 0 ? -1 : name_ids_[static_cast<size_t>(slice.name)];
  if (shape.skeleton < 0 || thread < 0 || name == kUnknown) return false;
  events_.add({shape.table, thread, name, shape.skeleton}, slice.time - origin_, slice.dur, shape.places, numbers);
  return true;
}

// One that looks like others goes into the columns from where it lies.
void PftraceReader::write_record(const PackedSlice& head, std::string_view record) {
  if (head.shape >= 0) {
    const Place& place = place_of(head.track);
    if (is_quick(head, place) && write_quickly(head, record.data() + sizeof head, place)) {
      latest_ = std::max(latest_, saturating_add(head.time, head.dur));
      return;
    }
  }
  Slice slice = unpack(record);
  slice.dur = head.dur;
  write(slice);
}

void PftraceReader::learn(const Slice& slice, Place& place, const Identity& is) {
  Shape& shape = shapes_[static_cast<size_t>(slice.shape)];
  if (is.table != shape.table || numbering_ != events_.numberings()) return;
  shape.skeleton = is.skeleton;
  place.threads[place.device != kNull && slice.dur != kNull] = is.thread;
  if (slice.name >= 0) name_ids_[static_cast<size_t>(slice.name)] = is.name;
}

}  // namespace stepscope
