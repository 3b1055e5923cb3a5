#include "batch.hpp"
#include "bindings.hpp"
#include "sweep.hpp"

#include <stdexcept>

namespace stepscope {

namespace {

size_t add_run(ThreadSweep& self, int table, bool opens, bool marks, bool covers, int weight, int group, int label) {
  return self.add_run({table, opens, marks, covers, weight, group, label});
}

// A column as it lies in Python's memory. A sweep lets go of it in threads that do not hold Python's lock.
GivenColumn given(const Ints& column) {
  const auto release = [](const Ints* owner) {
    nb::gil_scoped_acquire lock;
    delete owner;
  };
  return {column.data(), column.shape(0), std::shared_ptr<const Ints>(new Ints(column), release)};
}

// A column of the payload is None if nothing is in it.
void give(ThreadSweep& self, size_t run, const Ints& event, const Ints& start, const Ints& dur, const std::vector<std::optional<Ints>>& payload) {
  same_length(event, start, dur);
  std::vector<GivenColumn> columns;
  for (const std::optional<Ints>& column : payload) {
    if (column) same_length(event, *column);
    columns.push_back(column ? given(*column) : GivenColumn{});
  }
  self.give(run, given(event), given(start), given(dur), std::move(columns));
}

// The rows of a table, sorted, by name of column: (values, validity bitmap or None). Payload columns come as a list, the
// first `narrow` of them as int32, each None if nothing is in it. `whole` says that all rows have times and those narrow columns.
nb::dict take(ThreadSweep& self, size_t table, size_t narrow, bool whole) {
  Nested n;
  std::vector<std::vector<uint8_t>> bits;
  {
    nb::gil_scoped_release release;
    n = self.take(table, narrow);
    for (auto* column : {&n.event, &n.start, &n.dur, &n.inside, &n.marked, &n.node})
      bits.push_back(whole && bits.size() < 3 ? std::vector<uint8_t>{} : validity(*column, kNull));
    for (const auto& column : n.payload) bits.push_back(validity(column, kNull));
  }
  const size_t rows = n.event.size();
  nb::dict out;
  out["event"] = to_column(std::move(n.event), std::move(bits[0]));
  out["start"] = to_column(std::move(n.start), std::move(bits[1]));
  out["dur"] = to_column(std::move(n.dur), std::move(bits[2]));
  out["inside"] = to_column(std::move(n.inside), std::move(bits[3]));
  out["marked"] = to_column(std::move(n.marked), std::move(bits[4]));
  out["depth"] = to_column(std::move(n.depth), {});
  out["self"] = to_column(std::move(n.self), {});
  out["uncovered"] = to_column(std::move(n.uncovered), {});
  out["fresh"] = to_column(std::move(n.fresh), {});
  out["weight_self"] = to_column(std::move(n.weight_self), {});
  out["weight_once"] = to_column(std::move(n.weight_once), {});
  out["node"] = to_column(std::move(n.node), std::move(bits[5]));
  out["in_steps"] = to_column(std::move(n.in_steps), {});
  out["late"] = to_column(std::move(n.late), {});
  nb::list payload;
  for (auto& column : n.narrow) {
    auto present = whole ? std::vector<uint8_t>{} : validity(column, kNarrowNull);
    if (column.size() < rows) payload.append(nb::none());
    else payload.append(to_column(std::move(column), std::move(present)));
  }
  for (size_t i = 0; i < n.payload.size(); ++i) {
    if (n.payload[i].size() < rows) payload.append(nb::none());
    else payload.append(to_column(std::move(n.payload[i]), std::move(bits[6 + i])));
  }
  out["payload"] = payload;
  return out;
}

// An Arrow column of int32 or int64 as int64, with the smallest number for what is not there.
nb::object widened(const nb::object& values, const nb::object& valid, size_t offset, size_t rows, bool narrow) {
  const void* data = held(values, (offset + rows) * (narrow ? 4 : 8));
  const auto* bits = valid.is_none() ? nullptr : static_cast<const uint8_t*>(held(valid, (offset + rows + 7) / 8));
  Column<int64_t> out(rows);
  if (narrow) std::copy_n(static_cast<const int32_t*>(data) + offset, rows, out.data());
  else std::copy_n(static_cast<const int64_t*>(data) + offset, rows, out.data());
  for (size_t at = offset; bits && at < offset + rows; ++at)
    if (!(bits[at >> 3] >> (at & 7) & 1)) out[at - offset] = kNull;
  return to_buffer(std::move(out));
}

nb::object link(Linker& self, const Ints& correlation, const Ints& start, const Ints& dur) {
  same_length(correlation, start, dur);
  std::vector<int32_t> out(correlation.shape(0));
  {
    nb::gil_scoped_release release;
    self.link(correlation.data(), start.data(), dur.data(), out.size(), out.data());
  }
  return to_buffer(std::move(out));
}

// The numbers of some launches in a row, and what they launched: time and events. To be asked for once.
nb::tuple loads(Linker& self, size_t first, size_t rows) {
  std::vector<int64_t> number(rows), events(rows), time(rows);
  for (size_t i = 0; i < rows; ++i) {
    number[i] = static_cast<int64_t>(first + i);
    events[i] = self.work_events(first + i);
    time[i] = self.take_work_ns(first + i);
  }
  return nb::make_tuple(to_buffer(std::move(number)), to_buffer(std::move(time)), to_buffer(std::move(events)));
}

void note_ops(Linker& self, const Ints& launch, const Ints& op) {
  same_length(launch, op);
  for (size_t i = 0; i < launch.shape(0); ++i) self.note_op(static_cast<size_t>(launch.data()[i]), op.data()[i]);
}

// Event and operator of each launch; NULL for -1.
nb::tuple ends(const Linker& self, const Shorts& launch) {
  std::vector<int64_t> event(launch.shape(0), kNull), op(launch.shape(0), kNull);
  for (size_t i = 0; i < event.size(); ++i) {
    if (launch.data()[i] < 0) continue;
    const auto at = static_cast<size_t>(launch.data()[i]);
    event[i] = self.event(at), op[i] = self.op(at);
  }
  auto event_bits = validity(event, kNull), op_bits = validity(op, kNull);
  return nb::make_tuple(to_column(std::move(event), std::move(event_bits)), to_column(std::move(op), std::move(op_bits)));
}

void push(DeviceSweep& self, const Ints& start, const Ints& dur, const Ints& kind, const Ints& weight) {
  same_length(start, dur, kind, weight);
  for (size_t i = 0; i < kind.shape(0); ++i)
    if (kind.data()[i] < 0 || kind.data()[i] >= static_cast<int64_t>(DeviceSweep::kKinds)) throw std::invalid_argument("no such kind of work");
  nb::gil_scoped_release release;
  self.push(start.data(), dur.data(), kind.data(), weight.data(), start.shape(0));
}

}  // namespace

void bind_sweeps(nb::module_& m) {
  m.attr("NULL") = kNull;
  m.def("widened", &widened, nb::arg("values"), nb::arg("valid").none(), nb::arg("offset"), nb::arg("rows"), nb::arg("narrow"));
  nb::class_<ThreadSweep>(m, "ThreadSweep")
      .def(nb::init<std::vector<size_t>, CallTree*, const std::vector<size_t>&>(), nb::arg("payload_columns"), nb::arg("tree").none() = nb::none(),
           nb::arg("only_inside") = std::vector<size_t>{}, nb::keep_alive<1, 3>())
      .def("add_run", &add_run, nb::arg("table"), nb::arg("opens"), nb::arg("marks"), nb::arg("covers"), nb::arg("weight"), nb::arg("group"), nb::arg("label"))
      .def("give", &give, nb::arg("run"), nb::arg("event"), nb::arg("start"), nb::arg("dur"), nb::arg("payload"))
      .def("end_run", &ThreadSweep::end_run, nb::arg("run"))
      .def("advance", &ThreadSweep::advance, nb::arg("horizon"), nb::call_guard<nb::gil_scoped_release>())
      .def("finish_thread", &ThreadSweep::finish_thread, nb::call_guard<nb::gil_scoped_release>())
      .def("rows", &ThreadSweep::rows, nb::arg("table"))
      .def("take", &take, nb::arg("table"), nb::arg("narrow"), nb::arg("whole") = false);
  nb::class_<Linker>(m, "Linker")
      .def(nb::init<size_t>(), nb::arg("launches"))
      .def("add", [](Linker& self, const Ints& correlation, const Ints& start, const Ints& event) {
        same_length(correlation, start, event);
        self.add(correlation.data(), start.data(), event.data(), start.shape(0));
      }, nb::arg("correlation"), nb::arg("start"), nb::arg("event"))
      .def("build", &Linker::build, nb::call_guard<nb::gil_scoped_release>())
      .def("link", &link, nb::arg("correlation"), nb::arg("start"), nb::arg("dur"))
      .def("end_links", &Linker::end_links)
      .def("loads", &loads, nb::arg("first"), nb::arg("rows"))
      .def("note_ops", &note_ops, nb::arg("launch"), nb::arg("op"))
      .def("ends", &ends, nb::arg("launch"));
  nb::class_<DeviceSweep>(m, "DeviceSweep")
      .def(nb::init<std::vector<int64_t>, std::vector<int64_t>>(), nb::arg("window_starts"), nb::arg("window_ends"))
      .def("push", &push, nb::arg("start"), nb::arg("dur"), nb::arg("kind"), nb::arg("weight"))
      .def("finish", &DeviceSweep::finish)
      .def_ro("busy_ns", &DeviceSweep::busy)
      .def_ro("kernel_ns", &DeviceSweep::kernel)
      .def_ro("overlap_ns", &DeviceSweep::overlap)
      .def_ro("window_ns", &DeviceSweep::windows)
      .def_ro("filled_ns", &DeviceSweep::filled)
      .def_prop_ro("by_kind_ns", [](const DeviceSweep& d) { return std::vector<int64_t>(d.by_kind, d.by_kind + DeviceSweep::kKinds); });
}

}  // namespace stepscope
