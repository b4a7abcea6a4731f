// What Python sees, in parts; each is in the file of its name.
#pragma once
#include <nanobind/nanobind.h>

namespace foredraft {

void bind_machine(nanobind::module_ &m);
void bind_program(nanobind::module_ &m);
void bind_choice(nanobind::module_ &m);
void bind_suffix(nanobind::module_ &m);
void bind_rows(nanobind::module_ &m);

}  // namespace foredraft
