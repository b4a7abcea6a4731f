#include "bind.hpp"

NB_MODULE(_native, m) {
    // A traceback that ends the process holds models to the last: no news to somebody who reads an error.
    nanobind::set_leak_warnings(false);
    m.attr("INTERFACE") = 8;  // one more with every change that foredraft's calls have to follow
    foredraft::bind_machine(m);
    foredraft::bind_program(m);
    foredraft::bind_choice(m);
    foredraft::bind_suffix(m);
    foredraft::bind_rows(m);
}
