#include "sqlite_pages.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "text.hpp"

#if defined(_WIN32)
#include <io.h>
#else
#include <unistd.h>
#endif

namespace stepscope {

namespace {

constexpr size_t kMostColumns = 2000;       // as SQLite itself allows
constexpr size_t kMostRecord = 4 << 20;     // what is looked at of one row
constexpr size_t kMostText = 1 << 16;       // what is kept of one text
constexpr size_t kMostBatchText = 64 << 20;  // then a batch ends early
constexpr size_t kApart = 67;  // numbers: columns that lie whole pages apart would share the same places of the cache
constexpr size_t kFirstText = 1 << 16;       // room for those of a batch, at first
constexpr size_t kDeepest = 64;

uint32_t big16(const unsigned char* p) { return static_cast<uint32_t>(p[0]) << 8 | p[1]; }
uint32_t big32(const unsigned char* p) { return big16(p) << 16 | big16(p + 2); }

// A number of one to nine bytes; returns its length, 0 if it goes beyond the end.
size_t varint(const unsigned char* p, const unsigned char* end, uint64_t& value) {
  if (p < end && *p < 0x80) {
    value = *p;
    return 1;
  }
  if (end - p >= 2 && p[1] < 0x80) {
    value = static_cast<uint64_t>(p[0] & 0x7f) << 7 | p[1];
    return 2;
  }
  value = 0;
  for (size_t i = 0; i < 8; ++i) {
    if (p + i >= end) return 0;
    value = value << 7 | (p[i] & 0x7f);
    if (p[i] < 0x80) return i + 1;
  }
  if (p + 8 >= end) return 0;
  value = value << 8 | p[8];
  return 9;
}

// Its length alone, where eight bytes from p on may be read.
size_t length_of_varint(const unsigned char* p, const unsigned char* end) {
  const uint64_t last = ~load64(reinterpret_cast<const char*>(p)) & 0x8080808080808080u;
  const size_t length = last ? static_cast<size_t>(std::countr_zero(last)) / 8 + 1 : 9;
  return length <= static_cast<size_t>(end - p) ? length : 0;
}

constexpr std::array<size_t, 12> kSizes = {0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0};

// Bytes of a value; a text of a size that cannot be has none of it within any record.
uint64_t size_of(uint64_t type) { return type < kSizes.size() ? kSizes[type] : (type - 12) / 2; }

// The eight bytes from p on as a number, the first of them the highest.
int64_t eight_bytes(const unsigned char* p) {
  uint64_t value;
  std::memcpy(&value, p, sizeof value);
  return static_cast<int64_t>(__builtin_bswap64(value));
}

int64_t big_int(const unsigned char* p, size_t size) {
  int64_t value = static_cast<signed char>(p[0]);
  for (size_t i = 1; i < size; ++i) value = static_cast<int64_t>(static_cast<uint64_t>(value) << 8 | p[i]);
  return value;
}

double big_double(const unsigned char* p) {
  const uint64_t bits = static_cast<uint64_t>(big_int(p, 8));
  double value;
  std::memcpy(&value, &bits, 8);
  return value;
}

// A number for the types at the beginning of a row, which mostly tells those of different rows apart.
size_t place_of_types(const unsigned char* record, size_t size) {
  const size_t head = std::min<size_t>(record[0] < 0x80 ? record[0] : 0x7f, size);
  // Products that do not wait for one another; different factors tell apart what stands at different places.
  constexpr std::array<uint64_t, 4> kFactors = {0x9e3779b97f4a7c15u, 0xbf58476d1ce4e5b9u, 0x94d049bb133111ebu, 0xd6e8feb86659fd93u};
  uint64_t mixed = head * kFactors[3];
  for (size_t at = 0; at + 8 <= head; at += 8) mixed += load64(reinterpret_cast<const char*>(record + at)) * kFactors[at / 8 % 4];
  if (head >= 8) mixed += std::rotl(load64(reinterpret_cast<const char*>(record + head - 8)) * kFactors[1], 32);
  else
    for (size_t at = 0; at < head; ++at) mixed = (mixed ^ record[at]) * kFactors[0];
  return static_cast<size_t>(mixed >> 48);
}

// Length of the UTF-8 character at p, 0 if there is none.
size_t character(const unsigned char* p, const unsigned char* end) {
  if (*p < 0x80) return 1;
  const size_t length = *p >= 0xf0 ? 4 : *p >= 0xe0 ? 3 : 2;
  if (*p < 0xc2 || *p > 0xf4 || static_cast<size_t>(end - p) < length) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((p[i] & 0xc0) != 0x80) return 0;
  if ((*p == 0xe0 && p[1] < 0xa0) || (*p == 0xed && p[1] > 0x9f)) return 0;
  if ((*p == 0xf0 && p[1] < 0x90) || (*p == 0xf4 && p[1] > 0x8f)) return 0;
  return length;
}

}  // namespace

SqlitePages::SqlitePages(int descriptor) : descriptor_(descriptor) { refusal = open(); }

std::string SqlitePages::open() {
  unsigned char head[100];
  if (read(0, head, sizeof head) != sizeof head) return "it is shorter than the header of a SQLite file";
  if (std::memcmp(head, "SQLite format 3", 16) != 0) return "it is no SQLite file";
  page_size = big16(head + 16) == 1 ? 65536 : big16(head + 16);
  if (page_size < 512 || (page_size & (page_size - 1))) return "its page size is impossible";
  usable = page_size - head[20];
  if (usable < 480) return "its pages have no room";
  encoding = static_cast<int>(big32(head + 56));
#if defined(_WIN32)
  const int64_t end = _lseeki64(descriptor_, 0, SEEK_END);
#else
  const int64_t end = lseek(descriptor_, 0, SEEK_END);
#endif
  bytes = end < 0 ? 0 : static_cast<uint64_t>(end);
  pages = static_cast<uint32_t>(std::min<uint64_t>(bytes / page_size, 0xfffffffeu));
  return "";
}

size_t SqlitePages::read(uint64_t offset, unsigned char* to, size_t size) const {
  size_t done = 0;
  while (done < size) {
#if defined(_WIN32)
    if (_lseeki64(descriptor_, static_cast<int64_t>(offset + done), SEEK_SET) < 0) break;
    const auto got = _read(descriptor_, to + done, static_cast<unsigned>(size - done));
#else
    const auto got = pread(descriptor_, to + done, size - done, static_cast<off_t>(offset + done));
#endif
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

const unsigned char* SqlitePages::page(uint32_t number) {
  if (number == 0 || number > pages) return nullptr;
  const uint64_t offset = static_cast<uint64_t>(number - 1) * page_size;
  const uint64_t wanted = offset / kChunk;
  if (!last_ || last_->number != wanted) {
    Chunk* oldest = &chunks_[0];
    last_ = nullptr;
    for (Chunk& chunk : chunks_) {
      if (chunk.number == wanted) last_ = &chunk;
      if (chunk.used < oldest->used) oldest = &chunk;
    }
    if (!last_) {
      last_ = oldest;
      last_->bytes.resize(kChunk + kBehind);
      last_->number = wanted;
      last_->size = read(wanted * kChunk, last_->bytes.data(), kChunk);
    }
    last_->used = ++clock_;
  }
  const size_t at = static_cast<size_t>(offset % kChunk);
  return at + page_size <= last_->size ? last_->bytes.data() + at : nullptr;  // shorter if it was cut meanwhile
}

SqliteScan::SqliteScan(int descriptor, uint32_t root, std::vector<SqliteColumn> given)
    : columns(std::move(given)), file(descriptor) {
  if (!file.refusal.empty()) return;
  for (size_t i = 0; i < columns.size(); ++i) {
    if (columns[i].place >= kMostColumns) throw std::invalid_argument("no record has so many columns");
    if (columns[i].place >= wanted_.size()) wanted_.resize(columns[i].place + 1, -1);
    wanted_[columns[i].place] = static_cast<int>(i);
    has_rowid_ |= columns[i].is_rowid;
  }
  last_place_ = wanted_.size();
  seen_.resize(file.pages / 8 + 1);
  enter(root);
}

void SqliteScan::enter(uint32_t number) {
  const unsigned char* page = file.page(number);
  if (!page || (seen_[number / 8] >> (number % 8) & 1) || above_.size() > kDeepest) {
    ++bad_pages;
    return;
  }
  seen_[number / 8] = static_cast<uint8_t>(seen_[number / 8] | 1u << (number % 8));
  const size_t start = number == 1 ? 100 : 0;
  const unsigned char* header = page + start;
  if (header[0] == 0x0d) return open_leaf(page, number);
  const size_t cells = big16(header + 3);
  if (header[0] != 0x05 || start + 12 + 2 * cells > file.usable) {
    ++bad_pages;
    return;
  }
  Level level;
  level.children.reserve(cells + 1);
  for (size_t i = 0; i < cells; ++i) {
    const size_t at = big16(header + 12 + 2 * i);
    if (at + 4 > file.usable) {
      ++bad_pages;
      continue;
    }
    level.children.push_back(big32(page + at));
  }
  level.children.push_back(big32(header + 8));
  above_.push_back(std::move(level));
}

void SqliteScan::open_leaf(const unsigned char* page, uint32_t number) {
  header_ = number == 1 ? 108 : 8;
  const size_t cells = big16(page + header_ - 5);
  if (header_ + 2 * cells > file.usable) {
    ++bad_pages;
    return;
  }
  leaf_ = page;
  leaf_number_ = number;
  cells_ = cells;
  cell_ = 0;
}

bool SqliteScan::open_next_leaf() {
  while (cell_ >= cells_) {
    while (!above_.empty() && above_.back().at >= above_.back().children.size()) above_.pop_back();
    if (above_.empty()) return false;
    Level& level = above_.back();
    enter(level.children[level.at++]);
  }
  return true;
}

size_t SqliteScan::next(size_t most) {
  batch_ = text_bytes_ = 0;
  ints_.clear();
  for (SqliteColumn& column : columns) {
    if (column.kind == SqliteKind::kInt) column.ints.reserve(most + kApart);
    column.ints.resize(column.kind == SqliteKind::kInt ? most : 0);
    column.doubles.resize(column.kind == SqliteKind::kDouble ? most : 0);
    column.offsets.resize(column.kind == SqliteKind::kText ? most + 1 : 0);
    if (!column.offsets.empty()) column.offsets[0] = 0;
    column.text.resize(column.text_size + column.text_size / 8);  // about what the batch before needed
    column.text_size = 0;
    column.valid.assign((most + 7) / 8, 0xff);
    column.nulls = 0;
    ints_.push_back(column.ints.data());
  }
  if (file.refusal.empty())
    while (batch_ < most && text_bytes_ < kMostBatchText && open_next_leaf()) {
      if (read_row(cell_++))
        ++batch_;
      else
        ++bad_rows;
    }
  for (SqliteColumn& column : columns) {
    column.ints.resize(std::min(column.ints.size(), batch_));
    column.doubles.resize(std::min(column.doubles.size(), batch_));
    column.offsets.resize(std::min(column.offsets.size(), batch_ + 1));
    column.text.resize(column.text_size);
    column.valid.resize((batch_ + 7) / 8);
  }
  rows += batch_;
  return batch_;
}

bool SqliteScan::read_row(size_t cell) {
  const size_t start = big16(leaf_ + header_ + 2 * cell);
  const unsigned char *end = leaf_ + file.usable, *p = leaf_ + start;
  if (start < header_ + 2 * cells_ || start >= file.usable) return false;
  uint64_t payload = 0, rowid = 0;
  size_t length = varint(p, end, payload);
  if (!length) return false;
  p += length;
  length = has_rowid_ ? varint(p, end, rowid) : length_of_varint(p, end);
  if (!length) return false;
  p += length;
  const uint64_t whole_page = file.usable - 35;
  if (payload <= whole_page) {
    if (payload > static_cast<uint64_t>(end - p)) return false;
    const auto size = static_cast<size_t>(payload);
    if (take_alike(p, size, static_cast<int64_t>(rowid))) return true;
    return take(p, size, payload, static_cast<int64_t>(rowid));
  }
  // The file format's rule of how much of a long row stays on its page.
  const uint64_t least = (file.usable - 12) * 32 / 255 - 23;
  const uint64_t fitting = least + (payload - least) % (file.usable - 4);
  const size_t local = static_cast<size_t>(fitting <= whole_page ? fitting : least);
  if (local + 4 > static_cast<size_t>(end - p)) return false;
  const size_t most = static_cast<size_t>(std::min<uint64_t>(payload, kMostRecord));
  if (leaf_ != own_leaf_.data()) {  // following the row's other pages may drop this one from the file's chunks
    own_leaf_.assign(leaf_, leaf_ + file.usable + SqlitePages::kBehind);
    p = own_leaf_.data() + (p - leaf_);
    leaf_ = own_leaf_.data();
  }
  return gather(p, local, most) && take(record_.data(), record_.size(), payload, static_cast<int64_t>(rowid));
}

// Puts the beginning of a long row together.
bool SqliteScan::gather(const unsigned char* at, size_t local, size_t most) {
  record_.assign(at, at + local);
  uint32_t next = big32(at + local);
  while (record_.size() < most) {
    const unsigned char* page = file.page(next);
    if (!page || (seen_[next / 8] >> (next % 8) & 1)) return false;  // no page belongs to two rows
    seen_[next / 8] = static_cast<uint8_t>(seen_[next / 8] | 1u << (next % 8));
    const size_t size = std::min<size_t>(most - record_.size(), file.usable - 4);
    record_.insert(record_.end(), page + 4, page + 4 + size);
    next = big32(page);
  }
  return true;
}

bool SqliteScan::take(const unsigned char* record, size_t size, uint64_t whole, int64_t rowid) {
  const unsigned char* end = record + size;
  uint64_t header = 0;
  const size_t length = varint(record, end, header);
  if (!length || header < length || header > size) return false;
  const unsigned char *type_at = record + length, *types_end = record + header;
  uint64_t at = header;
  std::array<uint64_t, 64> early;  // filled below as far as it is read
  std::vector<uint64_t> many;
  uint64_t* types = early.data();
  if (last_place_ > early.size()) {
    many.resize(last_place_);
    types = many.data();
  }
  size_t count = 0;
  for (; count < last_place_ && type_at < types_end; ++count) {  // all types first: a row is taken whole or not at all
    const size_t step = varint(type_at, types_end, types[count]);
    if (!step || types[count] == 10 || types[count] == 11) return false;
    type_at += step;
    at += size_of(types[count]);
    if (at > whole) return false;
  }
  if (count == last_place_ && at <= size) learn(record, static_cast<size_t>(type_at - record), at);
  at = header;
  for (size_t place = 0; place < last_place_; ++place) {
    const bool there = place < count;
    const uint64_t long_ = there ? size_of(types[place]) : 0;
    if (wanted_[place] >= 0) {
      SqliteColumn& column = columns[static_cast<size_t>(wanted_[place])];
      const size_t left = at < size ? size - static_cast<size_t>(at) : 0;
      const bool fits = long_ <= left;
      const size_t here = fits ? static_cast<size_t>(long_) : left;
      put(column, there ? types[place] : 0, record + std::min<uint64_t>(at, size), here, fits, rowid);
    }
    at += long_;
  }
  return true;
}

// Keeps what follows from the types at the beginning of a row whose wanted values are all there.
void SqliteScan::learn(const unsigned char* record, size_t head, uint64_t end) {
  Alike& alike = alike_[alike_at_];
  alike.numbers.clear(), alike.fixed.clear(), alike.nothing.clear(), alike.others.clear();
  alike.head.assign((head + 7) / 8, 0);
  std::memcpy(alike.head.data(), record, head);
  unsigned char own[8] = {};
  std::memset(own, 0xff, head % 8 ? head % 8 : 8);
  std::memcpy(&alike.last_bits, own, sizeof own);
  alike.head_size = head;
  alike.end = end;
  uint64_t header = 0, type = 0;
  const unsigned char* type_at = record + varint(record, record + head, header);
  for (size_t place = 0, at = static_cast<size_t>(header); place < last_place_; ++place) {
    type_at += varint(type_at, record + head, type);
    const auto size = static_cast<size_t>(size_of(type));
    if (wanted_[place] >= 0) {
      const auto column = static_cast<size_t>(wanted_[place]);
      const bool whole = columns[column].kind == SqliteKind::kInt;
      if (whole && type >= 1 && type <= 6) alike.numbers.push_back({column, at, static_cast<int>(64 - 8 * size)});
      else if (whole && (type == 8 || type == 9)) alike.fixed.push_back({column, static_cast<int64_t>(type) - 8});
      else if (type == 0 && !columns[column].is_rowid) alike.nothing.push_back(column);
      else alike.others.push_back({column, type, at, size});
    }
    at += size;
  }
}

// Whether a row has the same types; up to eight bytes behind its head are looked at.
bool SqliteScan::begins_as(const unsigned char* record, const Alike& alike) {
  const auto* text = reinterpret_cast<const char*>(record);
  const size_t last = alike.head.size() - 1;
  uint64_t differing = (load64(text + 8 * last) ^ alike.head[last]) & alike.last_bits;
  for (size_t i = 0; i < last; ++i) differing |= load64(text + 8 * i) ^ alike.head[i];
  return differing == 0;
}

// A row of the leaf that begins as one before it did; false if it does not, and nothing was taken.
bool SqliteScan::take_alike(const unsigned char* record, size_t size, int64_t rowid) {
  alike_at_ = size ? place_of_types(record, size) % kAlike : 0;
  const Alike& alike = alike_[alike_at_];
  if (alike.head.empty() || size < alike.head_size || size < alike.end || !begins_as(record, alike)) return false;
  int64_t* const* ints = ints_.data();
  const size_t row = batch_;  // its own: numbers that are written could be those of this object, for all the compiler knows
  for (const Number& one : alike.numbers) ints[one.column][row] = eight_bytes(record + one.at) >> one.unused;
  for (const Fixed& one : alike.fixed) ints[one.column][row] = one.value;
  for (const size_t column : alike.nothing) put_null(columns[column]);
  for (const Other& one : alike.others) put(columns[one.column], one.type, record + one.at, one.size, true, rowid);
  return true;
}

void SqliteScan::put(SqliteColumn& column, uint64_t type, const unsigned char* value, size_t size, bool whole, int64_t rowid) {
  const bool is_int = type >= 1 && type <= 9 && type != 7;
  if (type == 0 && !column.is_rowid) return put_null(column);
  if (type < 12 && !whole) {
    ++cut_texts;
    return put_null(column);
  }
  const int64_t number = type == 0 ? rowid : type == 8 ? 0 : type == 9 ? 1 : is_int ? big_int(value, size) : 0;
  switch (column.kind) {
    case SqliteKind::kInt:
      if (is_int || type == 0) {
        column.ints[batch_] = number;
        return;
      }
      ++odd_values;
      return put_null(column);
    case SqliteKind::kDouble:
      if (is_int || type == 0 || type == 7) {
        column.doubles[batch_] = type == 7 ? big_double(value) : static_cast<double>(number);
        return;
      }
      ++odd_values;
      return put_null(column);
    case SqliteKind::kText:
      break;
  }
  if (type >= 12) {
    if (!whole || size > kMostText) ++cut_texts;
    return put_text(column, value, std::min(size, kMostText));
  }
  char shown[40];
  const int length = type == 7 ? std::snprintf(shown, sizeof shown, "%.17g", big_double(value))
                               : std::snprintf(shown, sizeof shown, "%lld", static_cast<long long>(number));
  put_text(column, reinterpret_cast<const unsigned char*>(shown), static_cast<size_t>(length));
}

// As valid UTF-8: what is none becomes the character that stands for it.
void SqliteScan::put_text(SqliteColumn& column, const unsigned char* value, size_t size) {
  const size_t before = column.text_size;
  const size_t room = before + 3 * size;  // if each byte became such a character
  if (room > column.text.size()) column.text.resize(std::max(room, std::max<size_t>(2 * column.text.size(), kFirstText)));
  column.text_size = append_text(column, value, value + size);
  text_bytes_ += column.text_size - before;
  column.offsets[batch_ + 1] = static_cast<int32_t>(column.text_size);
}

// Where the text ends then; there is room for it.
size_t SqliteScan::append_text(SqliteColumn& column, const unsigned char* value, const unsigned char* end) {
  const auto plain = [](uint64_t eight) { return !(eight & 0x8080808080808080u); };
  const auto eight_at = [](const unsigned char* p) { return load64(reinterpret_cast<const char*>(p)); };
  const bool has_eight = end - value >= 8;
  char* to = column.text.data() + column.text_size;
  while (value < end) {
    if (const ptrdiff_t left = end - value; left >= 8 && plain(eight_at(value))) {
      std::memcpy(to, value, 8);
      value += 8, to += 8;
    } else if (left < 8 && has_eight && plain(eight_at(end - 8))) {  // some of these are there already
      std::memcpy(to + left - 8, end - 8, 8);
      value += left, to += left;
    } else if (const size_t length = character(value, end); length) {
      to = std::copy_n(value, length, to);
      value += length;
    } else {
      to = std::copy_n("\xef\xbf\xbd", 3, to);
      ++value;
    }
  }
  return static_cast<size_t>(to - column.text.data());
}

void SqliteScan::put_null(SqliteColumn& column) {
  if (column.kind == SqliteKind::kInt) column.ints[batch_] = 0;
  if (column.kind == SqliteKind::kDouble) column.doubles[batch_] = 0;
  if (column.kind == SqliteKind::kText) column.offsets[batch_ + 1] = static_cast<int32_t>(column.text_size);
  column.valid[batch_ >> 3] = static_cast<uint8_t>(column.valid[batch_ >> 3] & ~(1u << (batch_ & 7)));
  ++column.nulls;
}

}  // namespace stepscope
