// Packets that are compressed inside a Perfetto trace: a packet holds many others, as zlib writes them. No inflater is linked
// here, so whoever feeds the trace unpacks them, piece by piece; what was inside is read in place of the packet.
#include "pftrace.hpp"

namespace stepscope {

namespace {

constexpr const char* kInside = "compressed packets that are damaged inside, read up to there";

}  // namespace

std::string PftraceReader::take_packed() {
  inside_.clear();
  inside_bad_ = false;
  return std::exchange(packed_, {});
}

// What nobody unpacked is lost.
void PftraceReader::leave_packed() {
  if (packed_.empty()) return;
  note("packets that are compressed inside the trace, not read", static_cast<int64_t>(packed_.size()), -1);
  packed_.clear();
}

bool PftraceReader::feed_packed(const char* bytes, size_t size) {
  if (inside_bad_) return false;
  inside_.append(bytes, size);
  const char* p = inside_.data();
  const char* end = p + inside_.size();
  while (p < end) {
    const char* q = p;
    uint64_t key, length;
    const bool begun = read_varint(q, end, key) && read_varint(q, end, length);
    if (!begun && end - p < 20) break;
    if (!begun || (key & 7) != 2 || key < 8 || key >= 8 * 64 || length > kMaxPacket) {
      note(kInside, 0, -1);
      inside_bad_ = true;
      p = end;
      break;
    }
    if (length > static_cast<uint64_t>(end - q)) break;
    unpacking_ = true;
    const std::string_view packet(q, static_cast<size_t>(length));
    if (key == 10 && !read_quickly(packet, end) && !read_packet(packet)) note("a damaged packet, skipped", static_cast<int64_t>(length), -1);
    unpacking_ = false;
    p = q + length;
  }
  inside_.erase(0, static_cast<size_t>(p - inside_.data()));
  return !inside_bad_;
}

// `whole` if it could be unpacked to its end: then something left over is damage of its own.
void PftraceReader::end_packed(bool whole) {
  if (whole && !inside_.empty()) note(kInside, static_cast<int64_t>(inside_.size()), -1);
  inside_.clear();
}

}  // namespace stepscope
