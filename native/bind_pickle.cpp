#include <nanobind/stl/filesystem.h>

#include <string_view>

#include "bindings.hpp"
#include "numbers.hpp"
#include "pickle.hpp"
#include "snapshot.hpp"

namespace stepscope {

namespace {

// A plain value as Python has it, within bounds: what is nested deeper, or beyond so many values, is None.
class AsPython {
 public:
  AsPython(size_t most, size_t deepest) : left_(most), deepest_(deepest) {}

  nb::object of(const PlainValue& value, size_t depth = 0) {
    if (left_ == 0 || depth > deepest_) {
      lost = true;
      return nb::none();
    }
    --left_;
    switch (value.kind()) {
      case Plain::none: return nb::none();
      case Plain::boolean: return nb::bool_(value.whole() != 0);
      case Plain::integer: return nb::int_(value.whole());
      case Plain::real: return nb::float_(value.number());
      default: return of_object(*value.object(), depth);
    }
  }

  bool lost = false;

 private:
  nb::object of_object(const PlainObject& object, size_t depth) {
    switch (object.kind) {
      case Plain::text: return text(object.text);
      case Plain::bytes: return nb::bytes(object.text.data(), object.text.size());
      case Plain::big: {
        const nb::object whole = nb::borrow(reinterpret_cast<PyObject*>(&PyLong_Type)).attr("from_bytes");
        return whole(nb::bytes(object.text.data(), object.text.size()), "little", nb::arg("signed") = true);
      }
      case Plain::dict: {
        nb::dict made;
        for (size_t i = 0; i + 1 < object.items.size(); i += 2) {
          const nb::object key = of(object.items[i], depth + 1);
          if (PyObject_SetItem(made.ptr(), key.ptr(), of(object.items[i + 1], depth + 1).ptr()) != 0) {
            PyErr_Clear();  // a list as key
            lost = true;
          }
        }
        return made;
      }
      default: break;
    }
    nb::list made;
    for (const PlainValue& item : object.items) made.append(of(item, depth + 1));
    if (object.kind == Plain::tuple) return nb::tuple(made);
    if (object.kind == Plain::list) return made;
    PyObject* set = PySet_New(made.ptr());
    if (!set) PyErr_Clear();
    return set ? nb::steal(set) : nb::none();
  }

  static nb::object text(const std::string& from) {
    PyObject* made = PyUnicode_DecodeUTF8(from.data(), static_cast<Py_ssize_t>(from.size()), "surrogatepass");
    if (!made) {
      PyErr_Clear();
      made = PyUnicode_DecodeUTF8(from.data(), static_cast<Py_ssize_t>(from.size()), "replace");
    }
    return nb::steal(made);
  }

