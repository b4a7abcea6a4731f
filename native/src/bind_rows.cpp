// Rows of storage copied onto other rows: keys and values that follow an accepted path, or begin another request's text.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "bind.hpp"
#include "require.hpp"
#include "tensor.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace foredraft {

namespace {

using Slots = std::vector<std::int64_t>;

void require_slots(const Slots &slots, std::size_t count) {
    for (std::int64_t slot : slots) require(slot >= 0 && std::size_t(slot) < count, "there is no slot ", slot);
}

bool is_run(const Slots &slots) {
    for (std::size_t i = 1; i < slots.size(); i++)
        if (slots[i] != slots[0] + std::int64_t(i)) return false;
    return true;
}

// The copied rows of one part are all read before the first is written: source and target may overlap.
void move_part(char *part, std::size_t bytes, const Slots &source, const Slots &target, std::vector<char> &rows) {
    rows.resize(bytes * source.size());
    for (std::size_t i = 0; i < source.size(); i++) std::memcpy(&rows[i * bytes], part + source[i] * bytes, bytes);
    for (std::size_t i = 0; i < target.size(); i++) std::memcpy(part + target[i] * bytes, &rows[i * bytes], bytes);
}

void move_rows(const std::vector<nb::handle> &stacks, const Slots &source, const Slots &target) {
    require(source.size() == target.size(), "every row needs a place to go to");
    std::vector<Tensor> tensors(stacks.size());
    for (std::size_t i = 0; i < stacks.size(); i++) {
        const bool read = tensors[i].read(stacks[i], true);
        const bool whole = read && tensors[i].ndim() > 2 && (tensors[i].contiguous() || !tensors[i].size());
        require(whole, "storage is [parts, slots, ...], contiguous");
        require_slots(source, tensors[i].shape(1));
        require_slots(target, tensors[i].shape(1));
    }
    if (source.empty()) return;
    nb::gil_scoped_release release;
    const bool runs = is_run(source) && is_run(target);
    std::vector<char> rows;
    for (const Tensor &stack : tensors) {
        if (!stack.size()) continue;  // values of no width
        const std::size_t slots = stack.shape(1);
        const std::size_t bytes = stack.size() / stack.shape(0) / slots * (stack.dtype().bits / 8);
        for (std::size_t number = 0; number < stack.shape(0); number++) {
            char *part = stack.data() + number * slots * bytes;
            if (runs) std::memmove(part + target[0] * bytes, part + source[0] * bytes, bytes * source.size());
            else move_part(part, bytes, source, target, rows);
        }
    }
}

}  // namespace

void bind_rows(nb::module_ &m) {
    m.def("move_rows", move_rows, "stacks"_a, "source"_a, "target"_a,
          "Copy the rows of slots `source` of every part onto slots `target`; stacks are [parts, slots, ...].");
}

}  // namespace foredraft
