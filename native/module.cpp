// The Python face of the native code: a few classes, buffers in and out, the GIL released while they work.
#include <nanobind/nanobind.h>

#include "bindings.hpp"

NB_MODULE(core, m) {
  m.doc() = "Reading and sweeping of traces; no policy and no names of torch operators live here.";
  stepscope::bind_packed(m);
  stepscope::bind_plain_rows(m);
  stepscope::bind_priority(m);
  stepscope::bind_call_tree(m);
  stepscope::bind_coupled(m);
  stepscope::bind_elements(m);
  stepscope::bind_exclusive(m);
  stepscope::bind_idle(m);
  stepscope::bind_path(m);
  stepscope::bind_pickle(m);
  stepscope::bind_reader(m);
  stepscope::bind_pftrace(m);
  stepscope::bind_simulation(m);
  stepscope::bind_sqlite(m);
  stepscope::bind_stacks(m);
  stepscope::bind_stretches(m);
  stepscope::bind_sweeps(m);
  stepscope::bind_timeline(m);
  stepscope::bind_writeback(m);
  stepscope::bind_xplane(m);
}