  size_t left_, deepest_;
};

nb::tuple whole_column(Longs& column) {
  std::vector<uint8_t> bits = validity(column, kNull);
  return to_column(std::exchange(column, {}), std::move(bits));
}

nb::list as_bytes(std::vector<std::string>& texts) {
  nb::list made;
  for (const std::string& one : texts) made.append(nb::bytes(one.data(), one.size()));
  texts.clear();
  return made;
}

nb::tuple text_column(TextColumn& column) {
  nb::object numbers = to_buffer(std::exchange(column.numbers, {}));
  nb::list texts = as_bytes(column.texts);
  column.clear();
  return nb::make_tuple(texts, numbers);
}

nb::dict take_events(SnapshotReader& self) {
  EventRows& rows = self.events;
  nb::dict made;
  made["device"] = whole_column(rows.device);
  made["nth"] = whole_column(rows.nth);
  made["address"] = whole_column(rows.address);
  made["bytes"] = whole_column(rows.bytes);
  made["stream"] = whole_column(rows.stream);
  made["time_us"] = whole_column(rows.time_us);
  made["stack"] = whole_column(rows.stack);
  made["free_bytes"] = whole_column(rows.free_bytes);
  made["action"] = text_column(rows.action);
  made["compile_context"] = text_column(rows.compile_context);
  made["user_metadata"] = text_column(rows.user_metadata);
  return made;
}

nb::dict take_segments(SnapshotReader& self) {
  SegmentRows& rows = self.segments;
  nb::dict made;
  made["segment"] = whole_column(rows.segment);
  made["device"] = whole_column(rows.device);
  made["address"] = whole_column(rows.address);
  made["bytes"] = whole_column(rows.bytes);
  made["allocated_bytes"] = whole_column(rows.allocated);
  made["active_bytes"] = whole_column(rows.active);
  made["requested_bytes"] = whole_column(rows.requested);
  made["stream"] = whole_column(rows.stream);
  made["stack"] = whole_column(rows.stack);
  made["expandable"] = whole_column(rows.expandable);
  made["kind"] = text_column(rows.kind);
  made["pool"] = text_column(rows.pool);
  return made;
}

nb::dict take_blocks(SnapshotReader& self) {
  BlockRows& rows = self.blocks;
  nb::dict made;
  made["segment"] = whole_column(rows.segment);
  made["address"] = whole_column(rows.address);
  made["bytes"] = whole_column(rows.bytes);
  made["requested_bytes"] = whole_column(rows.requested);
  made["stack"] = whole_column(rows.stack);
  made["state"] = text_column(rows.state);
  return made;
}

nb::dict take_annotations(SnapshotReader& self) {
  AnnotationRows& rows = self.annotations;
  nb::dict made;
  made["device"] = whole_column(rows.device);
  made["time_us"] = whole_column(rows.time_us);
  made["name"] = text_column(rows.name);
  made["stage"] = text_column(rows.stage);
  return made;
}

nb::dict take_stacks(SnapshotReader& self) {
  Stacks& rows = self.stacks;
  nb::dict made;
  made["stack"] = whole_column(rows.stack);
  made["depth"] = whole_column(rows.depth);
  made["frame"] = whole_column(rows.frame);
  return made;
}

nb::dict take_frames(SnapshotReader& self) {
  Stacks& rows = self.stacks;
  nb::dict made;
  made["line"] = whole_column(rows.line);
  made["file"] = as_bytes(rows.file);
  made["function"] = as_bytes(rows.function);
  return made;
}

nb::tuple rest(SnapshotReader& self, size_t most) {
  AsPython made(most, 40);
  nb::object plain = made.of(self.rest());
  return nb::make_tuple(plain, made.lost);
}

// For tests: the value of a whole pickle, and why it was cut.
nb::tuple plain_pickle(nb::bytes content) {
  PickleBytes bytes(std::string(content.c_str(), content.size()));
  PickleScan scan = scan_pickle(bytes);
  PickleMachine machine(bytes, scan);
  while (machine.run(1 << 16)) {
  }
  return nb::make_tuple(AsPython(1 << 22, 500).of(machine.result()), machine.cut());
}

}  // namespace

void bind_pickle(nb::module_& m) {
  nb::exception<PickleRefused>(m, "PickleRefused");
  m.def("plain_pickle", &plain_pickle, nb::arg("content"));
  nb::class_<SnapshotReader>(m, "SnapshotReader")
      .def(nb::init<const std::filesystem::path&>(), nb::arg("file"))
      .def("scan", &SnapshotReader::scan, nb::call_guard<nb::gil_scoped_release>())
      .def("read", &SnapshotReader::read, nb::call_guard<nb::gil_scoped_release>())
      .def("take_events", &take_events)
      .def("take_segments", &take_segments)
      .def("take_blocks", &take_blocks)
      .def("take_annotations", &take_annotations)
      .def("take_stacks", &take_stacks)
      .def("take_frames", &take_frames)
      .def("rest", &rest, nb::arg("most"))
      .def_prop_ro("at", &SnapshotReader::at)
      .def_prop_ro("size", &SnapshotReader::size)
      .def_prop_ro("cut", &SnapshotReader::cut)
      .def_ro("odd", &SnapshotReader::odd)
      .def_ro("saw_segments", &SnapshotReader::saw_segments)
      .def_ro("saw_traces", &SnapshotReader::saw_traces);
}

}  // namespace stepscope
