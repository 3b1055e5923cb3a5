#include "packed.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <type_traits>

namespace stepscope {

namespace {

template <class Of>
Of value_at(const uint8_t* values, size_t row) {
  Of value;
  std::memcpy(&value, values + row * sizeof value, sizeof value);
  return value;
}

template <class To, class Of>
void narrow(const uint8_t* values, size_t rows, uint8_t* to) {
  for (size_t i = 0; i < rows; ++i) {
    const auto value = static_cast<To>(value_at<Of>(values, i));
    std::memcpy(to + i * sizeof value, &value, sizeof value);
  }
}

template <class Of, class T>
void widen(const uint8_t* bytes, uint64_t high, Column<T>& out) {
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<T>(high | value_at<Of>(bytes, i));
}

bool is_there(const WholeNumbers& of, size_t row) {
  return !of.valid || (of.valid[(of.offset + row) >> 3] >> ((of.offset + row) & 7) & 1);
}

// Whether each number is one more than the one before it.
template <class Of>
bool counts(const uint8_t* values, size_t rows) {
  const auto first = static_cast<uint64_t>(value_at<Of>(values, 0));
  if (static_cast<uint64_t>(value_at<Of>(values, rows - 1)) - first != rows - 1) return false;
  for (size_t i = 1; i < rows; ++i)
    if (static_cast<uint64_t>(value_at<Of>(values, i)) - first != i) return false;
  return true;
}

// How many bytes have bits that differ.
uint8_t width_of(uint64_t differing) { return differing == 0 ? 0 : differing <= 0xff ? 1 : differing <= 0xffff ? 2 : differing <= 0xffffffff ? 4 : 8; }

// How many rows are there.
size_t count_there(const WholeNumbers& of, size_t rows) {
  if (!of.valid) return rows;
  size_t there = 0, row = 0;
  for (; row < rows && (of.offset + row) % 8; ++row) there += is_there(of, row);
  const uint8_t* bits = of.valid + (of.offset + row) / 8;
  for (; row + 64 <= rows; row += 64, bits += 8) there += static_cast<size_t>(std::popcount(value_at<uint64_t>(bits, 0)));
  for (; row < rows; ++row) there += is_there(of, row);
  return there;
}

template <class Of>
PackedHead head_of(const WholeNumbers& of, const uint8_t* values, size_t rows) {
  PackedHead head;
  const size_t there = count_there(of, rows);
  head.nulls = there < rows;
  head.nothing = there == 0;
  if (head.nothing) return head;
  head.counts = !head.nulls && rows > 1 && counts<Of>(values, rows);
  size_t row = 0;
  while (!is_there(of, row)) ++row;
  const Of first = value_at<Of>(values, row);
  head.high = static_cast<uint64_t>(int64_t{first});
  if (head.counts) return head;
  Of differing = 0;
  if (!head.nulls)
    for (row = 0; row < rows; ++row) differing |= static_cast<Of>(value_at<Of>(values, row) ^ first);
  for (; row < rows; ++row) differing |= is_there(of, row) ? static_cast<Of>(value_at<Of>(values, row) ^ first) : Of{0};
  // What stands where nothing is may be any number: as much of it is kept as there is room for.
  head.width = width_of(static_cast<std::make_unsigned_t<Of>>(differing));
  head.high = head.width == 8 ? 0 : head.high >> 8 * head.width << 8 * head.width;
  return head;
}

template <class Of>
void pack(const WholeNumbers& of, const uint8_t* values, size_t rows, const PackedHead& head, uint8_t* to) {
  switch (head.width) {
    case 0: break;
    case 1: narrow<uint8_t, Of>(values, rows, to); break;
    case 2: narrow<uint16_t, Of>(values, rows, to); break;
    case 4: narrow<uint32_t, Of>(values, rows, to); break;
    default: narrow<uint64_t, Of>(values, rows, to);
  }
  if (!head.nulls || head.nothing) return;
  uint8_t* bits = to + rows * head.width;
  std::fill_n(bits, (rows + 7) / 8, uint8_t{0});
  for (size_t i = 0; i < rows; ++i) bits[i >> 3] = static_cast<uint8_t>(bits[i >> 3] | is_there(of, i) << (i & 7));
}

}  // namespace

Column<uint8_t> packed_columns(const std::vector<WholeNumbers>& columns, size_t rows) {
  const auto values = [](const WholeNumbers& of) { return of.values + of.offset * static_cast<size_t>(of.bits / 8); };
  std::vector<PackedHead> heads;
  size_t size = columns.size() * sizeof(PackedHead);
  for (const WholeNumbers& of : columns) {
    heads.push_back(of.bits == 32 ? head_of<int32_t>(of, values(of), rows) : head_of<int64_t>(of, values(of), rows));
    size += heads.back().size(rows);
  }
  Column<uint8_t> out(size);
  uint8_t* at = std::copy_n(reinterpret_cast<const uint8_t*>(heads.data()), heads.size() * sizeof(PackedHead), out.data());
  for (size_t i = 0; i < columns.size(); ++i) {
    if (columns[i].bits == 32) pack<int32_t>(columns[i], values(columns[i]), rows, heads[i], at);
    else pack<int64_t>(columns[i], values(columns[i]), rows, heads[i], at);
    at += heads[i].size(rows);
  }
  return out;
}

std::vector<PackedColumn> find_packed(const uint8_t* bytes, size_t size, size_t columns, size_t rows) {
  if (size / sizeof(PackedHead) < columns) throw std::invalid_argument("columns that were cut");
  size_t at = columns * sizeof(PackedHead);
  std::vector<PackedColumn> found(columns);
  for (size_t i = 0; i < columns; ++i) {
    PackedHead& head = found[i].head;
    std::memcpy(static_cast<void*>(&head), bytes + i * sizeof head, sizeof head);
    if (head.width > 8 || head.size(rows) > size - at) throw std::invalid_argument("columns that were cut");
    found[i].bytes = bytes + at;
    at += head.size(rows);
  }
  return found;
}

template <class T>
void unpack(const PackedColumn& column, Column<T>& out) {
  switch (column.head.width) {
    case 0:
      for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<T>(column.head.high + (column.head.counts ? i : 0));
      break;
    case 1: widen<uint8_t>(column.bytes, column.head.high, out); break;
    case 2: widen<uint16_t>(column.bytes, column.head.high, out); break;
    case 4: widen<uint32_t>(column.bytes, column.head.high, out); break;
    case 8: widen<uint64_t>(column.bytes, column.head.high, out); break;
    default: throw std::invalid_argument("no such width");
  }
}

template void unpack(const PackedColumn&, Column<int32_t>&);
template void unpack(const PackedColumn&, Column<int64_t>&);

}  // namespace stepscope
