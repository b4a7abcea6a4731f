// Refusing what does not fit: Python gets a ValueError.
#pragma once
#include <stdexcept>
#include <string>
#include <type_traits>

namespace foredraft {

template <class Part> std::string worded(const Part &part) {
    if constexpr (std::is_arithmetic_v<Part>) return std::to_string(part);
    else return part;
}

// The message is put together from strings and numbers only where it is needed.
template <class... Parts> void require(bool holds, const Parts &...parts) {
    if (!holds) throw std::invalid_argument((worded(parts) + ...));
}

}  // namespace foredraft
