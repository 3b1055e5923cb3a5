// Mutates real traces and feeds them to the reader: both of its paths must say the same, in pieces of any size, and
// the account of it must hold. Also draws intervals for the sweep of a thread. A plain program: run it with sanitizers.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "../reader.hpp"
#include "../sweep.hpp"
#include "tries.hpp"

namespace stepscope {

namespace {

int64_t known_hits = 0;  // over all tries: the path that is to be tested was taken

// ---- what a reader says

struct Row {
  int64_t event, start, dur;
  int32_t thread, name, skeleton, table;
  std::vector<int64_t> values;
  auto operator<=>(const Row&) const = default;
};

struct Said {
  std::vector<Row> rows;
  std::vector<std::string> names, skeletons;
  std::vector<std::pair<std::string, std::string>> threads, metadata;
  std::vector<std::tuple<std::string, int64_t, int64_t, std::vector<int64_t>>> damage;
  std::vector<int64_t> skeleton_events;
  std::string refusal;
  int64_t events = 0;
  bool operator==(const Said&) const = default;
};

ReaderSpec drawn_spec(bool templates, size_t dictionary_bytes) {
  ReaderSpec spec;
  spec.tables = {
      {"frames", {{"Python id", true, false}, {"Python parent id", true, false}, {"Ev Idx", true, false}}},
      {"ops", {{"External id", true, false}, {"Sequence number", true, false}, {"Ev Idx", true, false}}},
      {"work", {{"correlation", true, false}, {"stream", true, false}, {"bytes", true, false}, {"memory bandwidth (GB/s)", true, true}}},
      {"flows", {{"id", false, false}}},
      {"others", {{"External id", true, false}}},
  };
  spec.by_kind = {{"X python_function", 0}, {"X cpu_op", 1}, {"X kernel", 2}, {"X gpu_memcpy", 2}, {"X gpu_memset", 2}};
  spec.by_phase = {{"s", 3}, {"f", 3}};
  spec.metadata_keys = {"schemaVersion", "deviceProperties", "distributedInfo", "baseTimeNanoseconds", "traceName"};
  spec.batch_rows = 64;
  spec.dictionary_bytes = dictionary_bytes;
  spec.templates = templates;
  spec.check_every = 7;
  return spec;
}

void take(Reader& reader, Said& said, bool last) {
  for (auto& batch : reader.take_batches()) {
    batch->trim();
    batch->sort();
    const auto bounds = batch->thread_bounds();
    check(bounds.empty() || bounds.back() == static_cast<int64_t>(batch->rows()), "the runs of a batch do not fill it");
    for (size_t i = 0; i < batch->rows(); ++i) {
      Row row{batch->event[i], batch->start[i], batch->dur[i], batch->thread[i], batch->name[i], batch->skeleton[i], batch->table, {}};
      for (const auto& column : batch->values) row.values.push_back(column[i]);
      check(row.dur == kNull || row.dur >= 0, "a negative duration");
      said.rows.push_back(std::move(row));
    }
  }
  if (!last && !reader.dictionary_full()) return;
  const Dictionary d = reader.take_dictionary(last);
  const auto append = [](std::vector<std::string>& to, const DrainedTexts& texts) {
    for (size_t i = 0; i < texts.size(); ++i) to.emplace_back(texts.bytes.begin() + texts.offsets[i], texts.bytes.begin() + texts.offsets[i + 1]);
  };
  check(d.names.size() == 0 || static_cast<size_t>(d.first_name) == said.names.size(), "names are not numbered in order");
  check(static_cast<size_t>(d.first_skeleton) == said.skeletons.size(), "skeletons are not numbered in order");
  append(said.names, d.names);
  append(said.skeletons, d.skeletons);
  said.skeleton_events.insert(said.skeleton_events.end(), d.events.begin(), d.events.end());
}

void check_account(const Reader& reader, const Said& said, const std::string& text) {
  const auto size = static_cast<int64_t>(text.size());
  check(reader.bytes == size, "not all bytes were counted");
  check(static_cast<int64_t>(said.rows.size()) == said.events, "rows and events differ");
  int64_t counted = 0, lost = 0;
  for (const int64_t n : said.skeleton_events) counted += n;
  check(counted == said.events, "the events of the skeletons are not all events");
  for (size_t i = 0; i < said.rows.size(); ++i) {
    const Row& row = said.rows[i];
    check(row.event == static_cast<int64_t>(i), "events are not numbered in order");
    check(row.skeleton >= 0 && static_cast<size_t>(row.skeleton) < said.skeletons.size(), "a skeleton that is not there");
    check(row.name < static_cast<int32_t>(said.names.size()), "a name that is not there");
    check(row.thread >= 0 && static_cast<size_t>(row.thread) < said.threads.size(), "a thread that is not there");
  }
  for (const Damage& d : reader.damage) {
    check(d.count >= static_cast<int64_t>(d.offsets.size()) && d.bytes >= 0, "a damage counted wrongly");
    for (const int64_t at : d.offsets) check(at >= 0 && at <= size, "a damage outside the file");
    lost += d.bytes;
  }
  check(lost <= size, "more was lost than there was");
  check(reader.template_mismatches == 0, "the two paths disagreed");
}

// Skeletons and threads must be valid JSON, for others will parse them.
void check_json(const std::string& text) {
  const std::string padded = text + " ";
  Cursor c{padded.data(), padded.data() + padded.size()};
  std::string_view raw;
  check(scan_value(c, raw) == Scan::ok && raw.size() == text.size(), "a text that is not JSON");
  unsigned repairs = 0;
  check(normalise(text, false, repairs) == text, "a text that was not put right");
  check((repairs & ~static_cast<unsigned>(kBareWord)) == 0, "a text that still needs repair");
}

// Reads from exactly sized heap blocks, so that a read past a piece is seen.
Said read(const std::string& text, size_t piece, bool templates, size_t dictionary_bytes) {
  Reader reader(drawn_spec(templates, dictionary_bytes));
  Said said;
  for (size_t at = 0; at < text.size(); at += piece) {
    const std::vector<char> block(text.begin() + static_cast<long>(at), text.begin() + static_cast<long>(std::min(text.size(), at + piece)));
    reader.feed(block.data(), block.size());
    take(reader, said, false);
  }
  reader.finish(false);
  take(reader, said, true);
  std::sort(said.rows.begin(), said.rows.end());
  said.threads = reader.threads, said.metadata = reader.metadata;
  said.refusal = reader.refusal, said.events = reader.events;
  for (const Damage& d : reader.damage) said.damage.emplace_back(d.reason, d.count, d.bytes, d.offsets);
  check_account(reader, said, text);
  known_hits += reader.known_hits;
  return said;
}

// With drains at different places texts get other numbers; what they say must be the same.
void check_drained(const Said& all, const Said& drained) {
  check(all.rows.size() == drained.rows.size() && all.damage == drained.damage, "draining changed the events");
  for (size_t i = 0; i < all.rows.size(); ++i) {
    Row a = all.rows[i], b = drained.rows[i];
    check(all.skeletons[static_cast<size_t>(a.skeleton)] == drained.skeletons[static_cast<size_t>(b.skeleton)], "draining changed a skeleton");
    const auto name = [](const Said& s, int32_t n) { return n < 0 ? std::string() : s.names[static_cast<size_t>(n)]; };
    check(name(all, a.name) == name(drained, b.name) && (a.name < 0) == (b.name < 0), "draining changed a name");
    a.skeleton = b.skeleton, a.name = b.name;
    check(a == b, "draining changed a row");
  }
}

// ---- mutations

// A stretch of whole lines or bytes with a header and an end, small enough for many tries.
std::string excerpt(const std::string& sample, Dice& dice) {
  const size_t list = sample.find("\"traceEvents\"");
  const size_t head = list == std::string::npos ? 0 : std::min(sample.find('[', list) + 1, sample.size());
  std::string text = sample.substr(0, std::min<size_t>(head, 3000)).substr(0);
  if (head > 3000) text = "{\"schemaVersion\": 1, \"traceEvents\": [";
  size_t from = head + draw(dice, sample.size() - head);
  const size_t brace = sample.find("{\n    \"ph\"", from);
  if (brace != std::string::npos) from = brace;
  // Twice or more, for what the reader knows again.
  const std::string stretch = sample.substr(from, 500 + draw(dice, 6000));
  for (size_t n = 1 + draw(dice, 4); n > 0; --n) {
    text += stretch.substr(0, stretch.rfind('}') + 1);
    if (n > 1) text += ',';
  }
  text += stretch.substr(stretch.rfind('}') + 1);
  if (draw(dice, 2)) text = text.substr(0, text.rfind('}') + 1) + "]";
  if (draw(dice, 2)) text += ", \"baseTimeNanoseconds\": 1234567890, \"traceName\": \"drawn\"}";
  return text;
}

const std::vector<std::string> kScraps = {
    "{", "}", "[", "]", "\"", ":", ",", "\\", "\\u", "\\ud83d\\ude00", "\\ud800", "\xff", "\xc3\xa9", "\x01", "null", "NaN", "-inf", "N/A", "1e999",
    "-0.0", "1.5e3", "0.0005", "99999999999999999999", "\"args\":{", "{\"ph\":\"X\"", ",{\"ph\":\"X\",\"name\":\"a\",\"ts\":1}", "\"baseTimeNanoseconds\":5",
    "\"traceEvents\":[", "]}", "{}", "[[[[", "\"name\":\"a\"b\"", "-", "007", " ", "\n", "\"pid\":\"a\"b\",", "\"args\":{},", "\xef\xbb\xbf"};

const std::vector<std::string> kNumbers = {"", "-", "0", "00", ".", "1.", ".5", "1.2345", "e3", "-0", "12345678", "123456789012345678", "1234567890123456789",
                                           "99999.999", "9999999999999.999", "100000.001", "0.0001", "1:", "1/", "3.14a", "5\xb0", "1.\xb2\xb2\xb2"};

void mutate(std::string& text, Dice& dice, const std::vector<std::string>& samples) {
  if (text.empty()) text = "{";
  const size_t at = draw(dice, text.size());
  const size_t length = std::min(text.size() - at, 1 + draw(dice, draw(dice, 4) ? 12 : 600));
  switch (draw(dice, 11)) {
    case 0: text[at] = static_cast<char>(dice()); break;
    case 1: text[at] = static_cast<char>(text[at] ^ (1 << draw(dice, 8))); break;
    case 2: text.erase(at, length); break;
    case 3: text.insert(at, text.substr(at, length)); break;
    case 4: text.insert(at, kScraps[draw(dice, kScraps.size())]); break;
    case 5: text.replace(at, 1, kScraps[draw(dice, kScraps.size())]); break;
    case 6: text.resize(at); break;
    case 7: {
      const std::string& other = samples[draw(dice, samples.size())];
      text.insert(at, other.substr(draw(dice, other.size()), length));
      break;
    }
    case 8: {  // aim at a number
      const size_t digit = text.find_first_of("0123456789", at);
      if (digit != std::string::npos) text.replace(digit, draw(dice, 3), kNumbers[draw(dice, kNumbers.size())]);
      break;
    }
    default: {  // aim at punctuation
      const size_t mark = text.find_first_of("{}[]\",:\\", at);
      if (mark != std::string::npos) text[mark] = "{}[]\",:\\ 0x"[draw(dice, 11)];
    }
  }
}

void check_reading(const std::string& text, Dice& dice) {
  failed_input = text;
  constexpr size_t kAll = 96 << 20;
  const Said slow = read(text, text.size() + 1, false, kAll);
  check(read(text, text.size() + 1, true, kAll) == slow, "templates changed what was read");
  const size_t piece = 1 + draw(dice, draw(dice, 2) ? 40 : 3000);
  check(read(text, piece, true, kAll) == slow, "the size of the pieces changed what was read");
  check_drained(slow, read(text, piece, draw(dice, 2), draw(dice, 3000)));
  for (const std::string& skeleton : slow.skeletons) check_json(skeleton);
  for (const auto& [key, value] : slow.metadata) check_json(value);
  for (const auto& [pid, tid] : slow.threads) {
    if (!pid.empty()) check_json(pid);
    if (!tid.empty()) check_json(tid);
  }
}

[[maybe_unused]] void fuzz_reader(Dice& dice, const std::vector<std::string>& samples) {
  std::string text = excerpt(samples[draw(dice, samples.size())], dice);
  for (size_t n = draw(dice, 5); n > 0; --n) mutate(text, dice, samples);
  check_reading(text, dice);
}

// ---- sweeps

struct Span {
  int64_t start, dur, event;
};

Span drawn_span(Dice& dice, int64_t event) {
  constexpr int64_t kHuge = int64_t{1} << 60;
  const auto time = static_cast<int64_t>(draw(dice, 60)) - 20;
  switch (draw(dice, 12)) {
    case 0: return {time, 0, event};
    case 1: return {time, kHuge, event};
    case 2: return {time - kHuge, kHuge + 30, event};
    case 3: return {time, kNull, event};
    default: return {time, static_cast<int64_t>(draw(dice, 30)), event};
  }
}

__int128 union_of(std::vector<Span> spans) {
  __int128 total = 0, until = kNull;
  for (const Span& s : spans) {  // sorted by start
    if (s.dur == kNull) continue;
    const __int128 end = static_cast<__int128>(s.start) + s.dur;
    if (end > until) total += end - std::max<__int128>(s.start, until), until = end;
  }
  return total;
}

GivenColumn owned(std::vector<int64_t>&& column) {
  const auto kept = std::make_shared<const std::vector<int64_t>>(std::move(column));
  return {kept->data(), kept->size(), kept};
}

[[maybe_unused]] void fuzz_sweep(Dice& dice) {
  ThreadSweep sweep({1});
  __int128 expected = 0;
  int64_t event = 0;
  for (size_t thread = 0; thread < 1 + draw(dice, 3); ++thread) {
    std::vector<std::vector<Span>> runs(1 + draw(dice, 3));
    std::vector<Span> all;
    for (auto& run : runs) {
      for (size_t n = draw(dice, 12); n > 0; --n) run.push_back(drawn_span(dice, event++));
      std::sort(run.begin(), run.end(), [](const Span& a, const Span& b) {
        return std::tuple(a.start, b.dur, a.event) < std::tuple(b.start, a.dur, b.event);
      });
      all.insert(all.end(), run.begin(), run.end());
    }
    std::sort(all.begin(), all.end(), [](const Span& a, const Span& b) { return a.start < b.start; });
    expected += union_of(all);
    std::vector<size_t> given(runs.size());
    for (size_t i = 0; i < runs.size(); ++i) sweep.add_run({0, true, draw(dice, 2) == 0, draw(dice, 2) == 0, -1, 0});
    for (int64_t hungry; (hungry = sweep.advance(std::numeric_limits<int64_t>::max())) >= 0;) {
      const auto run = static_cast<size_t>(hungry);
      std::vector<int64_t> events, starts, durs, groups;
      for (size_t n = 1 + draw(dice, 4); n > 0 && given[run] < runs[run].size(); --n, ++given[run]) {
        const Span& s = runs[run][given[run]];
        events.push_back(s.event), starts.push_back(s.start), durs.push_back(s.dur), groups.push_back(s.event % 3);
      }
      if (events.empty()) sweep.end_run(run);
      else sweep.give(run, owned(std::move(events)), owned(std::move(starts)), owned(std::move(durs)), {owned(std::move(groups))});
    }
    sweep.finish_thread();
  }
  const Nested out = sweep.take(0);
  check(static_cast<int64_t>(out.event.size()) == event, "the sweep lost or invented events");
  __int128 self = 0;
  for (size_t i = 0; i < out.self.size(); ++i) {
    check(out.self[i] >= 0, "a negative self time");
    check(out.uncovered[i] >= 0 && out.uncovered[i] <= out.self[i], "uncovered time beyond self time");
    check(out.fresh[i] >= 0, "a negative new time");
    self += out.self[i];
  }
  check(self == expected, "self times do not sum to the union");
}

[[maybe_unused]] std::vector<std::string> load(int count, char** paths) {
  std::vector<std::string> samples = {
      "[{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"a\\\"b\", \"pid\": 0, \"tid\": 7, \"ts\": 1.5, \"dur\": 2, \"args\": {\"stream\": 7}},"
      " {\"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"b\", \"pid\": 1, \"tid\": \"x\", \"ts\": 1e3, \"dur\": -1, \"args\": {\"External id\": null}}]"};
  for (std::string& sample : read_samples(count, paths)) samples.push_back(std::move(sample));
  return samples;
}

}  // namespace

}  // namespace stepscope

#ifdef STEPSCOPE_GUIDED

// For libFuzzer, which keeps what reaches new code and goes on from there.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  stepscope::Dice dice(size);
  stepscope::check_reading(std::string(reinterpret_cast<const char*>(data), size), dice);
  return 0;
}

#else

// fuzz_reader SEED SECONDS ITERATIONS [TRACE ...]: whichever of the two limits comes first; 0 is none.
int main(int argc, char** argv) {
  using namespace stepscope;
  if (argc < 4) {
    std::fprintf(stderr, "usage: fuzz_reader SEED SECONDS ITERATIONS [TRACE.json ...]\n");
    return 2;
  }
  const auto samples = load(argc - 4, argv + 4);
  const long done = run_tries(argv + 1, "traces and sweeps", [&](Dice& dice) {
    fuzz_reader(dice, samples);
    fuzz_sweep(dice);
  });
  if (done >= 100) check(known_hits > done, "no event was known again");
  return 0;
}

#endif
