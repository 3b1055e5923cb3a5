#include "bindings.hpp"
#include "path.hpp"

#include <stdexcept>

namespace stepscope {

namespace {

int32_t narrow(int64_t value) { return value == kNull ? -1 : static_cast<int32_t>(value); }

// Times beyond any clock are cut off, so that differences fit.
int64_t instant(int64_t time) { return std::clamp(time, -(int64_t{1} << 61), int64_t{1} << 62); }
int64_t end_of(int64_t start, int64_t dur) { return instant(saturating_add(start, std::max<int64_t>(0, dur))); }

template <class Kind>
Kind one_of(int64_t value, int kinds) {
  if (value < 0 || value >= kinds) throw std::invalid_argument("no such kind");
  return static_cast<Kind>(value);
}

void add_works(Dependencies& self, const Ints& event, const Ints& stream, const Ints& start, const Ints& dur, const Ints& launch,
               const Ints& kind, const Ints& label) {
  const size_t rows = event.shape(0);
  same_length(event, stream, start, dur, launch, kind, label);
  for (size_t i = 0; i < rows; ++i) {
    // Twice the kinds: the second half is work that its call waits for.
    const auto code = one_of<int8_t>(kind.data()[i], 2 * static_cast<int>(kWorkKinds));
    const int64_t begin = instant(start.data()[i]);
    self.add_work({event.data()[i], begin, end_of(begin, dur.data()[i]), label.data()[i], launch.data()[i],
                   narrow(stream.data()[i]), static_cast<int8_t>(code % static_cast<int8_t>(kWorkKinds)),
                   code >= static_cast<int8_t>(kWorkKinds)});
  }
}

void add_calls(Dependencies& self, const Ints& event, const Ints& thread, const Ints& start, const Ints& dur, const Ints& waits,
               const Ints& stream, const Ints& label) {
  const size_t rows = event.shape(0);
  same_length(event, thread, start, dur, waits, stream, label);
  for (size_t i = 0; i < rows; ++i) {
    const int64_t begin = instant(start.data()[i]);
    self.add_call({event.data()[i], begin, end_of(begin, dur.data()[i]), label.data()[i], narrow(thread.data()[i]),
                   narrow(stream.data()[i]), one_of<Waits>(waits.data()[i], kWaits)});
  }
}

void add_busy(Dependencies& self, const Ints& thread, const Ints& start, const Ints& dur) {
  same_length(thread, start, dur);
  for (size_t i = 0; i < thread.shape(0); ++i)
    self.add_busy(narrow(thread.data()[i]), {instant(start.data()[i]), end_of(start.data()[i], dur.data()[i])});
}

void add_stream_waits(Dependencies& self, const Ints& stream, const Ints& other, const Ints& waited_at, const Ints& recorded_at) {
  same_length(stream, other, waited_at, recorded_at);
  for (size_t i = 0; i < stream.shape(0); ++i)
    self.add_stream_wait(narrow(stream.data()[i]), narrow(other.data()[i]), instant(waited_at.data()[i]), instant(recorded_at.data()[i]));
}

using Columns = std::vector<std::vector<int64_t>>;

nb::dict named(std::initializer_list<const char*> names, Columns&& columns) {
  nb::dict out;
  size_t at = 0;
  for (const char* name : names) {
    auto bits = validity(columns[at], kNull);
    out[name] = to_column(std::move(columns[at]), std::move(bits));
    ++at;
  }
  return out;
}

// Every piece of work by its event, with the events of what it depends on, and which of these let it begin, and when.
nb::dict work_edges(const Dependencies& self) {
  Columns columns(6);
  {
    nb::gil_scoped_release release;
    const auto& works = self.works();
    for (size_t i = 0; i < works.size(); ++i) {
      const auto& w = works[i];
      const auto event_of = [&works](int32_t at) { return at < 0 ? kNull : works[static_cast<size_t>(at)].event; };
      const auto cause = self.cause(i);
      const int64_t row[] = {w.event, event_of(w.previous), event_of(w.waited),
                             w.launch < 0 ? kNull : self.calls()[static_cast<size_t>(w.launch)].event,
                             static_cast<int64_t>(cause.by), cause.by == Dependencies::By::nothing ? kNull : cause.time};
      for (size_t column = 0; column < columns.size(); ++column) columns[column].push_back(row[column]);
    }
  }
  return named({"event", "previous", "waited", "launch", "by", "time_ns"}, std::move(columns));
}

// Every call that waited for the device, with the work it waited for and when that was done.
nb::dict call_edges(const Dependencies& self) {
  Columns columns(4);
  for (const auto& [thread, joins] : self.joins()) {
    for (const auto& join : joins) {
      columns[0].push_back(self.calls()[static_cast<size_t>(join.call)].event);
      columns[1].push_back(self.works()[static_cast<size_t>(join.work)].event);
      columns[2].push_back(join.released);
      columns[3].push_back(join.for_room);
    }
  }
  return named({"event", "work", "released_ns", "for_room"}, std::move(columns));
}

std::unordered_map<int32_t, Role> roles_of(const std::unordered_map<int32_t, int>& given) {
  std::unordered_map<int32_t, Role> roles;
  for (const auto& [thread, role] : given) roles.emplace(thread, one_of<Role>(role, kRoles));
  return roles;
}

void walk(PathWalk& self, const Ints& start, const Ints& end, const Ints& lead) {
  same_length(start, end, lead);
  nb::gil_scoped_release release;
  for (size_t i = 0; i < start.shape(0); ++i)
    self.walk(static_cast<int32_t>(i), instant(start.data()[i]), instant(end.data()[i]), narrow(lead.data()[i]));
}

void add_host(PathCharge& self, const Ints& event, const Ints& thread, const Ints& start, const Ints& dur, const Ints& open,
              const Ints& label) {
  const size_t rows = event.shape(0);
  same_length(event, thread, start, dur, open, label);
  nb::gil_scoped_release release;
  for (size_t i = 0; i < rows; ++i) {
    const int64_t begin = instant(start.data()[i]);
    self.add(narrow(thread.data()[i]), {event.data()[i], begin, end_of(begin, dur.data()[i]), label.data()[i],
                                        one_of<PathCharge::Open>(open.data()[i], PathCharge::kOpens)});
  }
}

nb::dict sums(const PathCharge& self) {
  Columns columns(6);
  for (const auto& [key, sum] : self.sums) {
    const int64_t row[] = {key.window, static_cast<int64_t>(key.kind), key.label, sum.time, sum.pieces, sum.event};
    for (size_t column = 0; column < columns.size(); ++column) columns[column].push_back(row[column]);
  }
  return named({"window", "kind", "label", "path_ns", "pieces", "event"}, std::move(columns));
}

nb::dict kept(const PathCharge& self) {
  Columns columns(6);
  for (const PathPiece& p : self.kept) {
    const int64_t row[] = {p.window, static_cast<int64_t>(p.kind), p.place, p.start, p.end - p.start, p.event};
    for (size_t column = 0; column < columns.size(); ++column) columns[column].push_back(row[column]);
  }
  return named({"window", "kind", "place", "start_ns", "path_ns", "event"}, std::move(columns));
}

}  // namespace

void bind_path(nb::module_& m) {
  nb::class_<Dependencies>(m, "Dependencies")
      .def("__init__", [](Dependencies* self, int64_t near, int64_t queue_depth, int64_t least_samples, int64_t blocking_percent) {
        new (self) Dependencies({near, queue_depth, least_samples, blocking_percent});
      }, nb::arg("near_ns"), nb::arg("queue_depth"), nb::arg("least_samples"), nb::arg("blocking_percent"))
      .def("add_works", &add_works, nb::arg("event"), nb::arg("stream"), nb::arg("start"), nb::arg("dur"), nb::arg("launch"), nb::arg("kind"), nb::arg("label"))
      .def("add_calls", &add_calls, nb::arg("event"), nb::arg("thread"), nb::arg("start"), nb::arg("dur"), nb::arg("waits"), nb::arg("stream"), nb::arg("label"))
      .def("add_busy", &add_busy, nb::arg("thread"), nb::arg("start"), nb::arg("dur"))
      .def("add_stream_waits", &add_stream_waits, nb::arg("stream"), nb::arg("other"), nb::arg("waited_at"), nb::arg("recorded_at"))
      .def("build", &Dependencies::build, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("latency_ns", [](const Dependencies& d) {
        std::vector<int64_t> by_kind;
        for (size_t kind = 0; kind < kWorkKinds; ++kind) by_kind.push_back(d.latency(static_cast<int8_t>(kind)));
        return by_kind;
      })
      .def_prop_ro("gap_ns", &Dependencies::gap)
      .def("work_edges", &work_edges)
      .def("call_edges", &call_edges);
  nb::class_<PathWalk>(m, "PathWalk")
      .def("__init__", [](PathWalk* self, const Dependencies& graph, const std::unordered_map<int32_t, int>& roles, int64_t scheduling, int64_t thread_wait) {
        new (self) PathWalk(graph, roles_of(roles), {scheduling, thread_wait});
      }, nb::arg("graph"), nb::arg("roles"), nb::arg("scheduling_ns"), nb::arg("thread_wait_ns"), nb::keep_alive<1, 2>())
      .def("walk", &walk, nb::arg("start"), nb::arg("end"), nb::arg("lead"));
  nb::class_<PathCharge>(m, "PathCharge")
      .def("__init__", [](PathCharge* self, PathWalk& walk, bool keep) {
        new (self) PathCharge(std::exchange(walk.pieces, {}), keep);
      }, nb::arg("walk"), nb::arg("keep"))
      .def_prop_ro("threads", &PathCharge::threads)
      .def("add", &add_host, nb::arg("event"), nb::arg("thread"), nb::arg("start"), nb::arg("dur"), nb::arg("is_open"), nb::arg("label"))
      .def("advance", &PathCharge::advance, nb::call_guard<nb::gil_scoped_release>())
      .def("finish", &PathCharge::finish, nb::call_guard<nb::gil_scoped_release>())
      .def("sums", &sums)
      .def("kept", &kept);
}

}  // namespace stepscope
