// What a machine offers: its sets of kernels, its threads, its memory.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <string>
#include <vector>

#include "bandwidth.hpp"
#include "bind.hpp"
#include "kernels.hpp"
#include "require.hpp"
#include "threads.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace foredraft {

namespace {

const int MOST_THREADS = 1024;
const std::size_t LEAST_BYTES = 65536;

std::vector<std::string> kernel_names() {
    std::vector<std::string> names;
    for (auto set = kernel_sets(); *set; set++) names.push_back((*set)->name);
    return names;
}

double bandwidth(Threads &threads, std::size_t bytes) {
    require(bytes >= LEAST_BYTES, "bytes must be at least ", LEAST_BYTES);
    const nb::gil_scoped_release free_lock;
    return read_bandwidth(threads, bytes);
}

void make_threads(Threads *self, int count) {
    require(count >= 1 && count <= MOST_THREADS, "count is ", count, "; it must be from 1 to ", MOST_THREADS);
    new (self) Threads(count);
}

}  // namespace

void bind_machine(nb::module_ &m) {
    m.def("kernel_names", &kernel_names, "Sets of kernels that run on this machine, best first.");
    m.def("read_bandwidth", &bandwidth, "threads"_a, "bytes"_a,
          "Bytes a second that the threads read from memory of that size, the median of nine passes.");
    nb::class_<Threads>(m, "Threads", "A thread pool; programs that share it run one after another.")
        .def("__init__", &make_threads, "count"_a)
        .def_prop_ro("count", &Threads::count);
}

}  // namespace foredraft
