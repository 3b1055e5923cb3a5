// Profiles of XLA (XSpace of tensorflow/profiler): planes of lines of events. Texts of a plane come after the lines that refer to
// them, so a plane is gone through twice; only the piece at hand is in memory.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "reader.hpp"
#include "wire.hpp"

namespace stepscope {

// Bytes of a file by their place.
class FileBytes {
 public:
  explicit FileBytes(const std::string& path);
  int64_t size() const { return size_; }
  // So many bytes from there on, fewer at the end of the file; they hold until the next call.
  std::string_view at(int64_t place, size_t bytes);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file_;
  int64_t size_ = 0, from_ = 0;
  std::string buffer_;
};

// A message that lies in a file: its fields one after the other, those with a length as places.
struct FileWire {
  FileBytes& file;
  int64_t place, end;
  uint32_t field = 0;
  uint64_t number = 0;
  int64_t from = 0, until = 0;  // of a field with a length
  bool has_bytes = false, bad = false;

  bool next();
  std::string_view bytes(size_t most) { return file.at(from, static_cast<size_t>(std::min<int64_t>(until - from, static_cast<int64_t>(most)))); }
};

struct XValue {
  uint64_t key = 0;
  enum { none, real, whole, natural, text, reference } kind = none;
  uint64_t number = 0;
  std::string_view bytes;
};

class XplaneReader {
 public:
  explicit XplaneReader(Reader& events) : events_(events) {}
  XplaneReader(const XplaneReader&) = delete;
  XplaneReader& operator=(const XplaneReader&) = delete;

  // `taken` is called now and then, for the events that were read to be taken away.
  void read(const std::string& path, std::function<void()> taken);

  struct Plane {
    std::string name;
    std::vector<std::pair<std::string, std::string>> stats;  // name, and the value as JSON
  };
  std::vector<Plane> planes;
  std::vector<Damage> damage;
  std::string host;
  int64_t base_ns = 0, bytes = 0, derived = 0, asynchronous = 0, steps = 0;

 private:
  struct Line {
    std::string name, thread;
    int64_t id = 0, time = 0;
    int what = 0;
  };
  void read_plane(FileWire plane);
  void read_metadata(FileWire plane);
  void read_named(std::string_view entry, std::unordered_map<uint64_t, std::string>& to);
  void read_line(FileWire line);
  void read_event(std::string_view event, const Line& line);
  void write_device(const Line& line, std::string_view name, int64_t start, int64_t dur);
  void write_host(const Line& line, std::string_view name, int64_t start, int64_t dur);
  void put(std::string_view category, std::string_view name, const Line& line, int64_t start, int64_t dur, std::string_view args);
  void append_details(std::string& args, std::string_view details, int64_t& bytes, std::string& kinds);
  void append_value(std::string& to, const XValue& value) const;
  std::string_view text_of(const XValue& value) const;
  const XValue* stat(std::string_view name) const;
  void note(const char* reason, int64_t lost, int64_t offset);
  void flush();

  Reader& events_;
  std::string out_, plane_;
  int64_t device_ = 0;
  bool on_device_ = false, tpu_ = false;
  std::unordered_map<uint64_t, std::string> names_, stat_names_;
  std::unordered_map<std::string, uint64_t> stat_numbers_;
  size_t texts_ = 0;
  std::vector<XValue> values_;
  int64_t written_ = 0;
  size_t fed_ = 0;
  std::function<void()> taken_;
};

}  // namespace stepscope
