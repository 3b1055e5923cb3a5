// Mutated snapshots against the reader of pickles, with sanitizers: fuzz_pickle SEED SECONDS FILE…
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "../pickle.hpp"
#include "../snapshot.hpp"

namespace {

std::string mutated(const std::string& from, std::mt19937_64& chance) {
  std::string text = from;
  for (uint64_t times = chance() % 6 + 1; times-- && !text.empty();) {
    const size_t at = chance() % text.size();
    switch (chance() % 5) {
      case 0: text[at] = static_cast<char>(chance()); break;
      case 1: text.erase(at, chance() % 9); break;
      case 2: text.insert(at, text.substr(chance() % text.size(), chance() % 40)); break;
      case 3: text.resize(at); break;
      default: text[at] = "()]}.0129aehjqrstu\x85\x86\x87\x8a\x8c\x90\x91\x94"[chance() % 26];
    }
  }
  return text;
}

void read(const std::string& text, const char* place) {
  std::ofstream(place, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
  stepscope::SnapshotReader reader{std::filesystem::path(place)};
  try {
    reader.scan();
    while (reader.read()) {
    }
  } catch (const stepscope::PickleRefused&) {
  }
}

}  // namespace

int main(int count, char** words) {
  if (count < 4) return 2;
  std::mt19937_64 chance(std::strtoull(words[1], nullptr, 10));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(std::atoi(words[2]));
  std::vector<std::string> files;
  for (int i = 3; i < count; ++i) {
    std::ifstream file(words[i], std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  const std::string place = std::string(words[3]) + ".mutated";
  size_t tries = 0;
  for (; std::chrono::steady_clock::now() < end; ++tries) read(mutated(files[chance() % files.size()], chance), place.c_str());
  std::remove(place.c_str());
  std::printf("%zu tries\n", tries);
}
