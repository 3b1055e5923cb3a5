#include "bindings.hpp"
#include "idle.hpp"

#include <stdexcept>

namespace stepscope {

namespace {

constexpr int64_t kDevices = 1 << 20;

void add_launches(GapFinder& self, const Ints& event, const Ints& thread, const Ints& start) {
  same_length(event, thread, start);
  nb::gil_scoped_release release;
  for (size_t i = 0; i < event.shape(0); ++i) self.add_launch(event.data()[i], thread.data()[i], start.data()[i]);
}

void push_work(GapFinder& self, const Ints& device, const Ints& start, const Ints& dur, const Ints& event, const Ints& launch) {
  same_length(device, start, dur, event, launch);
  for (size_t i = 0; i < device.shape(0); ++i)
    if (device.data()[i] < 0 || device.data()[i] > kDevices) throw std::invalid_argument("no such device");
  nb::gil_scoped_release release;
  for (size_t i = 0; i < device.shape(0); ++i)
    self.push({device.data()[i], start.data()[i], dur.data()[i], event.data()[i], launch.data()[i]});
}

// The gaps found since the last time, a column (values, validity bitmap or None) each.
nb::list take_gaps(GapFinder& self) {
  GapFinder::Gaps g = self.take();
  auto launches = validity(g.launch, kNull), starts = validity(g.launch_start, kNull);
  auto threads = validity(g.thread, int32_t{-1});
  nb::list out;
  out.append(to_column(std::move(g.device), {}));
  out.append(to_column(std::move(g.start), {}));
  out.append(to_column(std::move(g.dur), {}));
  out.append(to_column(std::move(g.before), {}));
  out.append(to_column(std::move(g.after), {}));
  out.append(to_column(std::move(g.launch), std::move(launches)));
  out.append(to_column(std::move(g.thread), std::move(threads)));
  out.append(to_column(std::move(g.launch_start), std::move(starts)));
  out.append(to_column(std::move(g.late), {}));
  return out;
}

std::vector<size_t> kinds_of(const Ints& kind) {
  std::vector<size_t> kinds(kind.shape(0));
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (kind.data()[i] < 0 || kind.data()[i] >= static_cast<int64_t>(HostTime::kKinds)) throw std::invalid_argument("no such kind of event");
    kinds[i] = static_cast<size_t>(kind.data()[i]);
  }
  return kinds;
}

int64_t end_of(int64_t start, int64_t dur) { return dur == kNull ? start : saturating_add(start, std::max<int64_t>(dur, 0)); }

void add_host(HostTime& self, const Ints& thread, const Ints& start, const Ints& dur, const Ints& kind) {
  same_length(thread, start, dur, kind);
  const auto kinds = kinds_of(kind);
  nb::gil_scoped_release release;
  for (size_t i = 0; i < kinds.size(); ++i)
    if (start.data()[i] != kNull) self.add(thread.data()[i], start.data()[i], end_of(start.data()[i], dur.data()[i]), kinds[i]);
}

// Events of one thread and kind; their times count from `base`.
void add_of_thread(HostTime& self, int64_t thread, const Ints& start, const Ints& dur, int64_t kind, int64_t base) {
  same_length(start, dur);
  if (kind < 0 || kind >= static_cast<int64_t>(HostTime::kKinds)) throw std::invalid_argument("no such kind of event");
  nb::gil_scoped_release release;
  self.add_of_thread(thread, static_cast<size_t>(kind), start.data(), dur.data(), start.shape(0), base);
}

void add_waits(HostTime& self, const Ints& thread, const Ints& start, const Ints& dur, const Ints& event) {
  same_length(thread, start, dur, event);
  for (size_t i = 0; i < event.shape(0); ++i)
    if (start.data()[i] != kNull)
      self.add_wait(thread.data()[i], start.data()[i], end_of(start.data()[i], dur.data()[i]), event.data()[i]);
}

// For stretches of time of some threads, a column of ns for each kind and one for nothing.
nb::list charged(const HostTime& self, const Ints& thread, const Ints& start, const Ints& dur) {
  same_length(thread, start, dur);
  std::vector<std::vector<int64_t>> columns(HostTime::kKinds + 1, std::vector<int64_t>(start.shape(0)));
  {
    nb::gil_scoped_release release;
    for (size_t i = 0; i < start.shape(0); ++i) {
      HostTime::Times times{};
      self.charge(thread.data()[i], start.data()[i], end_of(start.data()[i], dur.data()[i]), times);
      for (size_t kind = 0; kind < times.size(); ++kind) columns[kind][i] = times[kind];
    }
  }
  nb::list out;
  for (auto& column : columns) out.append(to_column(std::move(column), {}));
  return out;
}

nb::tuple waits_at(const HostTime& self, const Ints& thread, const Ints& at) {
  same_length(thread, at);
  std::vector<int64_t> events(at.shape(0));
  for (size_t i = 0; i < events.size(); ++i) events[i] = self.waits_at(thread.data()[i], at.data()[i]);
  auto bits = validity(events, kNull);
  return to_column(std::move(events), std::move(bits));
}

nb::tuple inside(const HostTime& self, const Ints& start, const Ints& dur) {
  same_length(start, dur);
  std::vector<int64_t> times(start.shape(0));
  for (size_t i = 0; i < times.size(); ++i) times[i] = self.inside(start.data()[i], end_of(start.data()[i], dur.data()[i]));
  return to_column(std::move(times), {});
}

void add_amounts(Tally& self, const Ints& group, const Ints& amount, const Ints& since, const Ints& item, const Ints& other) {
  same_length(group, amount, since, item, other);
  for (size_t i = 0; i < group.shape(0); ++i)
    if (group.data()[i] < 0 || group.data()[i] >= static_cast<int64_t>(self.count.size())) throw std::invalid_argument("no such group");
  nb::gil_scoped_release release;
  for (size_t i = 0; i < group.shape(0); ++i)
    self.add(static_cast<size_t>(group.data()[i]), amount.data()[i], since.data()[i], item.data()[i], other.data()[i]);
}

void add_queued(Queues& self, const Ints& device, const Ints& launched, const Ints& begun) {
  same_length(device, launched, begun);
  nb::gil_scoped_release release;
  for (size_t i = 0; i < device.shape(0); ++i) self.add(device.data()[i], launched.data()[i], begun.data()[i]);
}

nb::tuple depths(const Queues& self, const Ints& device, const Ints& at) {
  same_length(device, at);
  std::vector<int64_t> found(at.shape(0));
  {
    nb::gil_scoped_release release;
    for (size_t i = 0; i < found.size(); ++i) found[i] = self.depth(device.data()[i], at.data()[i]);
  }
  return to_column(std::move(found), {});
}

HostTime* make_host_time(std::vector<int64_t> starts, std::vector<int64_t> ends) {
  if (starts.size() != ends.size()) throw std::invalid_argument("columns of different length");
  for (size_t i = 0; i < starts.size(); ++i)
    if (ends[i] < starts[i] || (i > 0 && starts[i] < ends[i - 1])) throw std::invalid_argument("windows that are not disjoint and sorted");
  return new HostTime(std::move(starts), std::move(ends));
}

}  // namespace

