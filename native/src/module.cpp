#include "bind.hpp"

NB_MODULE(_native, m) {
    foredraft::bind_machine(m);
    foredraft::bind_program(m);
    foredraft::bind_choice(m);
    foredraft::bind_suffix(m);
}
