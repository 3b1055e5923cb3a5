#include <cerrno>
#include <system_error>

#include "bindings.hpp"
#include "timeline.hpp"

namespace stepscope {

namespace {

TimelineKinds* kinds(const nb::bytes& of_skeleton, const nb::bytes& communication) {
  auto* made = new TimelineKinds();
  const auto* skeletons = static_cast<const uint8_t*>(of_skeleton.data());
  made->of_skeleton.assign(skeletons, skeletons + of_skeleton.size());
  const auto* names = static_cast<const uint8_t*>(communication.data());
  made->communication.assign(names, names + communication.size());
  return made;
}

// Columns are event, start, duration and name.
void give(TimelineSweep& self, size_t run, std::vector<Ints> columns, int kind, const std::optional<Ints>& skeleton) {
  if (columns.size() != 4 || kind < 0 || kind > kNoBox) throw std::invalid_argument("no such columns or kind");
  same_length(columns[0], columns[1], columns[2], columns[3]);
  if (skeleton) same_length(columns[0], *skeleton);
  TimelineSweep::Rows rows{columns[0].data(), columns[1].data(), columns[2].data(), columns[3].data(), skeleton ? skeleton->data() : nullptr,
                           columns[0].shape(0), kind, nullptr};
  if (skeleton) columns.push_back(*skeleton);
  rows.owner = std::make_shared<std::vector<Ints>>(std::move(columns));
  self.give(run, std::move(rows));
}

int64_t advance(TimelineSweep& self, int64_t horizon) {
  int64_t hungry;
  {
    nb::gil_scoped_release release;
    hungry = self.advance(horizon);
  }
  self.take_used();  // columns are objects of Python's
  return hungry;
}

nb::object find(const TimelineFile& self, const Ints& names, int64_t start, int64_t event, bool back) {
  std::vector<bool> wanted;
  for (size_t i = 0; i < names.shape(0); ++i) {
    const int64_t name = names.data()[i];
    if (name < 0 || name > std::numeric_limits<int32_t>::max()) continue;
    if (static_cast<size_t>(name) >= wanted.size()) wanted.resize(static_cast<size_t>(name) + 1);
    wanted[static_cast<size_t>(name)] = true;
  }
  std::optional<TimelineFile::Found> found;
  {
    nb::gil_scoped_release release;
    found = self.find(wanted, start, event, back);
  }
  if (!found) return nb::none();
  return nb::make_tuple(found->track, found->box.event, found->box.start, found->box.dur, found->box.name, found->lane, found->box.kind);
}

nb::list tracks(const TimelineFile& self) {
  nb::list found;
  for (const auto& one : self.tracks()) found.append(nb::make_tuple(one.id, one.done, one.lanes, one.events, one.first, one.last));
  return found;
}

nb::bytes tile(const TimelineFile& self, int32_t track, int level, int64_t index) {
  std::string bytes;
  {
    nb::gil_scoped_release release;
    bytes = self.tile(track, level, index);
  }
  return nb::bytes(bytes.data(), bytes.size());
}

// A disk that is full is told as Python tells it.
void as_os_error(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::system_error& error) {
    errno = error.code().value();
    PyErr_SetFromErrno(PyExc_OSError);
  }
}

}  // namespace

void bind_timeline(nb::module_& m) {
  nb::register_exception_translator(as_os_error);
  nb::exception<DamagedTimeline>(m, "TimelineDamaged");
  nb::class_<TimelineKinds>(m, "TimelineKinds").def(nb::new_(&kinds), nb::arg("of_skeleton"), nb::arg("communication"));
  nb::class_<TimelineFile>(m, "TimelineFile")
      .def(nb::init<int, int64_t, int64_t>(), nb::arg("file"), nb::arg("pixel_ns"), nb::arg("tile_pixels"))
      .def("tracks", &tracks)
      .def("tile", &tile, nb::arg("track"), nb::arg("level"), nb::arg("index"))
      .def("find", &find, nb::arg("names"), nb::arg("start"), nb::arg("event"), nb::arg("back"))
      .def("index", [](const TimelineFile& self) {
        const std::string bytes = self.index();
        return nb::bytes(bytes.data(), bytes.size());
      })
      .def("load", [](TimelineFile& self, const nb::bytes& index) { self.load(index.c_str(), index.size()); }, nb::arg("index"))
      .def_prop_ro("size", &TimelineFile::size);
  nb::class_<LaneMergers>(m, "LaneMergers")
      .def(nb::init<TimelineFile&, size_t, size_t>(), nb::arg("file"), nb::arg("events"), nb::arg("threads") = 0, nb::keep_alive<1, 2>())
      .def("finish", &LaneMergers::finish, nb::call_guard<nb::gil_scoped_release>());
  nb::class_<TimelineSweep>(m, "TimelineSweep")
      .def(nb::init<LaneMergers&, const TimelineKinds&, int32_t>(), nb::arg("mergers"), nb::arg("kinds"), nb::arg("track"), nb::keep_alive<1, 2>(),
           nb::keep_alive<1, 3>())
      .def("add_run", &TimelineSweep::add_run)
      .def("give", &give, nb::arg("run"), nb::arg("columns"), nb::arg("kind"), nb::arg("skeleton").none())
      .def("end_run", &TimelineSweep::end_run, nb::arg("run"))
      .def("advance", &advance, nb::arg("horizon"))
      .def("finish", &TimelineSweep::finish, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace stepscope
