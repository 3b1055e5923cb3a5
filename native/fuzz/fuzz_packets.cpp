// Mutated protobuf files against their readers: nothing may crash, and the size of the pieces may not change what is read.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "../pftrace.hpp"
#include "../xplane.hpp"

namespace stepscope {

namespace {

using Dice = std::mt19937_64;

size_t draw(Dice& dice, size_t below) { return below ? dice() % below : 0; }

ReaderSpec spec() {
  ReaderSpec made;
  made.tables = {{"device_work", {{"correlation", true, false}, {"device", true, false}}}, {"others", {{"External id", true, false}}}};
  made.by_kind = {{"X kernel", 0}};
  return made;
}

std::string failed_input;

void check(bool fine, const char* what) {
  if (fine) return;
  std::ofstream("failed_input", std::ios::binary) << failed_input;
  std::fprintf(stderr, "%s; the input is in failed_input\n", what);
  std::abort();
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
int main(int argc, char** argv) {
  using namespace stepscope;
  if (argc < 5) {
    std::fprintf(stderr, "usage: fuzz_packets SEED SECONDS ITERATIONS FILE ...\n");
    return 2;
  }
  const auto seed = std::strtoull(argv[1], nullptr, 10);
  const double seconds = std::strtod(argv[2], nullptr);
  const long iterations = std::strtol(argv[3], nullptr, 10);
  std::vector<std::string> samples;
  for (int i = 4; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    samples.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    if (samples.back().empty()) samples.pop_back();
  }
  const auto began = std::chrono::steady_clock::now();
  const auto spent = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(); };
  long done = 0;
  for (; (iterations == 0 || done < iterations) && (seconds <= 0 || spent() < seconds); ++done) {
    Dice dice(seed * 1000003 + static_cast<unsigned long>(done));
    fuzz(dice, samples);
  }
  std::printf("%ld files in %.1f s, seed %llu: nothing found\n", done, spent(), seed);
  return 0;
}