void bind_idle(nb::module_& m) {
  nb::class_<GapFinder>(m, "GapFinder")
      .def(nb::init<>())
      .def("add_launches", &add_launches, nb::arg("event"), nb::arg("thread"), nb::arg("start"))
      .def("build", &GapFinder::build, nb::call_guard<nb::gil_scoped_release>())
      .def("push", &push_work, nb::arg("device"), nb::arg("start"), nb::arg("dur"), nb::arg("event"), nb::arg("launch"))
      .def_prop_ro("rows", &GapFinder::rows)
      .def("take", &take_gaps);
  nb::class_<HostTime>(m, "HostTime")
      .def(nb::new_(&make_host_time), nb::arg("window_starts"), nb::arg("window_ends"))
      .def("add", &add_host, nb::arg("thread"), nb::arg("start"), nb::arg("dur"), nb::arg("kind"))
      .def("add_of_thread", &add_of_thread, nb::arg("thread"), nb::arg("start"), nb::arg("dur"), nb::arg("kind"), nb::arg("base"))
      .def("add_waits", &add_waits, nb::arg("thread"), nb::arg("start"), nb::arg("dur"), nb::arg("event"))
      .def("hand", &HostTime::hand, nb::arg("thread"), nb::arg("by"))
      .def("build", &HostTime::build, nb::call_guard<nb::gil_scoped_release>())
      .def("charged", &charged, nb::arg("thread"), nb::arg("start"), nb::arg("dur"))
      .def("waits_at", &waits_at, nb::arg("thread"), nb::arg("at"))
      .def("inside", &inside, nb::arg("start"), nb::arg("dur"));
  nb::class_<Tally>(m, "Tally")
      .def(nb::init<size_t>(), nb::arg("groups"))
      .def("add", &add_amounts, nb::arg("group"), nb::arg("amount"), nb::arg("since"), nb::arg("item"), nb::arg("other"))
      .def_ro("count", &Tally::count)
      .def_ro("sum", &Tally::sum)
      .def_ro("largest", &Tally::largest)
      .def_ro("item", &Tally::item)
      .def_ro("other", &Tally::other);
  nb::class_<Queues>(m, "Queues")
      .def(nb::init<>())
      .def("add", &add_queued, nb::arg("device"), nb::arg("launched"), nb::arg("begun"))
      .def("build", &Queues::build, nb::call_guard<nb::gil_scoped_release>())
      .def("depths", &depths, nb::arg("device"), nb::arg("at"));
}

}  // namespace stepscope
