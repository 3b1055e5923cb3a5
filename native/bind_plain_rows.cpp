#include "bindings.hpp"
#include "plain_rows.hpp"

#include <cstring>
#include <numeric>

namespace stepscope {

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::object order_of(const Shorts& thread, const Ints& start, const Ints& length) {
  same_length(thread, start, length);
  std::vector<int64_t> order;
  {
    nb::gil_scoped_release release;
    order = row_order(thread.data(), start.data(), length.data(), thread.shape(0));
  }
  return order.empty() ? nb::none() : to_buffer(std::move(order));
}

// How long each row took, or None if some have times that cannot be.
nb::object durations_of(const Ints& start, const Ints& end, int64_t far) {
  same_length(start, end);
  Column<int64_t> out(start.shape(0));
  bool fit;
  {
    nb::gil_scoped_release release;
    fit = durations(start.data(), end.data(), far, out.size(), out.data());
  }
  return fit ? to_buffer(std::move(out)) : nb::none();
}

// How many rows each group has, and the sum of what they have; groups are numbers from `first`.
nb::tuple sums_of(const Shorts& group, const Ints& amount, int32_t first, size_t groups) {
  same_length(group, amount);
  std::vector<int64_t> counts(groups), sums(groups);
  if (!sum_groups(group.data(), amount.data(), group.shape(0), first, counts, sums)) throw std::invalid_argument("a group beyond the last");
  return nb::make_tuple(counts, sums);
}

// Whether all values of a column of Arrow, of 32 or 64 bits, are the same.
bool all_alike(const nb::object& values, size_t offset, size_t rows, int bits) {
  if (bits != 32 && bits != 64) throw std::invalid_argument("no such width");
  const auto width = static_cast<size_t>(bits / 8);
  const auto* from = static_cast<const uint8_t*>(held(values, (offset + rows) * width)) + offset * width;
  return rows < 2 || std::memcmp(from, from + width, (rows - 1) * width) == 0;
}

// Columns as (values, validity or None, first row, bits of a value): the number of each row, and the first row of each
// number.
nb::tuple distinct(const std::vector<std::tuple<nb::object, nb::object, size_t, int>>& given, size_t rows) {
  std::vector<BitsColumn> columns;
  if (rows > static_cast<size_t>(INT32_MAX)) throw std::invalid_argument("too many rows");
  for (const auto& [values, valid, offset, bits] : given) {
    if (bits != 1 && bits != 8 && bits != 16 && bits != 32 && bits != 64) throw std::invalid_argument("no such width");
    const size_t end = offset + rows;
    columns.push_back({static_cast<const uint8_t*>(held(values, (end * static_cast<size_t>(bits) + 7) / 8)),
                       valid.is_none() ? nullptr : static_cast<const uint8_t*>(held(valid, (end + 7) / 8)), offset, bits});
  }
  Distinct found;
  {
    nb::gil_scoped_release release;
    found = distinct_rows(columns, rows);
  }
  return nb::make_tuple(to_buffer(std::move(found.number)), to_buffer(std::move(found.first)));
}

// Numbers one after the other.
nb::object counted(int64_t first, size_t rows) {
  Column<int64_t> numbers(rows);
  std::iota(numbers.begin(), numbers.end(), first);
  return to_buffer(std::move(numbers));
}

nb::tuple joined(const std::vector<std::string_view>& texts) {
  std::vector<int32_t> offsets{0};
  std::vector<char> all;
  for (const std::string_view text : texts) {
    all.insert(all.end(), text.begin(), text.end());
    offsets.push_back(static_cast<int32_t>(all.size()));
  }
  return nb::make_tuple(to_buffer(std::move(offsets)), to_buffer(std::move(all)));
}

// Names as (places, texts), then the numbers of each key, then for each other key its places, and their texts.
nb::tuple told_texts(const Shorts& offsets, const Bytes& text, const std::vector<std::string>& numbers, const std::vector<std::string>& texts) {
  const size_t rows = offsets.shape(0) ? offsets.shape(0) - 1 : 0;
  for (size_t i = 0; i < rows; ++i)
    if (offsets.data()[i] < 0 || offsets.data()[i] > offsets.data()[i + 1]) throw std::invalid_argument("offsets that go back");
  if (rows && static_cast<size_t>(offsets.data()[rows]) > text.shape(0)) throw std::invalid_argument("offsets beyond the text");
  ToldTexts found;
  {
    nb::gil_scoped_release release;
    found.add(offsets.data(), reinterpret_cast<const char*>(text.data()), rows, numbers, texts);
  }
  nb::list counted, told;
  for (auto& column : found.numbers) {
    auto bits = validity(column, INT64_MIN);
    counted.append(to_column(std::move(column), std::move(bits)));
  }
  for (auto& column : found.told) {
    auto bits = validity(column, -1);
    told.append(to_column(std::move(column), std::move(bits)));
  }
  return nb::make_tuple(to_buffer(std::move(found.name)), joined(found.names.texts()), counted, told, joined(found.told_texts.texts()));
}

}  // namespace

void bind_plain_rows(nb::module_& m) {
  m.def("order_of", &order_of, nb::arg("thread"), nb::arg("start"), nb::arg("length"));
  m.def("durations_of", &durations_of, nb::arg("start"), nb::arg("end"), nb::arg("far"));
  m.def("sums_of", &sums_of, nb::arg("group"), nb::arg("amount"), nb::arg("first"), nb::arg("groups"));
  m.def("all_alike", &all_alike, nb::arg("values"), nb::arg("offset"), nb::arg("rows"), nb::arg("bits"));
  m.def("all_within", [](const Ints& numbers, int64_t least, int64_t most) { return within(numbers.data(), numbers.shape(0), least, most); },
        nb::arg("numbers"), nb::arg("least"), nb::arg("most"));
  m.def("counted", &counted, nb::arg("first"), nb::arg("rows"));
  m.def("distinct", &distinct, nb::arg("columns"), nb::arg("rows"));
  m.def("told_texts", &told_texts, nb::arg("offsets"), nb::arg("text"), nb::arg("numbers"), nb::arg("texts"));
}

}  // namespace stepscope
