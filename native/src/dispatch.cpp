#include <cstring>
#include <vector>

#include "kernels.hpp"

namespace foredraft {

const KernelSet *const *kernel_sets() {
    static const std::vector<const KernelSet *> sets = [] {
        std::vector<const KernelSet *> found;
        for (const KernelSet *set : {
#ifdef FOREDRAFT_AMX
                 &amx_kernels(),
#endif
#ifdef FOREDRAFT_AVX512BF16
                 &avx512_bf16_kernels,
#endif
#ifdef FOREDRAFT_AVX512VNNI
                 &avx512_vnni_kernels,
#endif
#ifdef FOREDRAFT_AVX512
                 &avx512_kernels,
#endif
#ifdef FOREDRAFT_AVX2VNNI
                 &avx2_vnni_kernels,
#endif
#ifdef FOREDRAFT_AVX2
                 &avx2_kernels,
#endif
                 &portable_kernels,
             })
            if (set->runs_here()) found.push_back(set);
        found.push_back(nullptr);
        return found;
    }();
    return sets.data();
}

const KernelSet *find_kernels(const char *name) {
    for (auto set = kernel_sets(); *set; set++)
        if (!std::strcmp((*set)->name, name)) return *set;
    return std::strcmp(amx_double_kernels().name, name) ? nullptr : &amx_double_kernels();
}

void pack_query(const bf16 *query, int lane, int size, bf16 *packed) {
    for (int i = 0; i < size; i += 2) std::memcpy(packed + (i / 2 * LANES + lane) * 2, query + i, 2 * sizeof(bf16));
}

void pack_query(const float *query, int lane, int size, float *packed) {
    for (int i = 0; i < size; i++) packed[i * LANES + lane] = query[i];
}

}  // namespace foredraft
