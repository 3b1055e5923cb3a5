#include "bindings.hpp"
#include "sweep.hpp"

#include <stdexcept>

namespace stepscope {

namespace {

std::vector<int64_t> copy(const Ints& column) { return {column.data(), column.data() + column.shape(0)}; }

void same_length(std::initializer_list<size_t> sizes) {
  for (const size_t n : sizes)
    if (n != *sizes.begin()) throw std::invalid_argument("columns of different length");
}

size_t add_run(ThreadSweep& self, int table, bool opens, bool marks, bool covers, int weight, int group) {
  return self.add_run({table, opens, marks, covers, weight, group});
}

void give(ThreadSweep& self, size_t run, const Ints& event, const Ints& start, const Ints& dur, const std::vector<Ints>& payload) {
  same_length({event.shape(0), start.shape(0), dur.shape(0)});
  std::vector<std::vector<int64_t>> columns;
  for (const Ints& column : payload) {
    same_length({event.shape(0), column.shape(0)});
    columns.push_back(copy(column));
  }
  self.give(run, copy(event), copy(start), copy(dur), std::move(columns));
}

nb::dict take(ThreadSweep& self, size_t table) {
  Nested n = self.take(table);
  nb::dict out;
  out["event"] = to_buffer(std::move(n.event));
  out["start"] = to_buffer(std::move(n.start));
  out["dur"] = to_buffer(std::move(n.dur));
  out["inside"] = to_buffer(std::move(n.inside));
  out["marked"] = to_buffer(std::move(n.marked));
  out["depth"] = to_buffer(std::move(n.depth));
  out["self"] = to_buffer(std::move(n.self));
  out["uncovered"] = to_buffer(std::move(n.uncovered));
  out["fresh"] = to_buffer(std::move(n.fresh));
  out["weight_self"] = to_buffer(std::move(n.weight_self));
  out["weight_once"] = to_buffer(std::move(n.weight_once));
  nb::list payload;
  for (auto& column : n.payload) payload.append(to_buffer(std::move(column)));
  out["payload"] = payload;
  return out;
}

nb::object link(Linker& self, const Ints& correlation, const Ints& start, const Ints& dur) {
  same_length({correlation.shape(0), start.shape(0), dur.shape(0)});
  std::vector<int32_t> out(correlation.shape(0));
  {
    nb::gil_scoped_release release;
    self.link(correlation.data(), start.data(), dur.data(), out.size(), out.data());
  }
  return to_buffer(std::move(out));
}

// The numbers of some launches in a row, and what they launched: events and time.
nb::tuple loads(const Linker& self, size_t first, size_t rows) {
  std::vector<int64_t> number(rows), events(rows), time(rows);
  for (size_t i = 0; i < rows; ++i) {
    number[i] = static_cast<int64_t>(first + i);
    events[i] = self.work_events(first + i);
    time[i] = self.work_ns(first + i);
  }
  return nb::make_tuple(to_buffer(std::move(number)), to_buffer(std::move(events)), to_buffer(std::move(time)));
}

nb::object counts(const Linker& self, const Ints& launch) {
  std::vector<int64_t> out(launch.shape(0));
  for (size_t i = 0; i < out.size(); ++i) out[i] = self.work_events(static_cast<size_t>(launch.data()[i]));
  return to_buffer(std::move(out));
}

void note_ops(Linker& self, const Ints& launch, const Ints& op) {
  same_length({launch.shape(0), op.shape(0)});
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
  return nb::make_tuple(to_buffer(std::move(event)), to_buffer(std::move(op)));
}

void push(DeviceSweep& self, const Ints& start, const Ints& dur, const Ints& kind, const Ints& weight) {
  same_length({start.shape(0), dur.shape(0), kind.shape(0), weight.shape(0)});
  for (size_t i = 0; i < kind.shape(0); ++i)
    if (kind.data()[i] < 0 || kind.data()[i] >= static_cast<int64_t>(DeviceSweep::kKinds)) throw std::invalid_argument("no such kind of work");
  nb::gil_scoped_release release;
  self.push(start.data(), dur.data(), kind.data(), weight.data(), start.shape(0));
}

}  // namespace

void bind_sweeps(nb::module_& m) {
  m.attr("NULL") = kNull;
  nb::class_<ThreadSweep>(m, "ThreadSweep")
      .def(nb::init<std::vector<size_t>>(), nb::arg("payload_columns"))
      .def("add_run", &add_run, nb::arg("table"), nb::arg("opens"), nb::arg("marks"), nb::arg("covers"), nb::arg("weight"), nb::arg("group"))
      .def("give", &give, nb::arg("run"), nb::arg("event"), nb::arg("start"), nb::arg("dur"), nb::arg("payload"))
      .def("end_run", &ThreadSweep::end_run, nb::arg("run"))
      .def("advance", &ThreadSweep::advance, nb::arg("horizon"), nb::call_guard<nb::gil_scoped_release>())
      .def("finish_thread", &ThreadSweep::finish_thread, nb::call_guard<nb::gil_scoped_release>())
      .def("rows", &ThreadSweep::rows, nb::arg("table"))
      .def("take", &take, nb::arg("table"));
  nb::class_<Linker>(m, "Linker")
      .def(nb::init<>())
      .def("add", [](Linker& self, const Ints& correlation, const Ints& start, const Ints& event) {
        same_length({correlation.shape(0), start.shape(0), event.shape(0)});
        self.add(correlation.data(), start.data(), event.data(), start.shape(0));
      }, nb::arg("correlation"), nb::arg("start"), nb::arg("event"))
      .def("build", &Linker::build, nb::call_guard<nb::gil_scoped_release>())
      .def("link", &link, nb::arg("correlation"), nb::arg("start"), nb::arg("dur"))
      .def("loads", &loads, nb::arg("first"), nb::arg("rows"))
      .def("counts", &counts, nb::arg("launch"))
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
