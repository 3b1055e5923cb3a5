#include "known.hpp"

#include <algorithm>
#include <new>

namespace stepscope {

namespace {

constexpr size_t kLongest = 1 << 13;  // a longer event is not remembered
constexpr uint8_t kStart = 0, kDur = 1, kValues = 2;  // places in Batch::numbers
constexpr size_t kPadding = 16;
constexpr ptrdiff_t kNameRoom = 64;  // bytes beyond a name that are looked at

bool is_number(Slot slot) { return slot == Slot::start || slot == Slot::dur || slot == Slot::integer || slot == Slot::real; }

// A number as the layouts read it, so that both take the same spellings.
[[gnu::always_inline]] inline bool read_number(const Part& part, const char*& p, const char* end, int64_t& out) {
  if (part.slot == Slot::integer) return read_int_quickly(p, end, out);
  if (part.slot == Slot::start) return read_time_quickly(p, end, out);
  if (part.slot == Slot::dur) return read_time_quickly(p, end, out) && out >= 0;
  return (p = read_real(p, end, out)) != nullptr;
}

}  // namespace

const char* read_known(const Known& known, const char* p, const char* end, int64_t* const* numbers, size_t row) {
  const Rest& rest = *known.rest;
  const Head& head = *rest.head;
  const char* name = p + head.size;
  if (end - p < static_cast<ptrdiff_t>(head.size + known.size) + kNameRoom) return nullptr;
  if (!same_name(name, known.text(), known.size) || !same_padded(p, head.text.data(), head.size)) return nullptr;
  p = name + known.size;
  const char* text = rest.text.data();
  for (const Part& part : rest.parts) {
    const auto size = static_cast<ptrdiff_t>(part.literal_size);
    if (end - p < size + kRoomForNumber || !same_padded(p, text + part.literal_at, part.literal_size)) return nullptr;
    p += size;
    if (part.slot == Slot::literal) break;
    if (!read_number(part, p, end, numbers[part.column][row])) return nullptr;
  }
  for (const auto& [column, value] : rest.fixed) numbers[column][row] = value;
  return p;
}

KnownEvents::Sighting& KnownEvents::sighting_of(const Identity& is, bool& first) {
  const auto wide = [](int32_t v) { return static_cast<uint64_t>(static_cast<uint32_t>(v)); };
  const uint64_t mark = mix(wide(is.name) << 32 ^ wide(is.skeleton) ^ 0x9e3779b97f4a7c15ull, wide(is.thread) ^ 0xe7037ed1a0b428dbull) | 1;
  Sighting& sighting = sightings_[mark >> 8 & (kSlots - 1)];
  first = sighting.mark != mark;
  if (first) sighting = {mark, nullptr};
  return sighting;
}

void KnownEvents::learn(const Template& t, const Progress& progress, const char* end, const Fields& fields, Identity is) {
  // Texts that come once, such as those of annotations with a counter, would only push out the others.
  bool first = false;
  Sighting& sighting = sighting_of(is, first);
  // One that is known and was not found has too many like it: what came before will tell it from them.
  if (!first && !sighting.known) sighting.known = make(t, progress, end, fields, is);
  if (sighting.known) found(sighting.known, false);
  else found_another();
}

Known* KnownEvents::make(const Template& t, const Progress& progress, const char* end, const Fields& fields, Identity is) {
  const char* first = progress.at[0];
  if (t.parts.size() > Progress::kParts || static_cast<size_t>(end - first) > kLongest) return nullptr;
  Rest rest;
  const char* from = first;
  const char* own = nullptr;  // where the name begins, or the first number
  std::string_view name;
  uint32_t filled = 0;
  const auto add = [&](Part part, const char* until) {
    part.literal_at = static_cast<uint32_t>(rest.text.size());
    part.literal_size = static_cast<uint32_t>(until - from);
    rest.text.append(from, until);
    rest.text.append(kPadding, '\0');
    rest.parts.push_back(part);
  };
  for (size_t i = 0; i + 1 < t.parts.size(); ++i) {
    Part part = t.parts[i];
    if (part.slot == Slot::name && !own) {
      name = fields.name;
      own = name.data();
      from = own + name.size();
    }
    if (!is_number(part.slot)) continue;
    part.column = part.slot == Slot::start ? kStart : part.slot == Slot::dur ? kDur : static_cast<uint8_t>(kValues + part.column);
    filled |= 1u << part.column;
    const char* until = progress.at[i] + part.literal_size;
    if (!own) from = own = until;
    add(part, until);
    from = progress.at[i + 1];
  }
  if (!own) return nullptr;
  add(Part{}, end);
  const auto fix = [&](size_t column, int64_t value) {
    if (!(filled >> column & 1)) rest.fixed.emplace_back(static_cast<uint8_t>(column), value);
  };
  fix(kStart, fields.start), fix(kDur, fields.dur);
  for (size_t i = 0; i < t.columns; ++i) fix(kValues + i, fields.values[i]);
  const bool named = name.data() != nullptr;
  const Head* head = rest.head = head_of({first, static_cast<size_t>(own - first)}, named);
  if (!head) return nullptr;
  const uint64_t hash = named ? hash_bytes(name, head->seed) : head->seed;
  return keep({is, rest_of(std::move(rest)), nullptr, static_cast<uint32_t>(hash >> 32), static_cast<uint32_t>(name.size())}, name, hash);
}

Known* KnownEvents::keep(const Known& known, std::string_view text, uint64_t hash) {
  const size_t size = (sizeof(Known) + text.size() + 15) / 16 * 16;
  if (bytes_ + size > kMostBytes) {
    forget();  // the trace has gone on to other events
    return nullptr;
  }
  if (left_ < size) {
    left_ = std::max(size, kBlock);
    blocks_.push_back(std::make_unique<char[]>(left_ + static_cast<size_t>(kNameRoom)));
    next_ = blocks_.back().get();
  }
  char* place = std::exchange(next_, next_ + size);
  left_ -= size, bytes_ += size;
  Known* kept = new (place) Known(known);
  std::copy(text.begin(), text.end(), place + sizeof(Known));
  kept->chained = std::exchange(slots_[hash & (kSlots - 1)], kept);
  return kept;
}

const Rest* KnownEvents::rest_of(Rest&& rest) {
  std::string key(reinterpret_cast<const char*>(&rest.head), sizeof rest.head);
  key += rest.text;
  for (const Part& part : rest.parts) {
    const uint32_t numbers[] = {part.literal_size, static_cast<uint32_t>(part.slot), part.column};
    key.append(reinterpret_cast<const char*>(numbers), sizeof numbers);
  }
  for (const auto& [column, value] : rest.fixed) {
    const int64_t numbers[] = {column, value};
    key.append(reinterpret_cast<const char*>(numbers), sizeof numbers);
  }
  const auto [it, fresh] = rests_.try_emplace(std::move(key));
  if (fresh) {
    bytes_ += it->first.size() + rest.text.size() + rest.parts.size() * sizeof(Part) + 256;
    it->second = std::make_unique<Rest>(std::move(rest));
  }
  return it->second.get();
}

const Head* KnownEvents::head_of(std::string_view text, bool named) {
  for (const auto& head : heads_)
    if (head->named == named && std::string_view(head->text.data(), head->size) == text) return head.get();
  if (heads_.size() >= kMostHeads) return nullptr;
  heads_.push_back(std::make_unique<Head>(Head{std::string(text) + std::string(kPadding, '\0'), text.size(), named, hash_bytes(text)}));
  return heads_.back().get();
}

void KnownEvents::forget() {
  std::fill(slots_.begin(), slots_.end(), nullptr);
  std::fill(followers_.begin(), followers_.end(), nullptr);
  std::fill(sightings_.begin(), sightings_.end(), Sighting{});
  heads_.clear(), rests_.clear(), blocks_.clear();
  left_ = bytes_ = 0;
  past_ = 0;
}

}  // namespace stepscope
