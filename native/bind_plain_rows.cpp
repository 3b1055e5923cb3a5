#include "bindings.hpp"
#include "plain_rows.hpp"

#include <numeric>

namespace stepscope {

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::object order_of(const Ints& thread, const Ints& start, const Ints& length) {
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

// How many rows each group has, and the sum of what they have; groups are numbers from 0.
nb::tuple sums_of(const Ints& group, const Ints& amount, size_t groups) {
  same_length(group, amount);
  std::vector<int64_t> counts(groups);
  std::vector<uint64_t> sums(groups);
  for (size_t i = 0; i < group.shape(0); ++i) {
    const auto at = static_cast<uint64_t>(group.data()[i]);
    if (at >= groups) throw std::invalid_argument("a group beyond the last");
    ++counts[at];
    if (amount.data()[i] != INT64_MIN) sums[at] += static_cast<uint64_t>(amount.data()[i]);
  }
  std::vector<int64_t> summed(sums.begin(), sums.end());
  return nb::make_tuple(counts, summed);
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
  m.def("sums_of", &sums_of, nb::arg("group"), nb::arg("amount"), nb::arg("groups"));
  m.def("counted", &counted, nb::arg("first"), nb::arg("rows"));
  m.def("distinct", &distinct, nb::arg("columns"), nb::arg("rows"));
  m.def("told_texts", &told_texts, nb::arg("offsets"), nb::arg("text"), nb::arg("numbers"), nb::arg("texts"));
}

}  // namespace stepscope
