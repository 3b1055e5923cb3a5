// Mutated protobuf files against their readers: nothing may crash, and the size of the pieces may not change what is read.
#include <fstream>
#include <string>
#include <vector>

#include "../pftrace.hpp"
#include "../xplane.hpp"
#include "tries.hpp"

namespace stepscope {

namespace {

ReaderSpec spec() {
  ReaderSpec made;
  made.tables = {{"device_work", {{"correlation", true, false}, {"device", true, false}}}, {"others", {{"External id", true, false}}}};
  made.by_kind = {{"X kernel", 0}};
  return made;
}

// What was read: starts and durations of all rows, and the texts.
std::vector<std::string> read_packets(const std::string& raw, size_t piece, size_t memory) {
  Reader events(spec());
  PftraceSpec options;
  options.folder = ".";
  options.memory_bytes = memory;
  PftraceReader packets(events, options);
  // What is compressed is taken as if it were not.
  const auto unpack = [&] {
    const std::string packed = packets.take_packed();
    for (size_t from = 0; from < packed.size(); from += piece)
      if (!packets.feed_packed(packed.data() + from, std::min(piece, packed.size() - from))) break;
    packets.end_packed(true);
    return !packed.empty();
  };
  for (size_t at = 0; at < raw.size(); at += piece) {
    packets.feed(raw.data() + at, std::min(piece, raw.size() - at));
    while (unpack()) packets.feed(nullptr, 0);
  }
  while (packets.finish_some(false)) unpack();
  std::vector<std::string> said;
  for (const auto& batch : events.take_batches())
    for (size_t i = 0; i < batch->rows(); ++i) said.push_back(std::to_string(batch->start[i]) + " " + std::to_string(batch->dur[i]));
  Dictionary texts = events.take_dictionary(true);
  said.emplace_back(texts.names.bytes.begin(), texts.names.bytes.end());
  said.emplace_back(texts.skeletons.bytes.begin(), texts.skeletons.bytes.end());
  check(events.refusal.empty(), "the events were no JSON");
  for (const Damage& one : events.damage) check(one.reason.substr(0, 9) != "something" && one.reason.substr(0, 8) != "expected", "an event was no JSON");
  return said;
}

void mutate(std::string& text, Dice& dice, const std::vector<std::string>& samples) {
  if (text.empty()) text = "\n";
  const size_t at = draw(dice, text.size());
  const size_t length = std::min(text.size() - at, 1 + draw(dice, draw(dice, 4) ? 12 : 600));
  switch (draw(dice, 6)) {
    case 0: text[at] = static_cast<char>(dice()); break;
    case 1: text[at] = static_cast<char>(text[at] ^ (1 << draw(dice, 8))); break;
    case 2: text.erase(at, length); break;
    case 3: text.insert(at, text.substr(at, length)); break;
    case 4: text.resize(at); break;
    default: {
      const std::string& other = samples[draw(dice, samples.size())];
      text.insert(at, other.substr(draw(dice, other.size()), length));
    }
  }
}

void fuzz(Dice& dice, const std::vector<std::string>& samples) {
  const std::string& sample = samples[draw(dice, samples.size())];
  const size_t from = draw(dice, 3) ? 0 : draw(dice, sample.size());
  std::string text = sample.substr(from, 1 + draw(dice, 8000));
  for (size_t n = draw(dice, 5); n > 0; --n) mutate(text, dice, samples);
  failed_input = text;
  const auto whole = read_packets(text, text.size() + 1, 1 << 20);
  check(read_packets(text, 1 + draw(dice, draw(dice, 2) ? 40 : 3000), 1 << 20) == whole, "the size of the pieces changed what was read");
  if (draw(dice, 8) == 0) check(read_packets(text, 1000, 3000) == whole, "the memory changed what was read");
  std::ofstream("plane.pb", std::ios::binary) << text;
  Reader events(spec());
  XplaneReader(events).read("plane.pb", [] {});
  check(events.refusal.empty(), "the events were no JSON");
}

}  // namespace

}  // namespace stepscope

// fuzz_packets SEED SECONDS ITERATIONS FILE ...: whichever of the two limits comes first; 0 is none.
int main(int argc, char** argv) { return stepscope::fuzz_files(argc, argv, stepscope::fuzz); }
